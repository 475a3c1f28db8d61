//! With how many bits matrix products take their operands.

use crate::linear::FEW;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What the matrix products of a pass round, forward and backward: projections, MLPs, the head, and attention's scores and
/// mixing.
///
/// A product rounds each element of both factors as it enters, and sums in f32. An operand is whatever the kernel multiplies:
/// attention mixes values by weights that are not divided by their sum yet, and on the way back by those that are. Everything
/// else stays f32: parameters, activations between products, streams, norms, softmax, loss, gradients and the optimiser, Muon's
/// products too. So do products of few tokens (up to eight rows of a projection, an MLP or the head), steps of decoding and
/// depth slots: their time is that of reading weights, which are f32.
///
/// Rounding to bf16 is to the nearest, ties to even. Infinities stay, a NaN stays one, and what is too large becomes infinite
/// (from 3.396e38 on). Subnormal numbers (below 1.18e-38) become a zero of their sign, as the hardware has it; whether a
/// subnormal sum is kept is left to the hardware too.
///
/// The definition says everything but the order of sums: a result may differ in bits between [forms](crate::Form), and between
/// the [units](crate::Unit) that multiply bf16 numbers there, never within one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Operands as they are.
    #[default]
    F32,
    /// Each operand is rounded to bf16: see [`bf16`].
    Bf16,
    /// Each operand is [`split`] into three bf16 parts, and the six largest of their nine products are summed, the smallest
    /// first: `a3 b1 + a2 b2 + a1 b3 + a2 b1 + a1 b2 + a1 b1`. What is left out is below the rounding of f32.
    ///
    /// The parts of an infinity are itself and two zeros, so it makes a NaN where f32 would make an infinity.
    Bf16x3,
}

impl Precision {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::Bf16x3];

    /// Its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Bf16x3 => "bf16x3",
        }
    }

    /// That of products of so many rows: those of few are f32.
    pub fn of_rows(self, rows: usize) -> Self {
        if rows <= FEW { Self::F32 } else { self }
    }

    /// How many parts an operand has.
    pub(crate) fn parts(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 => 1,
            Self::Bf16x3 => 3,
        }
    }

    /// Which parts of the left and of the right factor are multiplied, in this order.
    pub(crate) fn terms(self) -> &'static [(usize, usize)] {
        match self {
            Self::F32 | Self::Bf16 => &[(0, 0)],
            Self::Bf16x3 => &[(2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0)],
        }
    }

    /// Replaces operands by their parts, those of all operands one after another: at first, only the first part of `data` holds
    /// something.
    pub(crate) fn round(self, data: &mut [f32]) {
        match self {
            Self::F32 => (),
            Self::Bf16 => round_all(data),
            Self::Bf16x3 => {
                let (first, rest) = data.split_at_mut(data.len() / 3);
                let (second, third) = rest.split_at_mut(first.len());
                split_all(first, second, third);
            }
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|precision| precision.name() == name).ok_or_else(|| {
            format!(
                "there is no precision `{name}`; there are {}",
                Self::ALL.map(Self::name).join(", ")
            )
        })
    }
}

/// The nearest bf16, as [`Precision`] defines it.
///
/// ```
/// use hadal_cpu::bf16;
///
/// assert_eq!(bf16(1.0 + 1.0 / 256.0), 1.0); // a tie goes to the even one
/// assert_eq!(bf16(1.0 + 3.0 / 256.0), 1.0 + 4.0 / 256.0);
/// ```
#[inline(always)]
pub fn bf16(x: f32) -> f32 {
    const SIGN: u32 = 1 << 31;
    const EXPONENT: u32 = 0x7f80_0000;
    const HIGH: u32 = 0xffff_0000;
    const QUIET: u32 = 0x0040_0000;
    let bits = x.to_bits();
    let odd = (bits >> 16) & 1;
    let nearest = bits.wrapping_add(0x7fff + odd) & HIGH;
    let rounded = if bits & EXPONENT == 0 { bits & SIGN } else { nearest };
    f32::from_bits(if x.is_nan() { (bits | QUIET) & HIGH } else { rounded })
}

/// Three bf16 parts, the largest first. Their sum is `x`, unless it is so small that parts of it are subnormal.
#[inline(always)]
pub fn split(x: f32) -> [f32; 3] {
    let first = bf16(x);
    let rest = if first.is_finite() { x - first } else { 0.0 };
    let second = bf16(rest);
    [first, second, bf16(rest - second)]
}

simd! {
    fn round_all(values: &mut [f32]) {
        for value in values {
            *value = bf16(*value);
        }
    }
}

simd! {
    /// The parts of what `first` holds.
    pub(crate) fn split_all(first: &mut [f32], second: &mut [f32], third: &mut [f32]) {
        for ((first, second), third) in first.iter_mut().zip(second).zip(third) {
            [*first, *second, *third] = split(*first);
        }
    }
}

#[cfg(test)]
mod tests;
