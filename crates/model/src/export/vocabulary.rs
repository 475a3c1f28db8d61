//! The tokenizer as llama.cpp stores it: tokens, their kinds, and merges or scores.

use super::ExportError;
use super::source::{Source, Vocabulary};
use crate::model_files::TOKENIZER;
use hadal_gguf::Metadata;
use hadal_tokenizer::{GPT2_PATTERN, RULES};
use serde_json::{Value, json};
use std::collections::HashMap;

/// llama.cpp's kinds of tokens.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// A tokenizer for llama.cpp.
pub(super) struct Tokens {
    kind: Kind,
    tokens: Vec<String>,
    types: Vec<i32>,
    /// Whether a text is put between the tokens that begin and end one.
    framed: [bool; 2],
}

enum Kind {
    /// Byte-level BPE: merges in order, and how words are cut before.
    Bytes { merges: Vec<String>, pre: &'static str },
    /// SentencePiece: pieces that are merged first have higher scores.
    Pieces { scores: Vec<f32>, space_prefix: bool },
}

impl Tokens {
    /// Translates the model's tokenizer; models without one may read bytes.
    pub(super) fn of(source: &Source) -> Result<Self, ExportError> {
        let size = source.config.vocab_size;
        let mut found = match (&source.vocabulary, &source.tokenizer) {
            (Some(vocabulary), _) => Self::translated(source, vocabulary)?,
            (None, Some(_)) => Self::of_bytes(size),
            (None, None) => {
                let reason = "it is missing, and llama.cpp loads no model without one; copy the model's there";
                let path = source.path.join(TOKENIZER);
                return Err(ExportError::Vocabulary { path, reason: reason.into() });
            }
        };
        // Tables are often padded for speed. llama.cpp counts rows by tokens, so the padding has names.
        for id in found.tokens.len()..size {
            found.tokens.push(format!("[PAD{id}]"));
            found.types.push(UNUSED);
            if let Kind::Pieces { scores, .. } = &mut found.kind {
                scores.push(0.0);
            }
        }
        Ok(found)
    }

    fn of_bytes(size: usize) -> Self {
        let mut tokens: Vec<String> = (0..=255).map(|byte| byte_symbol(byte).to_string()).collect();
        let mut types = vec![NORMAL; tokens.len()];
        if size > tokens.len() {
            tokens.push("<|endoftext|>".into());
            types.push(CONTROL);
        }
        let kind = Kind::Bytes { merges: Vec::new(), pre: "gpt-2" };
        Self { kind, tokens, types, framed: [false; 2] }
    }

