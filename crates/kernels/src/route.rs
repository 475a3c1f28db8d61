//! Rows of the tokens that a sub-layer runs for, taken out of a batch and put back.

use crate::bridge::{Operation, Output, run};
use crate::path::fuses;
use burn::tensor::{IndexingUpdateOp, Int, Tensor, TensorData};
use hadal_cpu::{Route, Rows};

/// The rows of the running tokens.
///
/// # Shapes
/// - `x`: `[B, T, d]`
/// - output: `[1, running, d]`
pub fn gather(x: Tensor<3>, route: &Route) -> Tensor<3> {
    let [batch, time, width] = x.dims();
    if fuses(&x.device()) {
        let shape = [batch, time, width];
        return run(Gather { route: route.clone(), shape }, vec![x.into()]);
    }
    let indices = indices(route.running().iter().copied(), &x);
    x.reshape([batch * time, width]).select(0, indices).unsqueeze()
}

/// Puts rows back to where [`gather`] took them from; those of skipped tokens are zero.
///
/// # Shapes
/// - `rows`: `[1, running, d]`
/// - output: `[batch, time, d]`
pub fn scatter(rows: Tensor<3>, route: &Route, [batch, time]: [usize; 2]) -> Tensor<3> {
    let [_, running, width] = rows.dims();
    let shape = [batch, time, width];
    if fuses(&rows.device()) {
        return run(Scatter { route: route.clone(), shape }, vec![rows.into()]);
    }
    let indices = indices(route.running().iter().copied(), &rows);
    let empty = Tensor::<2>::zeros([batch * time, width], &rows.device());
    let rows = rows.reshape([running, width]);
    empty.select_assign(0, indices, rows, IndexingUpdateOp::Add).reshape(shape)
}

/// Indices as a tensor beside another one.
pub fn indices<const D: usize>(
    indices: impl Iterator<Item = u32>,
    beside: &Tensor<D>,
) -> Tensor<1, Int> {
    let indices: Vec<i64> = indices.map(i64::from).collect();
    let count = indices.len();
    Tensor::from_data(TensorData::new(indices, [count]), &beside.device())
}

#[derive(Debug)]
struct Gather {
    route: Route,
    shape: [usize; 3],
}

impl Operation for Gather {
    fn forward(&self, inputs: &[Rows], _: bool) -> Output {
        let width = self.shape[2];
        let values = self.route.gather(inputs[0].values(), width);
        Output { values, shape: vec![1, self.route.len(), width], saved: Vec::new() }
    }

    fn backward(&self, d: Rows, _: &[Rows], _: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        vec![self.route.scatter(d.values(), self.shape[2])]
    }

    fn keeps(&self, _: usize) -> bool {
        false
    }
}

#[derive(Debug)]
struct Scatter {
    route: Route,
    shape: [usize; 3],
}

impl Operation for Scatter {
    fn forward(&self, inputs: &[Rows], _: bool) -> Output {
        let values = self.route.scatter(inputs[0].values(), self.shape[2]);
        Output { values, shape: self.shape.to_vec(), saved: Vec::new() }
    }

    fn backward(&self, d: Rows, _: &[Rows], _: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        vec![self.route.gather(d.values(), self.shape[2])]
    }

    fn keeps(&self, _: usize) -> bool {
        false
    }
}
