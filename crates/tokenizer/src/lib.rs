//! Text to token ids and back, including decoding while a model is still writing.
//!
//! Bytes need no file and suit small experiments; pretrained models bring a Hugging Face
//! `tokenizer.json` or a GGUF file. [`Tokenizer`] hides which of them is at work, so that training, evaluation
//! and generation are written once.

mod chat;
mod gguf;
mod guard;
mod place;
mod special;
mod stop;
mod stream;
#[cfg(test)]
mod tests;
mod tokens;

use gguf::tokenizer_json;
use hadal_files::{FileError, HashError};
use hadal_gguf::{Gguf, GgufError};
use std::io;
use std::path::{Path, PathBuf};

pub use chat::{
    ChatError, ChatTemplate, Message, NAMED_TEMPLATES, Role, compute_template,
    compute_templates_with, template_text,
};
pub use gguf::{GPT2_PATTERN, RULES, Rule};
pub use guard::{guarded, is_guarded};
pub use place::{CONFIG, TOKENIZER, is_gguf, model_at};
pub use stop::StopStrings;
pub use stream::TextStream;
pub use tokens::Tokens;

/// The id of `<|endoftext|>` in the byte tokenizer, the first one that is not a byte.
const BYTES_END_OF_TEXT: u32 = 256;

/// Tokens that open a text, the most specific first. `<|endoftext|>` comes last because families
/// with a begin token of their own use it for the end only; `<|im_start|>` is absent because it
/// opens a chat turn rather than a text.
const BEGIN_TOKENS: [&str; 4] = ["<s>", "<|begin_of_text|>", "<bos>", "<|endoftext|>"];

/// Tokens that close a text or a chat turn.
const END_TOKENS: [&str; 6] =
    ["</s>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|im_end|>", "<eos>"];

/// What can go wrong between text and token ids.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum TokenizerError {
    /// The file could not be read at all.
    #[error(
        "cannot read the tokenizer file {path}: {reason}; give the path of a readable tokenizer.json"
    )]
    Read { path: PathBuf, reason: io::Error },
    /// The file was read, but it does not describe a tokenizer.
    #[error(
        "{path} is not a usable tokenizer.json: {reason}; download it again, or use the byte tokenizer"
    )]
    Malformed { path: PathBuf, reason: String },
    /// The file is not what it was.
    #[error(transparent)]
    Damaged(#[from] HashError),
    /// A GGUF file cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A GGUF file describes a tokenizer that we do not have.
    #[error("{}: {reason}", path.display())]
    Vocabulary {
        path: PathBuf,
        /// What is wrong with it, and a remedy.
        reason: String,
    },
    /// The tokenizer refused a text.
    #[error(
        "cannot encode the text: {reason}; check that tokenizer.json is complete and belongs to the model"
    )]
    Encode { reason: String },
    /// The tokenizer refused a list of ids.
    #[error(
        "cannot decode the tokens: {reason}; check that tokenizer.json is complete and belongs to the model"
    )]
    Decode { reason: String },
    /// An id that stands for no token.
    #[error(
        "token id {id} is not in the tokenizer's vocabulary; use the tokenizer the model was trained with"
    )]
    UnknownId { id: u32 },
}

/// Turns text into token ids and token ids into text.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    kind: Kind,
    begin: Option<u32>,
    ends: Vec<u32>,
    vocab_size: usize,
}

#[derive(Debug, Clone)]
enum Kind {
    Bytes,
    HuggingFace(Box<tokenizers::Tokenizer>),
}

impl Tokenizer {
    /// A tokenizer whose ids `0..=255` are bytes and whose id 256 is `<|endoftext|>`, which both
    /// begins and ends a text.
    pub fn bytes() -> Self {
        Self {
            kind: Kind::Bytes,
            begin: Some(BYTES_END_OF_TEXT),
            ends: vec![BYTES_END_OF_TEXT],
            vocab_size: BYTES_END_OF_TEXT as usize + 1,
        }
    }

    /// Reads a Hugging Face `tokenizer.json`.
    ///
    /// Begin and end tokens are looked up among well-known names; a model configuration that names
    /// them overrides the guess with [`with_begin`](Self::with_begin) and
    /// [`with_ends`](Self::with_ends). Truncation and padding stored in the file are switched off:
    /// they serve fixed-length batches and would silently cut or pad a corpus.
    pub fn from_file(path: &Path) -> Result<Self, TokenizerError> {
        Self::from_bytes(path, &read_tokenizer(path)?)
    }

