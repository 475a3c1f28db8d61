//! RMSNorm with a gain: `y = g x / sqrt(mean(x^2) + eps)`.

use crate::buffer::unwritten;
use crate::parallel;
use crate::row::{inverse_rms, scale_by_gain};
use crate::rows::sum_of_partials;
use crate::simd::dot;

/// Rows of one task.
const TILE: usize = 64;

/// Normalises each row of `gain.len()` elements.
///
/// ```
/// // The mean square of (3, 4) is 12.5.
/// let y = hadal_cpu::norm::forward(&[3.0, 4.0], &[1.0, 2.0], 0.0);
/// assert!((y[0] - 3.0 / 12.5_f32.sqrt()).abs() < 1e-6);
/// assert!((y[1] - 8.0 / 12.5_f32.sqrt()).abs() < 1e-6);
/// ```
pub fn forward(x: &[f32], gain: &[f32], eps: f32) -> Vec<f32> {
    let tile = TILE * gain.len();
    check_rows(x, gain);
    // SAFETY: every row is written, and there is nothing but rows.
    let mut y = unsafe { unwritten(x.len()) };
    parallel::for_each(y.chunks_mut(tile).zip(x.chunks(tile)), |(y, x)| rows(y, x, gain, eps));
    y
}

fn check_rows(x: &[f32], gain: &[f32]) {
    assert!(!gain.is_empty() && x.len().is_multiple_of(gain.len()), "whole rows");
}

simd! {
    fn rows(y: &mut [f32], x: &[f32], gain: &[f32], eps: f32) {
        let width = gain.len();
        for (y, x) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
            scale_by_gain(y, inverse_rms(x, eps), x, gain);
        }
    }
}

/// Gradients of `x` and of the gain; `dy` is the gradient of what [`forward`] returned.
pub fn backward(dy: &[f32], x: &[f32], gain: &[f32], eps: f32) -> (Vec<f32>, Vec<f32>) {
    let width = gain.len();
    let tile = TILE * width;
    check_rows(x, gain);
    assert_eq!(dy.len(), x.len(), "a gradient for each element");
    let mut partials = vec![0.0; x.len().div_ceil(tile) * width];
    // SAFETY: every row is written, and there is nothing but rows.
    let mut dx = unsafe { unwritten(x.len()) };
    let inputs = dy.chunks(tile).zip(x.chunks(tile));
    let outputs = dx.chunks_mut(tile).zip(partials.chunks_mut(width));
    parallel::for_each(outputs.zip(inputs), |((dx, d_gain), (dy, x))| {
        rows_backward(dx, d_gain, dy, x, gain, eps);
    });
    (dx, sum_of_partials(&partials, width))
}

simd! {
    fn rows_backward(
        dx: &mut [f32], d_gain: &mut [f32], dy: &[f32], x: &[f32], gain: &[f32], eps: f32,
    ) {
        let width = gain.len();
        let d_gain = &mut d_gain[..width];
        let inputs = dy.chunks_exact(width).zip(x.chunks_exact(width));
        for (dx, (dy, x)) in dx.chunks_exact_mut(width).zip(inputs) {
            let inverse = inverse_rms(x, eps);
            for j in 0..width {
                d_gain[j] += dy[j] * x[j] * inverse;
                dx[j] = dy[j] * gain[j];
            }
            let along = dot(dx, x) * inverse * inverse * inverse / width as f32;
            for (dx, x) in dx.iter_mut().zip(x) {
                *dx = *dx * inverse - x * along;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, assert_gradient, noise};

    #[derive(Clone)]
    struct Case {
        x: Vec<f32>,
        gain: Vec<f32>,
    }

    const EPS: f32 = 1e-3;

    impl Case {
        fn reference(&self) -> Vec<f64> {
            let row = |x: &[f32]| -> Vec<f64> {
                let square = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / x.len() as f64;
                let inverse = 1.0 / (square + f64::from(EPS)).sqrt();
                x.iter()
                    .zip(&self.gain)
                    .map(|(x, g)| f64::from(*x) * inverse * f64::from(*g))
                    .collect()
            };
            self.x.chunks(self.gain.len()).flat_map(row).collect()
        }
    }

    #[test]
    fn rows_and_gradients_are_those_of_the_definition() {
        for (rows, width) in [(3, 5), (130, 37)] {
            let case = Case { x: noise("x", rows * width), gain: noise("gain", width) };
            let want: Vec<f32> = case.reference().iter().map(|y| *y as f32).collect();
            assert_close(&forward(&case.x, &case.gain, EPS), &want, 1e-5);
            let dy = noise("dy", want.len());
            let (dx, d_gain) = backward(&dy, &case.x, &case.gain, EPS);
            let loss = |case: &Case| -> f64 {
                case.reference().iter().zip(&dy).map(|(y, d)| y * f64::from(*d)).sum()
            };
            assert_gradient("x", &dx, &case, |case: &mut Case| &mut case.x, loss);
            assert_gradient("gain", &d_gain, &case, |case: &mut Case| &mut case.gain, loss);
        }
    }
}
