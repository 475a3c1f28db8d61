//! Single kernels, at the sizes of a small model: 8 sequences of 256 tokens, 256 features.
//!
//! ```text
//! CARGO_TARGET_DIR=/tmp/target-cpu cargo bench -p hadal-cpu --features criterion
//! CARGO_TARGET_DIR=/tmp/target-cpu cargo bench -p hadal-cpu --features criterion -- streams/mgr
//! ```
//!
//! takes about two minutes; behind `--` goes a filter, or `--test` to run everything once. A target
//! directory of its own keeps the main one: without Burn, what both depend on is built with other features.
//! So the `gemm` crate, too, may be another one here than the one that Burn calls.
//!
//! Elements are floating point operations, a multiplication and an addition counting as two, except for
//! streams, where they are tokens. Kernels return new buffers, which the binary's allocator takes from
//! those just freed; the `gemm` crate writes to one that is there.

mod layers;
mod norm;
mod products;
mod streams;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, SamplingMode};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc's header, which the bindings leave out.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

const SEQUENCES: usize = 8;
const TIME: usize = 256;
const TOKENS: usize = SEQUENCES * TIME;
const WIDTH: usize = 256;
const HIDDEN: usize = 1024;
const EPS: f32 = 1e-6;

fn main() {
    // SAFETY: sets an option of the allocator, which any thread may do at any time.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, -1) };
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .nresamples(10_000)
        .configure_from_args();
    products::linear(&mut criterion);
    products::decode(&mut criterion);
    layers::attention(&mut criterion);
    layers::mlp(&mut criterion);
    layers::cross_entropy(&mut criterion);
    norm::norm(&mut criterion);
    streams::junction(&mut criterion);
    criterion.final_summary();
}

/// Kernels that take about as long every time: samples are all of the same number of runs.
fn group<'a>(criterion: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.sampling_mode(SamplingMode::Flat);
    group
}

/// Numbers between -1 and 1 that look random and depend on the seed alone.
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| draw()).collect()
}

/// Weights that keep values at about their size.
fn weights(seed: u64, inputs: usize, outputs: usize) -> Vec<f32> {
    let scale = (3.0 / inputs as f32).sqrt();
    noise(seed, inputs * outputs).iter().map(|weight| weight * scale).collect()
}
