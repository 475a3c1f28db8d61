//! A template and turns become a text, as in `transformers`: blocks are trimmed, and templates get the same functions.
//!
//! Templates come from files of anybody, so what they may compute and write is bounded. What their values take in
//! between is not: the engine joins texts without asking. `apart.rs` bounds that.

use super::error::Trouble;
use super::{Names, json, time};
use crate::guarded;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};
use std::error::Error as _;
use std::io;

/// Instructions that a template may take: a real one takes some hundred for each turn.
const INSTRUCTIONS: u64 = 1_000_000;
const INSTRUCTIONS_PER_TURN: u64 = 10_000;
/// Bytes that a template may write around what is said, which it may repeat a few times.
const BYTES: usize = 1 << 20;
const TIMES: usize = 4;

/// Why a template that does not end is stopped.
pub(super) const ENDLESS: &str = "it computes without an end";

/// What a template says when it refuses a chat.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// What is asked of a template.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Request {
    /// The template.
    pub(super) text: String,
    pub(super) names: Names,
    /// Roles and what they say; `None` asks whether this is a template at all.
    pub(super) turns: Option<Vec<(String, String)>>,
}

/// The text of the turns, up to where the model speaks.
pub(super) fn render(request: &Request) -> Result<String, Trouble> {
    // A library that meets hostile text may panic.
    guarded(|| Ok::<_, String>(render_text(request)))
        .unwrap_or_else(|reason| Err(Trouble::Malformed(reason)))
}

fn render_text(Request { text, names, turns }: &Request) -> Result<String, Trouble> {
    let environment = environment(turns.as_ref().map_or(0, Vec::len) as u64);
    let said: usize = turns.iter().flatten().map(|(_, content)| content.len()).sum();
    let most = BYTES + TIMES * said;
    let wrong = |error: Error| explained(&error, most);
    let template = environment.template_from_str(text).map_err(wrong)?;
    let Some(turns) = turns else { return Ok(String::new()) };
    let messages: Vec<Value> =
        turns.iter().map(|(role, content)| context! { role, content }).collect();
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
    String::from_utf8(out.bytes).map_err(|error| Trouble::Malformed(error.to_string()))
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

fn explained(error: &Error, most: usize) -> Trouble {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(Raised(reason)) = inner.downcast_ref() {
            return Trouble::Refused(reason.clone());
        }
        source = inner.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => Trouble::Stopped(ENDLESS.into()),
        ErrorKind::WriteFailure => Trouble::Stopped(format!("it writes more than {most} bytes")),
        kind => {
            // One message says "error" once.
            let kind = kind.to_string().replace("syntax error", "syntax");
            let detail = error.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
            let line = error.line().map(|line| format!(" (line {line})")).unwrap_or_default();
            Trouble::Malformed(format!("{kind}{detail}{line}"))
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
