//! From the gradient of the network's output to those of its input and its matrices.

use super::{Mlp, multiply_gated, row_blocks};
use crate::buffer::unwritten;
use crate::gemm::{
    Left, NR, Packed, Panels, PanelsMut, Scratch, Store, View, fill_panels, multiply_panels,
    panel_tasks,
};
use crate::parallel;
use crate::precision::Precision;
use crate::rows::{Columns, cut_mut, transpose_into};
use crate::simd::exp;
use crate::work;

/// Gradients of [`forward`](super::forward).
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

/// `dy` is the gradient of [`Output::y`](super::Output::y); `hidden` and `gate` are those of the output.
pub fn backward(
    dy: &[f32],
    x: &[f32],
    hidden: &[f32],
    gate: &[f32],
    mlp: &Mlp,
    precision: Precision,
) -> Gradient {
    let tokens = mlp.tokens(x);
    let (layout, precision) = (mlp.layout(tokens), precision.of_rows(tokens));
    assert_eq!(dy.len(), x.len(), "a gradient for each element");
    let hidden = Panels::new(hidden, layout);
    match mlp.gate {
        None => {
            work::add(8 * x.len() * mlp.hidden);
            squared(dy, x, hidden, mlp, precision)
        }
        Some(weight) => {
            work::add(12 * x.len() * mlp.hidden);
            gated(dy, x, [hidden, Panels::new(gate, layout)], weight, mlp, precision)
        }
    }
}

fn squared(dy: &[f32], x: &[f32], a: Panels, mlp: &Mlp, precision: Precision) -> Gradient {
    let Mlp { width, hidden, .. } = *mlp;
    let [up, down] =
        [[(View::rows(mlp.up, width), width)], [(View::rows(mlp.down, hidden), hidden)]];
    let packed = Packed::all(&[(&up, hidden), (&down, width)], precision);
    // SAFETY: every block of rows is of one task, which writes the products of all its columns.
    let [mut dx, mut d_up] = [dy.len(), a.layout.len()].map(|length| unsafe { unwritten(length) });
    let du = PanelsMut::new(&mut d_up, a.layout);
    let tasks = row_blocks(&mut dx, dy, width, precision);
    parallel::for_each_init(tasks, Scratch::of_thread, |scratch, (rows, dx, dy)| {
        let slope = |panel: usize, du: &mut [f32]| {
            square_relu_backward(du, a.piece(panel, rows.clone()));
        };
        let dy = View::rows(dy, width);
        // SAFETY: this task alone works on these rows of `du`.
        unsafe {
            fill_panels(rows.clone(), width, dy, &packed[1], &du, scratch, slope);
            multiply_panels(rows.clone(), &du, &packed[0], dx, Store::SET, scratch);
        }
    });
    let left = Left::transposed([x, dy], width, precision);
    let du = Panels::new(&d_up, a.layout);
    let [up, down] = products(
        [
            Product { left: &left[0], hidden: du, turned: true },
            Product { left: &left[1], hidden: a, turned: false },
        ],
        mlp,
    );
    Gradient { x: dx, up, gate: Vec::new(), down }
}

fn gated(
    dy: &[f32],
    x: &[f32],
    [up, gate]: [Panels; 2],
    gate_weight: &[f32],
    mlp: &Mlp,
    precision: Precision,
) -> Gradient {
    let (Mlp { width, hidden, .. }, layout) = (*mlp, up.layout);
    let left = Left::transposed([x, dy], width, precision);
    // SAFETY: every element is of a part, which is written.
    let mut d_up = unsafe { unwritten(layout.len()) };
    let parts = d_up.chunks_mut(ELEMENTS);
    let inputs = up.data().chunks(ELEMENTS).zip(gate.data().chunks(ELEMENTS));
    parallel::for_each(parts.zip(inputs), |(product, (up, gate))| {
        multiply_gated(product, up, gate)
    });
    let product = Product { left: &left[1], hidden: Panels::new(&d_up, layout), turned: false };
    let [down] = products([product], mlp);

    let raising = [mlp.up, gate_weight].map(|weight| [(View::rows(weight, width), width)]);
    let lowering = [(View::rows(mlp.down, hidden), hidden)];
    let factors = [(&raising[0][..], hidden), (&raising[1], hidden), (&lowering, width)];
    let packed = Packed::all(&factors, precision);
    // SAFETY: every block of rows is of one task, which writes the products of all its columns.
    let [mut dx, mut d_gate] = [dy.len(), layout.len()].map(|length| unsafe { unwritten(length) });
    {
        // The product is not needed any more.
        let (d_up, d_gate) =
            (PanelsMut::new(&mut d_up, layout), PanelsMut::new(&mut d_gate, layout));
        let tasks = row_blocks(&mut dx, dy, width, precision);
        parallel::for_each_init(tasks, Scratch::of_thread, |scratch, (rows, dx, dy)| {
            let dy = View::rows(dy, width);
            // SAFETY: this task alone works on these rows of both.
            unsafe {
                let part = |panel: usize, d_gate: &mut [f32]| {
                    let d_up = d_up.piece(panel, rows.clone());
                    let (up, gate) =
                        (up.piece(panel, rows.clone()), gate.piece(panel, rows.clone()));
                    gated_backward(d_up, d_gate, up, gate);
                };
                fill_panels(rows.clone(), width, dy, &packed[2], &d_gate, scratch, part);
                multiply_panels(rows.clone(), &d_up, &packed[0], dx, Store::SET, scratch);
                multiply_panels(rows.clone(), &d_gate, &packed[1], dx, Store::ADD, scratch);
            }
        });
    }
    let of_input = |d| Product { left: &left[0], hidden: Panels::new(d, layout), turned: true };
    let [up, gate] = products([of_input(&d_up), of_input(&d_gate)], mlp);
    Gradient { x: dx, up, gate, down }
}

