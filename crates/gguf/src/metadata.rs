//! The metadata: keys with typed values, in the order of the file.

use crate::value::Value;

/// Keys with values, in order, each key once. Files have a few dozen keys, so they are searched from
/// the front.
///
/// ```
/// use hadal_gguf::{Metadata, MetadataError};
///
/// let mut metadata = Metadata::default();
/// metadata.set("llama.block_count", 30u32);
/// // Any width that fits will do.
/// assert_eq!(metadata.get::<usize>("llama.block_count")?, 30);
/// assert_eq!(metadata.find::<f32>("llama.rope.freq_base")?, None);
/// let wrong = metadata.get::<String>("llama.block_count");
/// assert!(matches!(wrong, Err(MetadataError::Mismatch { .. })));
/// # Ok::<(), MetadataError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
}

/// Why a value cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the message says what a field is")]
pub enum MetadataError {
    /// There is no such key.
    #[error("key {} is missing", key.escape_debug())]
    Missing { key: String },
    /// The value is of another kind, or out of range.
    #[error("key {} is {found}, expected {expected}", key.escape_debug())]
    Mismatch { key: String, found: String, expected: String },
    /// A list with a value for each block is too short.
    #[error("key {} has values for {values} blocks, but there is a block {block}", key.escape_debug())]
    Block { key: String, values: usize, block: usize },
}

/// Types that a value can be read as: integers of any width that fit, numbers, bools, texts, and lists of these.
pub trait FromValue: Sized {
    /// The expected type, as an error names it.
    fn expected() -> String;
    /// The value, if it is of this kind and in range.
    fn from_value(value: &Value) -> Option<Self>;
}

impl Metadata {
    /// A value as it is stored.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.iter().find(|(other, _)| *other == key).map(|(_, value)| value)
    }

    /// A value that can be changed in place.
    pub fn value_mut(&mut self, key: &str) -> Option<&mut Value> {
        self.iter_mut().find(|(other, _)| *other == key).map(|(_, value)| value)
    }

    /// A value that may be absent.
    pub fn find<T: FromValue>(&self, key: &str) -> Result<Option<T>, MetadataError> {
        self.value(key).map(|value| convert(key, value)).transpose()
    }

    /// A value that must exist.
    pub fn get<T: FromValue>(&self, key: &str) -> Result<T, MetadataError> {
        self.find(key)?.ok_or_else(|| MetadataError::Missing { key: key.into() })
    }

    /// The value for a block, where a file has one value for all blocks or a list with one for each
    /// (`llama.attention.head_count_kv`).
    pub fn get_for_block<T: FromValue>(&self, key: &str, block: usize) -> Result<T, MetadataError> {
        match self.value(key) {
            Some(Value::Array(array)) => match array.get(block) {
                Some(value) => convert(key, &value),
                None => Err(MetadataError::Block { key: key.into(), values: array.len(), block }),
            },
            _ => self.get(key),
        }
    }

    /// Sets a value, in the key's place if it has one, otherwise at the end.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        let value = value.into();
        match self.value_mut(key) {
            Some(old) => *old = value,
            None => self.entries.push((key.into(), value)),
        }
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let index = self.entries.iter().position(|(other, _)| other == key)?;
        Some(self.entries.remove(index).1)
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All keys and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// All keys, and their values for changing.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Value)> {
        self.entries.iter_mut().map(|(key, value)| (key.as_str(), value))
    }

    /// The entries of a file, or the key that occurs twice.
    pub(crate) fn from_entries(entries: Vec<(String, Value)>) -> Result<Self, String> {
        let mut keys: Vec<&str> = entries.iter().map(|(key, _)| key.as_str()).collect();
        keys.sort_unstable();
        match keys.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(pair[0].into()),
            None => Ok(Self { entries }),
        }
    }
}

fn convert<T: FromValue>(key: &str, value: &Value) -> Result<T, MetadataError> {
    T::from_value(value).ok_or_else(|| MetadataError::Mismatch {
        key: key.into(),
        found: value.describe(),
        expected: T::expected(),
    })
}

macro_rules! integers {
    ($($type:ty: $expected:literal),*) => {
        $(impl FromValue for $type {
            fn expected() -> String {
                $expected.into()
            }

            fn from_value(value: &Value) -> Option<Self> {
                value.integer()?.try_into().ok()
            }
        })*
    };
}