    fn translated(source: &Source, vocabulary: &Vocabulary) -> Result<Self, ExportError> {
        let Vocabulary { path, json } = vocabulary;
        let wrong =
            |reason: &str| ExportError::Vocabulary { path: path.clone(), reason: reason.into() };
        let bpe = &json["model"];
        let vocabulary =
            bpe["vocab"].as_object().filter(|_| bpe["type"] == "BPE").ok_or_else(|| {
                wrong("llama.cpp's tokenizers are made of merges; only BPE can be exported")
            })?;
        let added = json["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
        let largest = vocabulary.values().chain(added.iter().map(|token| &token["id"]));
        let count = largest.filter_map(Value::as_u64).max().map_or(0, |id| id as usize + 1);
        if count > source.config.vocab_size {
            return Err(wrong(&format!(
                "it has {count} tokens, but the model's vocabulary has {}",
                source.config.vocab_size
            )));
        }
        let mut tokens: Vec<String> = (0..count).map(|id| format!("[PAD{id}]")).collect();
        let mut types = vec![UNUSED; count];
        for (token, id) in vocabulary {
            let Some(id) = id.as_u64() else { continue };
            tokens[id as usize].clone_from(token);
            types[id as usize] = NORMAL;
        }
        for token in added {
            let (Some(id), Some(content)) = (token["id"].as_u64(), token["content"].as_str())
            else {
                continue;
            };
            tokens[id as usize] = content.into();
            types[id as usize] = if token["special"] == true { CONTROL } else { USER_DEFINED };
        }
        let merges = merges(&bpe["merges"]);
        let kind = if bpe["byte_fallback"] == true {
            for (token, kind) in tokens.iter().zip(&mut types) {
                if bpe["unk_token"] == token.as_str() {
                    *kind = UNKNOWN;
                } else if token.len() == 6 && token.starts_with("<0x") && token.ends_with('>') {
                    *kind = BYTE;
                }
            }
            Kind::Pieces { scores: scores(&tokens, &merges), space_prefix: space_prefix(json) }
        } else {
            let pre = pre_tokenizer(&json["pre_tokenizer"]).ok_or_else(|| {
                wrong(&format!(
                    "its pre_tokenizer {} is none that llama.cpp knows by name",
                    json["pre_tokenizer"]
                ))
            })?;
            let merges = merges.iter().map(|[left, right]| format!("{left} {right}")).collect();
            Kind::Bytes { merges, pre }
        };
        let letter = source.tokenizer.as_ref().and_then(|tokenizer| tokenizer.encode("a").ok());
        let letter = letter.unwrap_or_default();
        let begins = source.begin.is_some() && letter.first().copied() == source.begin;
        let ends = letter.last().is_some_and(|last| source.ends.contains(last));
        Ok(Self { kind, tokens, types, framed: [begins, ends] })
    }

    pub(super) fn write(&self, source: &Source, metadata: &mut Metadata) {
        match &self.kind {
            Kind::Bytes { merges, pre } => {
                metadata.set("tokenizer.ggml.model", "gpt2");
                metadata.set("tokenizer.ggml.pre", *pre);
                metadata.set("tokenizer.ggml.merges", merges.clone());
            }
            Kind::Pieces { scores, space_prefix } => {
                metadata.set("tokenizer.ggml.model", "llama");
                metadata.set("tokenizer.ggml.pre", "default");
                metadata.set("tokenizer.ggml.scores", scores.clone());
                metadata.set("tokenizer.ggml.add_space_prefix", *space_prefix);
            }
        }
        metadata.set("tokenizer.ggml.tokens", self.tokens.clone());
        metadata.set("tokenizer.ggml.token_type", self.types.clone());
        if let Some(begin) = source.begin {
            metadata.set("tokenizer.ggml.bos_token_id", begin);
        }
        // The end of a text, of a turn, of a message: any of them ends generation.
        for (key, &end) in ["eos", "eot", "eom"].iter().zip(&source.ends) {
            metadata.set(&format!("tokenizer.ggml.{key}_token_id"), end);
        }
        let unknown = self.types.iter().position(|&kind| kind == UNKNOWN);
        if let Some(unknown) = unknown.and_then(|id| u32::try_from(id).ok()) {
            metadata.set("tokenizer.ggml.unknown_token_id", unknown);
        }
        let [begins, ends] = self.framed;
        metadata.set("tokenizer.ggml.add_bos_token", begins);
        metadata.set("tokenizer.ggml.add_eos_token", ends);
    }
}

/// Pairs, which older files write as one text.
fn merges(json: &Value) -> Vec<[String; 2]> {
    let pair = |merge: &Value| match merge {
        Value::String(text) => text.split_once(' ').map(|(a, b)| [a.to_owned(), b.to_owned()]),
        merge => Some([merge[0].as_str()?.to_owned(), merge[1].as_str()?.to_owned()]),
    };
    json.as_array().into_iter().flatten().filter_map(pair).collect()
}

/// The earlier the merge that makes a piece, the higher its score.
fn scores(tokens: &[String], merges: &[[String; 2]]) -> Vec<f32> {
    let mut ranks = HashMap::new();
    for (rank, [left, right]) in merges.iter().enumerate() {
        ranks.entry(format!("{left}{right}")).or_insert(rank);
    }
    let score = |token: &String| ranks.get(token).map_or(0.0, |&rank| -(rank as f32));
    tokens.iter().map(score).collect()
}

/// Whether SentencePiece's tokenizer puts a space before a text.
fn space_prefix(json: &Value) -> bool {
    let metaspace = &json["pre_tokenizer"];
    let before = metaspace["prepend_scheme"].as_str().is_some_and(|scheme| scheme != "never");
    json["normalizer"].to_string().contains("Prepend")
        || (metaspace["type"] == "Metaspace" && (before || metaspace["add_prefix_space"] == true))
}

/// llama.cpp's name for how words are cut.
fn pre_tokenizer(json: &Value) -> Option<&'static str> {
    let steps = match json["type"].as_str()? {
        "Sequence" => json["pretokenizers"].as_array()?.iter().collect(),
        _ => vec![json],
    };
    let (last, before) = steps.split_last()?;
    if last["type"] != "ByteLevel" || last["add_prefix_space"] == true {
        return None;
    }
    let single_digits =
        |step: &&Value| step["type"] == "Digits" && step["individual_digits"] == true;
    let (digits, before) = match before.split_first() {
        Some((first, rest)) if single_digits(first) => (true, rest),
        _ => (false, before),
    };
    // Byte-level's own pattern is GPT-2's, and it is used unless the file says otherwise.
    let pattern = match (before, last["use_regex"] != false) {
        ([], true) => GPT2_PATTERN,
        ([split], false) if split["type"] == "Split" => split["pattern"]["Regex"].as_str()?,
        _ => return None,
    };
    let rule = RULES.iter().find(|rule| rule.pattern == pattern && rule.digits == digits)?;
    Some(rule.name)
}

/// GPT-2's letter for a byte: itself if it can be seen, or else the next one from U+0100 on.
/// The byte tokenizer as `tokenizer.json`: each byte is a symbol, and no symbols are merged. The token that ends a text has
/// no name there, so no text can be taken for it; configs know its number.
pub fn byte_tokenizer() -> Value {
    let symbol = |byte: u8| (byte_symbol(byte).to_string(), Value::from(byte));
    let vocabulary: serde_json::Map<String, Value> = (0..=255).map(symbol).collect();
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false
    });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": bytes,
        "post_processor": null,
        "decoder": bytes,
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "vocab": vocabulary,
            "merges": [],
        },
    })
}

