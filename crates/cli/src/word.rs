//! Command-line words that have the names of a library's values in files.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::de::DeserializeOwned;

/// One of these words, as the library's own type.
pub(crate) fn word<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    words: &'static [&'static str],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(words)
        .try_map(|word| serde_json::from_value::<T>(serde_json::Value::String(word)))
}
