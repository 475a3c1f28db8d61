//! The position-wise feed-forward network: `down(relu(up x)^2)`, or with a gate
//! `down(silu(gate x) * up x)`.
//!
//! Of the squared form only `a = relu(u)^2` is kept: its slope is `2 sqrt(a)`. Of the gated form
//! `up x` and `gate x` are kept, and the product is computed again. Hidden values are in panels, in which
//! all products of both passes read them without packing them.

mod backward;
mod step;

pub use backward::{Gradient, backward};
pub use step::{Biases, Room, step};

use crate::buffer::unwritten;
use crate::gemm::{
    Layout, Packed, PanelsMut, Scratch, Store, View, block_tasks, fill_panels, multiply_panels,
};
use crate::linear::{self, FEW, Weight};
use crate::parallel;
use crate::precision::Precision;
use crate::rows::{cut, cut_mut};
use crate::simd::exp;
use crate::work;
use std::ops::Range;

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
    /// What the backward pass needs of `[tokens, hidden]`, in an order of its own: `relu(u)^2`, or `up x`.
    pub hidden: Vec<f32>,
    /// The same of `gate x` of the gated form, else nothing.
    pub gate: Vec<f32>,
}

impl<'a> Mlp<'a> {
    fn weight<'b>(&self, values: &'b [f32]) -> Weight<'b> {
        Weight { values, out: self.hidden }
    }

    /// The matrices that raise the input.
    fn raising(&self) -> Vec<Weight<'a>> {
        std::iter::once(self.up).chain(self.gate).map(|values| self.weight(values)).collect()
    }

    fn down(&self) -> Weight<'a> {
        Weight { values: self.down, out: self.width }
    }

    /// How many tokens `x` holds. All of it and of the matrices must be whole.
    fn tokens(&self, x: &[f32]) -> usize {
        let Mlp { width, hidden, .. } = *self;
        assert!(width > 0 && x.len().is_multiple_of(width), "whole rows of {width} features");
        let matrices = [Some(self.up), self.gate, Some(self.down)].into_iter().flatten();
        for matrix in matrices {
            assert_eq!(matrix.len(), width * hidden, "a matrix of {width} by {hidden}");
        }
        x.len() / width
    }

    /// Of hidden values.
    fn layout(&self, tokens: usize) -> Layout {
        Layout { rows: tokens, columns: self.hidden }
    }
}

/// Applies the network to `x`, `[tokens, width]`.
pub fn forward(x: &[f32], mlp: &Mlp, precision: Precision) -> Output {
    let tokens = mlp.tokens(x);
    let (y, mut hidden) = if tokens <= FEW { few(x, mlp) } else { many(x, mlp, precision) };
    let gate = hidden.split_off(1).pop().unwrap_or_default();
    Output { y, hidden: hidden.pop().unwrap_or_default(), gate }
}

/// For few tokens, whose weights are read row by row.
fn few(x: &[f32], mlp: &Mlp) -> (Vec<f32>, Vec<Vec<f32>>) {
    let raise = |weight: &Weight| {
        linear::forward(x, mlp.width, std::slice::from_ref(weight), Precision::F32)
    };
    let mut raised: Vec<_> = mlp.raising().iter().map(raise).collect();
    let y = match raised.as_mut_slice() {
        [up, gate] => {
            let mut product = vec![0.0; up.len()];
            multiply_gated(&mut product, up, gate);
            linear::forward(&product, mlp.hidden, &[mlp.down()], Precision::F32)
        }
        raised => {
            raised.iter_mut().for_each(|raised| square_relu(raised));
            linear::forward(&raised[0], mlp.hidden, &[mlp.down()], Precision::F32)
        }
    };
    let layout = mlp.layout(x.len() / mlp.width);
    (y, raised.iter().map(|rows| layout.arranged(rows)).collect())
}

