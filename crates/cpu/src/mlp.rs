//! The position-wise feed-forward network: `down(relu(up x)^2)`, or with a gate
//! `down(silu(gate x) * up x)`.
//!
//! Of the squared form only `a = relu(u)^2` is kept: its slope is `2 sqrt(a)`. Of the gated form
//! `up x` and `gate x` are kept, and the product is computed again.

mod step;

pub use step::{Biases, Room, step};

use crate::gemm::{Packed, Scratch, Store, View, multiply, rows_per_task};
use crate::linear::{Weight, input_gradient, pack_forward, weight_gradient};
use crate::rows::{filled, transpose};
use crate::simd::exp;
use crate::work;
use rayon::prelude::*;

/// The matrices.
#[derive(Clone, Copy, Debug)]
pub struct Mlp<'a> {
    /// Width of the input and the output.
    pub width: usize,
    /// Width in between.
    pub hidden: usize,
    /// `[hidden, width]`
    pub up: &'a [f32],
    /// `[hidden, width]`, of the gated form.
    pub gate: Option<&'a [f32]>,
    /// `[width, hidden]`
    pub down: &'a [f32],
}

/// What [`forward`] returns.
#[derive(Debug)]
pub struct Output {
    /// `[tokens, width]`
    pub y: Vec<f32>,
    /// What the backward pass needs, `[tokens, hidden]`: `relu(u)^2`, or `up x`.
    pub hidden: Vec<f32>,
    /// `[tokens, hidden]`: `gate x` of the gated form, else nothing.
    pub gate: Vec<f32>,
}

impl Mlp<'_> {
    fn weight<'b>(&self, values: &'b [f32]) -> Weight<'b> {
        Weight { values, out: self.hidden }
    }
}

/// Applies the network to `x`, `[tokens, width]`.
pub fn forward(x: &[f32], mlp: &Mlp) -> Output {
    let Mlp { width, hidden, .. } = *mlp;
    let tokens = x.len() / width;
    if let Some(gate) = mlp.gate {
        let weights = [mlp.weight(mlp.up), mlp.weight(gate)];
        let [up, gate] = weights.map(|weight| crate::linear::forward(x, width, &[weight]));
        let product = gated(&up, &gate);
        let y =
            crate::linear::forward(&product, hidden, &[Weight { values: mlp.down, out: width }]);
        return Output { y, hidden: up, gate };
    }
    if tokens <= 8 {
        let mut a = crate::linear::forward(x, width, &[mlp.weight(mlp.up)]);
        square_relu(&mut a);
        let y = crate::linear::forward(&a, hidden, &[Weight { values: mlp.down, out: width }]);
        return Output { y, hidden: a, gate: Vec::new() };
    }
    work::add(4 * tokens * width * hidden);
    let up = pack_forward(mlp.weight(mlp.up), width);
    let down = pack_forward(Weight { values: mlp.down, out: width }, hidden);
    let mut a = Vec::new();
    let y = filled(tokens * width, |y| {
        a = filled(tokens * hidden, |a| {
            let rows = rows_per_task(tokens);
            let outs = y.par_chunks_mut(rows * width).zip(a.par_chunks_mut(rows * hidden));
            let tasks = outs.zip(x.par_chunks(rows * width));
            tasks.with_max_len(1).for_each_init(Scratch::of_thread, |scratch, ((y, a), x)| {
                let rows = x.len() / width;
                let sizes = [rows, hidden, width];
                multiply(sizes, View::rows(x, width), &up, a, hidden, Store::SET, scratch);
                square_relu(a);
                let sizes = [rows, width, hidden];
                multiply(sizes, View::rows(a, hidden), &down, y, width, Store::SET, scratch);
            });
        });
    });
    Output { y, hidden: a, gate: Vec::new() }
}

/// Gradients of [`forward`].
#[derive(Debug)]
pub struct Gradient {
    /// `[tokens, width]`
    pub x: Vec<f32>,
    /// `[hidden, width]`
    pub up: Vec<f32>,
    /// `[hidden, width]`, of the gated form.
    pub gate: Vec<f32>,
    /// `[width, hidden]`
    pub down: Vec<f32>,
}

