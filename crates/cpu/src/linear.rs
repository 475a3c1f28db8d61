//! Products of token rows with weights stored as `[out, in]`, one or several side by side:
//! `y = [x W1^T | x W2^T | ..]`, `dx = sum_i dy_i W_i`, `dW_i = dy_i^T x`.

use crate::gemm::{NR, Packed, Scratch, Store, View, multiply, rows_per_task};
use crate::rows::filled;
use crate::vector;
use crate::work;
use rayon::prelude::*;

/// A weight matrix.
#[derive(Clone, Copy, Debug)]
pub struct Weight<'a> {
    /// `[out, in]`
    pub values: &'a [f32],
    /// Number of rows.
    pub out: usize,
}

impl<'a> Weight<'a> {
    /// A matrix whose rows have `inputs` elements.
    pub fn new(values: &'a [f32], inputs: usize) -> Self {
        Self { values, out: values.len() / inputs.max(1) }
    }
}

/// Up to this many tokens, weights are read row by row instead of being packed: packing reads and
/// writes all of them, which only pays when they are used many times.
const FEW: usize = 8;

/// `y[tokens, sum of outs]`.
pub fn forward(x: &[f32], inputs: usize, weights: &[Weight]) -> Vec<f32> {
    let tokens = x.len() / inputs;
    let width: usize = weights.iter().map(|w| w.out).sum();
    work::add(2 * tokens * inputs * width);
    if tokens <= FEW {
        return few(x, inputs, weights, width);
    }
    if weights.iter().all(|weight| weight.out.is_multiple_of(NR)) {
        return joined(x, inputs, weights, width);
    }
    let packed: Vec<_> = weights.iter().map(|w| pack_forward(*w, inputs)).collect();
    filled(tokens * width, |y| {
        let rows = rows_per_task(x.len() / inputs);
        let tasks = y.par_chunks_mut(rows * width).zip(x.par_chunks(rows * inputs));
        tasks.with_max_len(1).for_each_init(Scratch::of_thread, |scratch, (y, x)| {
            let rows = x.len() / inputs;
            let mut column = 0;
            for (weight, packed) in weights.iter().zip(&packed) {
                let sizes = [rows, weight.out, inputs];
                multiply(
                    sizes,
                    View::rows(x, inputs),
                    packed,
                    &mut y[column..],
                    width,
                    Store::SET,
                    scratch,
                );
                column += weight.out;
            }
        });
    })
}

/// All weights as one: rows of x are read once for all of them.
fn joined(x: &[f32], inputs: usize, weights: &[Weight], width: usize) -> Vec<f32> {
    let parts: Vec<_> =
        weights.iter().map(|w| (View::transposed(w.values, inputs), w.out)).collect();
    let packed = Packed::side_by_side(&parts, inputs);
    filled(x.len() / inputs * width, |y| {
        let rows = rows_per_task(x.len() / inputs);
        let tasks = y.par_chunks_mut(rows * width).zip(x.par_chunks(rows * inputs));
        tasks.with_max_len(1).for_each_init(Scratch::of_thread, |scratch, (y, x)| {
            let sizes = [x.len() / inputs, width, inputs];
            multiply(sizes, View::rows(x, inputs), &packed, y, width, Store::SET, scratch);
        });
    })
}

fn few(x: &[f32], inputs: usize, weights: &[Weight], width: usize) -> Vec<f32> {
    let tokens = x.len() / inputs;
    let mut y = vec![0.0; tokens * width];
    for (x, y) in x.chunks_exact(inputs).zip(y.chunks_exact_mut(width)) {
        one(x, weights, y);
    }
    y
}

/// [`forward`] for a single token, to where its row `y` is: `[sum of outs]`.
pub fn step(x: &[f32], weights: &[Weight], y: &mut [f32]) {
    work::add(2 * x.len() * y.len());
    one(x, weights, y);
}

fn one(x: &[f32], weights: &[Weight], y: &mut [f32]) {
    let mut rest = y;
    for weight in weights {
        let (part, more) = rest.split_at_mut(weight.out);
        vector::matrix_times(weight.values, x, part);
        rest = more;
    }
}

/// `W^T`, ready for `x W^T`.
pub(crate) fn pack_forward(weight: Weight, inputs: usize) -> Packed {
    Packed::new(View::transposed(weight.values, inputs), inputs, weight.out)
}

/// Gradients of [`forward`].
#[derive(Debug)]
pub struct Gradient {
    /// `[tokens, in]`
    pub x: Vec<f32>,
    /// One for each weight, of its shape.
    pub weights: Vec<Vec<f32>>,
}

