//! Products of token rows with weights stored as `[out, in]`, one or several side by side:
//! `y = [x W1^T | x W2^T | ..]`, `dx = sum_i dy_i W_i`, `dW_i = dy_i^T x`.

use crate::buffer::unwritten;
use crate::gemm::{NR, Packed, Scratch, Store, View, large_row_tasks, multiply, row_pairs};
use crate::parallel;
use crate::precision::Precision;
use crate::rows::cut_mut;
use crate::vector;
use crate::work;

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
pub(crate) const FEW: usize = 8;

/// `y[tokens, sum of outs]`.
///
/// ```
/// use hadal_cpu::Precision;
/// use hadal_cpu::linear::{Weight, forward};
///
/// let x = [1.0, 2.0, 3.0, 4.0]; // two tokens of width 2
/// let sum = [1.0, 1.0]; // one row
/// let swap = [0.0, 1.0, 1.0, 0.0];
/// let y = forward(&x, 2, &[Weight::new(&sum, 2), Weight::new(&swap, 2)], Precision::F32);
/// assert_eq!(y, [3.0, 2.0, 1.0, 7.0, 4.0, 3.0]);
/// ```
pub fn forward(x: &[f32], inputs: usize, weights: &[Weight], precision: Precision) -> Vec<f32> {
    let (tokens, width) = checked(x, inputs, weights);
    work::add(2 * tokens * inputs * width);
    if tokens <= FEW {
        return few(x, inputs, weights, width);
    }
    if weights.iter().all(|weight| weight.out.is_multiple_of(NR)) {
        return joined(x, inputs, weights, width, precision);
    }
    let packed: Vec<_> = weights.iter().map(|w| pack_forward(*w, inputs, precision)).collect();
    // SAFETY: the products are all of its columns.
    let mut y = unsafe { unwritten(tokens * width) };
    parallel::for_each_init(
        row_pairs(&mut y, width, x, inputs, precision),
        Scratch::of_thread,
        |scratch, (y, x)| {
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
        },
    );
    y
}

/// The number of tokens and the width of what the weights give, of which all must be whole.
fn checked(x: &[f32], inputs: usize, weights: &[Weight]) -> (usize, usize) {
    assert!(inputs > 0 && x.len().is_multiple_of(inputs), "whole rows of {inputs} inputs");
    let whole = |weight: &Weight| weight.values.len() == weight.out * inputs;
    assert!(weights.iter().all(whole), "whole weights of {inputs} inputs");
    (x.len() / inputs, weights.iter().map(|weight| weight.out).sum())
}

