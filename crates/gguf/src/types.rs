//! The types of tensors: how many elements are packed into how many bytes.

use std::fmt;

macro_rules! tensor_types {
    ($($variant:ident = $id:literal $name:literal, $block:literal in $bytes:literal;)*) => {
        /// How a tensor's numbers are stored.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum TensorType {
            $(#[doc = concat!("ggml's `", $name, "`: blocks of ", $block, " in ", $bytes, " bytes.")] $variant,)*
        }

        impl TensorType {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            pub(crate) fn from_id(id: u32) -> Option<Self> {
                match id {
                    $($id => Some(Self::$variant),)*
                    _ => None,
                }
            }

            pub(crate) fn id(self) -> u32 {
                match self {
                    $(Self::$variant => $id,)*
                }
            }

            /// ggml's name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// How many elements are packed together; rows are multiples of it.
            pub fn block_elements(self) -> usize {
                match self {
                    $(Self::$variant => $block,)*
                }
            }

            /// How many bytes a block takes.
            pub fn block_bytes(self) -> usize {
                match self {
                    $(Self::$variant => $bytes,)*
                }
            }
        }
    };
}

// The missing numbers belonged to types that llama.cpp has removed.
tensor_types! {
    F32 = 0 "F32", 1 in 4;
    F16 = 1 "F16", 1 in 2;
    Q4_0 = 2 "Q4_0", 32 in 18;
    Q4_1 = 3 "Q4_1", 32 in 20;
    Q5_0 = 6 "Q5_0", 32 in 22;
    Q5_1 = 7 "Q5_1", 32 in 24;
    Q8_0 = 8 "Q8_0", 32 in 34;
    Q8_1 = 9 "Q8_1", 32 in 36;
    Q2K = 10 "Q2_K", 256 in 84;
    Q3K = 11 "Q3_K", 256 in 110;
    Q4K = 12 "Q4_K", 256 in 144;
    Q5K = 13 "Q5_K", 256 in 176;
    Q6K = 14 "Q6_K", 256 in 210;
    Q8K = 15 "Q8_K", 256 in 292;
    Iq2Xxs = 16 "IQ2_XXS", 256 in 66;
    Iq2Xs = 17 "IQ2_XS", 256 in 74;
    Iq3Xxs = 18 "IQ3_XXS", 256 in 98;
    Iq1S = 19 "IQ1_S", 256 in 50;
    Iq4Nl = 20 "IQ4_NL", 32 in 18;
    Iq3S = 21 "IQ3_S", 256 in 110;
    Iq2S = 22 "IQ2_S", 256 in 82;
    Iq4Xs = 23 "IQ4_XS", 256 in 136;
    I8 = 24 "I8", 1 in 1;
    I16 = 25 "I16", 1 in 2;
    I32 = 26 "I32", 1 in 4;
    I64 = 27 "I64", 1 in 8;
    F64 = 28 "F64", 1 in 8;
    Iq1M = 29 "IQ1_M", 256 in 56;
    BF16 = 30 "BF16", 1 in 2;
    Tq1_0 = 34 "TQ1_0", 256 in 54;
    Tq2_0 = 35 "TQ2_0", 256 in 66;
    Mxfp4 = 39 "MXFP4", 32 in 17;
    Nvfp4 = 40 "NVFP4", 64 in 36;
    Q1_0 = 41 "Q1_0", 128 in 18;
}

impl fmt::Display for TensorType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Names, for a sentence.
pub(crate) fn listed(types: impl Iterator<Item = TensorType>) -> String {
    types.map(TensorType::name).collect::<Vec<_>>().join(", ")
}
