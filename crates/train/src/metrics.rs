//! Logs that can be cut back to a checkpoint: one JSON object per line, and TensorBoard events.

use super::lines::{LineLog, Recorded, read_to};
use super::state::State;
use super::tensorboard::EventWriter;
use hadal_files::{Action, FileError, file_error};
use hadal_report::run::{Metric, Sample, StepPoint};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Lines of `metrics.jsonl`.
pub(crate) const METRICS: &str = "metrics.jsonl";
/// Lines of `samples.jsonl`.
pub(crate) const SAMPLES: &str = "samples.jsonl";
/// TensorBoard looks for this name.
pub(crate) const EVENTS: &str = "events.out.tfevents.0.hadal";

/// The open logs of a run.
#[derive(Debug)]
pub(crate) struct Logs {
    folder: PathBuf,
    metrics: LineLog,
    samples: LineLog,
    events: EventWriter,
}

impl Logs {
    /// Opens the logs and cuts each back to what belongs to a state. Warnings say which of them had to be mended.
    pub(crate) fn open(folder: &Path, state: &State) -> Result<(Self, Vec<String>), FileError> {
        let recorded = |name: &str| Recorded {
            length: state.logs.get(name).copied().unwrap_or(0),
            hash: state.log_hashes.get(name).map(String::as_str),
            step: state.step,
        };
        let (metrics, first) = LineLog::open::<Metric>(&folder.join(METRICS), recorded(METRICS))?;
        let (samples, second) = LineLog::open::<Sample>(&folder.join(SAMPLES), recorded(SAMPLES))?;
        let events = folder.join(EVENTS);
        let (events, third) = EventWriter::append(&events, recorded(EVENTS).length)?;
        let warnings = [first, second, third].into_iter().flatten().collect();
        Ok((Self { folder: folder.to_owned(), metrics, samples, events }, warnings))
    }

    /// Goes back to what belongs to an earlier state.
    pub(crate) fn cut(&mut self, state: &State) -> Result<Vec<String>, FileError> {
        // What is buffered must not be written behind the cut.
        self.events.flush()?;
        let (logs, warnings) = Self::open(&self.folder, state)?;
        *self = logs;
        Ok(warnings)
    }

    /// Adds a line of numbers; those at the top level also go to TensorBoard.
    pub(crate) fn record(&mut self, step: u64, line: &Metric) -> Result<(), FileError> {
        let value = self.value(METRICS, line)?;
        self.metrics.append(&value)?;
        let kind = value["kind"].as_str().unwrap_or("run").to_owned();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        if let Value::Object(fields) = value {
            for (name, field) in fields.iter().filter(|(name, _)| *name != "step") {
                if let Some(number) = field.as_f64() {
                    self.events.scalar(&format!("{kind}/{name}"), step, number as f32, now)?;
                }
            }
        }
        Ok(())
    }

    /// Adds a sample of text.
    pub(crate) fn sample(&mut self, line: &impl Serialize) -> Result<(), FileError> {
        let value = self.value(SAMPLES, line)?;
        self.samples.append(&value)
    }

    fn value(&self, name: &str, line: &impl Serialize) -> Result<Value, FileError> {
        serde_json::to_value(line).map_err(|error| {
            file_error(Action::Write, &self.folder.join(name))(io::Error::other(error))
        })
    }

    /// Waits for the disk and writes into a state how far each log is now.
    pub(crate) fn note(&mut self, state: &mut State) -> Result<(), FileError> {
        let events = self.events.sync()?;
        let (metrics, metrics_hash) = self.metrics.sync()?;
        let (samples, samples_hash) = self.samples.sync()?;
        let lengths = [(METRICS, metrics), (SAMPLES, samples), (EVENTS, events)];
        let hashes = [(METRICS, metrics_hash), (SAMPLES, samples_hash)];
        // The checksums of TensorBoard's records are enough for those.
        state.logs = BTreeMap::from(lengths.map(|(name, length)| (name.to_owned(), length)));
        state.log_hashes = BTreeMap::from(hashes.map(|(name, hash)| (name.to_owned(), hash)));
        Ok(())
    }
}

/// A run's metrics, as far as they can be read.
pub(crate) fn points(folder: &Path) -> Result<Vec<Metric>, FileError> {
    let (bytes, _) = read_to(&folder.join(METRICS), u64::MAX)?;
    let lines = bytes.split(|&byte| byte == b'\n');
    Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

/// The steps in a run's metrics, as far as they can be read.
pub(crate) fn steps(folder: &Path) -> Result<Vec<StepPoint>, FileError> {
    let step = |metric| match metric {
        Metric::Train(step) => Some(step),
        _ => None,
    };
    Ok(points(folder)?.into_iter().filter_map(step).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hadal_report::run::{EvaluationPoint, StepPoint};

    fn line(metric: &Metric) -> String {
        let folder = tempfile::tempdir().unwrap();
        let mut logs = Logs::open(folder.path(), &State::default()).unwrap().0;
        logs.record(3, metric).unwrap();
        let text = std::fs::read_to_string(folder.path().join(METRICS)).unwrap();
        let back: Metric = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_value(back).unwrap(), serde_json::to_value(metric).unwrap());
        text
    }

    /// Other programs read these lines, too: keys in this order, whole numbers without a point.
    #[test]
    fn lines_are_written_to_the_byte_as_ever() {
        let point = StepPoint {
            step: 3,
            loss: Some(2.5),
            gradient_norm: Some(f64::INFINITY),
            rate: 1.0,
            tokens: 768,
            tokens_per_second: Some(1e21),
            flops: Some(9_007_199_254_740_993),
            skip_rate: None,
            skip_target: None,
            skip_threshold: None,
            communication: None,
        };
        assert_eq!(
            line(&Metric::Train(point)),
            "{\"flops\":9007199254740993,\"gradient_norm\":null,\"kind\":\"train\",\"loss\":2.5,\"rate\":1.0,\
             \"step\":3,\"tokens\":768,\"tokens_per_second\":1e+21}\n"
        );
        let skipping = StepPoint {
            skip_rate: Some(0.25),
            skip_target: Some(0.0),
            skip_threshold: Some(1e-7),
            ..point
        };
        assert_eq!(
            line(&Metric::Train(skipping)),
            "{\"flops\":9007199254740993,\"gradient_norm\":null,\"kind\":\"train\",\"loss\":2.5,\"rate\":1.0,\
             \"skip_rate\":0.25,\"skip_target\":0.0,\"skip_threshold\":1e-7,\"step\":3,\"tokens\":768,\
             \"tokens_per_second\":1e+21}\n"
        );
        let evaluation = EvaluationPoint {
            step: 3,
            loss: Some(f64::NAN),
            perplexity: Some(12.0),
            bits_per_byte: None,
            accuracy: Some(0.5),
            exact_match: None,
        };
        assert_eq!(
            line(&Metric::Eval(evaluation)),
            "{\"accuracy\":0.5,\"kind\":\"eval\",\"loss\":null,\"perplexity\":12.0,\"step\":3}\n"
        );
    }
}