/// `dy` is the gradient of what [`forward`] returned.
pub fn backward(dy: &[f32], x: &[f32], inputs: usize, weights: &[Weight]) -> Gradient {
    let width: usize = weights.iter().map(|w| w.out).sum();
    work::add(4 * x.len() * width);
    let packed_x = Packed::new(View::rows(x, inputs), x.len() / inputs, inputs);
    let mut column = 0;
    let of_weights = weights
        .iter()
        .map(|weight| {
            let gradient = weight_gradient(&dy[column..], width, weight.out, &packed_x, inputs);
            column += weight.out;
            gradient
        })
        .collect();
    Gradient { x: input_gradient(dy, inputs, weights, 1.0), weights: of_weights }
}

/// `dx = scale sum_i dy_i W_i`.
pub(crate) fn input_gradient(
    dy: &[f32],
    inputs: usize,
    weights: &[Weight],
    scale: f32,
) -> Vec<f32> {
    let width: usize = weights.iter().map(|w| w.out).sum();
    let packed: Vec<_> = weights
        .iter()
        .map(|weight| Packed::new(View::rows(weight.values, inputs), weight.out, inputs))
        .collect();
    filled(dy.len() / width * inputs, |dx| {
        let rows = rows_per_task(dy.len() / width);
        let tasks = dx.par_chunks_mut(rows * inputs).zip(dy.par_chunks(rows * width));
        tasks.with_max_len(1).for_each_init(Scratch::of_thread, |scratch, (dx, dy)| {
            let mut column = 0;
            for (i, (weight, packed)) in weights.iter().zip(&packed).enumerate() {
                let sizes = [dx.len() / inputs, inputs, weight.out];
                let store = Store { scale, add: i > 0 };
                multiply(
                    sizes,
                    View::rows(&dy[column..], width),
                    packed,
                    dx,
                    inputs,
                    store,
                    scratch,
                );
                column += weight.out;
            }
        });
    })
}

/// `dW[out, in] = dy^T x` with dy in rows of stride `stride` and all of x packed.
pub(crate) fn weight_gradient(
    dy: &[f32],
    stride: usize,
    out: usize,
    x: &Packed,
    inputs: usize,
) -> Vec<f32> {
    // Rows are split, not tokens: every element is summed in one order, whatever the threads do.
    let rows = rows_per_task(out);
    filled(out * inputs, |dw| {
        let tasks = dw.par_chunks_mut(rows * inputs).enumerate();
        tasks.with_max_len(1).for_each_init(Scratch::of_thread, |scratch, (i, dw)| {
            let sizes = [dw.len() / inputs, inputs, x.depth()];
            multiply(
                sizes,
                View::transposed(&dy[i * rows..], stride),
                x,
                dw,
                inputs,
                Store::SET,
                scratch,
            );
        });
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, noise};

    /// `[m, k] x [n, k]^T` in f64.
    fn product(a: &[f32], b: &[f32], k: usize) -> Vec<f32> {
        let dot = |a: &[f32], b: &[f32]| -> f32 {
            a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
        };
        a.chunks(k).flat_map(|a| b.chunks(k).map(move |b| dot(a, b))).collect()
    }

    fn transpose(a: &[f32], columns: usize) -> Vec<f32> {
        let rows = a.len() / columns;
        (0..a.len()).map(|i| a[i % rows * columns + i / rows]).collect()
    }

    #[test]
    fn weights_side_by_side_are_products_of_their_own() {
        for (tokens, inputs, outs) in
            [(1, 5, [3, 4]), (300, 37, [19, 40]), (9, 512, [6, 48]), (70, 40, [32, 16])]
        {
            let x = noise("x", tokens * inputs);
            let weights = outs.map(|out| noise(&format!("w{out}"), out * inputs));
            let views = [&weights[0], &weights[1]].map(|w| Weight::new(w, inputs));
            let y = forward(&x, inputs, &views);
            let parts = [&weights[0], &weights[1]].map(|w| product(&x, w, inputs));
            let width = outs[0] + outs[1];
            let part = |part: usize, from: usize| -> Vec<f32> {
                y.chunks(width).flat_map(|y| y[from..from + outs[part]].to_vec()).collect()
            };
            assert_close(&part(0, 0), &parts[0], 1e-5);
            assert_close(&part(1, outs[0]), &parts[1], 1e-5);

            let dy = noise("dy", y.len());
            let gradient = backward(&dy, &x, inputs, &views);
            let joined: Vec<f32> = weights.concat();
            assert_close(&gradient.x, &product(&dy, &transpose(&joined, inputs), width), 1e-5);
            let dw = product(&transpose(&dy, width), &transpose(&x, inputs), tokens);
            assert_close(&gradient.weights.concat(), &dw, 1e-5);
        }
    }
}
