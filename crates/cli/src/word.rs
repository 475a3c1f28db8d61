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

/// Those of [`hadal_model::Precision`].
pub(crate) const PRECISIONS: &[&str] = &["f32", "bf16", "bf16x3"];

/// A whole number from `LEAST` to `MOST`. What is no such number is told in words, and not by the type that holds it.
pub(crate) fn whole<const LEAST: usize, const MOST: usize>(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(number) if (LEAST..=MOST).contains(&number) => Ok(number),
        _ => Err(format!("it must be a whole number between {LEAST} and {MOST}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hadal_model::Precision;

    #[test]
    fn every_precision_has_its_word() {
        assert_eq!(PRECISIONS, Precision::ALL.map(Precision::name));
    }

    #[test]
    fn numbers_are_whole_and_within_reason() {
        assert_eq!(whole::<1, 1024>("1"), Ok(1));
        assert_eq!(whole::<1, 1024>("1024"), Ok(1024));
        for text in ["0", "-1", "1.5", "many", "", "1025", "99999999999999999999"] {
            let said = whole::<1, 1024>(text).unwrap_err();
            assert_eq!(said, "it must be a whole number between 1 and 1024", "{text}");
        }
    }
}
