//! Small matrix products over rows, in blocks of sums that stay in registers.
//!
//! Everything that mixing does to rows of features is one of two products: of rows with rows along
//! their features ([`Products`]), or of a small matrix with rows ([`scatter`], [`sums`], [`put`]).

use crate::simd::{add_scaled, dot, total};
use std::array::from_fn;

/// Features that one step of a dot product covers: an AVX2 register.
const LANES: usize = 8;
/// Features that a block of sums covers.
pub(super) const COLUMNS: usize = 16;
/// Rows that a block of sums covers.
pub(super) const TARGETS: usize = 4;

/// Some features of one row.
pub(super) type Chunk = [f32; COLUMNS];
/// What one source gives to each row of a block.
pub(super) type Shares = [f32; TARGETS];

/// Memory for [`Products::find`].
#[derive(Debug, Default)]
pub(super) struct Products {
    /// The sums of a strip of left rows, one register for each.
    sums: Vec<[f32; LANES]>,
}

impl Products {
    /// `out_lr = left_l . right_r` for rows of `width` features, where row `l` of `out` starts at
    /// `l * stride`.
    #[inline(always)]
    pub(super) fn find(
        &mut self,
        out: &mut [f32],
        stride: usize,
        left: &[f32],
        right: &[f32],
        width: usize,
    ) {
        let count = right.len() / width;
        self.sums.resize(TARGETS * count, [0.0; LANES]);
        for (strip, left) in left.chunks(TARGETS * width).enumerate() {
            let rows = left.len() / width;
            if rows == TARGETS {
                self.strip(left, right, width);
            } else {
                self.rows(left, right, width);
            }
            // The registers are summed up apart from where they are filled: together, the compiler
            // would split them into pairs.
            let out = &mut out[strip * TARGETS * stride..];
            for (l, sums) in self.sums.chunks_exact(count).take(rows).enumerate() {
                for (out, sums) in out[l * stride..].iter_mut().zip(sums) {
                    *out = total(*sums);
                }
            }
            if !width.is_multiple_of(LANES) {
                add_rest(out, stride, left, right, width);
            }
        }
    }

    /// The sums of [`TARGETS`] left rows.
    #[inline(always)]
    fn strip(&mut self, left: &[f32], right: &[f32], width: usize) {
        let count = right.len() / width;
        for (block, right) in right.chunks(3 * width).enumerate() {
            let sums = &mut self.sums[block * 3..];
            match right.len() / width {
                3 => four_by::<3>(sums, count, left, right, width),
                2 => four_by::<2>(sums, count, left, right, width),
                _ => four_by::<1>(sums, count, left, right, width),
            }
        }
    }

    /// The sums of fewer left rows.
    #[inline(always)]
    fn rows(&mut self, left: &[f32], right: &[f32], width: usize) {
        let count = right.len() / width;
        let sums = self.sums.chunks_exact_mut(count);
        for (sums, left) in sums.zip(left.chunks_exact(width)) {
            for (sums, right) in sums.iter_mut().zip(right.chunks_exact(width)) {
                let (left, right) = (left.as_chunks().0, right.as_chunks().0);
                *sums = [0.0; LANES];
                for (a, b) in left.iter().zip(right) {
                    add_product(sums, a, b);
                }
            }
        }
    }
}

/// Adds the products of the features behind the last full register.
fn add_rest(out: &mut [f32], stride: usize, left: &[f32], right: &[f32], width: usize) {
    let done = width / LANES * LANES;
    for (l, left) in left.chunks_exact(width).enumerate() {
        for (out, right) in out[l * stride..].iter_mut().zip(right.chunks_exact(width)) {
            *out += dot(&left[done..], &right[done..]);
        }
    }
}

/// The sums of four left rows and `R` right ones. They are written to four rows of `stride`.
#[inline(always)]
fn four_by<const R: usize>(
    out: &mut [[f32; LANES]],
    stride: usize,
    left: &[f32],
    right: &[f32],
    width: usize,
) {
    let steps = width / LANES;
    let left: [&[[f32; LANES]]; TARGETS] =
        from_fn(|l| &left[l * width..(l + 1) * width].as_chunks().0[..steps]);
    let right: [&[[f32; LANES]]; R] =
        from_fn(|r| &right[r * width..(r + 1) * width].as_chunks().0[..steps]);
    // An array of four of these would be left in memory.
    let [mut a, mut b, mut c, mut d] = [[[0f32; LANES]; R]; TARGETS];
    for k in 0..steps {
        for r in 0..R {
            add_product(&mut a[r], &left[0][k], &right[r][k]);
        }
        for r in 0..R {
            add_product(&mut b[r], &left[1][k], &right[r][k]);
        }
        for r in 0..R {
            add_product(&mut c[r], &left[2][k], &right[r][k]);
        }
        for r in 0..R {
            add_product(&mut d[r], &left[3][k], &right[r][k]);
        }
    }
    out[..R].copy_from_slice(&a);
    out[stride..][..R].copy_from_slice(&b);
    out[2 * stride..][..R].copy_from_slice(&c);
    out[3 * stride..][..R].copy_from_slice(&d);
}

