//! Numbers of mixing matrices and of their product over depth; of streams, too.

use super::spectrum::{Ranks, singular_values};

/// A square matrix in f64, `[target, source]`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Square {
    n: usize,
    values: Vec<f64>,
}

impl Square {
    pub(crate) fn of(n: usize, values: impl IntoIterator<Item = f64>) -> Self {
        Self { n, values: values.into_iter().collect() }
    }

    pub(crate) fn identity(n: usize) -> Self {
        Self::of(n, (0..n * n).map(|k| f64::from(u8::from(k / n == k % n))))
    }

    pub(crate) fn streams(&self) -> usize {
        self.n
    }

    /// The product with what came before.
    pub(crate) fn after(&self, before: &Self) -> Self {
        let n = self.n;
        let entry = |k: usize| {
            (0..n).map(|m| self.values[k / n * n + m] * before.values[m * n + k % n]).sum::<f64>()
        };
        Self::of(n, (0..n * n).map(entry))
    }

    /// `||R - I||_F`
    pub(crate) fn distance_to_identity(&self) -> f64 {
        let identity = |k: usize| f64::from(u8::from(k / self.n == k % self.n));
        self.distance(identity)
    }

    /// `||P - 11^T / n||_F`
    pub(crate) fn distance_to_uniform(&self) -> f64 {
        self.distance(|_| 1.0 / self.n as f64)
    }

    fn distance(&self, other: impl Fn(usize) -> f64) -> f64 {
        self.values.iter().enumerate().map(|(k, v)| (v - other(k)).powi(2)).sum::<f64>().sqrt()
    }

    /// `mean_i R_ii`
    pub(crate) fn diagonal(&self) -> f64 {
        (0..self.n).map(|i| self.values[i * self.n + i]).sum::<f64>() / self.n as f64
    }

    /// Largest row sum of `|P|`: how much a stream can grow forward.
    pub(crate) fn forward_gain(&self) -> f64 {
        let row = |i: usize| self.values[i * self.n..][..self.n].iter().map(|v| v.abs()).sum();
        (0..self.n).map(row).fold(0.0, f64::max)
    }

    /// Largest column sum of `|P|`: how much a gradient can grow backward.
    pub(crate) fn backward_gain(&self) -> f64 {
        let column = |j: usize| (0..self.n).map(|i| self.values[i * self.n + j].abs()).sum();
        (0..self.n).map(column).fold(0.0, f64::max)
    }

    pub(crate) fn ranks(&self) -> Option<Ranks> {
        Ranks::of(&singular_values(&self.values, self.n, self.n))
    }
}

/// Mean cosine of every two rows; none if fewer than two have a direction.
pub(crate) fn mean_cosine(rows: &[&[f32]]) -> Option<f64> {
    let norms: Vec<f64> = rows.iter().map(|row| super::values::square(row).sqrt()).collect();
    let (mut sum, mut pairs) = (0.0, 0);
    for i in 0..rows.len() {
        for j in 0..i {
            let scale = norms[i] * norms[j];
            if scale > 0.0 && scale.is_finite() {
                let dot: f64 =
                    rows[i].iter().zip(rows[j]).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                sum += dot / scale;
                pairs += 1;
            }
        }
    }
    (pairs > 0).then(|| sum / f64::from(pairs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 5e-8, "{found} is not {expected}");
    }

    /// The spec's `.8 I + .2 U` of four streams.
    #[test]
    fn mixer_of_the_spec_and_its_tenth_power() {
        let mixer = Square::of(4, (0..16).map(|k| if k % 5 == 0 { 0.85 } else { 0.05 }));
        near(mixer.distance_to_identity(), 0.3464102);
        near(mixer.diagonal(), 0.85);
        near(mixer.distance_to_uniform(), 1.3856406);
        let product = (0..10).fold(Square::identity(4), |product, _| mixer.after(&product));
        near(product.distance_to_uniform(), 0.1859775);
        let ranks = product.ranks().unwrap();
        near(ranks.of_values, 2.2771084);
        near(ranks.of_squares, 1.2010578);
        near(product.forward_gain(), 1.0);
        near(product.backward_gain(), 1.0);
        assert_eq!(product.streams(), 4);
    }

    #[test]
    fn a_product_goes_from_source_to_target() {
        // The first moves stream 1 to stream 0, the second doubles stream 0.
        let first = Square::of(2, [0.0, 1.0, 0.0, 0.0]);
        let second = Square::of(2, [2.0, 0.0, 0.0, 1.0]);
        assert_eq!(second.after(&first), Square::of(2, [0.0, 2.0, 0.0, 0.0]));
        near(second.after(&first).forward_gain(), 2.0);
        let both = Square::of(2, [1.0, 0.0, -3.0, 0.0]);
        assert_eq!((both.forward_gain(), both.backward_gain()), (3.0, 4.0));
        assert_eq!(Square::of(2, [0.0; 4]).ranks(), None);
    }

    #[test]
    fn cosines_of_the_spec() {
        let rows: [&[f32]; 3] = [&[1.0, 2.0, 0.0], &[2.0, 1.0, 0.0], &[0.0, 0.0, 3.0]];
        near(mean_cosine(&rows).unwrap(), 0.2666667);
        assert_eq!(mean_cosine(&rows[..1]), None);
        assert_eq!(mean_cosine(&[&[0.0, 0.0], &[1.0, 0.0]]), None);
    }
}