/// `dy` is the gradient of [`Output::y`]; `hidden` and `gate` are those of the output.
pub fn backward(dy: &[f32], x: &[f32], hidden: &[f32], gate: &[f32], mlp: &Mlp) -> Gradient {
    let tokens = x.len() / mlp.width;
    let matrices = if mlp.gate.is_some() { 3 } else { 2 };
    work::add(4 * matrices * x.len() * mlp.hidden);
    let packed_x = Packed::new(View::rows(x, mlp.width), tokens, mlp.width);
    let of_input = |d: &[f32]| weight_gradient(d, mlp.hidden, mlp.hidden, &packed_x, mlp.width);
    match mlp.gate {
        None => {
            let (dx, du) = relu_backward(dy, hidden, mlp);
            let down = down_gradient(dy, hidden, mlp);
            Gradient { x: dx, up: of_input(&du), gate: Vec::new(), down }
        }
        Some(gate_weight) => {
            let product = gated(hidden, gate);
            let down = down_gradient(dy, &product, mlp);
            let mut d_up = product;
            let d_product = Weight { values: mlp.down, out: mlp.width };
            let mut d_gate = input_gradient(dy, mlp.hidden, &[d_product], 1.0);
            gated_backward(&mut d_up, &mut d_gate, hidden, gate);
            let mut dx = input_gradient(&d_up, mlp.width, &[mlp.weight(mlp.up)], 1.0);
            let of_gate = input_gradient(&d_gate, mlp.width, &[mlp.weight(gate_weight)], 1.0);
            add(&mut dx, &of_gate);
            Gradient { x: dx, up: of_input(&d_up), gate: of_input(&d_gate), down }
        }
    }
}

/// `dW_down = dy^T a`, as the transpose of `a^T dy`: the narrow side is the one to pack.
fn down_gradient(dy: &[f32], a: &[f32], mlp: &Mlp) -> Vec<f32> {
    let Mlp { width, hidden, .. } = *mlp;
    let packed = Packed::new(View::rows(dy, width), dy.len() / width, width);
    let transposed = weight_gradient(a, hidden, hidden, &packed, width);
    transpose(&transposed, width)
}

/// `dx` and `du = (dy W_down) * 2 sqrt(a)`.
fn relu_backward(dy: &[f32], a: &[f32], mlp: &Mlp) -> (Vec<f32>, Vec<f32>) {
    let Mlp { width, hidden, up, down, .. } = *mlp;
    let tokens = dy.len() / width;
    let down = Packed::new(View::rows(down, hidden), width, hidden);
    let up = Packed::new(View::rows(up, width), hidden, width);
    let mut du = Vec::new();
    let dx = filled(tokens * width, |dx| {
        du = filled(tokens * hidden, |du| {
            let rows = rows_per_task(tokens);
            let outs = dx.par_chunks_mut(rows * width).zip(du.par_chunks_mut(rows * hidden));
            let tasks = outs.zip(dy.par_chunks(rows * width)).zip(a.par_chunks(rows * hidden));
            tasks.with_max_len(1).for_each_init(
                Scratch::of_thread,
                |scratch, (((dx, du), dy), a)| {
                    let rows = dy.len() / width;
                    let sizes = [rows, hidden, width];
                    multiply(sizes, View::rows(dy, width), &down, du, hidden, Store::SET, scratch);
                    square_relu_backward(du, a);
                    let sizes = [rows, width, hidden];
                    multiply(sizes, View::rows(du, hidden), &up, dx, width, Store::SET, scratch);
                },
            );
        });
    });
    (dx, du)
}

simd! {
    fn square_relu(values: &mut [f32]) {
        for value in values {
            let positive = value.max(0.0);
            // A NaN must not become a zero.
            *value = if value.is_nan() { *value } else { positive * positive };
        }
    }
}

simd! {
    fn square_relu_backward(d: &mut [f32], a: &[f32]) {
        for (d, a) in d.iter_mut().zip(a) {
            *d *= 2.0 * a.sqrt();
        }
    }
}

/// Elements of one task of an elementwise pass.
const ELEMENTS: usize = 1 << 14;

/// `silu(gate) * up`.
fn gated(up: &[f32], gate: &[f32]) -> Vec<f32> {
    filled(up.len(), |out| {
        let inputs = up.par_chunks(ELEMENTS).zip(gate.par_chunks(ELEMENTS));
        let tasks = out.par_chunks_mut(ELEMENTS).zip(inputs);
        tasks.for_each(|(out, (up, gate))| gated_part(out, up, gate));
    })
}

simd! {
    fn gated_part(out: &mut [f32], up: &[f32], gate: &[f32]) {
        for ((out, up), gate) in out.iter_mut().zip(up).zip(gate) {
            *out = up * gate / (1.0 + exp(-gate));
        }
    }
}

