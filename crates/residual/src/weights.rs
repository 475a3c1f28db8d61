//! Declaring parameters: one place that knows each name, shape and initial value.
//!
//! A module asks [`Weights`] for its parameters by checkpoint name. Whether they are fresh or come
//! from a file is decided where the `Weights` are made; the module's code is the same, and the list
//! of declarations is what checkpoints are checked against and gradients are named by.

use burn::module::{Param, ParamId};
use burn::tensor::{Device, Shape, Tensor, TensorData};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The value of a parameter before training.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// Every element the same.
    Constant(f64),
    /// These elements, row-major.
    Values(Vec<f32>),
    /// Independent normal elements around zero.
    Normal {
        /// Standard deviation.
        std: f64,
    },
    /// Independent elements, even between `around - bound` and `around + bound`.
    Uniform {
        /// The middle.
        around: f64,
        /// The largest distance from it.
        bound: f64,
    },
    /// Independent normal elements, then every row is brought under a rule.
    Rows {
        /// Standard deviation before that.
        std: f64,
        /// What holds for every row.
        rule: RowRule,
    },
}

/// What holds for every row of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowRule {
    /// Nothing.
    Free,
    /// Its mean is zero.
    Centred,
    /// Its mean is zero and its mean square one.
    Unit,
}

impl RowRule {
    /// Brings a row to the nearest one for which it holds.
    pub fn apply(self, row: &mut [f32]) {
        if self == Self::Free {
            return;
        }
        let mean = row.iter().sum::<f32>() / row.len() as f32;
        row.iter_mut().for_each(|v| *v -= mean);
        if self == Self::Unit {
            let mean_square = row.iter().map(|v| v * v).sum::<f32>() / row.len() as f32;
            let scale = mean_square.max(f32::MIN_POSITIVE).sqrt().recip();
            row.iter_mut().for_each(|v| *v *= scale);
        }
    }
}

impl Init {
    /// All zeros.
    pub const ZEROS: Self = Self::Constant(0.0);
    /// All ones.
    pub const ONES: Self = Self::Constant(1.0);

    /// The elements, drawn from a generator that depends on the seed and the name alone: two models with the same name,
    /// shape and seed of a parameter start with the same values there, whatever else differs between them.
    pub(crate) fn elements(&self, name: &str, seed: u64, shape: &[usize]) -> Vec<f32> {
        let count = shape.iter().product();
        match self {
            Self::Constant(value) => vec![*value as f32; count],
            Self::Values(values) => values.clone(),
            Self::Normal { std } => normal(name, seed, count, *std),
            Self::Uniform { around, bound } => {
                let mut rng = generator(name, seed);
                let mut draw = || around + bound * (2.0 * unit(rng.next_u64()) - 1.0);
                (0..count).map(|_| draw() as f32).collect()
            }
            Self::Rows { std, rule } => {
                let mut values = normal(name, seed, count, *std);
                rows(&mut values, shape).for_each(|row| rule.apply(row));
                values
            }
        }
    }
}

fn rows<'a>(values: &'a mut [f32], shape: &[usize]) -> impl Iterator<Item = &'a mut [f32]> {
    values.chunks_exact_mut(shape.last().copied().unwrap_or(1).max(1))
}

fn generator(name: &str, seed: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&fnv1a(name).to_le_bytes());
    ChaCha8Rng::from_seed(key)
}

fn normal(name: &str, seed: u64, count: usize, std: f64) -> Vec<f32> {
    let mut rng = generator(name, seed);
    // Box-Muller by hand: the values are part of what a seed promises, so they must not change
    // with a dependency's choice of algorithm.
    let mut values = Vec::with_capacity(count + 1);
    while values.len() < count {
        let radius = (-2.0 * (1.0 - unit(rng.next_u64())).ln()).sqrt() * std;
        let (sin, cos) = (std::f64::consts::TAU * unit(rng.next_u64())).sin_cos();
        values.push((radius * cos) as f32);
        values.push((radius * sin) as f32);
    }
    values.truncate(count);
    values
}

/// The top 53 bits as a number in `[0, 1)`.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A parameter as its module declared it.
#[derive(Clone, Debug, PartialEq)]
pub struct Declared {
    /// Burn's handle, by which gradients and visits are matched to names.
    pub id: ParamId,
    /// The name in `model.safetensors`.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// Finds the stored elements of a parameter by name and shape, if there are any.
pub type Stored<'a> = &'a mut dyn FnMut(&str, &[usize]) -> Option<Vec<f32>>;

/// Hands out parameters and remembers the declarations.
pub struct Weights<'a> {
    device: Device,
    seed: u64,
    stored: Option<Stored<'a>>,
    declared: Vec<Declared>,
}

