//! A template and turns become a text, as in `transformers`: blocks are trimmed, and templates get the same functions.
//!
//! Templates come from files of anybody, so what they may compute and write is bounded.

use super::{ChatError, Names, Role, json, time};
use crate::guarded;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use std::error::Error as _;
use std::io;
use std::path::Path;

/// Instructions that a template may take: a real one takes some hundred for each turn.
const INSTRUCTIONS: u64 = 1_000_000;
const INSTRUCTIONS_PER_TURN: u64 = 10_000;
/// Bytes that a template may write around what is said, which it may repeat a few times.
const BYTES: usize = 1 << 20;
const TIMES: usize = 4;

/// What a template says when it refuses a chat.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// Whether this is a template at all.
pub(super) fn check(path: &Path, text: &str) -> Result<(), ChatError> {
    without_panic(path, || {
        environment(0).template_from_str(text).map(drop).map_err(|error| explained(path, &error, 0))
    })
}

/// A library that meets hostile text may panic.
fn without_panic<T>(
    path: &Path,
    call: impl FnOnce() -> Result<T, ChatError>,
) -> Result<T, ChatError> {
    guarded(|| Ok::<_, String>(call()))
        .unwrap_or_else(|reason| Err(ChatError::Malformed { path: path.into(), reason }))
}

/// The text of some turns, up to where the model speaks.
pub(super) fn render(
    path: &Path,
    text: &str,
    names: &Names,
    turns: &[(Role, &str)],
) -> Result<String, ChatError> {
    without_panic(path, || render_text(path, text, names, turns))
}

fn render_text(
    path: &Path,
    text: &str,
    names: &Names,
    turns: &[(Role, &str)],
) -> Result<String, ChatError> {
    let environment = environment(turns.len() as u64);
    let said: usize = turns.iter().map(|(_, content)| content.len()).sum();
    let most = BYTES + TIMES * said;
    let wrong = |error: Error| explained(path, &error, most);
    let template = environment.template_from_str(text).map_err(wrong)?;
    let messages: Vec<Value> = turns
        .iter()
        .map(|(role, content)| context! { role => role.name(), content => *content })
        .collect();
    // Tokens that a model does not have are undefined, and none of the rest is used here.
    let token = |name: &Option<String>| name.as_deref().map_or(Value::UNDEFINED, Value::from);
    let values = context! {
        messages,
        add_generation_prompt => true,
        tools => Value::from(()),
        documents => Value::from(()),
        bos_token => token(&names.bos),
        eos_token => token(&names.eos),
        pad_token => token(&names.pad),
        unk_token => token(&names.unk),
    };
    let mut out = Bounded { bytes: Vec::new(), most };
    template.render_captured_to(values, &mut out).map_err(wrong)?;
    String::from_utf8(out.bytes)
        .map_err(|error| ChatError::Malformed { path: path.into(), reason: error.to_string() })
}

fn environment(turns: u64) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(INSTRUCTIONS + INSTRUCTIONS_PER_TURN * turns));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", |value: Value, options| json::to_json(&value, options));
    environment.add_function("raise_exception", |reason: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "refused").with_source(Raised(reason)))
    });
    environment.add_function("strftime_now", |pattern: &str| time::format(time::now(), pattern));
    environment
}

fn explained(path: &Path, error: &Error, most: usize) -> ChatError {
    let path = path.to_owned();
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(Raised(reason)) = inner.downcast_ref() {
            return ChatError::Refused { path, reason: reason.clone() };
        }
        source = inner.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => {
            ChatError::Stopped { path, reason: "it computes without an end".into() }
        }
        ErrorKind::WriteFailure => {
            let reason = format!("it writes more than {most} bytes");
            ChatError::Stopped { path, reason }
        }
        kind => {
            // One message says "error" once.
            let kind = kind.to_string().replace("syntax error", "syntax");
            let detail = error.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
            let line = error.line().map(|line| format!(" (line {line})")).unwrap_or_default();
            ChatError::Malformed { path, reason: format!("{kind}{detail}{line}") }
        }
    }
}

/// A text that may not grow without end.
struct Bounded {
    bytes: Vec<u8>,
    most: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.most {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The template without `{% generation %}`, with which `transformers` marks what a model learns from.
pub(super) fn without_extensions(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("{%") {
        let Some(end) = rest[start..].find("%}").map(|end| start + end + 2) else { break };
        let (open, close) = (&rest[start..end], rest[start..end].trim_matches(['{', '%', '}']));
        let inner = close.trim_matches(['-', '+']).trim();
        let replaced = match inner {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => inner,
        };
        out.push_str(&rest[..start]);
        if replaced == inner {
            out.push_str(open)
        } else {
            out += &open.replace(inner, replaced)
        }
        rest = &rest[end..];
    }
    out + rest
}
