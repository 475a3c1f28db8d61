//! Sums in a fixed order, so that a run has the same bits each time: no atomics.

use super::launch::{Layout, empty};
use burn::backend::TensorMetadata;
use burn::tensor::Shape;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

/// How many values one unit adds in the first pass of a sum without planes.
const GROUP: usize = 16;

/// The length of what [`cube_sum`] works in.
pub(super) const fn room(units: usize) -> usize {
    units + units / GROUP
}

/// The sum of one value of each unit. Every unit knows it afterwards and may begin the next sum in the same `parts`.
#[cube]
pub(super) fn cube_sum(
    value: f32,
    parts: &mut Shared<[f32]>,
    #[comptime] units: usize,
    #[comptime] planes: bool,
) -> f32 {
    let mut total = 0.0f32;
    if planes {
        let sum = plane_sum(value);
        if UNIT_POS_PLANE == 0 {
            parts[(UNIT_POS / PLANE_DIM) as usize] = sum;
        }
        sync_cube();
        for i in 0..CUBE_DIM / PLANE_DIM {
            total += parts[i as usize];
        }
        sync_cube();
    } else {
        let unit = UNIT_POS as usize;
        let group = comptime!(GROUP);
        let groups = comptime!(units / GROUP);
        parts[unit] = value;
        sync_cube();
        if unit < groups {
            let mut sum = 0.0f32;
            for k in 0..group {
                sum += parts[unit * group + k];
            }
            parts[units + unit] = sum;
        }
        // The next sum writes its groups only behind its first barrier, which all units reach after this loop.
        sync_cube();
        for k in 0..groups {
            total += parts[units + k];
        }
    }
    total
}

/// `1 / sqrt(mean + epsilon)`. Of a row whose squares are too large for f32 it is infinite: zero would make a row of zeros of
/// it, which nobody would notice, and shader compilers may leave out what makes it not a number.
#[cube]
pub(super) fn inverse_root(mean: f32, epsilon: f32) -> f32 {
    let mut root = (mean + epsilon).inverse_sqrt();
    if mean > 3.0e38f32 {
        root = mean;
    }
    root
}

/// Rows of one partial sum.
const CHUNK: usize = 64;
/// WebGPU has 65,535 cubes in a dimension.
const MOST_CHUNKS: usize = 32_768;

/// The rows from `first` on that belong to a chunk, as first and end.
#[cube]
fn chunk_end(first: u32, chunk: u32, rows: u32) -> u32 {
    let mut end = first + chunk;
    if end > rows {
        end = rows;
    }
    end
}

/// `sum_row x`
#[cube(launch)]
fn plain_columns(
    x: &Tensor<f32>,
    sums: &mut Tensor<f32>,
    rows: u32,
    chunk: u32,
    #[comptime] width: usize,
) {
    let column = ABSOLUTE_POS_X as usize;
    if column < width {
        let mut row = ABSOLUTE_POS_Y * chunk;
        let end = chunk_end(row, chunk, rows);
        let mut sum = 0.0f32;
        while row < end {
            sum += x[row as usize * width + column];
            row += 1;
        }
        sums[ABSOLUTE_POS_Y as usize * width + column] = sum;
    }
}

/// `sum_row weight x`, with a weight for each group of neighbouring columns.
#[cube(launch)]
fn weighted_columns(
    x: &Tensor<f32>,
    weights: &Tensor<f32>,
    sums: &mut Tensor<f32>,
    rows: u32,
    chunk: u32,
    #[comptime] groups: usize,
    #[comptime] width: usize,
) {
    let column = ABSOLUTE_POS_X as usize;
    if column < width {
        let mut row = ABSOLUTE_POS_Y * chunk;
        let end = chunk_end(row, chunk, rows);
        let group = column / comptime!(width / groups);
        let mut sum = 0.0f32;
        while row < end {
            sum += x[row as usize * width + column] * weights[row as usize * groups + group];
            row += 1;
        }
        sums[ABSOLUTE_POS_Y as usize * width + column] = sum;
    }
}

/// `sum_row weight x y`
#[cube(launch)]
fn paired_columns(
    x: &Tensor<f32>,
    y: &Tensor<f32>,
    weights: &Tensor<f32>,
    sums: &mut Tensor<f32>,
    rows: u32,
    chunk: u32,
    #[comptime] width: usize,
) {
    let column = ABSOLUTE_POS_X as usize;
    if column < width {
        let mut row = ABSOLUTE_POS_Y * chunk;
        let end = chunk_end(row, chunk, rows);
        let mut sum = 0.0f32;
        while row < end {
            let at = row as usize * width + column;
            sum += x[at] * y[at] * weights[row as usize];
            row += 1;
        }
        sums[ABSOLUTE_POS_Y as usize * width + column] = sum;
    }
}

/// What is added over all rows.
pub(super) enum Terms {
    /// `x`
    Plain,
    /// `weight x`
    Weighted(CubeTensor),
    /// `weight x`, with a weight for each of so many groups of neighbouring columns.
    Grouped(CubeTensor, usize),
    /// `weight x y`
    Paired(CubeTensor, CubeTensor),
}

/// Sums over the rows of `x`, which has `width` columns: partial sums of chunks, then their sum.
pub(super) fn columns(x: CubeTensor, terms: Terms, width: usize) -> CubeTensor {
    let rows = x.shape().num_elements() / width;
    let chunk = CHUNK.max(rows.div_ceil(MOST_CHUNKS));
    let parts = pass(x, terms, rows, chunk, width);
    let parts_count = rows.div_ceil(chunk);
    match parts_count {
        1 => parts,
        _ => pass(parts, Terms::Plain, parts_count, parts_count, width),
    }
}

/// One pass over the rows, as `[chunks, width]`; `[width]` if there is one chunk.
fn pass(x: CubeTensor, terms: Terms, rows: usize, chunk: usize, width: usize) -> CubeTensor {
    let chunks = rows.div_ceil(chunk);
    let shape = if chunks == 1 { Shape::new([width]) } else { Shape::new([chunks, width]) };
    let sums = empty(&x, shape);
    let units = Layout::of(&x, width).units;
    let count = CubeCount::Static((width as u32).div_ceil(units), chunks as u32, 1);
    let (client, dim) = (x.client.clone(), CubeDim::new_1d(units));
    let (x, out) = (x.into_tensor_arg(), sums.clone().into_tensor_arg());
    let (rows, chunk) = (rows as u32, chunk as u32);
    match terms {
        Terms::Plain => plain_columns::launch(&client, count, dim, x, out, rows, chunk, width),
        Terms::Weighted(weights) => {
            let weights = weights.into_tensor_arg();
            weighted_columns::launch(&client, count, dim, x, weights, out, rows, chunk, 1, width);
        }
        Terms::Grouped(weights, groups) => {
            let weights = weights.into_tensor_arg();
            weighted_columns::launch(
                &client, count, dim, x, weights, out, rows, chunk, groups, width,
            );
        }
        Terms::Paired(y, weights) => {
            let (y, weights) = (y.into_tensor_arg(), weights.into_tensor_arg());
            paired_columns::launch(&client, count, dim, x, y, weights, out, rows, chunk, width);
        }
    }
    sums
}
