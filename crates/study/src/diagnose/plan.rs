//! What a diagnosis will take, before it starts.

use super::error::DiagnoseError;
use super::kind::Kind;
use super::{Options, diagnostics};
use crate::{Samples, Subject};
use burn::module::Module;
use hadal_data::Batch;
use hadal_model::{Decoder, ModelConfig, ModelCost};
use hadal_train::quality::mean_loss;
use serde::Serialize;
use std::time::Instant;

/// Bytes of an f32.
const FLOAT: f64 = 4.0;
/// Program, tokenizer, buffers of kernels and figures.
const REST: f64 = 150e6;
/// Pages of the model's file, in bytes of its parameters.
const FILE: f64 = 0.2;
/// A pass forward and backward in passes forward.
const LEARNING: f64 = 3.0;
/// A watched pass, with everything that is read off it, in passes forward.
const WATCHED: f64 = 1.6;
/// Time of a FLOP of a sum in f64 in that of a product in f32.
const SUMMED: f64 = 8.0;

/// What a diagnosis will take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Which model.
    pub name: String,
    /// The diagnostics, as far as the model has anything to show for them.
    pub diagnostics: Vec<Kind>,
    /// Sequences that are looked at.
    pub sequences: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Passes over all batches.
    pub passes: usize,
    /// A rough guess, from one pass over one sequence.
    pub seconds: f64,
    /// Bytes in memory at the most.
    pub memory: f64,
}

/// Bytes in memory at the most: parameters, and what the largest of the stages holds at a time.
pub fn memory(
    config: &ModelConfig,
    options: &Options,
    sequences: usize,
    seq_len: usize,
) -> Result<f64, DiagnoseError> {
    let cost = ModelCost::of(&ModelConfig { max_seq_len: seq_len, ..config.clone() })?;
    let parameters = FLOAT * cost.parameters.total() as f64;
    let tables = FLOAT * (cost.parameters.embedding + cost.parameters.head) as f64;
    let tokens = (sequences * seq_len) as f64;
    let write = FLOAT * (tokens * config.d_model as f64);
    let sites = 2.0 * config.n_layers as f64;
    // What a kernel holds at a time.
    let working = tokens * FLOAT * (4 * config.d_model + 3 * config.d_ff) as f64;
    let weights = FLOAT * (config.n_heads * seq_len) as f64 * tokens;
    // The weights of one attention, a few times over.
    let watched = working + cost.state_bytes_per_token as f64 * tokens + 4.0 * weights;
    let removal = working + sites * write;
    let row = cost.activation_bytes_per_token as f64 * seq_len as f64;
    let rows = (super::gradient::MOST_BYTES as f64 / row).floor().clamp(1.0, sequences as f64);
    let taps = sites * write * rows / sequences.max(1) as f64;
    // Gradients, their sum so far, and those of the tables once more.
    let learning = 2.0 * parameters + tables + rows * row + 2.0 * taps;
    let wide = config.d_model as f64 + 1.0;
    let squares = 2.0 * FLOAT * 3.0 * config.n_layers as f64 * wide * wide;
    let stages = [
        (true, watched),
        (options.has(Kind::Removal), removal),
        (options.has(Kind::Gradients), learning),
        // A copy whose blocks change places.
        (options.has(Kind::Permutation), working + parameters),
        (options.has(Kind::Usefulness), watched + squares),
    ];
    let most = stages.iter().filter(|(asked, _)| *asked).map(|(_, bytes)| *bytes);
    Ok(REST + (1.0 + FILE) * parameters + most.fold(0.0, f64::max))
}

