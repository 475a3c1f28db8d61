//! Rotary positions in the half-split convention: dimension j turns with dimension j + h/2 by
//! `position * theta^(-2j/h)`, or as the config stretches that. Su et al., arXiv 2104.09864.

use crate::config::ModelConfig;
use crate::rope_scaling::Frequencies;
use burn::tensor::{Device, Tensor, TensorData};
use hadal_kernels::RopeTables;

/// The rotations of a run of positions, made once per pass and used by all layers.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    /// `[1, 1, T, h/2]`
    cos: Tensor<4>,
    /// `[1, 1, T, h/2]`
    sin: Tensor<4>,
    tables: RopeTables,
}

impl Rope {
    /// Rotations for `time` positions from `start`.
    pub(crate) fn new(start: usize, time: usize, config: &ModelConfig, device: &Device) -> Self {
        let (half, scaling) = (config.head_dim / 2, config.rope_scaling.as_ref());
        let frequencies =
            Frequencies::new(config.head_dim, config.rope_theta, scaling, start + time);
        let (sin, cos): (Vec<f32>, Vec<f32>) =
            (start..start + time).flat_map(|position| rotation(position, &frequencies)).unzip();
        let tables = RopeTables { cos: cos.clone().into(), sin: sin.clone().into() };
        let table = |values| Tensor::from_data(TensorData::new(values, [1, 1, time, half]), device);
        Self { cos: table(cos), sin: table(sin), tables }
    }

    /// The same rotations for fused operations.
    pub(crate) fn tables(&self) -> &RopeTables {
        &self.tables
    }

    /// Turns each head.
    ///
    /// # Shapes
    /// - `x` and output: `[B, heads, T, head_dim]`
    pub(crate) fn apply(&self, x: Tensor<4>) -> Tensor<4> {
        let half = x.dims()[3] / 2;
        let (a, b) = (x.clone().narrow(3, 0, half), x.narrow(3, half, half));
        let (cos, sin) = (&self.cos, &self.sin);
        Tensor::cat(
            vec![
                a.clone() * cos.clone() - b.clone() * sin.clone(),
                b * cos.clone() + a * sin.clone(),
            ],
            3,
        )
    }
}

/// Sine and cosine of each pair of dimensions at a position.
fn rotation(position: usize, frequencies: &Frequencies) -> impl Iterator<Item = (f32, f32)> {
    let factor = f64::from(frequencies.attention_factor);
    frequencies.each.iter().map(move |f| {
        // Angles in f64: a late position times a fast frequency has no digits to lose.
        let (sin, cos) = (position as f64 * f).sin_cos();
        ((factor * sin) as f32, (factor * cos) as f32)
    })
}

/// The rotation of one position after another, in memory that is reused.
#[derive(Debug, Default)]
pub(crate) struct RopeStep {
    frequencies: Frequencies,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeStep {
    /// Cosines and sines of the last position of a text, `[head_dim / 2]` each.
    pub(crate) fn at(&mut self, position: usize, config: &ModelConfig) -> (&[f32], &[f32]) {
        let Self { frequencies, cos, sin } = self;
        let ModelConfig { head_dim, rope_theta, rope_scaling, .. } = config;
        frequencies.set(*head_dim, *rope_theta, rope_scaling.as_ref(), position + 1);
        cos.clear();
        sin.clear();
        for (s, c) in rotation(position, frequencies) {
            cos.push(c);
            sin.push(s);
        }
        (cos, sin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::small;

    fn rotated(start: usize) -> Vec<f32> {
        let device = Device::flex();
        let x = Tensor::<4>::from_floats([[[[1.0, 2.0, 3.0, 4.0]]]], &device);
        let config = ModelConfig { head_dim: 4, rope_theta: 100.0, ..small() };
        Rope::new(start, 1, &config, &device).apply(x).try_into_vec_as().unwrap()
    }

    #[test]
    fn position_zero_is_left_alone() {
        assert_eq!(rotated(0), [1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn halves_turn_together_with_falling_frequency() {
        let (sin0, cos0) = 2f32.sin_cos();
        let (sin1, cos1) = 0.2f32.sin_cos();
        let want = [
            cos0 - 3.0 * sin0,
            2.0 * cos1 - 4.0 * sin1,
            3.0 * cos0 + sin0,
            4.0 * cos1 + 2.0 * sin1,
        ];
        for (got, want) in rotated(2).iter().zip(want) {
            assert!((got - want).abs() < 1e-6, "{got} is not {want}");
        }
    }
}
