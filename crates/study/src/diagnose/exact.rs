//! JSON whose floating-point numbers come back to the bit. Decimal text does not promise that: readers may round.

use serde_json::{Number, Value};

/// Begins a text that stands for a number.
const MARK: &str = "f64:";

/// Every floating-point number as the hexadecimal text of its bits.
pub(crate) fn pack(value: Value) -> Value {
    map(value, &|value| match value {
        Value::Number(number) if number.is_f64() => {
            let bits = number.as_f64().unwrap_or_default().to_bits();
            Value::String(format!("{MARK}{bits:016x}"))
        }
        other => other,
    })
}

/// The numbers of such a value.
pub(crate) fn unpack(value: Value) -> Value {
    map(value, &|value| match &value {
        Value::String(text) => match text.strip_prefix(MARK).and_then(number) {
            Some(number) => Value::Number(number),
            None => value,
        },
        _ => value,
    })
}

fn number(bits: &str) -> Option<Number> {
    Number::from_f64(f64::from_bits(u64::from_str_radix(bits, 16).ok()?))
}

fn map(value: Value, leaf: &dyn Fn(Value) -> Value) -> Value {
    match value {
        Value::Array(list) => list.into_iter().map(|value| map(value, leaf)).collect(),
        Value::Object(entries) => {
            entries.into_iter().map(|(key, value)| (key, map(value, leaf))).collect()
        }
        other => leaf(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_come_back_to_the_bit_and_the_rest_as_it_was() {
        let numbers = [0.1 + 0.2, 1.0, -0.0, f64::MIN_POSITIVE / 3.0, 1.797e308, 5e-324];
        let value =
            json!({ "n": numbers, "count": 3, "text": ["f64", "f64:", "f64:xyz", null, true] });
        let text = pack(value.clone()).to_string();
        let back = unpack(serde_json::from_str(&text).unwrap());
        assert_eq!(back, value);
        for (found, number) in back["n"].as_array().unwrap().iter().zip(numbers) {
            assert_eq!(found.as_f64().unwrap().to_bits(), number.to_bits());
        }
    }
}
