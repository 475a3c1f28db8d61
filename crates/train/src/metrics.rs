//! Logs that can be cut back to a checkpoint: one JSON object per line, and TensorBoard events.

use super::tensorboard::EventWriter;
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
    pub(crate) fn record(&mut self, step: u64, line: &impl Serialize) -> io::Result<()> {
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
