//! Products of rows with weights, beside those of the `gemm` crate.

use super::{HIDDEN, TOKENS, WIDTH, group, noise, weights};
use criterion::{Criterion, Throughput};
use gemm::Parallelism;
use hadal_cpu::Precision::F32;
use hadal_cpu::linear::{Weight, backward, forward};
use hadal_cpu::vector::matrix_times;
use std::hint::black_box;

pub(super) fn linear(criterion: &mut Criterion) {
    let mut group = group(criterion, "linear");
    for (inputs, outputs) in [(WIDTH, 3 * WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH)] {
        let size = format!("{inputs}->{outputs}");
        let (x, dy) = (noise(1, TOKENS * inputs), noise(2, TOKENS * outputs));
        let w = weights(3, inputs, outputs);
        let weight = [Weight::new(&w, inputs)];
        let (mut y, mut dx) = (vec![0.0; dy.len()], vec![0.0; x.len()]);
        let mut dw = vec![0.0; w.len()];
        let [x, dy] = [Matrix::new(&x, inputs), Matrix::new(&dy, outputs)];
        let w = Matrix::new(&w, inputs);

        let operations = (2 * TOKENS * inputs * outputs) as u64;
        group.throughput(Throughput::Elements(operations));
        group.bench_function(format!("forward/{size}"), |bencher| {
            bencher.iter(|| forward(black_box(x.values), inputs, &weight, F32));
        });
        group.bench_function(format!("forward by gemm/{size}"), |bencher| {
            bencher.iter(|| multiply(&mut y, black_box(x), w.transposed()));
        });
        group.throughput(Throughput::Elements(2 * operations));
        group.bench_function(format!("backward/{size}"), |bencher| {
            bencher.iter(|| backward(black_box(dy.values), x.values, inputs, &weight, F32));
        });
        group.bench_function(format!("backward by gemm/{size}"), |bencher| {
            bencher.iter(|| {
                multiply(&mut dx, black_box(dy), w);
                multiply(&mut dw, dy.transposed(), x);
            });
        });
    }
    group.finish();
}

/// One token at a time: every weight is read once.
pub(super) fn decode(criterion: &mut Criterion) {
    let mut group = group(criterion, "decode");
    for (inputs, outputs) in [(WIDTH, 3 * WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH), (WIDTH, 8192)] {
        let (w, x) = (weights(1, inputs, outputs), noise(2, inputs));
        let mut y = vec![0.0; outputs];
        group.throughput(Throughput::Bytes(size_of_val(&*w) as u64));
        group.bench_function(format!("{inputs}->{outputs}"), |bencher| {
            bencher.iter(|| matrix_times(black_box(&w), &x, &mut y));
        });
    }
    group.finish();
}

/// A matrix of the `gemm` crate.
#[derive(Clone, Copy)]
struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Row by row.
    fn new(values: &'a [f32], columns: usize) -> Self {
        let rows = values.len() / columns;
        Self { values, rows, columns, row_stride: columns, column_stride: 1 }
    }

    fn transposed(self) -> Self {
        Self {
            values: self.values,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }
}

/// `product = a b`, on all threads.
fn multiply(product: &mut [f32], a: Matrix, b: Matrix) {
    assert!(a.columns == b.rows && product.len() == a.rows * b.columns);
    // SAFETY: a matrix covers all of its values with its sizes and strides, transposed or not; `product`
    // holds as many rows and columns as asserted, and is borrowed by nobody else.
    unsafe {
        gemm::gemm(
            a.rows,
            b.columns,
            a.columns,
            product.as_mut_ptr(),
            1,
            b.columns as isize,
            false,
            a.values.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.values.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            0.0,
            1.0,
            false,
            false,
            false,
            Parallelism::Rayon(0),
        );
    }
}
