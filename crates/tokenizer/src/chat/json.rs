//! `tojson` as `transformers` gives it to templates: Python's `json.dumps` with `ensure_ascii=False`.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use std::fmt::Write;

/// Values that contain each other as deep as this are refused.
const DEEPEST: usize = 64;

pub(super) fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<Value> = options.get("indent")?;
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => Some(match (indent.as_str(), indent.as_usize()) {
            (Some(text), _) => text.to_owned(),
            (_, Some(width)) if width <= DEEPEST => " ".repeat(width),
            _ => return Err(invalid("indent must be a small number or a text")),
        }),
    };
    let separators: Option<(String, String)> = match options.get::<Option<Value>>("separators")? {
        Some(pair) if !pair.is_none() => {
            let part = |at: usize| -> Result<String, Error> {
                let part = pair.get_item_by_index(at)?;
                part.as_str().map(str::to_owned).ok_or_else(|| invalid("separators are texts"))
            };
            Some((part(0)?, part(1)?))
        }
        _ => None,
    };
    let item = if indent.is_some() { "," } else { ", " };
    let style = Style {
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sorted: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators: separators.unwrap_or_else(|| (item.into(), ": ".into())),
        indent,
    };
    options.assert_all_used()?;
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(Value::from_safe_string(out))
}

struct Style {
    ascii: bool,
    sorted: bool,
    separators: (String, String),
    indent: Option<String>,
}

impl Style {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > DEEPEST {
            return Err(invalid("tojson: the value is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None | ValueKind::Undefined => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => _ = write!(out, "{value}"),
            ValueKind::String => self.text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list('[', ']', items.len(), depth, out, |place, out| {
                    self.write(&items[place], depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort_by_key(ToString::to_string);
                }
                self.list('{', '}', keys.len(), depth, out, |place, out| {
                    let key = &keys[place];
                    self.text(&key.to_string(), out);
                    out.push_str(&self.separators.1);
                    self.write(&value.get_item(key)?, depth + 1, out)
                })?;
            }
            other => return Err(invalid(&format!("tojson cannot write a value of kind {other}"))),
        }
        Ok(())
    }

    fn list(
        &self,
        open: char,
        close: char,
        count: usize,
        depth: usize,
        out: &mut String,
        mut item: impl FnMut(usize, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for place in 0..count {
            if place > 0 {
                out.push_str(&self.separators.0);
            }
            self.line(depth + 1, out);
            item(place, out)?;
        }
        if count > 0 {
            self.line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn text(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ascii && !c.is_ascii()) => {
                    let mut units = [0; 2];
                    for unit in c.encode_utf16(&mut units) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn invalid(reason: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.to_owned())
}
