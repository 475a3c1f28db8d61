//! Signals on the host, and the geometry of their rows in f64.

use burn::tensor::Tensor;
use hadal_kernels::{ReadBackError, read_back};

/// A signal as plain numbers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Values {
    data: Vec<f32>,
    /// `[batch, time, streams, features]`
    shape: [usize; 4],
}

impl Values {
    pub(crate) fn of(tensor: Tensor<4>) -> Result<Self, ReadBackError> {
        let shape = tensor.dims();
        Ok(Self { data: read_back(tensor)?, shape })
    }

    pub(crate) fn tokens(&self) -> usize {
        self.shape[0] * self.shape[1]
    }

    pub(crate) fn time(&self) -> usize {
        self.shape[1]
    }

    pub(crate) fn batch(&self) -> usize {
        self.shape[0]
    }

    pub(crate) fn streams(&self) -> usize {
        self.shape[2]
    }

    pub(crate) fn features(&self) -> usize {
        self.shape[3]
    }

    /// The features of one stream at one token, tokens being counted row by row.
    pub(crate) fn row(&self, token: usize, stream: usize) -> &[f32] {
        let width = self.shape[3];
        let start = (token * self.shape[2] + stream) * width;
        &self.data[start..start + width]
    }

    /// All that belongs to one token, stream after stream.
    pub(crate) fn token(&self, token: usize) -> Vec<f64> {
        let size = self.shape[2] * self.shape[3];
        self.data[token * size..(token + 1) * size].iter().map(|&x| f64::from(x)).collect()
    }

    /// The only number of a token.
    pub(crate) fn number(&self, token: usize) -> f64 {
        self.row(token, 0)[0].into()
    }

    /// Each token's features in one stream.
    pub(crate) fn rows(&self, stream: usize) -> impl Iterator<Item = &[f32]> {
        (0..self.tokens()).map(move |token| self.row(token, stream))
    }

    pub(crate) fn all(&self) -> &[f32] {
        &self.data
    }
}

/// `sum v^2`.
pub(crate) fn square(v: &[f32]) -> f64 {
    v.iter().map(|&x| f64::from(x) * f64::from(x)).sum()
}

/// The angle between two vectors in radians; none if one of them has no direction.
///
/// `2 atan2(|u - v|, |u + v|)` of the unit vectors: exact at zero, where the arc cosine is at its worst.
pub(crate) fn angle(a: &[f32], b: &[f32]) -> Option<f64> {
    let (na, nb) = (square(a).sqrt(), square(b).sqrt());
    if !(na > 0.0 && nb > 0.0 && na.is_finite() && nb.is_finite()) {
        return None;
    }
    let (mut apart, mut along) = (0.0, 0.0);
    for (&x, &y) in a.iter().zip(b) {
        let (u, v) = (f64::from(x) / na, f64::from(y) / nb);
        apart += (u - v) * (u - v);
        along += (u + v) * (u + v);
    }
    Some(2.0 * apart.sqrt().atan2(along.sqrt()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::PI;

    #[test]
    fn angles_are_exact_where_they_are_easy() {
        let v = [0.3f32, -1.7, 2.2];
        assert_eq!(angle(&v, &v), Some(0.0));
        let away: Vec<f32> = v.iter().map(|x| -x).collect();
        assert!((angle(&v, &away).unwrap() - PI).abs() < 1e-12);
        assert!((angle(&[2.0, 0.0], &[0.0, 5.0]).unwrap() - PI / 2.0).abs() < 1e-12);
        assert_eq!(angle(&v, &[0.0; 3]), None);
    }

    #[test]
    fn small_angles_are_not_lost_to_rounding() {
        let found = angle(&[1.0, 0.0], &[1.0, 1e-6]).unwrap();
        assert!((found / 1e-6 - 1.0).abs() < 1e-6, "{found}");
    }
}
