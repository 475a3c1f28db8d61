//! The result of a run: `outcome.json`, written when the last step is done.
//!
//! Everything but the memory is computed from the metrics, which hold each step once, however often the
//! run was interrupted; so nothing of it is part of the state, and no bit of a run depends on it.

use super::memory::peak_rss_mb;
use super::metrics::METRICS;
use hadal_files::{hash, pretty_json, write_whole};
use hadal_report::run::{Outcome, OutcomeFile, Run};
use hadal_report::statistics::median;
use std::fs;
use std::io;
use std::path::Path;

/// The largest resident set of all processes so far: the last one may have made only a few steps.
const PEAK: &str = "peak_rss_mb";
const MEBIBYTE: f64 = 1.048_576;

/// Notes how much memory the run has taken so far, in MB; 0 where the system does not say.
pub(super) fn note_peak(folder: &Path) -> io::Result<f64> {
    let path = folder.join(PEAK);
    let before = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
    let peak = peak_rss_mb().map_or(0.0, |mebibytes| MEBIBYTE * mebibytes);
    let peak = peak.max(before.unwrap_or(0.0));
    write_whole(&path, format!("{peak:.1}\n"))?;
    Ok(peak)
}

/// Writes the outcome of a run whose last step is recorded.
pub(super) fn write_outcome(folder: &Path, parameters: u64) -> io::Result<()> {
    let peak_rss_mb = note_peak(folder)?;
    let steps = Run::read(folder).map_err(io::Error::other)?.steps;
    let speeds = || steps.iter().filter_map(|step| step.tokens_per_second);
    let tokens = steps.last().map_or(0, |step| step.tokens);
    let of_a_step = steps.first().map_or(0.0, |step| step.tokens as f64 / step.step.max(1) as f64);
    let outcome = Outcome {
        parameters,
        tokens,
        seconds: speeds().map(|speed| of_a_step / speed).sum(),
        tokens_per_second: median(speeds()),
        peak_rss_mb,
        training_flops: steps.iter().map(|step| step.flops.map(|flops| flops as f64)).sum(),
    };
    // Whoever reads the metrics later can tell whether they are these.
    let metrics_blake3 = hash(&folder.join(METRICS)).ok().map(|(hash, _)| hash);
    let path = folder.join(OutcomeFile::NAME);
    let file = OutcomeFile { outcome, metrics_blake3 };
    Ok(write_whole(&path, pretty_json(&path, &file)? + "\n")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    #[test]
    fn seconds_and_speed_follow_from_the_metrics_and_memory_is_the_most_of_all_processes() {
        let directory = TempDir::new().unwrap();
        fs::write(directory.path().join("config.toml"), "").unwrap();
        let line = |step: u64, speed: f64| {
            format!(
                "{{\"kind\":\"train\",\"step\":{step},\"loss\":1.0,\"gradient_norm\":1.0,\"rate\":1.0,\"tokens\":{},\"flops\":{},\"tokens_per_second\":{speed}}}\n",
                100 * step,
                7_000 + step,
            )
        };
        let text = line(1, 50.0) + &line(2, 100.0) + &line(3, 200.0);
        fs::write(directory.path().join("metrics.jsonl"), &text).unwrap();
        fs::write(directory.path().join(PEAK), "1e9\n").unwrap();
        write_outcome(directory.path(), 7).unwrap();
        let outcome = Run::read(directory.path()).unwrap().outcome.unwrap();
        let expected = Outcome {
            parameters: 7,
            tokens: 300,
            seconds: 3.5,
            tokens_per_second: 100.0,
            peak_rss_mb: 1e9,
            training_flops: Some(21_006.0),
        };
        assert_eq!(outcome, expected);
        // A run that an older version began was not counted from its start.
        let uncounted = text.replacen("\"flops\":7001,", "", 1);
        fs::write(directory.path().join("metrics.jsonl"), uncounted).unwrap();
        write_outcome(directory.path(), 7).unwrap();
        let outcome = Run::read(directory.path()).unwrap().outcome.unwrap();
        assert_eq!(outcome.training_flops, None);
    }
}
