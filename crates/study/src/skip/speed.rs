//! Reading with and without skipping, in turn, so that whatever else the machine does disturbs both alike.

use super::promise::Promise;
use hadal_data::Batch;
use hadal_model::{Decoder, Pass, PassError, Tally};
use hadal_report::statistics::{median, median_ratio};
use hadal_residual::StepMode;
use std::time::Instant;

/// Pairs of passes that count.
const ROUNDS: usize = 8;
/// Pairs that do not: memory is still being mapped.
const WARM_UP: usize = 1;

/// How fast both read.
pub(super) struct Speed {
    pub(super) tokens_per_second: f64,
    pub(super) dense_tokens_per_second: f64,
    pub(super) promise: Promise,
}

/// Pairs of passes that [`in_turn`] makes.
pub(super) const PASSES: usize = ROUNDS + WARM_UP;

/// Times passes through both models, from tokens to the logits behind each row.
pub(super) fn in_turn(
    [dense, skipping]: [&Decoder; 2],
    mode: &StepMode,
    batches: &[Batch],
    told: &mut dyn FnMut(),
) -> Result<Speed, PassError> {
    let (mut times, mut dense_times, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
    let mut tally = Tally::default();
    for (round, batch) in batches.iter().cycle().take(PASSES).enumerate() {
        let mut ignored = Tally::default();
        let dense_time = read(dense, mode, batch, &mut ignored)?;
        let counted = if round < WARM_UP { &mut ignored } else { &mut tally };
        let time = read(skipping, mode, batch, counted)?;
        if round >= WARM_UP {
            times.push(time);
            dense_times.push(dense_time);
            tokens.push(batch.input.ids().len() as f64);
        }
        told();
    }
    let config = skipping.config();
    let flops = tally.depth_flops(config) as f64 / tally.dense().depth_flops(config) as f64;
    Ok(Speed {
        tokens_per_second: median(tokens.iter().zip(&times).map(|(n, time)| n / time)),
        dense_tokens_per_second: median(tokens.iter().zip(&dense_times).map(|(n, time)| n / time)),
        promise: Promise::new(flops, median_ratio(&times, &dense_times)),
    })
}

fn read(
    decoder: &Decoder,
    mode: &StepMode,
    batch: &Batch,
    tally: &mut Tally,
) -> Result<f64, PassError> {
    let started = Instant::now();
    let pass = Pass { mode, only_last: true, tally: Some(tally), ..Pass::default() };
    let logits: Vec<f32> =
        decoder.logits(&batch.input, pass)?.try_into_vec_as().unwrap_or_default();
    std::hint::black_box(&logits);
    Ok(started.elapsed().as_secs_f64())
}