    /// The tokenizer that belongs to a model: a directory's `tokenizer.json`, or that of a GGUF file. `None` if there
    /// is none.
    pub fn of_model(path: &Path) -> Result<Option<Self>, TokenizerError> {
        let model = model_at(path);
        if is_gguf(&model) {
            // A large vocabulary is in memory once more as values, so those go first.
            let text = tokenizer_of_gguf(&model)?.map(|json| json.to_string());
            return text.map(|text| Self::from_json(&model, text.as_bytes())).transpose();
        }
        // A run's tokenizer may be beside its model.
        let found = [&*model, path].map(|place| place.join(TOKENIZER)).into_iter();
        found.filter(|file| file.exists()).map(|file| Self::from_file(&file)).next().transpose()
    }

    /// Reads the contents of a `tokenizer.json`; `path` is its name in errors.
    pub fn from_bytes(path: &Path, content: &[u8]) -> Result<Self, TokenizerError> {
        let malformed =
            |reason: String| TokenizerError::Malformed { path: path.to_owned(), reason };
        // The library panics on a syntax error inside the decoder section, so syntax is checked
        // before it sees the file.
        serde_json::from_slice::<serde_json::Value>(content)
            .map_err(|error| malformed(error.to_string()))?;
        Self::from_json(path, content)
    }

    /// The same for what is JSON.
    fn from_json(path: &Path, content: &[u8]) -> Result<Self, TokenizerError> {
        let malformed =
            |reason: String| TokenizerError::Malformed { path: path.to_owned(), reason };
        let inner = guarded(|| -> tokenizers::Result<_> {
            let mut inner = tokenizers::Tokenizer::from_bytes(content)?;
            inner.with_truncation(None)?;
            inner.with_padding(None);
            Ok(inner)
        })
        .map_err(malformed)?;

        let largest = inner.get_vocab(true).values().max().copied();
        let tokenizer = Self {
            begin: known_ids(&inner, &BEGIN_TOKENS).first().copied(),
            ends: known_ids(&inner, &END_TOKENS),
            vocab_size: largest.map_or(0, |largest| largest as usize + 1),
            kind: Kind::HuggingFace(Box::new(inner)),
        };
        // What is added to every text is added to none, too.
        match tokenizer.encode("") {
            Err(TokenizerError::UnknownId { id }) => Err(malformed(format!(
                "it adds token {id} to every text, but its vocabulary has {} tokens",
                tokenizer.vocab_size
            ))),
            _ => Ok(tokenizer),
        }
    }

    /// Replaces the token that begins a text; `None` if the model expects none.
    #[must_use]
    pub fn with_begin(mut self, begin: Option<u32>) -> Self {
        self.begin = begin;
        self
    }

    /// Replaces the tokens that end a text.
    #[must_use]
    pub fn with_ends(mut self, ends: Vec<u32>) -> Self {
        self.ends = ends;
        self
    }

