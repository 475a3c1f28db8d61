//! What serde says about a wrong value, in words instead of Rust's types.

use crate::nearest::unknown;

/// A message of serde in plain words. Lines that are not its are left alone, such as those in which TOML shows the place.
pub fn plain_words(message: &str) -> String {
    message.lines().map(|line| translated(line, None)).collect::<Vec<_>>().join("\n")
}

/// The same, on the value of this key.
pub(crate) fn plain_words_of(key: &str, message: &str) -> String {
    translated(message, Some(key))
}

fn translated(line: &str, key: Option<&str>) -> String {
    // JSON's reader appends the place.
    let (said, place) = match line.find(" at line ") {
        Some(at) => line.split_at(at),
        None => (line, ""),
    };
    let words = field(said).or_else(|| choice(said, key)).or_else(|| value(said, key));
    let words = words.or_else(|| length(said));
    words.map_or_else(|| line.to_owned(), |words| words + place)
}

/// `unknown field `x`, expected one of `a`, `b``
fn field(said: &str) -> Option<String> {
    let (name, known) = said.strip_prefix("unknown field `")?.split_once("`, ")?;
    let known = quoted(known);
    match known.is_empty() {
        true => Some(format!("unknown field `{name}`; there are none")),
        false => Some(unknown("field", name, &known)),
    }
}

/// `unknown variant `x`, expected `a` or `b``
fn choice(said: &str, key: Option<&str>) -> Option<String> {
    let (name, known) = said.strip_prefix("unknown variant `")?.split_once("`, ")?;
    let known = quoted(known);
    Some(match key {
        Some(key) => unknown(key, name, &known),
        None => unknown("value", name, &known),
    })
}

/// `invalid type: string "x", expected u64`
fn value(said: &str, key: Option<&str>) -> Option<String> {
    let rest = said.strip_prefix("invalid type: ").or(said.strip_prefix("invalid value: "))?;
    let (found, expected) = rest.rsplit_once(", expected ")?;
    let (found, expected) = (found_in_words(found), expected_in_words(expected));
    Some(match key {
        Some(key) => format!("{key} is {found}; write {expected}"),
        None => format!("{found} does not fit; write {expected}"),
    })
}

/// `invalid length 3, expected fewer elements in array`
fn length(said: &str) -> Option<String> {
    let (found, expected) = said.strip_prefix("invalid length ")?.split_once(", expected ")?;
    Some(match expected {
        "fewer elements in array" => format!("{found} entries are too many"),
        other => format!("{found} entries do not fit; write {}", expected_in_words(other)),
    })
}

fn found_in_words(found: &str) -> String {
    match found {
        "sequence" => "a list".into(),
        "map" => "a table".into(),
        // Where a name is expected, TOML's reader does not say what it found.
        "unit variant" => "this".into(),
        "null" | "unit value" | "Option value" => "nothing".into(),
        other => {
            let value = other.split_once(' ').map_or(other, |(kind, value)| match kind {
                // "floating point `1.5`"
                "floating" => value.trim_start_matches("point "),
                _ => value,
            });
            value.trim_matches('`').to_owned()
        }
    }
}

fn expected_in_words(expected: &str) -> String {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => "a whole number, zero or more".into(),
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "a whole number".into(),
        "f32" | "f64" => "a number".into(),
        "a boolean" => "true or false".into(),
        "a string" => "a text".into(),
        "path string" => "a path".into(),
        "string only" | "variant identifier" => "a name".into(),
        "a sequence" => "a list".into(),
        "a map" => "a table".into(),
        other if other.starts_with("struct ") => "a table".into(),
        other if other.starts_with("an array of length ") => {
            other.replacen("an array of length", "a list of", 1)
        }
        // serde names the type of a tuple or a nonzero number; what is left reads as words.
        other if other.starts_with("a nonzero ") => "a whole number, one or more".into(),
        other => other.to_owned(),
    }
}

/// What stands between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only messages are read")]
    struct All {
        #[serde(default)]
        steps: u64,
        #[serde(default)]
        shift: i32,
        #[serde(default)]
        rate: f64,
        #[serde(default)]
        on: bool,
        #[serde(default)]
        name: String,
        #[serde(default)]
        list: Vec<u64>,
        #[serde(default)]
        gate: Gate,
    }

    #[derive(Deserialize, Debug, Default)]
    #[serde(rename_all = "snake_case")]
    enum Gate {
        #[default]
        Independent,
        Competitive,
    }

    #[test]
    fn no_type_of_rust_is_left() {
        for (text, words) in [
            (r#"{"steps": "many"}"#, r#""many" does not fit; write a whole number, zero or more"#),
            (r#"{"steps": -1}"#, "-1 does not fit; write a whole number, zero or more"),
            (r#"{"steps": 1.5}"#, "1.5 does not fit; write a whole number, zero or more"),
            (r#"{"shift": true}"#, "true does not fit; write a whole number"),
            (r#"{"rate": [1]}"#, "a list does not fit; write a number"),
            (r#"{"on": "maybe"}"#, r#""maybe" does not fit; write true or false"#),
            (r#"{"name": 3}"#, "3 does not fit; write a text"),
            (r#"{"list": {}}"#, "a table does not fit; write a list"),
            (r#"{"list": null}"#, "nothing does not fit; write a list"),
            (r#"{"gate": "open"}"#, "unknown value `open`; known are independent, competitive"),
            (
                r#"{"stpes": 1}"#,
                "unknown field `stpes`; did you mean steps? (known are steps, shift, rate, on, name, list, gate)",
            ),
        ] {
            let value: serde_json::Value = serde_json::from_str(text).unwrap();
            let error = serde_json::from_value::<All>(value).unwrap_err().to_string();
            assert_eq!(plain_words(&error), words, "{error}");
            let placed = serde_json::from_str::<All>(text).unwrap_err().to_string();
            let place = placed.find(" at line ").map(|at| &placed[at..]).unwrap();
            assert_eq!(plain_words(&placed), format!("{words}{place}"));
        }
    }

    #[test]
    fn a_key_is_named_where_it_is_known() {
        let said = "invalid type: string \"many\", expected usize";
        let words = "streams is \"many\"; write a whole number, zero or more";
        assert_eq!(plain_words_of("streams", said), words);
        let said = "unknown variant `opne`, expected `open` or `shut`";
        assert_eq!(
            plain_words_of("gate", said),
            "unknown gate `opne`; did you mean open? (known are open, shut)"
        );
    }

    #[test]
    fn other_lines_stay() {
        let shown = "TOML parse error at line 1, column 9\n  |\n1 | steps = \"x\"\n  |         ^^^\ninvalid type: string \"x\", expected u64";
        let words = plain_words(shown);
        assert!(words.starts_with(&shown[..shown.find("invalid").unwrap()]), "{words}");
        assert!(words.ends_with("\"x\" does not fit; write a whole number, zero or more"));
        assert_eq!(plain_words("missing field `kind`"), "missing field `kind`");
    }
}
