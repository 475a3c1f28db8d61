//! Values of the first attention, mixed into those of a later one: `v <- a v_0 + b v` (value residual, arXiv 2410.17897).

use crate::parallel;
use crate::simd::dot;

/// Elements of values that one task takes.
const PIECE: usize = 1 << 14;

/// Where values are in rows of projections: in the last columns, whatever stands before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueColumns {
    /// Width of a row.
    pub width: usize,
    /// How many of its columns are values.
    pub values: usize,
}

/// Gradients of [`ValueColumns::mix`].
#[derive(Debug)]
pub struct ValueGradient {
    /// Of the first attention's values.
    pub first: Vec<f32>,
    /// Of the weights; zeros if they are not learned.
    pub weights: [f32; 2],
}

impl ValueColumns {
    /// The values alone, `[rows, values]`.
    pub fn copy(self, rows: &[f32]) -> Vec<f32> {
        let mut values = Vec::with_capacity(rows.len() / self.width * self.values);
        rows.chunks_exact(self.width).for_each(|row| values.extend_from_slice(self.of(row)));
        values
    }

    /// Mixes `first`, `[rows, values]`, into the values, with the weights of both.
    pub fn mix(self, rows: &mut [f32], first: &[f32], weights: [f32; 2]) {
        assert_eq!(rows.len() / self.width, first.len() / self.values, "values for each row");
        let (tokens, values) = (self.tokens(), self.values);
        let pieces = rows.chunks_mut(tokens * self.width).zip(first.chunks(tokens * values));
        parallel::for_each(pieces, |(rows, first)| mix(rows, first, self, weights));
    }

    /// The way back: `d` becomes the gradient of the rows before they were mixed. `own` are the values that they had, if the
    /// weights are learned.
    pub fn mix_backward(
        self,
        d: &mut [f32],
        first: &[f32],
        own: Option<&[f32]>,
        weights: [f32; 2],
    ) -> ValueGradient {
        let each = self.tokens() * self.values;
        let mut d_first = vec![0.0; first.len()];
        let pieces = d.chunks_mut(self.tokens() * self.width).zip(d_first.chunks_mut(each));
        let sums = parallel::map(pieces.enumerate(), |(piece, (d, d_first))| {
            let part = piece * each..piece * each + d_first.len();
            let sums = own.map(|own| products(d, &first[part.clone()], &own[part], self));
            mix_backward(d, d_first, self, weights);
            sums
        });
        let sums = sums.into_iter().flatten().fold([0.0; 2], |sum: [f64; 2], more| {
            [sum[0] + f64::from(more[0]), sum[1] + f64::from(more[1])]
        });
        ValueGradient { first: d_first, weights: sums.map(|sum| sum as f32) }
    }

    /// Rows that one task takes.
    fn tokens(self) -> usize {
        (PIECE / self.values.max(1)).max(1)
    }

    fn of(self, row: &[f32]) -> &[f32] {
        &row[self.width - self.values..]
    }
}

simd! {
    fn mix(rows: &mut [f32], first: &[f32], columns: ValueColumns, weights: [f32; 2]) {
        let ValueColumns { width, values } = columns;
        let [of_first, of_own] = weights;
        for (row, first) in rows.chunks_exact_mut(width).zip(first.chunks_exact(values)) {
            for (own, first) in row[width - values..].iter_mut().zip(first) {
                *own = of_first * first + of_own * *own;
            }
        }
    }
}

simd! {
    fn mix_backward(d: &mut [f32], d_first: &mut [f32], columns: ValueColumns, weights: [f32; 2]) {
        let ValueColumns { width, values } = columns;
        let [of_first, of_own] = weights;
        for (row, d_first) in d.chunks_exact_mut(width).zip(d_first.chunks_exact_mut(values)) {
            for (d, d_first) in row[width - values..].iter_mut().zip(d_first) {
                *d_first = of_first * *d;
                *d *= of_own;
            }
        }
    }
}

simd! {
    /// What the gradient says to each of the two.
    fn products(d: &[f32], first: &[f32], own: &[f32], columns: ValueColumns) -> [f32; 2] {
        let ValueColumns { width, values } = columns;
        let mut sums = [0.0; 2];
        let parts = first.chunks_exact(values).zip(own.chunks_exact(values));
        for (row, (first, own)) in d.chunks_exact(width).zip(parts) {
            let d = &row[width - values..];
            sums[0] += dot(d, first);
            sums[1] += dot(d, own);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, assert_gradient, noise};

    #[derive(Clone)]
    struct Case {
        columns: ValueColumns,
        rows: Vec<f32>,
        first: Vec<f32>,
        weights: [f32; 2],
    }

    fn case(tokens: usize, width: usize, values: usize) -> Case {
        let (rows, first) = (noise("rows", tokens * width), noise("first", tokens * values));
        Case { columns: ValueColumns { width, values }, rows, first, weights: [0.7, -0.4] }
    }

    impl Case {
        fn reference(&self) -> Vec<f64> {
            let ValueColumns { width, values } = self.columns;
            let mut out: Vec<f64> = self.rows.iter().map(|x| f64::from(*x)).collect();
            let [a, b] = self.weights.map(f64::from);
            for (token, first) in self.first.chunks_exact(values).enumerate() {
                let at = (token + 1) * width - values;
                for (own, first) in out[at..at + values].iter_mut().zip(first) {
                    *own = a * f64::from(*first) + b * *own;
                }
            }
            out
        }
    }

    #[test]
    fn the_last_columns_are_mixed_and_the_others_stay() {
        // The last case needs several tasks.
        for (tokens, width, values) in [(1, 4, 4), (3, 10, 3), (5000, 9, 7)] {
            let case = case(tokens, width, values);
            let mut rows = case.rows.clone();
            case.columns.mix(&mut rows, &case.first, case.weights);
            let want: Vec<f32> = case.reference().iter().map(|x| *x as f32).collect();
            assert_close(&rows, &want, 1e-6);
            assert_eq!(case.columns.copy(&case.rows).len(), case.first.len());
        }
    }

    #[test]
    fn gradients_are_the_slopes_of_the_definition() {
        for (tokens, width, values) in [(3, 10, 3), (2, 5, 5), (5000, 9, 7)] {
            let case = case(tokens, width, values);
            let d = noise("d", case.rows.len());
            let mut d_rows = d.clone();
            let own = case.columns.copy(&case.rows);
            let gradient =
                case.columns.mix_backward(&mut d_rows, &case.first, Some(&own), case.weights);
            let loss = |case: &Case| -> f64 {
                case.reference().iter().zip(&d).map(|(x, d)| x * f64::from(*d)).sum()
            };
            assert_gradient("rows", &d_rows, &case, |case| &mut case.rows, loss);
            assert_gradient("first", &gradient.first, &case, |case| &mut case.first, loss);
            assert_gradient("weights", &gradient.weights, &case, |case| &mut case.weights, loss);
        }
    }

    #[test]
    fn fixed_weights_have_no_gradient() {
        let case = case(3, 10, 3);
        let mut d = noise("d", case.rows.len());
        let gradient = case.columns.mix_backward(&mut d, &case.first, None, [0.5, 0.5]);
        assert_eq!(gradient.weights, [0.0, 0.0]);
    }
}
