//! The result of a run: `outcome.json`, written when the last step is done.
//!
//! Everything but the memory is computed from the metrics, which hold each step once, however often the
//! run was interrupted; so nothing of it is part of the state, and no bit of a run depends on it. Nor does the model:
//! what cannot be read or written here is a warning.

use super::memory::peak_rss_mb;
use super::metrics;
use hadal_files::{FileError, pretty_json, read_text_at_most, write_whole};
use hadal_report::run::{Outcome, StepPoint};
use hadal_report::statistics::median;
use std::path::Path;

pub(super) const OUTCOME: &str = Outcome::FILE;
/// The largest resident set of all processes so far: the last one may have made only a few steps.
pub(super) const PEAK: &str = "peak_rss_mb";
const MEBIBYTE: f64 = 1.048_576;

/// Notes how much memory the run has taken so far.
pub(super) fn note_peak(folder: &Path) -> Result<(), FileError> {
    write_whole(&folder.join(PEAK), format!("{:.1}\n", peak(folder)))
}

/// The most memory of all processes of the run, in MB; 0 where the system does not say.
fn peak(folder: &Path) -> f64 {
    let before = read_text_at_most(&folder.join(PEAK), 64).ok();
    let before = before.and_then(|text| text.trim().parse().ok()).unwrap_or(0.0);
    peak_rss_mb().map_or(0.0, |mebibytes| MEBIBYTE * mebibytes).max(before)
}

/// Writes the outcome of a run whose last step is recorded, and returns what went wrong.
pub(super) fn write_outcome(
    folder: &Path,
    parameters: u64,
    steps_done: u64,
    tokens_per_step: u64,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let points = metrics::steps(folder).unwrap_or_else(|error| {
        warnings.push(error.to_string());
        Vec::new()
    });
    if points.len() as u64 != steps_done {
        let counted = points.len();
        warnings.push(format!(
            "{OUTCOME} counts {counted} of {steps_done} steps: no others are in the metrics"
        ));
    }
    let speeds = || points.iter().filter_map(|step| step.tokens_per_second);
    let flops = || points.iter().map(|step| step.flops.map(|flops| flops as f64)).sum();
    let outcome = Outcome {
        parameters,
        tokens: steps_done * tokens_per_step,
        seconds: speeds().map(|speed| tokens_per_step as f64 / speed).sum(),
        // The median of nothing is no number, and no file of numbers could hold it.
        tokens_per_second: Some(median(speeds())).filter(|speed| speed.is_finite()).unwrap_or(0.0),
        peak_rss_mb: peak(folder),
        // Some of the work is not all of it.
        training_flops: if points.len() as u64 == steps_done { flops() } else { None },
        communication: communication(&points, tokens_per_step),
    };
    let path = folder.join(OUTCOME);
    let written = pretty_json(&path, &outcome).and_then(|text| write_whole(&path, text + "\n"));
    warnings.extend(written.and_then(|()| note_peak(folder)).err().map(|error| error.to_string()));
    warnings
}

/// The share of the time that was spent with other ranks, over the steps that several ranks made.
pub(super) fn communication(points: &[StepPoint], tokens_per_step: u64) -> Option<f64> {
    let divided = points.iter().filter_map(|step| {
        Some((step.communication?, tokens_per_step as f64 / step.tokens_per_second?))
    });
    let (with_others, all) =
        divided.fold((0.0, 0.0), |sum, (share, time)| (sum.0 + share * time, sum.1 + time));
    (all > 0.0).then(|| with_others / all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hadal_report::run::Run;
    use std::fs;
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
        assert_eq!(write_outcome(directory.path(), 7, 3, 100), [] as [String; 0]);
        let outcome = Run::read(directory.path()).unwrap().outcome.unwrap();
        let expected = Outcome {
            parameters: 7,
            tokens: 300,
            seconds: 3.5,
            tokens_per_second: 100.0,
            peak_rss_mb: 1e9,
            training_flops: Some(21_006.0),
            communication: None,
        };
        assert_eq!(outcome, expected);
        // A run that an older version began was not counted from its start.
        let uncounted = text.replacen("\"flops\":7001,", "", 1);
        fs::write(directory.path().join("metrics.jsonl"), uncounted).unwrap();
        assert_eq!(write_outcome(directory.path(), 7, 3, 100), [] as [String; 0]);
        let outcome = Run::read(directory.path()).unwrap().outcome.unwrap();
        assert_eq!(outcome.training_flops, None);
    }

    #[test]
    fn an_outcome_is_written_whatever_the_metrics_are() {
        let directory = TempDir::new().unwrap();
        fs::write(directory.path().join("config.toml"), "").unwrap();
        let metrics = directory.path().join("metrics.jsonl");
        for content in [None, Some(&b"\0\0\0\0"[..]), Some(b"{\"kind\":\"train\"}\n\xff\n")] {
            let _ = fs::remove_file(&metrics);
            if let Some(content) = content {
                fs::write(&metrics, content).unwrap();
            }
            let warnings = write_outcome(directory.path(), 7, 3, 100);
            assert!(warnings[0].contains("0 of 3 steps"), "{warnings:?}");
            let text = fs::read_to_string(directory.path().join(OUTCOME)).unwrap();
            let outcome: Outcome = serde_json::from_str(&text).unwrap();
            assert_eq!((outcome.tokens, outcome.training_flops), (300, None));
        }
        fs::remove_file(&metrics).unwrap();
        fs::create_dir(&metrics).unwrap();
        assert_eq!(write_outcome(directory.path(), 7, 3, 100).len(), 2);
    }
}
