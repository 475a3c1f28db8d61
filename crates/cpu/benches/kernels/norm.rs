//! RMSNorm by itself.

use super::{EPS, TOKENS, WIDTH, group, noise};
use criterion::{Criterion, Throughput};
use hadal_cpu::norm::{backward, forward};
use std::hint::black_box;

pub(super) fn norm(criterion: &mut Criterion) {
    let (x, dy, gain) = (noise(1, TOKENS * WIDTH), noise(2, TOKENS * WIDTH), vec![1.0; WIDTH]);
    let rows = size_of_val(&*x) as u64;
    let mut group = group(criterion, "norm");
    group.throughput(Throughput::Bytes(2 * rows));
    group.bench_function("forward", |bencher| {
        bencher.iter(|| forward(black_box(&x), &gain, EPS));
    });
    group.throughput(Throughput::Bytes(3 * rows));
    group.bench_function("backward", |bencher| {
        bencher.iter(|| backward(black_box(&dy), &x, &gain, EPS));
    });
    group.finish();
}
