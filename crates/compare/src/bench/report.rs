//! Many times, summed up in a few numbers.

use super::alternate::Measured;
use super::job::{Job, SkipRate};
use super::protocol::{DecodeTimes, Speeds, StepTimes};
use super::skip::{SkipReport, Timed};
use hadal_model::{ConfigError, Precision};
use hadal_report::statistics::{best, median, median_ratio};
use serde::Serialize;

/// How a policy trains.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrainingReport {
    /// The policy, as requested.
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
    /// The form of the kernels, or `plain`.
    pub simd: String,
    /// What the CPU calls itself; null where the system does not say.
    pub cpu: Option<String>,
    /// What the machine can do, measured in the same process.
    #[serde(flatten)]
    pub speeds: Speeds,
    /// Share of its matrix product that the model's own FLOPs use at the median.
    pub mfu: f64,
    /// Share of its multiply-adds between registers.
    pub mfu_of_peak: f64,
    /// Median time to the loss.
    pub forward_ms: f64,
    /// Median time to the gradients.
    pub backward_ms: f64,
    /// Median time to the next model.
    pub optimizer_ms: f64,
    /// Median over the rounds of this step's time, relative to the first policy's.
    pub ratio: f64,
    /// Parameters of the model.
    pub parameters: u64,
    /// Sequences of a step.
    pub batch: usize,
    /// Tokens of a sequence.
    pub seq: usize,
    /// Threads.
    pub threads: usize,
    /// What matrix products round.
    pub precision: Precision,
    /// Steps that count.
    pub steps: usize,
    /// Tokens read per second at the median, where skip rates are compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_tokens_per_second: Option<f64>,
    /// How far time follows FLOPs, where tokens skip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip: Option<SkipReport>,
}

impl TrainingReport {
    /// What was measured, next to the first policy and to the same policy when no token skips.
    pub fn of(
        kind: &str,
        job: &Job,
        measured: &Measured<StepTimes>,
        first: &Measured<StepTimes>,
        dense: &Measured<StepTimes>,
    ) -> Result<Self, ConfigError> {
        let all = |get: fn(&StepTimes) -> f64| measured.times.iter().map(get);
        let step = |measured: &Measured<StepTimes>| -> Vec<f64> {
            measured.times.iter().map(|times| times.step_ms).collect()
        };
        let step_ms_median = median(all(|times| times.step_ms));
        let step_ms_best = best(all(|times| times.step_ms));
        let tokens_in = |ms: f64| 1e3 * job.tokens() as f64 / ms;
        let speeds = measured.speeds();
        // Skipped FLOPs are not used. A million FLOPs by ms is a GFLOP/s.
        let used =
            job.flops()? * learning(measured).flop_ratio().unwrap_or(1.0) / (step_ms_median * 1e6);
        Ok(Self {
            kind: kind.into(),
            step_ms_median,
            step_ms_best,
            tokens_per_second: tokens_in(step_ms_median),
            best_tokens_per_second: tokens_in(step_ms_best),
            peak_rss_mb: measured.closing.peak_rss_mb,
            simd: measured.ready.simd.clone(),
            cpu: measured.ready.cpu.clone(),
            speeds,
            mfu: used / speeds.gemm_gflops,
            mfu_of_peak: used / speeds.peak_gflops,
            forward_ms: median(all(|times| times.forward_ms)),
            backward_ms: median(all(|times| times.backward_ms)),
            optimizer_ms: median(all(|times| times.optimizer_ms)),
            ratio: median_ratio(&step(measured), &step(first)),
            parameters: measured.ready.parameters,
            batch: job.batch,
            seq: job.seq,
            threads: job.threads,
            precision: job.precision,
            steps: measured.times.len(),
            prefill_tokens_per_second: reading(measured).map(|this| tokens_in(median(this.ms))),
            skip: match job.skip {
                SkipRate::Rate(rate) => Some(SkipReport {
                    rate,
                    skipped_share: learning(measured).skipped_share(),
                    training: learning(measured).by(&learning(dense)),
                    prefill: reading(measured)
                        .zip(reading(dense))
                        .and_then(|(this, dense)| this.by(&dense)),
                    decode: None,
                }),
                SkipRate::Unasked | SkipRate::Dense => None,
            },
        })
    }
}

fn learning(measured: &Measured<StepTimes>) -> Timed {
    measured.times.iter().filter_map(|times| Some((times.step_ms, times.work?))).collect()
}

fn reading(measured: &Measured<StepTimes>) -> Option<Timed> {
    measured.times.iter().map(|times| times.reading.map(|it| (it.ms, it.work))).collect()
}

/// How a policy writes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DecodeReport {
    /// The policy, as requested.
    pub kind: String,
    /// Tokens of the longest prompt read per second.
    pub prefill_tokens_per_second: f64,
    /// Tokens written per second after the longest prompt.
    pub decode_tokens_per_second: f64,
    /// Median time of a token after the longest prompt.
    pub decode_ms_median: f64,
    /// The same after prompts of every length.
    pub contexts: Vec<ContextReport>,
    /// The most memory of the process in MiB; null where the system does not say.
    pub peak_rss_mb: Option<f64>,
    /// The form of the kernels, or `plain`.
    pub simd: String,
    /// What the CPU calls itself; null where the system does not say.
    pub cpu: Option<String>,
    /// How far time follows FLOPs, where tokens skip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip: Option<SkipReport>,
}

/// Median time of a token after a context.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ContextReport {
    /// Tokens of the context.
    pub context: usize,
    /// Milliseconds.
    pub ms: f64,
}

