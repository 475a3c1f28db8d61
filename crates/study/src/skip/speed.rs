//! Reading with and without skipping, in turn, so that any other load on the machine disturbs both alike.

use super::promise::Promise;
use crate::timing::in_turn;
use hadal_data::Batch;
use hadal_kernels::read_back;
use hadal_model::{Decoder, Pass, PassError, Tally};
use hadal_report::statistics::{median, median_ratio};
use hadal_residual::StepMode;
use std::time::Instant;

/// Rounds that count: one pass of each model.
const ROUNDS: usize = 8;
/// Rounds that do not count.
const WARM_UP: usize = 1;

/// How fast both read.
pub(super) struct Speed {
    pub(super) tokens_per_second: f64,
    pub(super) dense_tokens_per_second: f64,
    pub(super) promise: Promise,
}

/// Passes that [`speed`] makes.
pub(super) const PASSES: usize = 2 * (ROUNDS + WARM_UP);

struct Reader<'a> {
    decoder: &'a Decoder,
    mode: &'a StepMode,
    tally: Tally,
}

/// Times passes through both models, from tokens to the logits after each row.
pub(super) fn speed(
    models: [&Decoder; 2],
    mode: &StepMode,
    batches: &[Batch],
    told: &mut dyn FnMut(),
) -> Result<Speed, PassError> {
    let batch = |round: usize| &batches[round % batches.len()];
    let mut readers = models.map(|decoder| Reader { decoder, mode, tally: Tally::default() });
    let times = in_turn(&mut readers, WARM_UP, ROUNDS, |reader, round| {
        if round == WARM_UP {
            reader.tally = Tally::default();
        }
        let time = read(reader, batch(round))?;
        told();
        Ok::<_, PassError>(time)
    })?;
    let (tally, config) = (&readers[1].tally, readers[1].decoder.config());
    let flops = tally.depth_flops(config) as f64 / tally.dense().depth_flops(config) as f64;
    let tokens_per_second = |times: &[f64]| {
        let tokens = (WARM_UP..).map(|round| batch(round).input.ids().len() as f64);
        median(tokens.zip(times).map(|(tokens, time)| tokens / time))
    };
    Ok(Speed {
        tokens_per_second: tokens_per_second(&times[1]),
        dense_tokens_per_second: tokens_per_second(&times[0]),
        promise: Promise::new(flops, median_ratio(&times[1], &times[0])),
    })
}

fn read(reader: &mut Reader, batch: &Batch) -> Result<f64, PassError> {
    let started = Instant::now();
    let Reader { decoder, mode, tally } = reader;
    let pass = Pass { mode, only_last: true, tally: Some(tally), ..Pass::default() };
    std::hint::black_box(read_back(decoder.logits(&batch.input, pass)?)?);
    Ok(started.elapsed().as_secs_f64())
}
