//! The middle junction of every stream, forward and backward.
//!
//! A stream goes through its junctions once, in order, and back. So all of them are gone through, and only
//! the one in the middle is timed: with the caches as its neighbours leave them.

use super::{EPS, TOKENS, WIDTH, group, noise};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput};
use hadal_cpu::Rows;
use hadal_cpu::streams::mgr::{Gate, Memory, Mgr, Settings};
use hadal_cpu::streams::{
    Additive, AdditiveStep, AttnRes, AttnResJunction, Mixing, MixingForm, MixingKind,
    MixingReadOut, Nag, Siamese, Stream,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sub-layers of eight blocks.
const SITES: usize = 16;
/// Reads nine sources, and is read by nine; the first that gates eight streams.
const MIDDLE: usize = SITES / 2;
/// Directions of a modulator.
const DIRECTIONS: usize = 32;
/// Streams that are mixed.
const MIXED: usize = 4;

pub(super) fn junction(criterion: &mut Criterion) {
    let mut group = group(criterion, "streams");
    group.throughput(Throughput::Elements(TOKENS as u64));
    let mut bench = Bench {
        group,
        writes: (0..=SITES).map(|k| Arc::new(noise(k as u64, TOKENS * WIDTH)) as Rows).collect(),
        d_input: noise(99, TOKENS * WIDTH),
    };
    additive(&mut bench);
    siamese(&mut bench);
    multi_gate(&mut bench);
    attention_residuals(&mut bench);
    norm_agnostic(&mut bench);
    mixing(&mut bench);
    bench.group.finish();
}

fn additive(bench: &mut Bench) {
    let step = AdditiveStep { pre: Some(1.0), ..Default::default() };
    let open = || Additive::new(WIDTH, EPS, vec![step; SITES + 1], true);
    bench.run("additive prenorm", &params(|_| step.params(WIDTH)), open);
}

fn siamese(bench: &mut Bench) {
    let open = || Siamese::new(WIDTH, EPS, vec![0.5; SITES], true);
    bench.run("siamese", &params(|_| 3 * WIDTH), open);
}

fn multi_gate(bench: &mut Bench) {
    for streams in [4, 8] {
        for (name, memory) in
            [("inversion", Memory::Inversion { share: 0.01 }), ("exact", Memory::Exact)]
        {
            let (gate, skip) = (Gate::Competitive, None);
            let settings = Settings { width: WIDTH, eps: EPS, streams, gate, memory, skip };
            let open = || Mgr::new(settings.clone(), SITES + 1, true);
            let mut params = params(|k| open().params(k));
            // A high forget logit: gates are narrow when training begins, and of wide ones more rows
            // would be kept.
            for params in &mut params[streams..] {
                let bias = &mut params[WIDTH..][..streams + 1];
                bias.fill(0.0);
                bias[0] = 3.0;
            }
            bench.run(&format!("mgr {streams} {name}"), &params, open);
        }
    }
}

fn attention_residuals(bench: &mut Bench) {
    let junctions: Vec<_> =
        (0..=SITES).map(|k| AttnResJunction { joins: false, query: k > 0, apart: false }).collect();
    let params = params(|k| junctions[k].params(WIDTH));
    bench.run("attnres 9 sources", &params, || AttnRes::new(WIDTH, EPS, junctions.clone(), true));
}

fn norm_agnostic(bench: &mut Bench) {
    let modulator = DIRECTIONS * (WIDTH + 2) + 2;
    let mut params = params(|k| usize::from(k == 0) + if k < SITES { modulator } else { 0 });
    for params in &mut params[..SITES] {
        let start = params.len() - DIRECTIONS - 2;
        let last = &mut params[start..];
        last[..DIRECTIONS].fill(1.0 / DIRECTIONS as f32);
        last[DIRECTIONS..].copy_from_slice(&[1.0, 0.3]);
    }
    bench.run("nag", &params, || Nag::new(WIDTH, SITES, DIRECTIONS, None, true));
}

fn mixing(bench: &mut Bench) {
    let sinkhorn = MixingForm::from(MixingKind::Sinkhorn { iterations: 20 });
    let [gated, handed_on] = [MixingReadOut::Gated, MixingReadOut::HandedOn];
    for (name, form) in [
        ("static", MixingKind::Static.into()),
        ("dynamic", MixingKind::Dynamic.into()),
        ("dynamic identity", MixingForm { identity: true, ..MixingKind::Dynamic.into() }),
        ("sinkhorn", sinkhorn),
        ("sinkhorn gated", MixingForm { readout: gated, ..sinkhorn }),
        ("sinkhorn single pass", MixingForm { readout: handed_on, ..sinkhorn }),
        ("gates and identity", MixingForm { readout: gated, identity: true, ..sinkhorn }),
        ("permutations", MixingKind::Permutations.into()),
    ] {
        let open = || Mixing::new(form, MIXED, WIDTH, EPS, SITES, true);
        bench.run(&format!("mixing {name}"), &params(|k| open().params(k)), open);
    }
}

/// Small ones, so many for each junction.
fn params(length: impl Fn(usize) -> usize) -> Vec<Vec<f32>> {
    let small = |k: usize| noise(k as u64, length(k)).iter().map(|value| value / 16.0).collect();
    (0..=SITES).map(small).collect()
}

struct Bench<'a> {
    group: BenchmarkGroup<'a, WallTime>,
    /// One for each junction.
    writes: Vec<Rows>,
    d_input: Vec<f32>,
}

impl Bench<'_> {
    fn run<S: Stream>(&mut self, name: &str, params: &[Vec<f32>], open: impl Fn() -> S) {
        let Self { group, writes, d_input } = self;
        for (direction, of) in [("forward", 0), ("backward", 1)] {
            group.bench_function(format!("{name}/{direction}"), |bencher| {
                bencher.iter_custom(|runs| {
                    (0..runs).map(|_| pass(open(), writes, params, d_input)[of]).sum()
                });
            });
        }
    }
}

/// Goes through all junctions and back; returns what the middle one took.
fn pass(
    mut stream: impl Stream,
    writes: &[Rows],
    params: &[Vec<f32>],
    d_input: &[f32],
) -> [Duration; 2] {
    let [mut forward, mut backward] = [Duration::ZERO; 2];
    for (k, (write, params)) in writes.iter().zip(params).enumerate() {
        let started = Instant::now();
        let answer = stream.forward(write.clone(), params);
        if k == MIDDLE {
            forward = started.elapsed();
        }
        drop(answer);
    }
    for (k, params) in params.iter().enumerate().rev() {
        let started = Instant::now();
        let gradient = stream.backward(d_input, params);
        if k == MIDDLE {
            backward = started.elapsed();
        }
        drop(gradient);
    }
    [forward, backward]
}
