//! An array of the metadata: values of one type, stored as such, because vocabularies are large.

use crate::value::Value;

/// Values of one type.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Unsigned integers of 8 bits.
    U8(Vec<u8>),
    /// Signed integers of 8 bits.
    I8(Vec<i8>),
    /// Unsigned integers of 16 bits.
    U16(Vec<u16>),
    /// Signed integers of 16 bits.
    I16(Vec<i16>),
    /// Unsigned integers of 32 bits.
    U32(Vec<u32>),
    /// Signed integers of 32 bits.
    I32(Vec<i32>),
    /// Numbers of 32 bits.
    F32(Vec<f32>),
    /// Truth values.
    Bool(Vec<bool>),
    /// Texts.
    String(Vec<String>),
    /// Arrays, each with its own type. llama.cpp reads none of these.
    Array(Vec<Array>),
    /// Unsigned integers of 64 bits.
    U64(Vec<u64>),
    /// Signed integers of 64 bits.
    I64(Vec<i64>),
    /// Numbers of 64 bits.
    F64(Vec<f64>),
}

/// The same expression for the elements of every type.
macro_rules! for_each_type {
    ($array:expr, $values:ident => $expression:expr) => {
        match $array {
            Array::U8($values) => $expression,
            Array::I8($values) => $expression,
            Array::U16($values) => $expression,
            Array::I16($values) => $expression,
            Array::U32($values) => $expression,
            Array::I32($values) => $expression,
            Array::F32($values) => $expression,
            Array::Bool($values) => $expression,
            Array::String($values) => $expression,
            Array::Array($values) => $expression,
            Array::U64($values) => $expression,
            Array::I64($values) => $expression,
            Array::F64($values) => $expression,
        }
    };
}

impl Array {
    /// How many values it has.
    pub fn len(&self) -> usize {
        for_each_type!(self, values => values.len())
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A value by its index.
    pub fn get(&self, index: usize) -> Option<Value> {
        for_each_type!(self, values => values.get(index).cloned().map(Value::from))
    }

    /// Keeps the values whose index is wanted, in their order: cutting blocks does this to lists with a value for each
    /// block.
    pub fn retain(&mut self, mut keep: impl FnMut(usize) -> bool) {
        let mut index = 0..self.len();
        for_each_type!(self, values => values.retain(|_| index.next().is_some_and(&mut keep)));
    }

    /// How deep it nests: 1 for an array of plain values.
    pub(crate) fn depth(&self) -> usize {
        match self {
            Self::Array(arrays) => 1 + arrays.iter().map(Self::depth).max().unwrap_or(0),
            _ => 1,
        }
    }

    pub(crate) fn describe(&self) -> String {
        let elements = match self {
            Self::String(_) => "strings",
            Self::Bool(_) => "bools",
            Self::Array(_) => "arrays",
            Self::F32(_) | Self::F64(_) => "numbers",
            _ => "integers",
        };
        format!("an array of {} {elements}", self.len())
    }
}

macro_rules! array_from {
    ($($variant:ident $type:ty),*) => {
        $(impl From<Vec<$type>> for Array {
            fn from(values: Vec<$type>) -> Self {
                Self::$variant(values)
            }
        })*
    };
}

array_from!(U8 u8, I8 i8, U16 u16, I16 i16, U32 u32, I32 i32, F32 f32, Bool bool, String String, Array Array, U64 u64, I64 i64, F64 f64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cutting_blocks_keeps_the_values_of_the_others_in_order() {
        for mut array in [
            Array::from(vec![10u32, 11, 12, 13]),
            Array::from(["10", "11", "12", "13"].map(String::from).to_vec()),
        ] {
            let (second, fourth) = (array.get(1), array.get(3));
            array.retain(|index| index % 2 == 1);
            assert_eq!(array.len(), 2);
            assert_eq!((array.get(0), array.get(1)), (second, fourth));
        }
    }

    #[test]
    fn depth_counts_the_deepest_branch() {
        assert_eq!(Array::from(vec![1u8]).depth(), 1);
        assert_eq!(Array::Array(vec![]).depth(), 1);
        let deep = Array::Array(vec![Array::U8(vec![]), Array::Array(vec![Array::U8(vec![])])]);
        assert_eq!(deep.depth(), 3);
    }
}