/// Plans a diagnosis. It makes one pass over one sequence.
pub fn plan(
    subject: &Subject,
    samples: &Samples,
    options: &Options,
) -> Result<Plan, DiagnoseError> {
    let plain = subject.decoder.valid();
    let all = diagnostics(&plain, subject.variant(), samples, options);
    let batches = samples.batches(options.batches);
    let first = samples.batch(0)?;
    let (mut sequences, mut tokens) = (0, 0);
    for index in 0..batches {
        let batch = samples.batch(index)?;
        sequences += batch.input.batch() as u64;
        tokens += batch.input.ids().len() as u64;
    }
    let row = first.rows(0..1);
    let per_token = seconds(&plain, subject, &row)? / row.input.ids().len() as f64;
    let head = head_share(subject.model(), row.input.time())?;
    let passes: usize = all.iter().map(|(_, diagnostic)| diagnostic.passes()).sum();
    let share = |kind: Kind| {
        let most = match kind {
            Kind::Surgery => super::surgery::POSITIONS,
            Kind::Permutation => super::permutation::POSITIONS,
            Kind::Usefulness => super::usefulness::POSITIONS,
            Kind::Causal => super::causal::MOST,
            _ => super::rescue::MOST,
        };
        (most as f64 / tokens.max(1) as f64).min(1.0)
    };
    let fitting = fitting_share(subject.model(), row.input.time())?;
    let worth = |kind: Kind, passes: usize| match kind {
        Kind::Gradients => LEARNING,
        // On average half of the blocks run again; the head always does.
        Kind::Removal => passes as f64 * (0.5 + 0.5 * head),
        // Step by step, on a part of the data.
        Kind::Surgery | Kind::Rescue | Kind::Causal => passes as f64 * WATCHED * share(kind),
        Kind::Permutation => passes as f64 * share(kind),
        Kind::Usefulness => (passes as f64 * WATCHED + fitting) * share(kind),
        _ => 0.0,
    };
    let forward = WATCHED + all.iter().map(|(kind, d)| worth(*kind, d.passes())).sum::<f64>();
    let (rows, time) = (first.input.batch(), first.input.time());
    let spikes = (options.has(Kind::Spikes) && subject.config.is_some()).then_some(Kind::Spikes);
    Ok(Plan {
        name: subject.name.clone(),
        diagnostics: all.iter().map(|(kind, _)| *kind).chain(spikes).collect(),
        sequences,
        tokens,
        passes: batches * (1 + passes),
        seconds: forward * per_token * tokens as f64,
        memory: memory(subject.model(), options, rows, time)?,
    })
}

/// The head's part of a pass.
fn head_share(config: &ModelConfig, seq_len: usize) -> Result<f64, DiagnoseError> {
    let cost = ModelCost::of(&ModelConfig { max_seq_len: seq_len, ..config.clone() })?;
    let head = (2 * config.d_model * config.vocab_size) as f64;
    Ok(head / (cost.forward_flops_per_token as f64).max(1.0))
}

/// Sums of squares for affine maps in passes forward.
fn fitting_share(config: &ModelConfig, seq_len: usize) -> Result<f64, DiagnoseError> {
    let cost = ModelCost::of(&ModelConfig { max_seq_len: seq_len, ..config.clone() })?;
    let sums = 6.0 * (config.n_layers * config.d_model * config.d_model) as f64;
    Ok(SUMMED * sums / (cost.forward_flops_per_token as f64).max(1.0))
}

/// The better of two passes: the first may have to wait for pages of the model.
fn seconds(decoder: &Decoder, subject: &Subject, row: &Batch) -> Result<f64, DiagnoseError> {
    let mut best = f64::INFINITY;
    for _ in 0..2 {
        let started = Instant::now();
        mean_loss(decoder, row, subject.variant().pass())?;
        best = best.min(started.elapsed().as_secs_f64());
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hadal_model::MlpKind;

    /// SmolLM2-135M on 4 x 512 tokens, whose peaks were measured.
    #[test]
    fn memory_is_guessed_to_a_quarter() {
        let config = ModelConfig {
            vocab_size: 49152,
            d_model: 576,
            n_layers: 30,
            n_heads: 9,
            n_kv_heads: 3,
            head_dim: 64,
            d_ff: 1536,
            mlp: MlpKind::Swiglu,
            tie_embeddings: true,
            max_seq_len: 8192,
            ..ModelConfig::tiny()
        };
        for (kind, measured) in
            [(Kind::Gradients, 2.34e9), (Kind::Removal, 1.24e9), (Kind::Output, 1.13e9)]
        {
            let options = Options { only: vec![kind], ..Options::default() };
            let guess = memory(&config, &options, 4, 512).unwrap();
            assert!((guess / measured - 1.0).abs() < 0.25, "{kind:?}: {guess:e} {measured:e}");
        }
    }
}