    /// The ids of a text, with the special tokens that the tokenizer's own post-processor adds.
    /// The byte tokenizer adds none.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        match &self.kind {
            Kind::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Kind::HuggingFace(inner) => {
                let encoding = guarded(|| inner.encode_fast(text, true))
                    .map_err(|reason| TokenizerError::Encode { reason })?;
                let ids = encoding.get_ids();
                // The library does not compare the ids of special tokens with the vocabulary.
                match ids.iter().find(|&&id| id as usize >= self.vocab_size) {
                    Some(&id) => Err(TokenizerError::UnknownId { id }),
                    None => Ok(ids.to_vec()),
                }
            }
        }
    }

    /// The text of some ids, without special tokens. Bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        match &self.kind {
            Kind::Bytes => {
                let mut bytes = Vec::with_capacity(ids.len());
                for &id in ids {
                    bytes.extend(byte_of(id)?);
                }
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            Kind::HuggingFace(inner) => {
                let mut visible = Vec::with_capacity(ids.len());
                for &id in ids {
                    if visible_token(inner, id)?.is_some() {
                        visible.push(id);
                    }
                }
                decode_visible(inner, &visible)
            }
        }
    }

    /// The token that begins a text, if there is one.
    pub fn begin(&self) -> Option<u32> {
        self.begin
    }

    /// The tokens that end a text; any one of them does. Empty if none is known.
    pub fn ends(&self) -> Vec<u32> {
        self.ends.clone()
    }

    /// A token as the vocabulary writes it.
    pub fn token(&self, id: u32) -> Option<String> {
        match &self.kind {
            Kind::Bytes => None,
            Kind::HuggingFace(inner) => inner.id_to_token(id),
        }
    }

    /// What kind it is, for people.
    pub fn kind(&self) -> &'static str {
        use tokenizers::models::ModelWrapper;
        use tokenizers::{DecoderWrapper, PreTokenizerWrapper};
        let Kind::HuggingFace(inner) = &self.kind else { return "bytes" };
        let bytes = matches!(inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_)))
            || matches!(inner.get_pre_tokenizer(), Some(PreTokenizerWrapper::ByteLevel(_)));
        match inner.get_model() {
            ModelWrapper::BPE(_) if bytes => "BPE of bytes",
            ModelWrapper::BPE(model) if model.byte_fallback => "SentencePiece's BPE",
            ModelWrapper::BPE(_) => "BPE",
            ModelWrapper::Unigram(_) => "unigrams",
            ModelWrapper::WordPiece(_) => "word pieces",
            ModelWrapper::WordLevel(_) => "words",
        }
    }

    /// Starts decoding ids that arrive one at a time.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream::new(&self.kind)
    }

    /// One more than the largest id, which is how many rows an embedding table needs.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }
}

/// The contents of a `tokenizer.json`, compared with its hash.
pub fn read_tokenizer(path: &Path) -> Result<Vec<u8>, TokenizerError> {
    let unreadable =
        |FileError { source: reason, .. }| TokenizerError::Read { path: path.into(), reason };
    let content = hadal_files::read(path).map_err(unreadable)?;
    match hadal_files::verify(path) {
        Ok(()) => Ok(content),
        Err(HashError::File(error)) => Err(unreadable(error)),
        Err(damage) => Err(damage.into()),
    }
}

/// The `tokenizer.json` that is equivalent to a GGUF file's tokenizer.
pub fn tokenizer_of_gguf(path: &Path) -> Result<Option<serde_json::Value>, TokenizerError> {
    let file = Gguf::open(path)?;
    tokenizer_json(&file)
        .map_err(|reason| TokenizerError::Vocabulary { path: path.to_owned(), reason })
}

/// The byte of an id of the byte tokenizer, or `None` for `<|endoftext|>`.
fn byte_of(id: u32) -> Result<Option<u8>, TokenizerError> {
    match u8::try_from(id) {
        Ok(byte) => Ok(Some(byte)),
        Err(_) if id == BYTES_END_OF_TEXT => Ok(None),
        Err(_) => Err(TokenizerError::UnknownId { id }),
    }
}

/// The token of an id, or `None` for a special token.
fn visible_token(inner: &tokenizers::Tokenizer, id: u32) -> Result<Option<String>, TokenizerError> {
    let token = inner.id_to_token(id).ok_or(TokenizerError::UnknownId { id })?;
    let special = inner.get_added_vocabulary().is_special_token(&token);
    Ok((!special).then_some(token))
}

/// The text of ids that are all visible.
fn decode_visible(inner: &tokenizers::Tokenizer, ids: &[u32]) -> Result<String, TokenizerError> {
    // Some of the library's decoders index the last token without checking that there is one.
    if ids.is_empty() {
        return Ok(String::new());
    }
    guarded(|| inner.decode(ids, true)).map_err(|reason| TokenizerError::Decode { reason })
}

/// The ids of those well-known tokens that the tokenizer has, in the order of `names`.
///
/// Ordinary vocabularies contain HTML, where `<s>` is struck-through text, so ordinary tokens count
/// only when no special one does.
fn known_ids(inner: &tokenizers::Tokenizer, names: &[&str]) -> Vec<u32> {
    let added = inner.get_added_vocabulary();
    let find = |special: bool| -> Vec<u32> {
        names
            .iter()
            .filter(|name| !special || added.is_special_token(name))
            .filter_map(|name| inner.token_to_id(name))
            .collect()
    };
    let special = find(true);
    if special.is_empty() { find(false) } else { special }
}