impl DecodeReport {
    /// What was measured, next to the same policy when no token skips.
    pub fn of(
        kind: &str,
        job: &Job,
        measured: &Measured<DecodeTimes>,
        dense: &Measured<DecodeTimes>,
    ) -> Self {
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
            simd: measured.ready.simd.clone(),
            cpu: measured.ready.cpu.clone(),
            skip: match job.skip {
                SkipRate::Rate(rate) => Some(SkipReport {
                    rate,
                    skipped_share: prompts(measured).skipped_share(),
                    training: None,
                    prefill: prompts(measured).by(&prompts(dense)),
                    decode: written(measured).by(&written(dense)),
                }),
                SkipRate::Unasked | SkipRate::Dense => None,
            },
        }
    }
}

fn prompts(measured: &Measured<DecodeTimes>) -> Timed {
    measured.times.iter().filter_map(|times| Some((times.prefill_ms, times.reading?))).collect()
}

/// Times after the longest prompt.
fn written(measured: &Measured<DecodeTimes>) -> Timed {
    let round = |times: &DecodeTimes| {
        let longest = times.contexts.last()?;
        Some((median(longest.ms.iter().copied()), times.writing?))
    };
    measured.times.iter().filter_map(round).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::protocol::{Closing, ContextTimes, Reading, Ready, Work};
    use crate::bench::testing::job;
    use hadal_study::skip::Promise;

    fn measured<T>(times: Vec<T>) -> Measured<T> {
        let speeds = |gemm_gflops: f64| Speeds {
            gemm_gflops,
            gemm_gflops_thread: gemm_gflops / 2.0,
            peak_gflops: 2.0 * gemm_gflops,
            peak_gflops_thread: gemm_gflops,
        };
        let (simd, cpu) = ("avx2".into(), Some("a CPU".into()));
        Measured {
            ready: Ready { parameters: 7, simd, cpu, speeds: speeds(10.0) },
            times,
            closing: Closing { peak_rss_mb: None, speeds: speeds(20.0) },
        }
    }

    fn steps(ms: [f64; 3]) -> Measured<StepTimes> {
        let times = |step_ms| StepTimes {
            step_ms,
            forward_ms: step_ms / 4.0,
            backward_ms: step_ms / 2.0,
            optimizer_ms: step_ms / 4.0,
            loss: 1.0,
            work: None,
            reading: None,
        };
        measured(ms.map(times).to_vec())
    }

    #[test]
    fn a_report_is_made_of_medians() {
        let job = job("prenorm");
        let (this, first) = (steps([4.0, 8.0, 40.0]), steps([2.0, 4.0, 30.0]));
        let report = TrainingReport::of("prenorm", &job, &this, &first, &this).unwrap();
        assert_eq!((report.step_ms_median, report.step_ms_best), (8.0, 4.0));
        assert_eq!(report.tokens_per_second, job.tokens() as f64 / 8e-3);
        assert_eq!(report.best_tokens_per_second, job.tokens() as f64 / 4e-3);
        assert_eq!((report.forward_ms, report.backward_ms, report.optimizer_ms), (2.0, 4.0, 2.0));
        assert_eq!((report.ratio, report.steps, report.speeds.gemm_gflops), (2.0, 3, 20.0));
        let flops_per_second = job.flops().unwrap() / 8e-3;
        assert!((report.mfu - flops_per_second / 20e9).abs() < 1e-12);
        assert!((report.mfu_of_peak - flops_per_second / 40e9).abs() < 1e-12);
        assert_eq!(TrainingReport::of("prenorm", &job, &first, &first, &first).unwrap().ratio, 1.0);
    }

    #[test]
    fn time_is_held_against_flops_of_the_same_policy() {
        let mut job = job("nag");
        job.skip = SkipRate::Rate(0.25);
        let work = |flop_ratio| Some(Work { flop_ratio, skipped_share: 0.25 });
        let with = |mut steps: Measured<StepTimes>, flops: f64, ms: f64| {
            for times in &mut steps.times {
                times.work = work(flops);
                times.reading = work(flops).map(|work| Reading { ms, work });
            }
            steps
        };
        let this = with(steps([8.0, 8.0, 80.0]), 0.8, 0.9);
        let dense = with(steps([10.0, 10.0, 100.0]), 1.0, 1.0);
        let report = TrainingReport::of("nag+skip0.25", &job, &this, &this, &dense).unwrap();
        let skip = report.skip.unwrap();
        assert_eq!((skip.rate, skip.skipped_share, skip.decode), (0.25, 0.25, None));
        let kept = |promise: Option<Promise>| promise.unwrap().kept.unwrap();
        assert!((kept(skip.training) - 1.0).abs() < 1e-9);
        assert!((kept(skip.prefill) - 0.5).abs() < 1e-9);
        assert_eq!(report.prefill_tokens_per_second, Some(job.tokens() as f64 / 0.9e-3));
    }

    #[test]
    fn writing_is_told_at_the_longest_context() {
        let round = |ms: f64| DecodeTimes {
            prefill_ms: 2.0 * ms,
            contexts: vec![
                ContextTimes { context: 2, ms: vec![ms, ms] },
                ContextTimes { context: 8, ms: vec![2.0 * ms, 2.0 * ms] },
            ],
            reading: None,
            writing: None,
        };
        let job = job("prenorm");
        let times = measured(vec![round(1.0), round(3.0)]);
        let report = DecodeReport::of("mgr", &job, &times, &times);
        assert_eq!(report.decode_ms_median, 4.0);
        assert_eq!(report.decode_tokens_per_second, 250.0);
        assert_eq!(report.prefill_tokens_per_second, 1e3 * job.seq as f64 / 4.0);
        assert_eq!(report.contexts[0], ContextReport { context: 2, ms: 2.0 });
    }
}
