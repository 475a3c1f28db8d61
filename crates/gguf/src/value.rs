//! A value of the metadata.

use crate::array::Array;

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An unsigned integer of 8 bits.
    U8(u8),
    /// A signed integer of 8 bits.
    I8(i8),
    /// An unsigned integer of 16 bits.
    U16(u16),
    /// A signed integer of 16 bits.
    I16(i16),
    /// An unsigned integer of 32 bits.
    U32(u32),
    /// A signed integer of 32 bits.
    I32(i32),
    /// A number of 32 bits.
    F32(f32),
    /// A truth value.
    Bool(bool),
    /// A text.
    String(String),
    /// Values of one type.
    Array(Array),
    /// An unsigned integer of 64 bits.
    U64(u64),
    /// A signed integer of 64 bits.
    I64(i64),
    /// A number of 64 bits.
    F64(f64),
}

impl Value {
    /// The integer of any width, if it is one.
    pub(crate) fn integer(&self) -> Option<i128> {
        match *self {
            Self::U8(value) => Some(value.into()),
            Self::I8(value) => Some(value.into()),
            Self::U16(value) => Some(value.into()),
            Self::I16(value) => Some(value.into()),
            Self::U32(value) => Some(value.into()),
            Self::I32(value) => Some(value.into()),
            Self::U64(value) => Some(value.into()),
            Self::I64(value) => Some(value.into()),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::String(_) | Self::Array(_) => None,
        }
    }

    /// Its description in an error. Contents are included only if they are short.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::String(_) => "a string".into(),
            Self::Bool(value) => format!("the bool {value}"),
            Self::F32(value) => format!("the number {value}"),
            Self::F64(value) => format!("the number {value}"),
            Self::Array(array) => array.describe(),
            _ => format!("the integer {}", self.integer().unwrap_or_default()),
        }
    }
}

macro_rules! value_from {
    ($($variant:ident $type:ty),*) => {
        $(impl From<$type> for Value {
            fn from(value: $type) -> Self {
                Self::$variant(value)
            }
        })*
    };
}

value_from!(U8 u8, I8 i8, U16 u16, I16 i16, U32 u32, I32 i32, F32 f32, Bool bool, String String, Array Array, U64 u64, I64 i64, F64 f64);

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.into())
    }
}

impl<T> From<Vec<T>> for Value
where
    Array: From<Vec<T>>,
{
    fn from(values: Vec<T>) -> Self {
        Self::Array(values.into())
    }
}
