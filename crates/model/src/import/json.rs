//! Values of a foreign `config.json`, with messages that name the key.

use super::Reason;
use serde_json::Value;

/// A value that exists and is not null.
pub(super) fn present<'a>(json: &'a Value, key: &str) -> Option<&'a Value> {
    json.get(key).filter(|value| !value.is_null())
}

pub(super) fn size(json: &Value, key: &str) -> Result<usize, Reason> {
    optional_size(json, key)?.ok_or_else(|| format!("it has no {key}"))
}

pub(super) fn optional_size(json: &Value, key: &str) -> Result<Option<usize>, Reason> {
    let whole = |value: &Value| {
        let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
        number.ok_or_else(|| format!("{key} is {value}, but it must be a whole number"))
    };
    present(json, key).map(whole).transpose()
}

pub(super) fn number(json: &Value, key: &str) -> Result<Option<f64>, Reason> {
    let real =
        |value: &Value| value.as_f64().ok_or_else(|| format!("{key} is {value}, not a number"));
    present(json, key).map(real).transpose()
}

/// False if the key is missing.
pub(super) fn flag(json: &Value, key: &str) -> Result<bool, Reason> {
    let truth = |value: &Value| {
        value.as_bool().ok_or_else(|| format!("{key} is {value}, but it must be true or false"))
    };
    present(json, key).map_or(Ok(false), truth)
}

/// A token id or a list of them.
pub(crate) fn token_ids(json: &Value, key: &str) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match json.get(key) {
        Some(Value::Array(list)) => list.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    }
}