impl<'a> Weights<'a> {
    /// Initial values from a seed. They are made when first used, so that a model of any size can
    /// be declared and measured without memory.
    pub fn fresh(seed: u64, device: &Device) -> Self {
        Self { device: device.clone(), seed, stored: None, declared: Vec::new() }
    }

    /// Values from `stored`; a parameter that it does not know gets its initial value from seed 0.
    pub fn stored(stored: Stored<'a>, device: &Device) -> Self {
        Self { stored: Some(stored), ..Self::fresh(0, device) }
    }

    /// Declares a parameter.
    pub fn param<const D: usize>(
        &mut self,
        name: impl Into<String>,
        shape: [usize; D],
        init: Init,
    ) -> Param<Tensor<D>> {
        let name = name.into();
        let found = self.stored.as_mut().and_then(|find| find(&name, &shape));
        let id = ParamId::new();
        self.declared.push(Declared { id, name: name.clone(), shape: shape.to_vec() });
        match found {
            Some(values) => {
                let value = Tensor::from_data(TensorData::new(values, shape), &self.device);
                // Training is the module's default state, also where the device cannot train yet.
                Param::initialized(id, value).set_require_grad(true)
            }
            None => {
                let seed = self.seed;
                Param::uninitialized(
                    id,
                    move |device: &Device, require_grad| {
                        let values = init.elements(&name, seed, &shape);
                        Tensor::from_data(TensorData::new(values, shape), device)
                            .set_require_grad(require_grad)
                    },
                    self.device.clone(),
                    true,
                    Shape::from(shape.to_vec()),
                )
            }
        }
    }

    /// Every declaration so far, in order.
    pub fn declared(self) -> Vec<Declared> {
        self.declared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initial_values_depend_on_the_name_and_the_seed_alone() {
        let device = Device::flex();
        let draw = |seed, before: usize, name: &str| -> Vec<f32> {
            let mut weights = Weights::fresh(seed, &device);
            for i in 0..before {
                weights.param(format!("other.{i}"), [3], Init::Normal { std: 1.0 }).val();
            }
            let param = weights.param(name, [7], Init::Normal { std: 0.02 });
            param.val().try_into_vec_as().unwrap()
        };
        assert_eq!(draw(1, 0, "a"), draw(1, 5, "a"));
        assert_ne!(draw(1, 0, "a"), draw(2, 0, "a"));
        assert_ne!(draw(1, 0, "a"), draw(1, 0, "b"));
    }

    #[test]
    fn normal_values_have_the_asked_moments() {
        let values = normal("x", 7, 40_001, 0.5);
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let variance = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < 0.01, "mean {mean}");
        assert!((variance - 0.25).abs() < 0.01, "variance {variance}");
    }

    #[test]
    fn uniform_values_fill_their_bounds_evenly() {
        let values = Init::Uniform { around: 0.6, bound: 0.2 }.elements("x", 7, &[40_000]);
        let most = values.iter().fold(0f32, |most, v| most.max((v - 0.6).abs()));
        assert!((0.199..=0.2).contains(&most), "{most}");
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / 40_000.0;
        assert!((mean - 0.6).abs() < 0.002, "mean {mean}");
        assert!((variance - 0.04 / 3.0).abs() < 3e-4, "variance {variance}");
    }

    #[test]
    fn unit_rows_are_centred_with_mean_square_one() {
        let values = Init::Rows { std: 1.0, rule: RowRule::Unit }.elements("head", 3, &[5, 16]);
        for row in values.chunks(16) {
            assert!(row.iter().sum::<f32>().abs() < 1e-4);
            assert!((row.iter().map(|v| v * v).sum::<f32>() - 16.0).abs() < 1e-3);
        }
    }

    #[test]
    fn declaring_a_huge_parameter_takes_no_memory() {
        let mut weights = Weights::fresh(0, &Device::flex());
        let param = weights.param("huge", [1 << 30, 1 << 30], Init::ZEROS);
        assert!(!param.is_initialized());
        assert_eq!(weights.declared()[0].shape, vec![1 << 30, 1 << 30]);
    }
}
