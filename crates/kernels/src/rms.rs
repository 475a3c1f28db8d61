//! Root-mean-square normalisation without a gain: `rms(v) = v / sqrt(mean(v^2) + eps)`.

use crate::bridge::{Operation, Output, run};
use crate::path::fuses;
use burn::tensor::Tensor;
use hadal_cpu::{Rows, norm};

/// `1 / sqrt(mean(x^2) + eps)` over the last axis, which is kept with length one. Of a row whose squares are too large for
/// f32 it is not a number: zero would make a row of zeros of it, which nobody would notice.
///
/// # Shapes
/// - `x`: `[..., width]`
/// - output: `[..., 1]`
pub fn inverse_rms<const D: usize>(x: Tensor<D>, eps: f64) -> Tensor<D> {
    let mean = mean_square(x);
    let seen = seen(&mean);
    (mean + eps).sqrt().recip() + seen
}

/// `sqrt(mean(x^2))` over the last axis, as [`inverse_rms`].
pub fn root_mean_square<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let mean = mean_square(x);
    let seen = seen(&mean);
    mean.sqrt() + seen
}

fn mean_square<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    x.square().mean_dim(D - 1)
}

/// Zeros, or not a number where a mean is infinite: adding them changes no bit of what is finite.
fn seen<const D: usize>(mean: &Tensor<D>) -> Tensor<D> {
    mean.clone().detach() * 0.0
}

/// `x / sqrt(mean(x^2) + eps)` over the last axis.
///
/// # Shapes
/// - `x` and output: `[..., width]`
pub fn rms<const D: usize>(x: Tensor<D>, eps: f64) -> Tensor<D> {
    let inverse = inverse_rms(x.clone(), eps);
    x * inverse
}

/// `gain * x / sqrt(mean(x^2) + eps)` over the last axis.
///
/// # Shapes
/// - `x` and output: `[..., width]`
/// - `gain`: `[width]`
pub fn rms_norm<const D: usize>(x: Tensor<D>, gain: Tensor<1>, eps: f64) -> Tensor<D> {
    if fuses(&x.device()) {
        let operation = RmsNorm { shape: x.dims().to_vec(), eps: eps as f32 };
        return run(operation, vec![x.into(), gain.into()]);
    }
    #[cfg(feature = "gpu")]
    if crate::streams::kernel(&x, "rms_norm") {
        return crate::cube::rms_norm(x, gain, eps);
    }
    rms(x, eps) * gain.unsqueeze()
}

#[derive(Debug)]
struct RmsNorm {
    shape: Vec<usize>,
    eps: f32,
}

impl Operation for RmsNorm {
    fn forward(&self, inputs: &[Rows], _: bool) -> Output {
        let [x, gain] = [0, 1].map(|i| inputs[i].values());
        let values = norm::forward(x, gain, self.eps);
        Output { values, shape: self.shape.clone(), saved: Vec::new() }
    }

    fn backward(&self, d: Rows, inputs: &[Rows], _: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        let [x, gain] = [0, 1].map(|i| inputs[i].values());
        let (x, gain) = norm::backward(d.values(), x, gain, self.eps);
        vec![x, gain]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::plainly;
    use burn::tensor::Device;

    #[test]
    fn rows_are_scaled_to_unit_mean_square() {
        let x = Tensor::<2>::from_floats([[3.0, 4.0], [-6.0, 8.0]], &Device::flex());
        let y: Vec<f32> = rms(x, 0.0).try_into_vec_as().unwrap();
        let r = 12.5f32.sqrt();
        for (got, want) in y.iter().zip([3.0 / r, 4.0 / r, -3.0 / r, 4.0 / r]) {
            assert!((got - want).abs() < 1e-6, "{got} is not {want}");
        }
    }

    #[test]
    fn a_row_that_is_too_large_for_its_squares_is_no_number_on_either_path() {
        let x = Tensor::<2>::from_floats([[3e19, 1.0], [1e19, 1.0]], &Device::flex());
        let norm = |x: Tensor<2>| rms_norm(x, Tensor::ones([2], &Device::flex()), 1e-6);
        for rows in [norm(x.clone()), plainly(|| norm(x.clone()))] {
            let rows: Vec<f32> = rows.try_into_vec_as().unwrap();
            assert!(rows[..2].iter().all(|x| x.is_nan()), "{rows:?}");
            assert!((rows[2] - 2f32.sqrt()).abs() < 1e-6, "{rows:?}");
        }
        let roots: Vec<f32> = root_mean_square(x).try_into_vec_as().unwrap();
        assert!(roots[0].is_nan() && roots[1].is_finite());
    }

    #[test]
    fn epsilon_keeps_a_zero_row_at_zero() {
        let x = Tensor::<2>::zeros([1, 4], &Device::flex());
        let y: Vec<f32> = rms(x, 1e-6).try_into_vec_as().unwrap();
        assert_eq!(y, vec![0.0; 4]);
    }
}
