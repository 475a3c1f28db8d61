//! Many times, told in a few numbers.

use super::alternate::Measured;
use super::job::Job;
use super::protocol::{DecodeTimes, StepTimes};
use super::statistics::{best, median, median_ratio};
use hadal_model::ConfigError;
use serde::Serialize;

/// How a policy trains.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrainingReport {
    /// The policy, as it was asked for.
    pub kind: String,
    /// Median time of a step.
    pub step_ms_median: f64,
    /// Least time of a step.
    pub step_ms_best: f64,
    /// Tokens per second at the median.
    pub tokens_per_second: f64,
    /// Tokens per second at best.
    pub best_tokens_per_second: f64,
    /// The most memory of the process in MiB; null where the system does not say.
    pub peak_rss_mb: Option<f64>,
    /// The machine's matrix product, measured in the same process.
    pub gemm_gflops: f64,
    /// Share of it that the model's own FLOPs use at the median.
    pub mfu: f64,
    /// Median time to the loss.
    pub forward_ms: f64,
    /// Median time to the gradients.
    pub backward_ms: f64,
    /// Median time to the next model.
    pub optimizer_ms: f64,
    /// Median over the rounds of this step's time by that of the first policy.
    pub ratio: f64,
    /// Parameters of the model.
    pub parameters: u64,
    /// Sequences of a step.
    pub batch: usize,
    /// Tokens of a sequence.
    pub seq: usize,
    /// Threads.
    pub threads: usize,
    /// Steps that count.
    pub steps: usize,
}

impl TrainingReport {
    /// What was measured, next to the first policy's.
    pub fn of(
        kind: &str,
        job: &Job,
        measured: &Measured<StepTimes>,
        first: &Measured<StepTimes>,
    ) -> Result<Self, ConfigError> {
        let all = |get: fn(&StepTimes) -> f64| measured.times.iter().map(get);
        let step = |measured: &Measured<StepTimes>| -> Vec<f64> {
            measured.times.iter().map(|times| times.step_ms).collect()
        };
        let step_ms_median = median(all(|times| times.step_ms));
        let step_ms_best = best(all(|times| times.step_ms));
        let tokens_in = |ms: f64| 1e3 * job.tokens() as f64 / ms;
        let gemm_gflops = measured.gemm_gflops();
        Ok(Self {
            kind: kind.into(),
            step_ms_median,
            step_ms_best,
            tokens_per_second: tokens_in(step_ms_median),
            best_tokens_per_second: tokens_in(step_ms_best),
            peak_rss_mb: measured.closing.peak_rss_mb,
            gemm_gflops,
            // GFLOP/s times ms is a million FLOPs.
            mfu: job.flops()? / (step_ms_median * gemm_gflops * 1e6),
            forward_ms: median(all(|times| times.forward_ms)),
            backward_ms: median(all(|times| times.backward_ms)),
            optimizer_ms: median(all(|times| times.optimizer_ms)),
            ratio: median_ratio(&step(measured), &step(first)),
            parameters: measured.ready.parameters,
            batch: job.batch,
            seq: job.seq,
            threads: job.threads,
            steps: measured.times.len(),
        })
    }
}

/// How a policy writes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DecodeReport {
    /// The policy, as it was asked for.
    pub kind: String,
    /// Tokens of the longest prompt read per second.
    pub prefill_tokens_per_second: f64,
    /// Tokens written per second behind the longest prompt.
    pub decode_tokens_per_second: f64,
    /// Median time of a token behind the longest prompt.
    pub decode_ms_median: f64,
    /// The same behind prompts of every length.
    pub contexts: Vec<ContextReport>,
    /// The most memory of the process in MiB; null where the system does not say.
    pub peak_rss_mb: Option<f64>,
}

/// Median time of a token behind a context.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ContextReport {
    /// Tokens of the context.
    pub context: usize,
    /// Milliseconds.
    pub ms: f64,
}

impl DecodeReport {
    /// What was measured.
    pub fn of(kind: &str, job: &Job, measured: &Measured<DecodeTimes>) -> Self {
        let prefill = median(measured.times.iter().map(|times| times.prefill_ms));
        let lengths = measured.times.first().map_or(&[][..], |times| &times.contexts);
        let contexts: Vec<_> = lengths
            .iter()
            .enumerate()
            .map(|(i, length)| {
                let rounds = measured.times.iter().filter_map(|times| times.contexts.get(i));
                let ms = median(rounds.flat_map(|context| context.ms.iter().copied()));
                ContextReport { context: length.context, ms }
            })
            .collect();
        let decode_ms_median = contexts.last().map_or(f64::NAN, |context| context.ms);
        Self {
            kind: kind.into(),
            prefill_tokens_per_second: 1e3 * job.seq as f64 / prefill,
            decode_tokens_per_second: 1e3 / decode_ms_median,
            decode_ms_median,
            contexts,
            peak_rss_mb: measured.closing.peak_rss_mb,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::protocol::{Closing, ContextTimes, Ready};
    use crate::bench::testing::job;

    fn measured<T>(times: Vec<T>) -> Measured<T> {
        Measured {
            ready: Ready { parameters: 7, gemm_gflops: 10.0 },
            times,
            closing: Closing { peak_rss_mb: None, gemm_gflops: 20.0 },
        }
    }

    fn steps(ms: [f64; 3]) -> Measured<StepTimes> {
        let times = |step_ms| StepTimes {
            step_ms,
            forward_ms: step_ms / 4.0,
            backward_ms: step_ms / 2.0,
            optimizer_ms: step_ms / 4.0,
            loss: 1.0,
        };
        measured(ms.map(times).to_vec())
    }

    #[test]
    fn a_report_is_made_of_medians() {
        let job = job("prenorm");
        let (this, first) = (steps([4.0, 8.0, 40.0]), steps([2.0, 4.0, 30.0]));
        let report = TrainingReport::of("prenorm", &job, &this, &first).unwrap();
        assert_eq!((report.step_ms_median, report.step_ms_best), (8.0, 4.0));
        assert_eq!(report.tokens_per_second, job.tokens() as f64 / 8e-3);
        assert_eq!(report.best_tokens_per_second, job.tokens() as f64 / 4e-3);
        assert_eq!((report.forward_ms, report.backward_ms, report.optimizer_ms), (2.0, 4.0, 2.0));
        assert_eq!((report.ratio, report.steps, report.gemm_gflops), (2.0, 3, 20.0));
        let flops_per_second = job.flops().unwrap() / 8e-3;
        assert!((report.mfu - flops_per_second / 20e9).abs() < 1e-12);
        assert_eq!(TrainingReport::of("prenorm", &job, &first, &first).unwrap().ratio, 1.0);
    }

    #[test]
    fn writing_is_told_at_the_longest_context() {
        let round = |ms: f64| DecodeTimes {
            prefill_ms: 2.0 * ms,
            contexts: vec![
                ContextTimes { context: 2, ms: vec![ms, ms] },
                ContextTimes { context: 8, ms: vec![2.0 * ms, 2.0 * ms] },
            ],
        };
        let job = job("prenorm");
        let report = DecodeReport::of("mgr", &job, &measured(vec![round(1.0), round(3.0)]));
        assert_eq!(report.decode_ms_median, 4.0);
        assert_eq!(report.decode_tokens_per_second, 250.0);
        assert_eq!(report.prefill_tokens_per_second, 1e3 * job.seq as f64 / 4.0);
        assert_eq!(report.contexts[0], ContextReport { context: 2, ms: 2.0 });
    }
}
