//! Remembering words, for tokenizers that split text as GPT-2 does.
//!
//! GPT-2 splits text with
//! `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
//! and merges bytes within what it split off. No alternative has white space after anything else, and none looks back.
//! So wherever white space follows a visible character a new part begins, whatever is around it: a text can be cut
//! there, and the tokens of a word with the space before it are always the same. Most words of a corpus have been seen
//! before; looking one up is many times faster than the tokenizer. The tokens are the same in any case.

use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Longer words hardly ever come back.
const LONGEST: usize = 48;

/// A thread forgets everything after this many words: about 15 MB.
const MOST: usize = 1 << 17;

/// With more threads than this, some use the same memory.
const THREADS: usize = 64;

type Memory = HashMap<Box<str>, Box<[u32]>>;

/// The tokens of words, separately for each thread, so that no thread waits.
pub(super) struct Words {
    memories: Vec<Mutex<Memory>>,
}

impl Words {
    /// An empty memory for the words of a `tokenizer.json`, if it is of the right kind.
    pub(super) fn of(tokenizer: &Value) -> Option<Self> {
        splits_like_gpt2(tokenizer)
            .then(|| Self { memories: (0..THREADS).map(|_| Mutex::default()).collect() })
    }

    /// The tokens of a text; `encode` is called for unknown words.
    pub(super) fn encode<E>(
        &self,
        text: &str,
        encode: impl Fn(&str) -> Result<Vec<u32>, E>,
    ) -> Result<Vec<u32>, E> {
        let thread = rayon::current_thread_index().unwrap_or(0) % THREADS;
        let mut memory = self.memories[thread].lock().unwrap_or_else(PoisonError::into_inner);
        let mut tokens = Vec::with_capacity(text.len() / 3);
        for word in words(text) {
            if let Some(known) = memory.get(word) {
                tokens.extend_from_slice(known);
                continue;
            }
            let fresh = encode(word)?;
            tokens.extend_from_slice(&fresh);
            if word.len() <= LONGEST {
                if memory.len() == MOST {
                    memory.clear();
                }
                memory.insert(word.into(), fresh.into());
            }
        }
        Ok(tokens)
    }
}

/// Whether the argument above holds, and nothing before or after the splitting looks at more than a word.
fn splits_like_gpt2(tokenizer: &Value) -> bool {
    let splitter = &tokenizer["pre_tokenizer"];
    let processor = &tokenizer["post_processor"];
    let plain = |token: &Value| {
        token["content"].as_str().is_some_and(|text| !text.contains(char::is_whitespace))
            && ["single_word", "lstrip", "rstrip"].iter().all(|rule| token[rule] == false)
    };
    splitter["type"] == "ByteLevel"
        && splitter["add_prefix_space"] == false
        && splitter["use_regex"] != false
        && tokenizer["normalizer"].is_null()
        && (processor.is_null() || processor["type"] == "ByteLevel")
        && tokenizer["model"]["type"] == "BPE"
        && tokenizer["model"]["dropout"].is_null()
        && tokenizer["added_tokens"].as_array().is_none_or(|tokens| tokens.iter().all(plain))
}

/// Cuts a text before white space that follows a visible character. Only ASCII counts, on which all
/// versions of Unicode agree.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let ends = |pair: &[u8]| pair[0].is_ascii_graphic() && pair[1].is_ascii_whitespace();
        let end = rest.as_bytes().windows(2).position(ends).map_or(rest.len(), |at| at + 1);
        let (word, after) = rest.split_at(end);
        rest = after;
        Some(word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Workshop, trained};
    use hadal_tokenizer::Tokenizer;
    use proptest::prelude::*;
    use serde_json::json;
    use std::fs;

    #[test]
    fn words_take_the_space_before_them() {
        let found: Vec<_> = words("Deep, deep\n\n  \tsea ü x ").collect();
        assert_eq!(found, ["Deep,", " deep", "\n\n  \tsea", " ü x", " "]);
        assert_eq!(words("").count(), 0);
    }

    #[test]
    fn remembered_words_give_the_tokens_of_the_whole_text() {
        let workshop = Workshop::new();
        let path = trained(&workshop, 340);
        let tokenizer = Tokenizer::from_file(&path).unwrap();
        let json = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let words = Words::of(&json).unwrap();
        // Whatever decides where GPT-2 splits, in any order.
        let part = prop_oneof![
            "[a-c']{1,4}",
            "[ \n\t\r]{1,3}",
            "(the|deep|water|it's|we'll|I'd|<\\|end)",
            "[0-9.,!?-]{1,3}",
            "[üßé€😀\u{a0}\u{2003}\u{85}\u{b}\u{301}Ⅳ½]{1,2}",
        ];
        let text = proptest::collection::vec(part, 0..60).prop_map(|parts| parts.concat());
        proptest!(|(text in text)| {
            let whole = tokenizer.encode(&text).unwrap();
            // Once to learn and once to remember.
            for _ in 0..2 {
                let pieces = words.encode(&text, |word| tokenizer.encode(word)).unwrap();
                prop_assert_eq!(&pieces, &whole);
            }
        });
    }

    #[test]
    fn other_tokenizers_are_left_alone() {
        let good = json!({
            "added_tokens": [{"content": "<x>", "single_word": false, "lstrip": false, "rstrip": false}],
            "normalizer": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
            "post_processor": {"type": "ByteLevel"},
            "model": {"type": "BPE", "dropout": null},
        });
        assert!(splits_like_gpt2(&good));
        for (place, other) in [
            ("/added_tokens/0/content", json!("a b")),
            ("/added_tokens/0/lstrip", json!(true)),
            ("/normalizer", json!({"type": "NFC"})),
            ("/pre_tokenizer", json!(null)),
            ("/pre_tokenizer/type", json!("Metaspace")),
            ("/pre_tokenizer/add_prefix_space", json!(true)),
            ("/pre_tokenizer/use_regex", json!(false)),
            ("/post_processor/type", json!("TemplateProcessing")),
            ("/model/type", json!("WordPiece")),
            ("/model/dropout", json!(0.1)),
        ] {
            let mut changed = good.clone();
            *changed.pointer_mut(place).unwrap() = other;
            assert!(!splits_like_gpt2(&changed), "{place}");
        }
    }

    #[test]
    fn memory_is_bounded() {
        let words = Words { memories: (0..THREADS).map(|_| Mutex::default()).collect() };
        let text: String = (0..MOST + 10).map(|i| format!(" {i}")).collect();
        let tokens = words.encode(&text, |word| Ok::<_, ()>(vec![word.len() as u32])).unwrap();
        assert_eq!(tokens.len(), MOST + 10);
        assert_eq!(words.memories[0].lock().unwrap().len(), 10);
    }
}
