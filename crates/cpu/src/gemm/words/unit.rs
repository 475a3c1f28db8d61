//! What multiplies words on this CPU.

use super::STEP;
use crate::simd::Form;
use std::fmt;
use std::sync::OnceLock;

/// Instructions that multiply bf16 numbers. Results differ between them in the order and the rounding of sums alone, as they do
/// from those without any: f32 arithmetic on rounded operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// `vdpbf16ps` of AVX-512.
    Dot(HasDot),
    /// Tiles of AMX, on Linux.
    Amx(HasAmx),
}

/// Proof that this CPU has AVX-512 with its bf16 instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HasDot(());

/// Proof that AMX was tried and may be used in this process, and that the CPU has AVX-512 with its bf16 instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HasAmx(());

impl Unit {
    /// The best one that goes with the [form](Form) in use, if there is one. Decided once, when products of bf16 numbers are
    /// first asked for: to see whether AMX works, a child process tries it. `HADAL_AMX=0` does without.
    pub fn best() -> Option<Self> {
        static BEST: OnceLock<Option<Unit>> = OnceLock::new();
        *BEST.get_or_init(|| match Form::best() {
            Form::Avx512(_) => Self::dot().map(|dot| Self::amx().unwrap_or(dot)),
            Form::Avx2(_) | Form::Portable => None,
        })
    }

    fn dot() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if Form::avx512().is_some() && is_x86_feature_detected!("avx512bf16") {
            return Some(Self::Dot(HasDot(())));
        }
        None
    }

    /// On a CPU that has [`Self::dot`].
    fn amx() -> Option<Self> {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if super::amx::usable() {
            return Some(Self::Amx(HasAmx(())));
        }
        None
    }

    /// Every one that can be tested here: AMX on a model of it where it is missing.
    #[cfg(test)]
    pub(super) fn all() -> Vec<Self> {
        let mut all: Vec<_> = Self::dot().into_iter().collect();
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if !all.is_empty() {
            if Self::amx().is_none() {
                super::amx::emulator::install();
            }
            all.push(Self::Amx(HasAmx(())));
        }
        all
    }

    /// The words along the depth are a multiple of this.
    pub(super) fn step(self) -> usize {
        match self {
            Self::Dot(_) => 1,
            Self::Amx(_) => STEP,
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Dot(_) => "avx512_bf16",
            Self::Amx(_) => "amx",
        })
    }
}
