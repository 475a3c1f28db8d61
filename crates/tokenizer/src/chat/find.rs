//! Where a model keeps its template and the names of its special tokens.

use super::{ChatError, Names};
use crate::{is_gguf, model_at};
use hadal_files::{read_at_most, read_text_at_most, verify};
use hadal_gguf::Gguf;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// No template is this long.
pub(super) const LONGEST: u64 = 1 << 20;
/// Settings list every added token.
const LONGEST_SETTINGS: u64 = 16 << 20;

/// The template in a Hugging Face directory.
const TEMPLATE: &str = "chat_template.jinja";
/// The tokenizer's settings there, which may hold the template too.
const SETTINGS: &str = "tokenizer_config.json";
/// Of several templates with names, the one for chats.
const DEFAULT: &str = "default";

/// How a model formats the turns of a chat, if it says so.
pub fn template_text(model: &Path) -> Result<Option<String>, ChatError> {
    Ok(template(model)?.map(|(_, text)| text))
}

/// The text of a template, and the file that it is in.
pub(super) fn template(model: &Path) -> Result<Option<(PathBuf, String)>, ChatError> {
    let model = model_at(model);
    if is_gguf(&model) {
        let text = Gguf::open(&model)?.find::<String>("tokenizer.chat_template")?;
        return Ok(text.map(|text| (model, text)));
    }
    let file = model.join(TEMPLATE);
    if file.exists() {
        verify(&file)?;
        let text = read_text_at_most(&file, LONGEST)?;
        return Ok(Some((file, text)));
    }
    let text = settings(&model).and_then(|json| in_settings(json.get("chat_template")?));
    Ok(text.map(|text| (model.join(SETTINGS), text)))
}

/// A template, or a list of them with names.
fn in_settings(value: &Value) -> Option<String> {
    let named = |name: &str| {
        value.as_array()?.iter().find(|entry| entry["name"] == name)?["template"].as_str()
    };
    let first = || value.as_array()?.first()?["template"].as_str();
    value.as_str().or_else(|| named(DEFAULT)).or_else(first).map(str::to_owned)
}

/// Whatever cannot be read has no settings: they are not needed to compute with a model.
fn settings(model: &Path) -> Option<Value> {
    let file = model.join(SETTINGS);
    serde_json::from_slice(&read_at_most(&file, LONGEST_SETTINGS).ok()?).ok()
}

/// The special tokens that a model names.
pub(super) fn names(model: &Path) -> Names {
    let model = model_at(model);
    if is_gguf(&model) {
        return Gguf::open(&model).map(|file| in_gguf(&file)).unwrap_or_default();
    }
    let settings = settings(&model).unwrap_or_default();
    // A token is a text, or an object that says how it is found.
    let name = |key: &str| {
        let value = settings.get(key)?;
        value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
    };
    Names {
        bos: name("bos_token"),
        eos: name("eos_token"),
        pad: name("pad_token"),
        unk: name("unk_token"),
    }
}

fn in_gguf(file: &Gguf) -> Names {
    let tokens: Vec<String> = file.find("tokenizer.ggml.tokens").ok().flatten().unwrap_or_default();
    let name = |key: &str| {
        let id: u32 = file.find(&format!("tokenizer.ggml.{key}_token_id")).ok().flatten()?;
        tokens.get(id as usize).cloned()
    };
    Names { bos: name("bos"), eos: name("eos"), pad: name("padding"), unk: name("unknown") }
}
