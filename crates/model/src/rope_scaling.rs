//! Rotary frequencies stretched for texts that are longer than those a model was first trained on, as
//! Hugging Face's `transformers` computes them: position interpolation (arXiv 2306.15595), dynamic NTK scaling,
//! Llama 3.1's rule and YaRN (arXiv 2309.00071).

use serde::{Deserialize, Serialize};
use std::f64::consts::TAU;

/// How frequencies are stretched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum RopeScaling {
    /// Every frequency is divided.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// The base grows with the text as soon as it is longer than the original length. Cached keys keep the rotation
    /// that they had, so reading a text in one pass or token by token differs beyond that length.
    Dynamic {
        /// How steeply the base grows.
        factor: f64,
        /// Length up to which nothing changes.
        original_max_seq_len: usize,
    },
    /// Low frequencies are divided, high ones kept, those between them interpolated.
    Llama3 {
        /// What low frequencies are divided by.
        factor: f64,
        /// Waves longer than the original length over this are low.
        low_freq_factor: f64,
        /// Waves shorter than the original length over this are high.
        high_freq_factor: f64,
        /// Length of the first training.
        original_max_seq_len: usize,
    },
    /// The same, decided by the number of turns within the original length, with a ramp between the two, and sharper
    /// attention.
    Yarn(Yarn),
    /// Each frequency is divided by its own number.
    Divided {
        /// One for each pair of dimensions.
        divisors: Vec<f32>,
    },
}

/// The settings of YaRN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Yarn {
    /// What slow dimensions are divided by.
    pub factor: f64,
    /// Length of the first training.
    pub original_max_seq_len: usize,
    /// Dimensions that turn more often than this are kept.
    pub beta_fast: f64,
    /// Dimensions that turn less often than this are divided.
    pub beta_slow: f64,
    /// What queries and keys are multiplied by.
    pub attention_factor: f32,
    /// Whether the ramp begins and ends at whole dimensions.
    pub truncate: bool,
}

/// Frequencies of a pass, and what queries and keys are multiplied by.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frequencies {
    pub(crate) each: Vec<f64>,
    pub(crate) attention_factor: f32,
}

/// `theta^(-2j/h)`.
fn plain(head_dim: usize, theta: f64) -> impl Iterator<Item = f64> {
    (0..head_dim / 2).map(move |j| theta.powf(-2.0 * j as f64 / head_dim as f64))
}

impl Frequencies {
    /// The frequencies of a text whose last position is `length - 1`.
    pub(crate) fn new(
        head_dim: usize,
        theta: f64,
        scaling: Option<&RopeScaling>,
        length: usize,
    ) -> Self {
        let mut frequencies = Self::default();
        frequencies.set(head_dim, theta, scaling, length);
        frequencies
    }

    /// Sets the frequencies of another text, without allocating.
    pub(crate) fn set(
        &mut self,
        head_dim: usize,
        theta: f64,
        scaling: Option<&RopeScaling>,
        length: usize,
    ) {
        let Self { each, attention_factor } = self;
        let base = plain(head_dim, theta);
        *attention_factor = 1.0;
        each.clear();
        match scaling {
            None => each.extend(base),
            Some(RopeScaling::Linear { factor }) => each.extend(base.map(|f| f / factor)),
            Some(RopeScaling::Dynamic { factor, original_max_seq_len }) => {
                let original = *original_max_seq_len as f64;
                let stretch = factor * (length as f64).max(original) / original - (factor - 1.0);
                let exponent = head_dim as f64 / (head_dim as f64 - 2.0);
                each.extend(plain(head_dim, theta * stretch.powf(exponent)));
            }
            Some(RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_seq_len,
            }) => {
                let stretched = |f: f64| {
                    let turns = *original_max_seq_len as f64 * f / TAU;
                    if turns < *low {
                        f / factor
                    } else if turns > *high {
                        f
                    } else {
                        let smooth = (turns - low) / (high - low);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                };
                each.extend(base.map(stretched));
            }
            Some(RopeScaling::Yarn(yarn)) => {
                each.extend(yarn.frequencies(head_dim, theta));
                *attention_factor = yarn.attention_factor;
            }
            Some(RopeScaling::Divided { divisors }) => {
                each.extend(base.zip(divisors).map(|(f, divisor)| f / f64::from(*divisor)));
            }
        }
    }
}

impl Yarn {
    /// The paper's suggested factor on queries and keys.
    pub(crate) fn suggested_attention_factor(factor: f64) -> f64 {
        Self::magnitude(factor, 1.0)
    }

