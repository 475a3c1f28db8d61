//! What a look at a model will take, before it is begun: from the time of one short pass, and from the model's shape.

use crate::Subject;
use hadal_data::Batch;
use hadal_kernels::read_back;
use hadal_model::{Decoder, ModelCost, Pass, PassError, Recording, Tokens};
use hadal_residual::StepMode;
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

/// Tokens of the pass that is timed.
const TIMED: usize = 128;
/// How often; the fastest counts.
const TIMES: usize = 2;

/// What a look at a model will take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Passes over pieces of the data, at least and at most.
    pub passes: [usize; 2],
    /// Seconds, at least and at most.
    pub seconds: [f64; 2],
    /// Bytes of memory.
    pub memory: f64,
    /// Tokens per second of a pass through the whole model.
    pub tokens_per_second: f64,
}

/// Seconds for a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    /// From the embedding to the logits.
    pub(crate) whole: f64,
    /// Of the head alone, and what it costs to look at its logits.
    pub(crate) head: f64,
}

impl Rate {
    /// Times a short pass, and the same when every sub-layer's output is known.
    pub(crate) fn measure(
        decoder: &Decoder,
        mode: &StepMode,
        batch: &Batch,
    ) -> Result<Self, PassError> {
        let row = &batch.input.ids()[..batch.input.time().min(TIMED)];
        let (tokens, count) = (Tokens::row(row), row.len() as f64);
        let mut recording = Recording::default();
        let timed = |pass: Pass| -> Result<f64, PassError> {
            let started = Instant::now();
            std::hint::black_box(read_back(decoder.logits(&tokens, pass)?)?);
            Ok(started.elapsed().as_secs_f64() / count)
        };
        let mut rate = Self { whole: f64::INFINITY, head: f64::INFINITY };
        for _ in 0..TIMES {
            let pass = Pass { mode, record: Some(&mut recording), ..Pass::default() };
            rate.whole = rate.whole.min(timed(pass)?);
            let pass = Pass { mode, replay: Some(&recording), ..Pass::default() };
            rate.head = rate.head.min(timed(pass)?);
        }
        rate.head = rate.head.min(rate.whole);
        Ok(rate)
    }

    /// Of a pass that begins after this share of the depth.
    pub(crate) fn after(&self, share: f64) -> f64 {
        self.head + (self.whole - self.head) * (1.0 - share)
    }
}

/// Bytes: the files that are mapped, parameters, the head's table once more as it is multiplied by, the outputs of all
/// sub-layers over a batch `kept` times, and so many rows of logits.
pub(crate) fn memory(subject: &Subject, batch: u64, kept: u64, logits: u64) -> f64 {
    const FLOAT: u64 = 4;
    let config = subject.model();
    let parameters = ModelCost::of(config).map_or(0, |cost| cost.parameters.total());
    let table = (config.vocab_size * config.d_model) as u64;
    let outputs = batch * (2 * config.n_layers * config.d_model) as u64;
    let floats = parameters + table + kept * outputs + logits * config.vocab_size as u64;
    (mapped(&subject.path) + FLOAT * floats) as f64
}

/// Bytes of a GGUF file. Other files are read and closed.
fn mapped(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |found| if found.is_file() { found.len() } else { 0 })
}