fn many(x: &[f32], mlp: &Mlp, precision: Precision) -> (Vec<f32>, Vec<Vec<f32>>) {
    let Mlp { width, hidden: height, .. } = *mlp;
    let tokens = x.len() / width;
    let raising = mlp.raising();
    work::add(2 * (raising.len() + 1) * tokens * width * height);
    let views = raising.iter().map(|weight| [(View::transposed(weight.values, width), height)]);
    let views: Vec<_> = views.collect();
    let down = [(View::transposed(mlp.down, height), width)];
    let mut factors: Vec<_> = views.iter().map(|view| (&view[..], width)).collect();
    factors.push((&down, height));
    let packed = Packed::all(&factors, precision);
    let layout = mlp.layout(tokens);
    // SAFETY: every block of rows is of one task, which writes the products of all its columns.
    let new = |length: usize| unsafe { unwritten(length) };
    let (mut y, mut hidden): (_, Vec<_>) =
        (new(tokens * width), raising.iter().map(|_| new(layout.len())).collect());
    let raised: Vec<_> = hidden.iter_mut().map(|values| PanelsMut::new(values, layout)).collect();
    let tasks = row_blocks(&mut y, x, width, precision);
    let room = || (Scratch::of_thread(), Vec::new());
    parallel::for_each_init(tasks, room, |(scratch, product): &mut (_, Vec<f32>), (rows, y, x)| {
        let x = View::rows(x, width);
        // SAFETY: this task alone works on these rows of hidden values.
        unsafe {
            if let [up, gate] = &raised[..] {
                let here = Layout { rows: rows.len(), ..layout };
                product.resize(here.len(), 0.0);
                let product = PanelsMut::new(product, here);
                let finish = |panel: usize, gate: &mut [f32]| {
                    let product = product.piece(panel, 0..rows.len());
                    multiply_gated(product, up.piece(panel, rows.clone()), gate);
                };
                fill_panels(rows.clone(), width, x, &packed[0], up, scratch, |_, _| ());
                fill_panels(rows.clone(), width, x, &packed[1], gate, scratch, finish);
                multiply_panels(0..rows.len(), &product, &packed[2], y, Store::SET, scratch);
            } else {
                let (a, square) = (&raised[0], |_, a: &mut [f32]| square_relu(a));
                fill_panels(rows.clone(), width, x, &packed[0], a, scratch, square);
                multiply_panels(rows, a, &packed[1], y, Store::SET, scratch);
            }
        }
    });
    (y, hidden)
}

/// Rows of a result and of an input, both `width` long, that are of one block of hidden values.
fn row_blocks<'a>(
    mut out: &'a mut [f32],
    mut input: &'a [f32],
    width: usize,
    precision: Precision,
) -> impl ExactSizeIterator<Item = (Range<usize>, &'a mut [f32], &'a [f32])> + Send {
    block_tasks(input.len() / width, precision).map(move |rows| {
        let elements = rows.len() * width;
        (rows, cut_mut(&mut out, elements), cut(&mut input, elements))
    })
}

simd! {
    fn square_relu(values: &mut [f32]) {
        for value in values {
            // Not `max`: a NaN must not become a zero.
            let positive = if *value < 0.0 { 0.0 } else { *value };
            *value = positive * positive;
        }
    }
}

simd! {
    /// `silu(gate) * up`.
    fn multiply_gated(out: &mut [f32], up: &[f32], gate: &[f32]) {
        for ((out, up), gate) in out.iter_mut().zip(up).zip(gate) {
            *out = up * gate / (1.0 + exp(-gate));
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
            let output = forward(&case.x, &case.mlp(), Precision::F32);
            let want: Vec<f32> = case.reference().iter().map(|y| *y as f32).collect();
            assert_close(&output.y, &want, 1e-5);

            let dy = noise("dy", want.len());
            let (hidden, gate) = (&output.hidden, &output.gate);
            let gradient = backward(&dy, &case.x, hidden, gate, &case.mlp(), Precision::F32);
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