integers!(
    u32: "an unsigned integer of 32 bits",
    u64: "an unsigned integer",
    usize: "an unsigned integer",
    i32: "an integer of 32 bits",
    i64: "an integer"
);

impl FromValue for f32 {
    fn expected() -> String {
        "a number".into()
    }

    fn from_value(value: &Value) -> Option<Self> {
        f64::from_value(value).map(|value| value as Self)
    }
}

impl FromValue for f64 {
    fn expected() -> String {
        "a number".into()
    }

    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::F32(value) => Some(value.into()),
            Value::F64(value) => Some(value),
            _ => None,
        }
    }
}

impl FromValue for bool {
    fn expected() -> String {
        "a bool".into()
    }

    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }
}

impl FromValue for String {
    fn expected() -> String {
        "a string".into()
    }

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Some(text.clone()),
            _ => None,
        }
    }
}

impl<T: FromValue> FromValue for Vec<T> {
    fn expected() -> String {
        format!("an array, each {}", T::expected())
    }

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Array(array) => {
                (0..array.len()).map(|index| T::from_value(&array.get(index)?)).collect()
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> Metadata {
        let mut metadata = Metadata::default();
        metadata.set("name", "tiny");
        metadata.set("blocks", 3u8);
        metadata.set("offset", -1i64);
        metadata.set("epsilon", 1e-5f32);
        metadata.set("heads", vec![4i32, 2, 1]);
        metadata.set("words", vec!["a".to_string(), "b".to_string()]);
        metadata
    }

    #[test]
    fn integers_are_read_whatever_their_width_as_long_as_they_fit() {
        let metadata = metadata();
        assert_eq!(metadata.get::<u32>("blocks"), Ok(3));
        assert_eq!(metadata.get::<u64>("blocks"), Ok(3));
        assert_eq!(metadata.get::<i32>("offset"), Ok(-1));
        assert_eq!(metadata.get::<Vec<u64>>("heads"), Ok(vec![4, 2, 1]));
        let error = metadata.get::<u64>("offset").unwrap_err().to_string();
        assert_eq!(error, "key offset is the integer -1, expected an unsigned integer");
    }

    #[test]
    fn a_value_of_another_kind_is_named_together_with_what_was_expected() {
        let metadata = metadata();
        let message = |error: MetadataError| error.to_string();
        assert_eq!(
            message(metadata.get::<u64>("name").unwrap_err()),
            "key name is a string, expected an unsigned integer"
        );
        assert_eq!(
            message(metadata.get::<Vec<i64>>("words").unwrap_err()),
            "key words is an array of 2 strings, expected an array, each an integer"
        );
        assert_eq!(
            message(metadata.get::<f32>("blocks").unwrap_err()),
            "key blocks is the integer 3, expected a number"
        );
        assert_eq!(message(metadata.get::<bool>("a\x1b").unwrap_err()), "key a\\u{1b} is missing");
        assert_eq!(metadata.find::<bool>("absent"), Ok(None));
    }

    #[test]
    fn a_block_is_told_by_the_common_value_or_its_own() {
        let metadata = metadata();
        assert_eq!(metadata.get_for_block::<usize>("heads", 2), Ok(1));
        assert_eq!(metadata.get_for_block::<usize>("blocks", 99), Ok(3));
        let error = metadata.get_for_block::<usize>("heads", 3).unwrap_err().to_string();
        assert_eq!(error, "key heads has values for 3 blocks, but there is a block 3");
    }

    #[test]
    fn editing_keeps_the_order_of_keys() {
        let mut metadata = metadata();
        metadata.set("blocks", 2u32);
        assert_eq!(metadata.remove("offset"), Some(Value::I64(-1)));
        assert_eq!(metadata.remove("offset"), None);
        for (key, value) in metadata.iter_mut() {
            if let ("heads", Value::Array(array)) = (key, value) {
                array.retain(|block| block != 1);
            }
        }
        let keys: Vec<_> = metadata.iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["name", "blocks", "epsilon", "heads", "words"]);
        assert_eq!(metadata.value("blocks"), Some(&Value::U32(2)));
        assert_eq!(metadata.get::<Vec<u32>>("heads"), Ok(vec![4, 1]));
    }
}