fn byte_symbol(byte: u8) -> char {
    let visible = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    if visible(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&other| !visible(other)).count() as u32;
    char::from_u32(256 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hadal_tokenizer::Tokenizer;

    #[test]
    fn bytes_are_the_same_tokens_in_both_forms() {
        let text = byte_tokenizer().to_string();
        let file = Tokenizer::from_bytes("tokenizer.json".as_ref(), text.as_bytes()).unwrap();
        let ours = Tokenizer::bytes();
        let letters: String =
            (0..0x3000).chain(0x1f600..0x1f640).filter_map(char::from_u32).collect();
        for text in ["", " a  b\r\n\t", "<|endoftext|> <s>", "'s 1234 Größe 漢字 🎉", &letters]
        {
            let ids = ours.encode(text).unwrap();
            assert_eq!(file.encode(text).unwrap(), ids);
            assert_eq!(file.decode(&ids).unwrap(), text);
        }
        // Also what is no text.
        for ids in [(0..=255).collect::<Vec<u32>>(), vec![0xe6, 0xbc, 65, 0xff], vec![0xf0, 0x9f]] {
            assert_eq!(file.decode(&ids).unwrap(), ours.decode(&ids).unwrap());
        }
    }
    use std::collections::HashSet;

    #[test]
    fn every_byte_has_a_letter_of_its_own() {
        assert_eq!((byte_symbol(b'A'), byte_symbol(b' '), byte_symbol(b'\n')), ('A', 'Ġ', 'Ċ'));
        let all: HashSet<char> = (0..=255).map(byte_symbol).collect();
        assert_eq!(all.len(), 256);
    }

    #[test]
    fn only_ways_of_cutting_that_have_a_name_are_exported() {
        let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true});
        assert_eq!(pre_tokenizer(&byte_level), Some("gpt-2"));
        let digits = json!({"type": "Digits", "individual_digits": true});
        let both = json!({"type": "Sequence", "pretokenizers": [digits, byte_level]});
        assert_eq!(pre_tokenizer(&both), Some("smollm"));
        for rule in &RULES {
            let mut steps = vec![
                json!({"type": "Split", "pattern": {"Regex": rule.pattern}, "behavior": "Isolated"}),
                json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}),
            ];
            if rule.digits {
                steps.insert(0, json!({"type": "Digits", "individual_digits": true}));
            }
            let json = json!({"type": "Sequence", "pretokenizers": steps});
            assert_eq!(pre_tokenizer(&json), Some(rule.name));
        }
        let prefix = json!({"type": "ByteLevel", "add_prefix_space": true});
        assert_eq!(pre_tokenizer(&prefix), None);
        assert_eq!(pre_tokenizer(&json!({"type": "Whitespace"})), None);
        assert_eq!(pre_tokenizer(&Value::Null), None);
    }

    #[test]
    fn earlier_merges_have_higher_scores() {
        let merges = merges(&json!([["a", "b"], "ab c", ["x", "y"]]));
        let tokens = ["a", "ab", "abc", "xy"].map(String::from);
        assert_eq!(scores(&tokens, &merges), [0.0, 0.0, -1.0, -2.0]);
    }
}
