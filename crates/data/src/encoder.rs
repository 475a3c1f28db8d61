//! From pieces of documents to tokens.

use super::error::DataError;
use super::manifest::{TokenizerKind, TokenizerRecord};
use super::pieces::Piece;
use super::words::Words;
use hadal_tokenizer::{
    TOKENIZER, Tokenizer, TokenizerError, is_gguf, model_at, read_tokenizer, tokenizer_of_gguf,
};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Which tokenizer to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenizerChoice {
    /// One token for each byte.
    Bytes,
    /// A Hugging Face `tokenizer.json`, or a model that has one: a directory or a GGUF file.
    File(PathBuf),
}

/// The `tokenizer.json` that belongs to a model: a directory's, or that of a GGUF file. `None` if there is none.
pub fn model_tokenizer(model: &Path) -> Result<Option<Vec<u8>>, TokenizerError> {
    let place = model_at(model);
    if is_gguf(&place) {
        return Ok(tokenizer_of_gguf(&place)?.map(|json| json.to_string().into_bytes()));
    }
    // A run's tokenizer may be beside its model.
    let files = [&*place, model].map(|place| place.join(TOKENIZER));
    files.iter().find(|file| file.exists()).map(|file| read_tokenizer(file)).transpose()
}

/// The contents of the file, or of the model's.
fn contents(path: &Path) -> Result<Vec<u8>, DataError> {
    if !path.is_dir() && !is_gguf(path) {
        return Ok(read_tokenizer(path)?);
    }
    model_tokenizer(path)?.ok_or_else(|| DataError::NoTokenizer { path: path.into() })
}

/// `bytes`, or else a path.
impl FromStr for TokenizerChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(if text == "bytes" { Self::Bytes } else { Self::File(text.into()) })
    }
}

/// A tokenizer that knows where documents begin and end.
pub(super) struct Encoder {
    tokenizer: Tokenizer,
    record: TokenizerRecord,
    /// The `tokenizer.json`, unless the tokenizer is built in.
    content: Option<Vec<u8>>,
    path: Option<PathBuf>,
    /// How many tokens the tokenizer itself puts before and after every text.
    before: usize,
    after: usize,
    words: Option<Words>,
}

impl Encoder {
    /// Loads a tokenizer.
    pub(super) fn load(choice: &TokenizerChoice) -> Result<Self, DataError> {
        let (tokenizer, content, path) = match choice {
            TokenizerChoice::Bytes => (Tokenizer::bytes(), None, None),
            TokenizerChoice::File(path) => {
                let content = contents(path)?;
                (Tokenizer::from_bytes(path, &content)?, Some(content), Some(path.clone()))
            }
        };
        let ends = tokenizer.ends();
        let Some(&end_of_text) = ends.first() else {
            return Err(DataError::NoEndOfText { path: path.unwrap_or_default() });
        };
        // A letter shows what is put around every text.
        let example = tokenizer.encode("a")?;
        let frame = |id: &&u32| ends.contains(id) || tokenizer.begin() == Some(**id);
        let before = example.iter().take_while(frame).count();
        let after = example[before..].iter().rev().take_while(frame).count();
        // The tokenizer has read it already, so it is JSON.
        let json = content.as_ref().and_then(|content| serde_json::from_slice(content).ok());
        let words = json.and_then(|json| Words::of(&json));
        let record = TokenizerRecord {
            kind: if content.is_some() { TokenizerKind::File } else { TokenizerKind::Bytes },
            file: content.is_some().then(|| TOKENIZER.to_owned()),
            blake3: match &content {
                Some(content) => blake3::hash(content).to_string(),
                None => "bytes".to_owned(),
            },
            vocab_size: tokenizer.vocab_size(),
            end_of_text,
        };
        Ok(Self { tokenizer, record, content, path, before, after, words })
    }

    /// The manifest's record of the tokenizer.
    pub(super) fn record(&self) -> &TokenizerRecord {
        &self.record
    }

    /// The `tokenizer.json`, unless the tokenizer is built in.
    pub(super) fn content(&self) -> Option<&[u8]> {
        self.content.as_deref()
    }

    /// The tokens of a piece. A document begins as the tokenizer begins every text, ends with exactly one end-of-text
    /// token, and has neither where it was cut.
    pub(super) fn encode(&self, piece: &Piece) -> Result<Vec<u32>, DataError> {
        let mut tokens = match &self.words {
            Some(words) => words.encode(&piece.text, |word| self.tokenizer.encode(word))?,
            None => self.tokenizer.encode(&piece.text)?,
        };
        tokens.truncate(tokens.len().saturating_sub(self.after));
        if !piece.starts_document {
            tokens.drain(..self.before.min(tokens.len()));
        }
        if piece.ends_document {
            tokens.push(self.record.end_of_text);
        }
        self.check(&tokens)?;
        Ok(tokens)
    }

