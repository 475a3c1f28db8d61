//! Sub-layers, and the head with its loss.

use super::{HIDDEN, SEQUENCES, TIME, TOKENS, WIDTH, group, noise, weights};
use criterion::{Criterion, Throughput};
use hadal_cpu::Precision::F32;
use hadal_cpu::attention::{self, Shape, Slots};
use hadal_cpu::loss;
use hadal_cpu::mlp::{self, Mlp};
use std::hint::black_box;

const HEADS: usize = 4;
const HEAD_DIM: usize = WIDTH / HEADS;

/// Without the projections.
pub(super) fn attention(criterion: &mut Criterion) {
    let angles = noise(1, TIME * HEAD_DIM / 2);
    let cos: Vec<f32> = angles.iter().map(|angle| angle.cos()).collect();
    let sin: Vec<f32> = angles.iter().map(|angle| angle.sin()).collect();
    let shape = Shape {
        time: TIME,
        heads: HEADS,
        kv_heads: HEADS,
        head_dim: HEAD_DIM,
        cos: &cos,
        sin: &sin,
        norms: None,
        window: None,
    };
    let (joined, d_mixed) = (noise(2, TOKENS * 3 * WIDTH), noise(3, TOKENS * WIDTH));
    let slots = Slots::default();
    let output = attention::forward(&joined, &shape, &slots, F32);

    // Only pairs that a causal mask leaves count, and of the five products of the way back all.
    let pairs = SEQUENCES * HEADS * TIME * (TIME + 1) / 2;
    let product = (2 * pairs * HEAD_DIM) as u64;
    let mut group = group(criterion, "attention");
    group.throughput(Throughput::Elements(2 * product));
    group.bench_function("forward", |bencher| {
        bencher.iter(|| attention::forward(black_box(&joined), &shape, &slots, F32));
    });
    group.throughput(Throughput::Elements(5 * product));
    group.bench_function("backward", |bencher| {
        let (mixed, log_sums) = (&output.mixed, &output.log_sums);
        bencher.iter(|| {
            attention::backward(black_box(&d_mixed), &joined, mixed, log_sums, &shape, &slots, F32)
        });
    });
    group.finish();
}

pub(super) fn mlp(criterion: &mut Criterion) {
    let (x, dy) = (noise(1, TOKENS * WIDTH), noise(2, TOKENS * WIDTH));
    let [up, gate] = [3, 4].map(|seed| weights(seed, WIDTH, HIDDEN));
    let down = weights(5, HIDDEN, WIDTH);
    let plain = Mlp { width: WIDTH, hidden: HIDDEN, up: &up, gate: None, down: &down };
    let gated = Mlp { gate: Some(&gate), ..plain };

    let product = (2 * TOKENS * WIDTH * HIDDEN) as u64;
    let mut group = group(criterion, "mlp");
    for (name, mlp, products) in [("relu2", plain, 2), ("swiglu", gated, 3)] {
        let output = mlp::forward(&x, &mlp, F32);
        group.throughput(Throughput::Elements(products * product));
        group.bench_function(format!("forward/{name}"), |bencher| {
            bencher.iter(|| mlp::forward(black_box(&x), &mlp, F32));
        });
        group.throughput(Throughput::Elements(2 * products * product));
        group.bench_function(format!("backward/{name}"), |bencher| {
            let (hidden, gate) = (&output.hidden, &output.gate);
            bencher.iter(|| mlp::backward(black_box(&dy), &x, hidden, gate, &mlp, F32));
        });
    }
    group.finish();
}

/// The loss alone, and with its gradients, which are computed on the way.
pub(super) fn cross_entropy(criterion: &mut Criterion) {
    let hidden = noise(1, TOKENS * WIDTH);
    let shares = vec![1.0 / TOKENS as f32; TOKENS];
    let mut group = group(criterion, "cross-entropy");
    for vocabulary in [512, 8192] {
        let head = weights(2, WIDTH, vocabulary);
        let targets: Vec<u32> = (0..TOKENS).map(|t| (t * 31 % vocabulary) as u32).collect();
        for (name, with_gradients, products) in [("loss", false, 1), ("gradients", true, 3)] {
            let operations = products * 2 * TOKENS * WIDTH * vocabulary;
            group.throughput(Throughput::Elements(operations as u64));
            group.bench_function(format!("{name}/{vocabulary}"), |bencher| {
                bencher.iter(|| {
                    let hidden = black_box(&hidden);
                    loss::cross_entropy(
                        hidden,
                        &head,
                        WIDTH,
                        &targets,
                        &shares,
                        with_gradients,
                        F32,
                    )
                });
            });
        }
    }
    group.finish();
}