#[inline(always)]
fn add_product(sums: &mut [f32; LANES], a: &[f32; LANES], b: &[f32; LANES]) {
    for j in 0..LANES {
        sums[j] += a[j] * b[j];
    }
}

/// All chunks of a row, each to the first place of a group of `stride` chunks; the last is filled up with
/// zeros.
///
/// Rows a power of two apart fall into the same few cache lines; side by side, they can be gone through
/// many times.
#[inline(always)]
pub(super) fn scatter(chunks: &mut [Chunk], stride: usize, row: &[f32]) {
    let (full, rest) = row.as_chunks();
    for (group, full) in chunks.chunks_mut(stride).zip(full) {
        group[0] = *full;
    }
    if !rest.is_empty() {
        fill_up(&mut chunks[full.len() * stride], rest);
    }
}

/// A chunk that ends with zeros.
fn fill_up(chunk: &mut Chunk, row: &[f32]) {
    *chunk = [0.0; COLUMNS];
    chunk[..row.len()].copy_from_slice(row);
}

/// `sum_j shares_jt x_j` for every row `t` of a block.
#[inline(always)]
pub(super) fn sums(sources: &[Chunk], shares: &[Shares]) -> [Chunk; TARGETS] {
    let mut sums = [[0f32; COLUMNS]; TARGETS];
    for (x, share) in sources.iter().zip(shares) {
        for t in 0..TARGETS {
            for j in 0..COLUMNS {
                sums[t][j] += share[t] * x[j];
            }
        }
    }
    sums
}

/// Writes the sums to the chunks from feature `at` of a block's rows, or adds them.
#[inline(always)]
pub(super) fn put<const ADD: bool>(
    rows: &mut [f32],
    width: usize,
    at: usize,
    sums: &[Chunk; TARGETS],
) {
    for (row, sums) in rows.chunks_exact_mut(width).zip(sums) {
        let row = &mut row[at..];
        if let Some(full) = row.first_chunk_mut::<COLUMNS>() {
            // Everything is read before anything is written, or the compiler would go one by one.
            let mut new = if ADD { *full } else { [0.0; COLUMNS] };
            for j in 0..COLUMNS {
                new[j] += sums[j];
            }
            *full = new;
        } else {
            for (x, sum) in row.iter_mut().zip(sums) {
                *x = if ADD { *x + sum } else { *sum };
            }
        }
    }
}

/// Sorts a matrix for [`sums`]: block by block of targets, source by source. Element
/// `(target, source)` of the matrix is at `target * strides[0] + source * strides[1]`; rows that a
/// block lacks get zeros.
#[inline(always)]
pub(super) fn sort_shares(
    shares: &mut [Shares],
    matrix: &[f32],
    strides: [usize; 2],
    [targets, sources]: [usize; 2],
) {
    for (block, shares) in shares.chunks_exact_mut(sources).enumerate() {
        let first = block * TARGETS;
        for (source, shares) in shares.iter_mut().enumerate() {
            for (t, share) in shares.iter_mut().enumerate() {
                let target = first + t;
                *share = if target < targets {
                    matrix[target * strides[0] + source * strides[1]]
                } else {
                    0.0
                };
            }
        }
    }
}

/// How many blocks so many targets make.
pub(super) fn blocks(targets: usize) -> usize {
    targets.div_ceil(TARGETS)
}

/// `out = sum_j weight_j row_j`, where `weights` goes on from one row to the next in steps of `stride`.
/// Row by row, for rows are read here for the first time, and memory likes to be read in order.
#[inline(always)]
pub(super) fn weighted_sum(out: &mut [f32], rows: &[f32], weights: &[f32], stride: usize) {
    out.fill(0.0);
    for (j, row) in rows.chunks_exact(out.len()).enumerate() {
        add_scaled(out, weights[j * stride], row);
    }
}