/// Elements of one task of an elementwise pass.
const ELEMENTS: usize = 1 << 14;

/// The gradient of a matrix: `rows^T hidden`, or `hidden^T rows` if it is to be turned.
struct Product<'a> {
    left: &'a Left,
    hidden: Panels<'a>,
    turned: bool,
}

/// Where panels of a product go.
enum Target<'a> {
    Rows(&'a mut [f32]),
    Columns(Columns<'a>),
}

fn products<const N: usize>(products: [Product; N], mlp: &Mlp) -> [Vec<f32>; N] {
    let Mlp { width, hidden, .. } = *mlp;
    // SAFETY: the panels of a product are all of it.
    let mut vectors = [(); N].map(|()| unsafe { unwritten(width * hidden) });
    let mut tasks = Vec::new();
    for (product, out) in products.iter().zip(&mut vectors) {
        let mut out = out.as_mut_slice();
        let tasks_of = panel_tasks(product.hidden.layout.panels());
        if product.turned {
            tasks.extend(tasks_of.map(|panels| {
                let rows = (panels.len() * NR).min(hidden - panels.start * NR);
                (product, panels, Target::Rows(cut_mut(&mut out, rows * width)))
            }));
        } else {
            let columns = Columns::new(out, hidden);
            tasks.extend(tasks_of.map(|panels| (product, panels, Target::Columns(columns))));
        }
    }
    // The largest first: what comes last should be short.
    tasks.sort_by_key(|(_, panels, _)| std::cmp::Reverse(panels.len()));
    parallel::for_each_init(
        tasks.into_iter(),
        Vec::new,
        |c: &mut Vec<f32>, (product, panels, target)| {
            let (first, count) = (panels.start * NR, panels.len() * NR);
            c.resize(width * count, 0.0);
            product.left.times(product.hidden, panels, c);
            match target {
                Target::Rows(out) => transpose_into(out, c, count),
                Target::Columns(out) => {
                    let columns = count.min(hidden - first);
                    for (row, c) in c.chunks_exact(count).enumerate() {
                        // SAFETY: this task alone writes these columns.
                        let out = unsafe { out.row(row, first, columns) };
                        out.copy_from_slice(&c[..columns]);
                    }
                }
            }
        },
    );
    vectors
}

simd! {
    fn square_relu_backward(d: &mut [f32], a: &[f32]) {
        for (d, a) in d.iter_mut().zip(a) {
            *d *= 2.0 * a.sqrt();
        }
    }
}

simd! {
    /// `d_up` is overwritten; `d_gate` enters as the gradient of the product.
    fn gated_backward(d_up: &mut [f32], d_gate: &mut [f32], up: &[f32], gate: &[f32]) {
        let outs = d_up.iter_mut().zip(d_gate.iter_mut());
        for ((d_up, d_gate), (up, gate)) in outs.zip(up.iter().zip(gate)) {
            let sigmoid = 1.0 / (1.0 + exp(-gate));
            let d = *d_gate;
            *d_up = d * gate * sigmoid;
            *d_gate = d * up * sigmoid * (1.0 + gate * (1.0 - sigmoid));
        }
    }
}