    /// `1 + 0.1 weight ln(factor)`, of which DeepSeek's models use two.
    pub(crate) fn magnitude(factor: f64, weight: f64) -> f64 {
        if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 }
    }

    fn frequencies(&self, head_dim: usize, theta: f64) -> impl Iterator<Item = f64> {
        // The dimension that turns this often within the original length.
        let dimension = |turns: f64| {
            let wave = self.original_max_seq_len as f64 / (turns * TAU);
            head_dim as f64 * wave.ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (dimension(self.beta_fast), dimension(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, mut high) = (low.max(0.0), high.min(head_dim as f64 - 1.0));
        if low == high {
            // The same small step that `transformers` takes instead of dividing by zero.
            high += 0.001;
        }
        let ramp = move |j: usize| ((j as f64 - low) / (high - low)).clamp(0.0, 1.0);
        plain(head_dim, theta)
            .enumerate()
            .map(move |(j, f)| f / self.factor * ramp(j) + f * (1.0 - ramp(j)))
    }
}

/// What is refused: the value, and why.
type Refused = (String, &'static str);

fn ensure(holds: bool, value: String, why: &'static str) -> Result<(), Refused> {
    if holds { Ok(()) } else { Err((value, why)) }
}

fn positive(value: f64) -> Result<(), Refused> {
    ensure(value.is_finite() && value > 0.0, value.to_string(), "its numbers must be positive")
}

impl RopeScaling {
    /// Refuses settings that make no frequencies.
    pub(crate) fn check(&self, head_dim: usize, theta: f64) -> Result<(), Refused> {
        let stretch = |factor: f64| {
            let holds = factor.is_finite() && factor >= 1.0;
            ensure(holds, format!("factor {factor}"), "its factor must be at least 1")
        };
        let length = |length: usize| {
            let value = format!("original_max_seq_len {length}");
            let holds = (1..=1 << 30).contains(&length);
            ensure(holds, value, "a text has between 1 and 2^30 positions")
        };
        match self {
            Self::Linear { factor } => positive(*factor),
            Self::Dynamic { factor, original_max_seq_len } => {
                stretch(*factor)?;
                length(*original_max_seq_len)?;
                ensure(head_dim > 2, "dynamic".into(), "it needs a head_dim above 2")
            }
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_seq_len } => {
                stretch(*factor)?;
                length(*original_max_seq_len)?;
                positive(*low_freq_factor)?;
                positive(*high_freq_factor)?;
                let value = format!("low_freq_factor {low_freq_factor}");
                let holds = low_freq_factor < high_freq_factor;
                ensure(holds, value, "it must be below high_freq_factor")
            }
            Self::Yarn(yarn) => {
                stretch(yarn.factor)?;
                length(yarn.original_max_seq_len)?;
                [yarn.beta_fast, yarn.beta_slow, yarn.attention_factor.into()]
                    .into_iter()
                    .try_for_each(positive)?;
                if theta <= 1.0 {
                    return Err(("yarn".into(), "it needs a rope_theta above 1"));
                }
                let value = format!("beta_slow {}", yarn.beta_slow);
                let holds = yarn.beta_slow <= yarn.beta_fast;
                ensure(holds, value, "it must not be above beta_fast")
            }
            Self::Divided { divisors } => {
                divisors.iter().try_for_each(|divisor| positive((*divisor).into()))?;
                let value = format!("{} divisors", divisors.len());
                let holds = divisors.len() == head_dim / 2;
                ensure(holds, value, "there must be one for each pair of a head's dimensions")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frequencies(scaling: RopeScaling, length: usize) -> Vec<f64> {
        assert_eq!(scaling.check(8, 10_000.0), Ok(()));
        Frequencies::new(8, 10_000.0, Some(&scaling), length).each
    }

    fn close(got: &[f64], want: &[f64]) {
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() < 1e-9 * want.abs(), "{got} is not {want}");
        }
    }

    #[test]
    fn a_factor_of_one_changes_nothing() {
        let plain: Vec<f64> = plain(8, 10_000.0).collect();
        close(&plain, &[1.0, 0.1, 0.01, 0.001]);
        let original_max_seq_len = 64;
        let llama3 = RopeScaling::Llama3 {
            factor: 1.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_seq_len,
        };
        let yarn = RopeScaling::Yarn(Yarn {
            factor: 1.0,
            original_max_seq_len,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: 1.0,
            truncate: true,
        });
        close(&frequencies(RopeScaling::Linear { factor: 1.0 }, 9), &plain);
        close(&frequencies(llama3, 9), &plain);
        close(&frequencies(yarn, 9), &plain);
        let dynamic = RopeScaling::Dynamic { factor: 4.0, original_max_seq_len };
        close(&frequencies(dynamic, 64), &plain);
        close(&frequencies(RopeScaling::Divided { divisors: vec![1.0; 4] }, 9), &plain);
    }

    #[test]
    fn the_longer_the_text_the_slower_dynamic_dimensions_turn() {
        let dynamic = |length| {
            frequencies(RopeScaling::Dynamic { factor: 2.0, original_max_seq_len: 64 }, length)
        };
        let (short, long) = (dynamic(64), dynamic(128));
        assert_eq!(short[0], long[0]);
        // The base is multiplied by (2 * 2 - 1)^(8/6), and the last of four pairs has the power -3/4.
        close(&[long[3]], &[short[3] / 3.0]);
    }

    #[test]
    fn llama3_divides_slow_dimensions_and_keeps_fast_ones() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_seq_len: 128,
        };
        let got = frequencies(scaling, 1);
        // They turn 20, 2.04, 0.2 and 0.02 times within 128 positions.
        let smooth = (12.8 / TAU - 1.0) / 3.0;
        close(&got, &[1.0, 0.1 * ((1.0 - smooth) / 8.0 + smooth), 0.01 / 8.0, 0.001 / 8.0]);
    }

    #[test]
    fn nonsense_is_refused_with_the_reason() {
        let reason = |scaling: RopeScaling| scaling.check(8, 10_000.0).unwrap_err().1;
        assert!(reason(RopeScaling::Linear { factor: 0.0 }).contains("positive"));
        let dynamic = RopeScaling::Dynamic { factor: 0.5, original_max_seq_len: 8 };
        assert!(reason(dynamic).contains("at least 1"));
        let dynamic = RopeScaling::Dynamic { factor: 2.0, original_max_seq_len: 0 };
        assert!(reason(dynamic.clone()).contains("positions"));
        assert!(reason(RopeScaling::Divided { divisors: vec![1.0; 3] }).contains("each pair"));
        assert!(reason(RopeScaling::Divided { divisors: vec![f32::NAN; 4] }).contains("positive"));
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 4.0,
            high_freq_factor: 4.0,
            original_max_seq_len: 8,
        };
        assert!(reason(llama3).contains("below high_freq_factor"));
    }
}