    /// A post-processor and added tokens may name any number, and a shard would keep the lower half of it.
    fn check(&self, tokens: &[u32]) -> Result<(), DataError> {
        let vocab_size = self.record.vocab_size;
        match tokens.iter().find(|&&token| token as usize >= vocab_size) {
            None => Ok(()),
            Some(&token) => Err(DataError::NoSuchToken {
                path: self.path.clone().unwrap_or_default(),
                token,
                vocab_size,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::ShardSet;
    use crate::pieces::PIECE_BYTES;
    use crate::testing::{Workshop, documents, trained};
    use serde_json::{Map, Value, json};
    use std::fs;

    fn tokens(set: &ShardSet) -> Vec<u32> {
        set.read(0, set.len() as usize).unwrap()
    }

    #[test]
    fn a_long_document_is_cut_for_memory_but_not_for_the_model() {
        let workshop = Workshop::new();
        let text = documents(6000).join("\n");
        assert!(text.len() > 2 * PIECE_BYTES);
        workshop.write("a.txt", &text);
        // GPT-2's words, learned from other text.
        let path = trained(&workshop, 350);
        let set = workshop.prepared(|options| {
            options.tokenizer = TokenizerChoice::File(path.clone());
            options.shard_tokens = 50_000;
        });
        let mut whole = Tokenizer::from_file(&path).unwrap().encode(&text).unwrap();
        whole.push(set.manifest().tokenizer.end_of_text);
        assert_eq!(tokens(&set), whole);
        assert_eq!(set.manifest().totals.documents, 1);
        assert_eq!(set.manifest().totals.bytes, text.len() as u64);
        assert_eq!(fs::read(set.tokenizer_file().unwrap()).unwrap(), fs::read(&path).unwrap());
    }

    /// One token for each word, with `<s>` before and `</s>` after every text.
    fn words(path: &Path, count: usize, framed: bool) {
        let mut vocabulary: Map<String, Value> =
            (0..count).map(|id| (format!("w{id}"), json!(id))).collect();
        let mut added = Vec::new();
        for name in ["<unk>", "<s>", "</s>"] {
            let id = vocabulary.len();
            vocabulary.insert(name.into(), json!(id));
            added.push(json!({
                "id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            }));
        }
        let special = |name: &str| {
            let ids = [&vocabulary[name]];
            (name.to_owned(), json!({ "id": name, "ids": ids, "tokens": [name] }))
        };
        let frame = json!({
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "</s>", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": Map::from_iter([special("<s>"), special("</s>")]),
        });
        let tokenizer = json!({
            "version": "1.0",
            "added_tokens": added,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": if framed { frame } else { Value::Null },
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
        });
        fs::write(path, tokenizer.to_string()).unwrap();
    }

    #[test]
    fn a_document_has_one_beginning_and_one_end() {
        let workshop = Workshop::new();
        let path = workshop.path("words.json");
        let long = "w1 w2 w3\n".repeat(PIECE_BYTES / 6);
        workshop.write("a.txt", format!("w5 w6<|endoftext|>{long}"));
        for framed in [true, false] {
            words(&path, 10, framed);
            let out = workshop.path(&format!("framed-{framed}"));
            workshop
                .prepare(|options| {
                    options.tokenizer = TokenizerChoice::File(path.clone());
                    options.out = out.clone();
                })
                .unwrap();
            let found = tokens(&ShardSet::open(&out).unwrap());
            let begin: &[u32] = if framed { &[11] } else { &[] };
            let body = [1, 2, 3].repeat(PIECE_BYTES / 6);
            assert_eq!(found, [begin, &[5, 6, 12], begin, &body, &[12]].concat());
        }
    }

    #[test]
    fn a_token_that_the_vocabulary_does_not_have_is_refused() {
        let workshop = Workshop::new();
        workshop.write("a.txt", "w1 w2");
        let path = workshop.path("words.json");
        words(&path, 10, true);
        // The post-processor puts 65541 before every text; two bytes would hold a 5.
        let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        json["post_processor"]["special_tokens"]["<s>"]["ids"] = json!([65_541]);
        fs::write(&path, json.to_string()).unwrap();
        let error = workshop
            .prepare(|options| options.tokenizer = TokenizerChoice::File(path))
            .unwrap_err()
            .to_string();
        assert!(error.contains("words.json"), "{error}");
        assert!(error.contains("token 65541") && error.contains("has 13 tokens"), "{error}");
    }

    #[test]
    fn a_large_vocabulary_takes_four_bytes() {
        let workshop = Workshop::new();
        let path = workshop.path("words.json");
        words(&path, 70_000, false);
        workshop.write("a.txt", "w0 w65535 w65536 w69999");
        let set = workshop.prepared(|options| options.tokenizer = TokenizerChoice::File(path));
        assert_eq!(set.shards()[0].width(), 4);
        assert_eq!(tokens(&set), [0, 65_535, 65_536, 69_999, 70_002]);
    }

    #[test]
    fn a_tokenizer_without_an_end_is_refused() {
        let workshop = Workshop::new();
        workshop.write("a.txt", "text");
        let path = workshop.path("words.json");
        let tokenizer = json!({
            "version": "1.0",
            "model": {"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1}, "unk_token": "<unk>"},
        });
        fs::write(&path, tokenizer.to_string()).unwrap();
        let error = workshop
            .prepare(|options| options.tokenizer = TokenizerChoice::File(path))
            .unwrap_err();
        assert!(matches!(error, DataError::NoEndOfText { .. }), "{error}");
    }
}
