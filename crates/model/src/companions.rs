//! What goes along with a model's parameters: its tokenizer, the tokens around texts, and how chats are put together.

use crate::checkpoint::CheckpointError;
use crate::model_files::{
    CHAT_TEMPLATE, GENERATION, ModelFiles, TOKENIZER, TOKENIZER_SETTINGS, chat_template, is_gguf,
    model_at,
};
use hadal_files::{read, verify};
use hadal_tokenizer::tokenizer_of_gguf;
use serde_json::json;
use std::path::Path;

/// Files of a directory that are copied unchanged.
const COPIED: [&str; 9] = [
    TOKENIZER,
    TOKENIZER_SETTINGS,
    CHAT_TEMPLATE,
    GENERATION,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
];

/// Names and contents of the files that a directory with this model's parameters needs to write and to chat as it does.
/// Those of a GGUF file are made.
pub fn companions(model: &Path) -> Result<Vec<(&'static str, Vec<u8>)>, CheckpointError> {
    let model = &model_at(model);
    let mut files = Vec::new();
    if !is_gguf(model) {
        for name in COPIED {
            let path = model.join(name);
            if path.is_file() {
                verify(&path)?;
                files.push((name, read(&path)?));
            }
        }
        return Ok(files);
    }
    if let Some(tokenizer) = tokenizer_of_gguf(model)? {
        files.push((TOKENIZER, tokenizer.to_string().into_bytes()));
    }
    if let Some(template) = chat_template(model)? {
        files.push((CHAT_TEMPLATE, template.into_bytes()));
    }
    let ModelFiles { begin, ends, .. } = ModelFiles::open(model)?;
    if begin.is_some() || !ends.is_empty() {
        let tokens = json!({"bos_token_id": begin, "eos_token_id": ends});
        files.push((GENERATION, format!("{tokens:#}\n").into_bytes()));
    }
    Ok(files)
}
