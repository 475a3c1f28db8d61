//! What this machine can do, to measure models against: a plain f32 matrix product, and multiply-adds between registers.

use super::protocol::Speeds;
use gemm::{Parallelism, gemm};
use hadal_cpu::Form;
use hadal_cpu::peak::Peak;
use std::time::Instant;

/// Rows and columns: large enough for the caches to be used well, small enough to be quick.
const SIZE: usize = 1024;
/// The best of this many products counts: other programs can only slow one down.
const TRIES: usize = 10;

/// Measures them on this many threads, which are those of the pool that it is called in.
pub(super) fn speeds(threads: usize) -> Speeds {
    let Peak { thread: peak_gflops_thread, all: peak_gflops } = Peak::of(Form::best());
    let gemm_gflops_thread = sgemm_gflops(1);
    let gemm_gflops = if threads > 1 { sgemm_gflops(threads) } else { gemm_gflops_thread };
    Speeds { gemm_gflops, gemm_gflops_thread, peak_gflops, peak_gflops_thread }
}

/// GFLOP/s of the best of several products of two square f32 matrices.
fn sgemm_gflops(threads: usize) -> f64 {
    let (a, b) = (vec![1.0f32; SIZE * SIZE], vec![0.5f32; SIZE * SIZE]);
    let mut product = vec![0.0f32; SIZE * SIZE];
    let best = (0..TRIES)
        .map(|_| {
            let started = Instant::now();
            multiply(&mut product, &a, &b, threads);
            started.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    // The product must be observed, or it could be optimised away.
    std::hint::black_box(&product);
    2.0 * (SIZE as f64).powi(3) / best / 1e9
}

/// `product = a b`, all row by row.
fn multiply(product: &mut [f32], a: &[f32], b: &[f32], threads: usize) {
    assert!([product.len(), a.len(), b.len()] == [SIZE * SIZE; 3]);
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    let (row, column) = (SIZE as isize, 1);
    // SAFETY: all three hold SIZE rows of SIZE elements, as the strides say, and `product` is borrowed only here.
    unsafe {
        gemm(
            SIZE,
            SIZE,
            SIZE,
            product.as_mut_ptr(),
            column,
            row,
            false,
            a.as_ptr(),
            column,
            row,
            b.as_ptr(),
            column,
            row,
            0.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_product_is_a_product() {
        let (a, b) = (vec![1.0; SIZE * SIZE], vec![0.5; SIZE * SIZE]);
        let mut product = vec![f32::NAN; SIZE * SIZE];
        multiply(&mut product, &a, &b, 2);
        assert!(product.iter().all(|&value| value == SIZE as f32 / 2.0));
    }
}
