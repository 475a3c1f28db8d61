//! What multiplies words on this CPU.

use crate::simd::Form;
use std::fmt;
use std::sync::OnceLock;

/// Instructions that multiply bf16 numbers. Results differ between them in the order and the rounding of sums alone, as they do
/// from those without any: f32 arithmetic on rounded operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// `vdpbf16ps` of AVX-512.
    Dot(HasDot),
}

/// Proof that this CPU has AVX-512 with its bf16 instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HasDot(());

impl Unit {
    /// The best one that goes with the [form](Form) in use, if there is one. Decided once.
    pub fn best() -> Option<Self> {
        static BEST: OnceLock<Option<Unit>> = OnceLock::new();
        *BEST.get_or_init(|| match Form::best() {
            Form::Avx512(_) => Self::dot(),
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

    /// The words along the depth are a multiple of this.
    pub(super) fn step(self) -> usize {
        match self {
            Self::Dot(_) => 1,
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Dot(_) => "avx512_bf16",
        })
    }
}
