//! Values of the first attention of a pass, mixed into those of later ones (value residual, arXiv 2410.17897).

use crate::bridge::{Input, Operation, Output, run};
use burn::tensor::Tensor;
use hadal_cpu::Rows;
use hadal_cpu::value_mix::ValueColumns;

/// Weights where none are learned: a half of each.
pub(crate) const HALVES: [f32; 2] = [0.5, 0.5];

/// The values of the first attention of a pass, and how another attention takes them.
#[derive(Clone, Debug)]
pub struct FirstValues {
    /// `[B, T, kv heads * head_dim]`
    pub values: Tensor<3>,
    /// The weights of these and of the attention's own, `[2]`; a half of each if they are not learned.
    pub weights: Option<Tensor<1>>,
}

/// Which inputs of an operation are the first attention's values and their weights. Their gradients come in this order.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueInputs {
    values: usize,
    weights: Option<usize>,
}

impl ValueInputs {
    /// Adds them to the inputs.
    pub(super) fn place(first: FirstValues, inputs: &mut Vec<Input>) -> Self {
        let mut place = |input: Input| {
            inputs.push(input);
            inputs.len() - 1
        };
        let values = place(first.values.into());
        Self { values, weights: first.weights.map(|weights| place(weights.into())) }
    }

    /// The first attention's values, for all tokens.
    pub(super) fn values<'a>(&self, inputs: &'a [Rows]) -> &'a [f32] {
        inputs[self.values].values()
    }

    fn weights(&self, inputs: &[Rows]) -> [f32; 2] {
        self.weights.map_or(HALVES, |place| {
            let weights = inputs[place].values();
            [weights[0], weights[1]]
        })
    }

    /// Mixes the first attention's values into rows. Returns those that they had, if the weights learn from them.
    pub(super) fn mix(
        &self,
        rows: &mut [f32],
        first: &[f32],
        columns: ValueColumns,
        inputs: &[Rows],
    ) -> Vec<f32> {
        let own = if self.weights.is_some() { columns.copy(rows) } else { Vec::new() };
        columns.mix(rows, first, self.weights(inputs));
        own
    }

    /// `d` becomes the gradient of the rows before they were mixed. Returns those of the values and of the weights, which are
    /// empty if they are not learned; `own` is what [`ValueInputs::mix`] returned.
    pub(super) fn mix_backward(
        &self,
        d: &mut [f32],
        first: &[f32],
        own: &[f32],
        columns: ValueColumns,
        inputs: &[Rows],
    ) -> [Vec<f32>; 2] {
        let learned = self.weights.is_some();
        let gradient = columns.mix_backward(d, first, learned.then_some(own), self.weights(inputs));
        [gradient.first, if learned { gradient.weights.to_vec() } else { Vec::new() }]
    }
}

/// Rows of projections whose last columns are values, with the first attention's values mixed into these.
///
/// # Shapes
/// - `rows` and output: `[B, T, any + kv heads * head_dim]`
pub fn mix_values(rows: Tensor<3>, first: FirstValues) -> Tensor<3> {
    let shape = rows.dims();
    let columns = ValueColumns { width: shape[2], values: first.values.dims()[2] };
    let mut inputs = vec![rows.into()];
    let place = ValueInputs::place(first, &mut inputs);
    run(MixValues { shape, columns, place }, inputs)
}

/// Inputs are rows, then values and weights.
#[derive(Debug)]
struct MixValues {
    shape: [usize; 3],
    columns: ValueColumns,
    place: ValueInputs,
}

impl Operation for MixValues {
    fn forward(&self, inputs: &[Rows], keep: bool) -> Output {
        let mut rows = inputs[0].values().to_vec();
        let own = self.place.mix(&mut rows, self.place.values(inputs), self.columns, inputs);
        let saved = if keep { vec![own] } else { Vec::new() };
        Output { values: rows, shape: self.shape.to_vec(), saved }
    }

    fn backward(&self, d: Rows, inputs: &[Rows], saved: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        let mut d = d.values().to_vec();
        let first = self.place.values(inputs);
        let [of_first, of_weights] =
            self.place.mix_backward(&mut d, first, &saved[0], self.columns, inputs);
        vec![d, of_first, of_weights]
    }

    fn keeps(&self, input: usize) -> bool {
        input > 0
    }
}
