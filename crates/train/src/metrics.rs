//! Logs that can be cut back to a checkpoint: one JSON object per line, and TensorBoard events.

use super::tensorboard::EventWriter;
use hadal_report::run::Metric;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Lines of `metrics.jsonl`.
pub(crate) const METRICS: &str = "metrics.jsonl";
/// Lines of `samples.jsonl`.
pub(crate) const SAMPLES: &str = "samples.jsonl";
/// TensorBoard looks for this name.
pub(crate) const EVENTS: &str = "events.out.tfevents.0.hadal";

/// The open logs of a run.
pub(crate) struct Logs {
    folder: PathBuf,
    metrics: File,
    samples: File,
    events: EventWriter,
}

impl Logs {
    /// Opens the logs and cuts each back to what a state says belongs to it.
    pub(crate) fn open(folder: &Path, lengths: &BTreeMap<String, u64>) -> io::Result<Self> {
        let cut = |name: &str| -> io::Result<File> {
            let length = lengths.get(name).copied().unwrap_or(0);
            let path = folder.join(name);
            let mut file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .read(true)
                .write(true)
                .open(path)?;
            file.set_len(length)?;
            file.seek(SeekFrom::Start(length))?;
            Ok(file)
        };
        let (metrics, samples) = (cut(METRICS)?, cut(SAMPLES)?);
        let events = if lengths.get(EVENTS).copied().unwrap_or(0) == 0 {
            EventWriter::create(&folder.join(EVENTS))?
        } else {
            cut(EVENTS)?;
            EventWriter::append(&folder.join(EVENTS))?
        };
        Ok(Self { folder: folder.to_owned(), metrics, samples, events })
    }

    /// Adds a line of numbers; those at the top level also go to TensorBoard.
    pub(crate) fn record(&mut self, step: u64, line: &Metric) -> io::Result<()> {
        let value = serde_json::to_value(line).map_err(io::Error::other)?;
        writeln!(self.metrics, "{value}")?;
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
    pub(crate) fn sample(&mut self, line: &impl Serialize) -> io::Result<()> {
        let value = serde_json::to_value(line).map_err(io::Error::other)?;
        writeln!(self.samples, "{value}")
    }

    /// Flushes everything and says how long each log is now.
    pub(crate) fn lengths(&mut self) -> io::Result<BTreeMap<String, u64>> {
        self.events.flush()?;
        self.metrics.sync_all()?;
        self.samples.sync_all()?;
        [METRICS, SAMPLES, EVENTS]
            .into_iter()
            .map(|name| Ok((name.to_owned(), self.folder.join(name).metadata()?.len())))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hadal_report::run::{EvaluationPoint, StepPoint};

    fn line(metric: &Metric) -> String {
        let folder = tempfile::tempdir().unwrap();
        let mut logs = Logs::open(folder.path(), &BTreeMap::new()).unwrap();
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