/// All weights as one: rows of x are read once for all of them.
fn joined(
    x: &[f32],
    inputs: usize,
    weights: &[Weight],
    width: usize,
    precision: Precision,
) -> Vec<f32> {
    let parts: Vec<_> =
        weights.iter().map(|w| (View::transposed(w.values, inputs), w.out)).collect();
    let packed = Packed::side_by_side(&parts, inputs, precision);
    // SAFETY: the product is all of it.
    let mut y = unsafe { unwritten(x.len() / inputs * width) };
    parallel::for_each_init(
        row_pairs(&mut y, width, x, inputs, precision),
        Scratch::of_thread,
        |scratch, (y, x)| {
            let sizes = [x.len() / inputs, width, inputs];
            multiply(sizes, View::rows(x, inputs), &packed, y, width, Store::SET, scratch);
        },
    );
    y
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
pub(crate) fn pack_forward(weight: Weight, inputs: usize, precision: Precision) -> Packed {
    Packed::new(View::transposed(weight.values, inputs), inputs, weight.out, precision)
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
pub fn backward(
    dy: &[f32],
    x: &[f32],
    inputs: usize,
    weights: &[Weight],
    precision: Precision,
) -> Gradient {
    let (tokens, width) = checked(x, inputs, weights);
    assert_eq!(dy.len(), tokens * width, "a gradient for each element");
    let precision = precision.of_rows(tokens);
    work::add(4 * x.len() * width);
    let views = std::iter::once(x).chain(weights.iter().map(|weight| weight.values));
    let views: Vec<_> = views.map(|rows| [(View::rows(rows, inputs), inputs)]).collect();
    let depths = std::iter::once(tokens).chain(weights.iter().map(|weight| weight.out));
    let factors: Vec<_> = views.iter().map(|view| &view[..]).zip(depths).collect();
    let packed = Packed::all(&factors, precision);
    let (packed_x, packed_weights) = (&packed[0], &packed[1..]);
    let lengths = weights.iter().map(|weight| weight.out * inputs);
    // SAFETY: both products are all of their rows.
    let new = |length: usize| unsafe { unwritten(length) };
    let (mut d_weights, mut dx): (Vec<_>, _) = (lengths.map(new).collect(), new(x.len()));
    let mut tasks = Vec::new();
    let mut column = 0;
    // Rows of weights are split, not tokens: every element is summed in one order, whatever the threads do.
    for (dw, weight) in d_weights.iter_mut().zip(weights) {
        let mut dw = dw.as_mut_slice();
        for rows in large_row_tasks(weight.out, precision) {
            tasks.push(Part::Weight(cut_mut(&mut dw, rows * inputs), &dy[column..]));
            column += rows;
        }
    }
    let of_input = row_pairs(&mut dx, inputs, dy, width, precision);
    tasks.extend(of_input.map(|(dx, dy)| Part::Input(dx, dy)));
    parallel::for_each_init(tasks.into_iter(), Scratch::of_thread, |scratch, part| match part {
        Part::Weight(dw, dy) => {
            let (sizes, dy) = ([dw.len() / inputs, inputs, tokens], View::transposed(dy, width));
            multiply(sizes, dy, packed_x, dw, inputs, Store::SET, scratch);
        }
        Part::Input(dx, dy) => input_rows(dx, dy, inputs, packed_weights, scratch),
    });
    Gradient { x: dx, weights: d_weights }
}

/// What one task of [`backward`] computes, and what it reads of `dy`.
enum Part<'a> {
    /// Rows of a weight's gradient, from columns of `dy`.
    Weight(&'a mut [f32], &'a [f32]),
    /// Rows of the input's gradient.
    Input(&'a mut [f32], &'a [f32]),
}

/// `dx = sum_i dy_i W_i` for some rows.
fn input_rows(
    dx: &mut [f32],
    dy: &[f32],
    inputs: usize,
    weights: &[Packed],
    scratch: &mut Scratch,
) {
    let width: usize = weights.iter().map(Packed::depth).sum();
    let mut column = 0;
    for weight in weights {
        let sizes = [dx.len() / inputs, inputs, weight.depth()];
        let store = Store { add: column > 0, ..Store::SET };
        let dy = View::rows(&dy[column..], width);
        multiply(sizes, dy, weight, dx, inputs, store, scratch);
        column += weight.depth();
    }
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
            let y = forward(&x, inputs, &views, Precision::F32);
            let parts = [&weights[0], &weights[1]].map(|w| product(&x, w, inputs));
            let width = outs[0] + outs[1];
            let part = |part: usize, from: usize| -> Vec<f32> {
                y.chunks(width).flat_map(|y| y[from..from + outs[part]].to_vec()).collect()
            };
            assert_close(&part(0, 0), &parts[0], 1e-5);
            assert_close(&part(1, outs[0]), &parts[1], 1e-5);

            let dy = noise("dy", y.len());
            let gradient = backward(&dy, &x, inputs, &views, Precision::F32);
            let joined: Vec<f32> = weights.concat();
            assert_close(&gradient.x, &product(&dy, &transpose(&joined, inputs), width), 1e-5);
            let dw = product(&transpose(&dy, width), &transpose(&x, inputs), tokens);
            assert_close(&gradient.weights.concat(), &dw, 1e-5);
        }
    }
}