/// `d_up` is overwritten; `d_gate` enters as the gradient of the product.
fn gated_backward(d_up: &mut [f32], d_gate: &mut [f32], up: &[f32], gate: &[f32]) {
    let outs = d_up.par_chunks_mut(ELEMENTS).zip(d_gate.par_chunks_mut(ELEMENTS));
    let inputs = up.par_chunks(ELEMENTS).zip(gate.par_chunks(ELEMENTS));
    outs.zip(inputs).for_each(|((d_up, d_gate), (up, gate))| {
        gated_backward_part(d_up, d_gate, up, gate);
    });
}

simd! {
    fn gated_backward_part(d_up: &mut [f32], d_gate: &mut [f32], up: &[f32], gate: &[f32]) {
        let outs = d_up.iter_mut().zip(d_gate.iter_mut());
        for ((d_up, d_gate), (up, gate)) in outs.zip(up.iter().zip(gate)) {
            let sigmoid = 1.0 / (1.0 + exp(-gate));
            let d = *d_gate;
            *d_up = d * gate * sigmoid;
            *d_gate = d * up * sigmoid * (1.0 + gate * (1.0 - sigmoid));
        }
    }
}

fn add(sum: &mut [f32], more: &[f32]) {
    sum.par_chunks_mut(ELEMENTS).zip(more.par_chunks(ELEMENTS)).for_each(|(sum, more)| {
        add_part(sum, more);
    });
}

simd! {
    fn add_part(sum: &mut [f32], more: &[f32]) {
        for (sum, more) in sum.iter_mut().zip(more) {
            *sum += more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, assert_gradient, noise};

    const WIDTH: usize = 5;
    const HIDDEN: usize = 7;

    #[derive(Clone)]
    struct Case {
        x: Vec<f32>,
        up: Vec<f32>,
        gate: Option<Vec<f32>>,
        down: Vec<f32>,
    }

    fn case(tokens: usize, gated: bool) -> Case {
        Case {
            x: noise("x", tokens * WIDTH),
            up: noise("up", HIDDEN * WIDTH),
            gate: gated.then(|| noise("gate", HIDDEN * WIDTH)),
            down: noise("down", WIDTH * HIDDEN),
        }
    }

    impl Case {
        fn mlp(&self) -> Mlp<'_> {
            Mlp {
                width: WIDTH,
                hidden: HIDDEN,
                up: &self.up,
                gate: self.gate.as_deref(),
                down: &self.down,
            }
        }

        /// In f64, one token at a time.
        fn reference(&self) -> Vec<f64> {
            let times = |w: &[f32], x: &[f64]| -> Vec<f64> {
                w.chunks(x.len())
                    .map(|w| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum())
                    .collect()
            };
            let mut y = Vec::new();
            for x in self.x.chunks(WIDTH) {
                let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
                let up = times(&self.up, &x);
                let hidden: Vec<f64> = match &self.gate {
                    None => up.iter().map(|u| u.max(0.0).powi(2)).collect(),
                    Some(gate) => {
                        let gate = times(gate, &x);
                        up.iter().zip(gate).map(|(u, g)| u * g / (1.0 + (-g).exp())).collect()
                    }
                };
                y.extend(times(&self.down, &hidden));
            }
            y
        }
    }

    #[test]
    fn both_forms_compute_their_definition_and_its_gradient() {
        for (tokens, gated) in [(3, false), (3, true), (9, false), (270, false), (270, true)] {
            let case = case(tokens, gated);
            let output = forward(&case.x, &case.mlp());
            let want: Vec<f32> = case.reference().iter().map(|y| *y as f32).collect();
            assert_close(&output.y, &want, 1e-5);

            let dy = noise("dy", want.len());
            let (hidden, gate) = (&output.hidden, &output.gate);
            let gradient = backward(&dy, &case.x, hidden, gate, &case.mlp());
            let loss = |case: &Case| -> f64 {
                case.reference().iter().zip(&dy).map(|(y, d)| y * f64::from(*d)).sum()
            };
            assert_gradient("x", &gradient.x, &case, |case: &mut Case| &mut case.x, loss);
            assert_gradient("up", &gradient.up, &case, |case: &mut Case| &mut case.up, loss);
            assert_gradient("down", &gradient.down, &case, |case: &mut Case| &mut case.down, loss);
            if gated {
                assert_gradient(
                    "gate",
                    &gradient.gate,
                    &case,
                    |case: &mut Case| case.gate.as_mut().unwrap(),
                    loss,
                );
            }
        }
    }
}
