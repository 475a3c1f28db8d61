//! Rows of a table.

use crate::bridge::{Operation, Output, run};
use crate::path::fuses;
use burn::tensor::{Int, Tensor, TensorData};
use hadal_cpu::{Rows, loss};
use std::sync::Arc;

/// `table[id]` for `batch` rows of ids.
///
/// # Shapes
/// - `table`: `[rows, width]`
/// - output: `[batch, ids / batch, width]`
pub fn embed(table: Tensor<2>, ids: &[u32], batch: usize) -> Tensor<3> {
    let [rows, width] = table.dims();
    let shape = [batch, ids.len() / batch, width];
    let device = table.device();
    if fuses(&device) {
        return run(Embed { ids: ids.into(), shape, rows }, vec![table.into()]);
    }
    let ids: Vec<i64> = ids.iter().map(|&id| i64::from(id)).collect();
    let count = ids.len();
    let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [count]), &device);
    table.select(0, ids).reshape(shape)
}

#[derive(Debug)]
struct Embed {
    ids: Arc<[u32]>,
    shape: [usize; 3],
    rows: usize,
}

impl Operation for Embed {
    fn forward(&self, inputs: &[Rows], _: bool) -> Output {
        let values = loss::embed(inputs[0].values(), self.shape[2], &self.ids);
        Output { values, shape: self.shape.to_vec(), saved: Vec::new() }
    }

    fn backward(&self, d: Rows, _: &[Rows], _: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        vec![loss::embed_backward(d.values(), self.shape[2], &self.ids, self.rows)]
    }

    fn keeps(&self, _: usize) -> bool {
        false
    }
}
