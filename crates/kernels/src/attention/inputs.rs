//! What queries, keys and values are products of: one input, or one each, side by side in a token's row.

use burn::tensor::Tensor;
use hadal_cpu::Precision;
use hadal_cpu::linear::{self, Gradient, Weight};
use std::borrow::Cow;
use std::ops::Range;

/// Queries, keys and values.
const KINDS: usize = 3;

/// How an attention's rows are laid out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inputs {
    /// Features of one input.
    width: usize,
    /// Whether queries, keys and values have one each.
    apart: bool,
}

impl Inputs {
    /// Of rows with so many elements, for weights of this width.
    ///
    /// # Panics
    /// If they are neither one input nor three.
    pub(crate) fn new(elements: usize, width: usize) -> Self {
        let apart = elements != width;
        assert!(
            !apart || elements == KINDS * width,
            "{elements} elements are not one or three inputs of {width}"
        );
        Self { width, apart }
    }

    /// Of the input of an attention.
    pub(crate) fn of(x: &Tensor<3>, query_weight: &Tensor<2>) -> Self {
        Self::new(x.dims()[2], query_weight.dims()[1])
    }

    /// Features of one input.
    pub(crate) fn width(self) -> usize {
        self.width
    }

    /// Elements of a token's row.
    pub(crate) fn elements(self) -> usize {
        if self.apart { KINDS * self.width } else { self.width }
    }

    /// What one of queries, keys and values is made of, in the row of a single token.
    pub(crate) fn part(self, row: &[f32], kind: usize) -> &[f32] {
        if self.apart { &row[kind * self.width..][..self.width] } else { row }
    }

    /// The same of all rows.
    fn parts(self, x: &[f32], kind: usize) -> Cow<'_, [f32]> {
        if !self.apart {
            return Cow::Borrowed(x);
        }
        Cow::Owned(columns(x, self.elements(), kind * self.width..(kind + 1) * self.width))
    }

    /// Products with the weights of these kinds, side by side.
    pub(crate) fn forward(
        self,
        x: &[f32],
        weights: &[Weight],
        kinds: Range<usize>,
        precision: Precision,
    ) -> Vec<f32> {
        if !self.apart {
            return linear::forward(x, self.width, &weights[kinds], precision);
        }
        let outs: Vec<usize> = weights[kinds.clone()].iter().map(|weight| weight.out).collect();
        let products: Vec<_> = kinds
            .map(|kind| {
                linear::forward(&self.parts(x, kind), self.width, &weights[kind..=kind], precision)
            })
            .collect();
        let tokens = x.len() / self.elements();
        let mut joined = Vec::with_capacity(tokens * outs.iter().sum::<usize>());
        for token in 0..tokens {
            for (product, out) in products.iter().zip(&outs) {
                joined.extend_from_slice(&product[token * out..][..*out]);
            }
        }
        joined
    }

    /// The way back; `d` is the gradient of what [`Inputs::forward`] returned.
    pub(crate) fn backward(
        self,
        d: &[f32],
        x: &[f32],
        weights: &[Weight],
        kinds: Range<usize>,
        precision: Precision,
    ) -> Gradient {
        if !self.apart {
            return linear::backward(d, x, self.width, &weights[kinds], precision);
        }
        let width: usize = weights[kinds.clone()].iter().map(|weight| weight.out).sum();
        let mut sum = Gradient { x: vec![0.0; x.len()], weights: Vec::new() };
        let mut first = 0;
        for kind in kinds {
            let out = weights[kind].out;
            let own = columns(d, width, first..first + out);
            let parts = self.parts(x, kind);
            let gradient =
                linear::backward(&own, &parts, self.width, &weights[kind..=kind], precision);
            let rows = sum.x.chunks_exact_mut(self.elements());
            for (row, part) in rows.zip(gradient.x.chunks_exact(self.width)) {
                row[kind * self.width..][..self.width].copy_from_slice(part);
            }
            sum.weights.extend(gradient.weights);
            first += out;
        }
        sum
    }
}

/// Some columns of rows of this width.
fn columns(rows: &[f32], width: usize, range: Range<usize>) -> Vec<f32> {
    let mut found = Vec::with_capacity(rows.len() / width * range.len());
    rows.chunks_exact(width).for_each(|row| found.extend_from_slice(&row[range.clone()]));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two tokens of three inputs, and weights of one, two and one rows.
    fn example() -> (Vec<f32>, [Vec<f32>; 3]) {
        let x = (0..12).map(|i| (i * i % 7) as f32 - 2.0).collect();
        (x, [vec![1.0, -2.0], vec![0.5, 3.0, -1.0, 1.0], vec![2.0, 2.0]])
    }

    #[test]
    fn inputs_side_by_side_are_multiplied_each_with_its_own_weight() {
        let (x, weights) = example();
        let weights = weights.each_ref().map(|values| Weight::new(values, 2));
        let apart = Inputs::new(6, 2);
        let joined = apart.forward(&x, &weights, 0..3, Precision::F32);
        let one = |token: usize, kind: usize| {
            linear::forward(
                &x[6 * token + 2 * kind..][..2],
                2,
                &weights[kind..=kind],
                Precision::F32,
            )
        };
        let expected: Vec<f32> =
            (0..2).flat_map(|token| (0..3).flat_map(move |kind| one(token, kind))).collect();
        assert_eq!(joined, expected);
        let keys = apart.forward(&x, &weights, 1..3, Precision::F32);
        assert_eq!(keys, [&expected[1..4], &expected[5..]].concat());
    }

    #[test]
    fn gradients_go_back_to_the_input_that_each_product_is_of() {
        let (x, weights) = example();
        let weights = weights.each_ref().map(|values| Weight::new(values, 2));
        let d: Vec<f32> = (0..8).map(|i| i as f32 - 3.0).collect();
        let gradient = Inputs::new(6, 2).backward(&d, &x, &weights, 0..3, Precision::F32);
        for kind in 0..3 {
            let first = [0, 1, 3][kind];
            let pick = |rows: &[f32], each: usize, from: usize, count: usize| -> Vec<f32> {
                rows.chunks(each).flat_map(|row| row[from..from + count].to_vec()).collect()
            };
            let own = linear::backward(
                &pick(&d, 4, first, weights[kind].out),
                &pick(&x, 6, 2 * kind, 2),
                2,
                &weights[kind..=kind],
                Precision::F32,
            );
            assert_eq!(pick(&gradient.x, 6, 2 * kind, 2), own.x, "input {kind}");
            assert_eq!(gradient.weights[kind], own.weights[0], "weight {kind}");
        }
    }

    #[test]
    #[should_panic(expected = "not one or three inputs")]
    fn two_inputs_make_no_attention() {
        Inputs::new(4, 2);
    }
}
