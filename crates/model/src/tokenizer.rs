//! Text to token ids and back, including decoding while a model is still writing.
//!
//! Bytes need no file and suit small experiments; pretrained models bring a Hugging Face
//! `tokenizer.json`. [`Tokenizer`] hides which of the two is at work, so that training, evaluation
//! and generation are written once.
//!
//! Streaming is our own because the library's `DecodeStream` gives out a byte-fallback run as soon
//! as it is valid UTF-8, although a later byte can still turn the whole run into U+FFFD, and
//! because it has no way to ask for what it holds back at the end.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use tokenizers::DecoderWrapper;

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
pub enum TokenizerError {
    /// The file could not be read at all.
    #[error(
        "cannot read the tokenizer file {path}: {reason}; give the path of a readable tokenizer.json"
    )]
    Read {
        /// The file that was asked for.
        path: PathBuf,
        /// What the operating system said.
        reason: io::Error,
    },
    /// The file was read, but it does not describe a tokenizer.
    #[error(
        "{path} is not a usable tokenizer.json: {reason}; download it again, or use the byte tokenizer"
    )]
    Malformed {
        /// The file that was read.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The tokenizer refused a text.
    #[error(
        "cannot encode the text: {reason}; check that tokenizer.json is complete and belongs to the model"
    )]
    Encode {
        /// What the tokenizer said.
        reason: String,
    },
    /// The tokenizer refused a list of ids.
    #[error(
        "cannot decode the tokens: {reason}; check that tokenizer.json is complete and belongs to the model"
    )]
    Decode {
        /// What the tokenizer said.
        reason: String,
    },
    /// An id that stands for no token.
    #[error(
        "token id {id} is not in the tokenizer's vocabulary; use the tokenizer the model was trained with"
    )]
    UnknownId {
        /// The id nobody knows.
        id: u32,
    },
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
        let content = fs::read(path)
            .map_err(|reason| TokenizerError::Read { path: path.to_owned(), reason })?;
        let malformed =
            |reason: String| TokenizerError::Malformed { path: path.to_owned(), reason };
        // The library panics on a syntax error inside the decoder section, so syntax is checked
        // before it sees the file.
        serde_json::from_slice::<serde_json::Value>(&content)
            .map_err(|error| malformed(error.to_string()))?;
        let inner = guarded(|| {
            let mut inner = tokenizers::Tokenizer::from_bytes(&content)?;
            inner.with_truncation(None)?;
            inner.with_padding(None);
            Ok(inner)
        })
        .map_err(malformed)?;

        Ok(Self {
            begin: known_ids(&inner, &BEGIN_TOKENS).first().copied(),
            ends: known_ids(&inner, &END_TOKENS),
            vocab_size: inner
                .get_vocab(true)
                .values()
                .max()
                .map_or(0, |&largest| largest as usize + 1),
            kind: Kind::HuggingFace(Box::new(inner)),
        })
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
            Kind::HuggingFace(inner) => guarded(|| inner.encode_fast(text, true))
                .map(|encoding| encoding.get_ids().to_vec())
                .map_err(|reason| TokenizerError::Encode { reason }),
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

    /// One more than the largest id, which is how many rows an embedding table needs.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Starts decoding ids that arrive one at a time.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream {
            source: match &self.kind {
                Kind::Bytes => Source::Bytes(Vec::new()),
                Kind::HuggingFace(inner) => Source::HuggingFace(Window {
                    inner,
                    cadence: Cadence::of(inner.get_decoder()),
                    ids: Vec::new(),
                    cut: 0,
                    given: 0,
                    held: String::new(),
                }),
            },
        }
    }
}

/// Decodes ids that arrive one at a time.
///
/// All pushed text followed by [`finish`](Self::finish) equals [`Tokenizer::decode`] of all ids.
#[derive(Debug)]
pub struct TextStream<'t> {
    source: Source<'t>,
}

#[derive(Debug)]
enum Source<'t> {
    /// The bytes of a character that is not complete yet.
    Bytes(Vec<u8>),
    HuggingFace(Window<'t>),
}

impl TextStream<'_> {
    /// Takes the next id and returns the text that no later id can change any more, if there is
    /// some.
    pub fn push(&mut self, id: u32) -> Result<Option<String>, TokenizerError> {
        let text = match &mut self.source {
            Source::Bytes(pending) => {
                pending.extend(byte_of(id)?);
                take_complete(pending)
            }
            Source::HuggingFace(window) => window.push(id)?,
        };
        Ok((!text.is_empty()).then_some(text))
    }

    /// Returns the text that was held back, with what stayed incomplete replaced by U+FFFD.
    pub fn finish(self) -> String {
        match self.source {
            Source::Bytes(pending) => String::from_utf8_lossy(&pending).into_owned(),
            Source::HuggingFace(window) => window.held,
        }
    }
}

/// A short stretch of ids that is decoded again and again as it grows.
///
/// Decoding one id alone would be wrong: decoders treat the start of a text specially, such as by
/// dropping its first space. A few ids of context, whose text is already given out, take that
/// treatment in place of the new ones, and decoding everything from the start every time would cost
/// the square of the length.
#[derive(Debug)]
struct Window<'t> {
    inner: &'t tokenizers::Tokenizer,
    cadence: Cadence,
    ids: Vec<u32>,
    /// How many of `ids` were in the window when it last slid: they are dropped when it next does.
    cut: usize,
    /// How many bytes of the text of `ids` are given out.
    given: usize,
    held: String,
}

impl Window<'_> {
    fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        let Some(token) = visible_token(self.inner, id)? else {
            return Ok(String::new());
        };
        self.ids.push(id);
        let text = decode_visible(self.inner, &self.ids)?;
        let hold = match self.cadence {
            Cadence::Token => false,
            Cadence::ByteRun => is_byte_token(&token),
            Cadence::Whole => true,
        };
        let settled = if hold {
            self.given
        } else {
            // A character that is still incomplete decodes to U+FFFD.
            text.trim_end_matches(char::REPLACEMENT_CHARACTER).len()
        };
        // `get`, because a file may describe a decoder that rewrites earlier text.
        let fresh = text.get(self.given..settled).unwrap_or_default().to_owned();
        self.held = text.get(settled..).unwrap_or_default().to_owned();
        self.given = settled;
        if self.held.is_empty() {
            self.slide()?;
        }
        Ok(fresh)
    }

    /// Forgets the old context, unless the new one has no text of its own: then the decoder's
    /// treatment of the start would spill over to the ids to come.
    fn slide(&mut self) -> Result<(), TokenizerError> {
        let context = decode_visible(self.inner, &self.ids[self.cut..])?;
        if !context.is_empty() {
            self.ids.drain(..self.cut);
            self.cut = self.ids.len();
            self.given = context.len();
        }
        Ok(())
    }
}

/// When the text of a Hugging Face decoder stops depending on ids to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cadence {
    /// After every token, save for an incomplete character at the end.
    Token,
    /// As `Token`, but after a run of `<0x..>` tokens as a whole, since one bad byte spoils it all.
    ByteRun,
    /// Only at the end of the text.
    Whole,
}

impl Cadence {
    fn of(decoder: Option<&DecoderWrapper>) -> Self {
        let stages = match decoder {
            None => return Self::Token,
            Some(DecoderWrapper::Sequence(sequence)) => sequence.get_decoders(),
            Some(single) => std::slice::from_ref(single),
        };
        let mut cadence = Self::Token;
        // Once the tokens are joined, a stage sees the whole text and may change it anywhere.
        let mut joined = false;
        for stage in stages {
            let local = match stage {
                DecoderWrapper::ByteFallback(_) => {
                    cadence = Self::ByteRun;
                    !joined
                }
                DecoderWrapper::Replace(_)
                | DecoderWrapper::Metaspace(_)
                | DecoderWrapper::WordPiece(_) => !joined,
                DecoderWrapper::ByteLevel(_) | DecoderWrapper::Fuse(_) => {
                    !std::mem::replace(&mut joined, true)
                }
                DecoderWrapper::Strip(strip) => !joined || strip.stop == 0,
                DecoderWrapper::BPE(_) | DecoderWrapper::CTC(_) | DecoderWrapper::Sequence(_) => {
                    false
                }
            };
            if !local {
                return Self::Whole;
            }
        }
        cadence
    }
}

/// The byte behind an id of the byte tokenizer, or nothing for `<|endoftext|>`.
fn byte_of(id: u32) -> Result<Option<u8>, TokenizerError> {
    match u8::try_from(id) {
        Ok(byte) => Ok(Some(byte)),
        Err(_) if id == BYTES_END_OF_TEXT => Ok(None),
        Err(_) => Err(TokenizerError::UnknownId { id }),
    }
}

/// Removes the text from `pending` that later bytes cannot change.
fn take_complete(pending: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut incomplete = Vec::new();
    let mut chunks = pending.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        text.push_str(chunk.valid());
        let invalid = chunk.invalid();
        if invalid.is_empty() {
            continue;
        }
        if chunks.peek().is_none() && is_incomplete(invalid) {
            incomplete = invalid.to_vec();
        } else {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    *pending = incomplete;
    text
}

/// Whether more bytes could make these ones a character.
fn is_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// Whether a token is one of the `<0x00>` to `<0xFF>` that byte-fallback tokenizers keep for bytes.
fn is_byte_token(token: &str) -> bool {
    token
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'))
        .is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}

/// The token behind an id, or nothing for a special token.
fn visible_token(inner: &tokenizers::Tokenizer, id: u32) -> Result<Option<String>, TokenizerError> {
    let token = inner.id_to_token(id).ok_or(TokenizerError::UnknownId { id })?;
    let special = inner.get_added_vocabulary().is_special_token(&token);
    Ok((!special).then_some(token))
}

/// The text of ids that are all visible.
fn decode_visible(inner: &tokenizers::Tokenizer, ids: &[u32]) -> Result<String, TokenizerError> {
    // Some of the library's decoders index the last token without asking whether there is one.
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

/// Calls the library and turns a panic into an error: it indexes and unwraps on values that come
/// from the file, such as merges that are longer than any token.
fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("its parts contradict each other".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::test_runner::{Config, TestRunner};
    use proptest::{collection, prop_assert_eq, sample};
    use serde_json::{Map, Value, json};

    use super::*;

    fn special(id: u32, content: &str) -> Value {
        json!({
            "id": id,
            "content": content,
            "single_word": false,
            "lstrip": false,
            "rstrip": false,
            "normalized": false,
            "special": true,
        })
    }

    fn vocabulary(tokens: impl IntoIterator<Item = String>) -> Map<String, Value> {
        tokens.into_iter().zip(0_u32..).map(|(token, id)| (token, json!(id))).collect()
    }

    /// The pipeline of Llama 2 and of stories260K. Ids: 3 to 258 are bytes, 259 "▁", 260 "a",
    /// 261 "b", 262 "▁a", 263 "ab", 264 "▁ab".
    fn sentencepiece_json() -> Value {
        let specials = ["<unk>", "<s>", "</s>"].map(str::to_owned);
        let bytes = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>"));
        let words = ["▁", "a", "b", "▁a", "ab", "▁ab"].map(str::to_owned);
        let model = json!({
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": true,
            "byte_fallback": true,
            "vocab": vocabulary(specials.into_iter().chain(bytes).chain(words)),
            "merges": [["▁", "a"], ["a", "b"], ["▁a", "b"]],
        });
        let normalizer = json!({"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]});
        let post_processor = json!({
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        });
        let decoder = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]});
        json!({
            "version": "1.0",
            "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
            "normalizer": normalizer,
            "pre_tokenizer": null,
            "post_processor": post_processor,
            "decoder": decoder,
            "model": model,
        })
    }

    /// The pipeline of GPT-2. "Ã©" are the two bytes of "é" and "ð" begins a four-byte character.
    fn byte_level_json() -> Value {
        let tokens = ["Ġ", "a", "Ã", "©", "ð", "aÃ", "<|endoftext|>"];
        let byte_level = json!({
            "type": "ByteLevel",
            "add_prefix_space": false,
            "trim_offsets": true,
            "use_regex": true,
        });
        let model = json!({
            "type": "BPE",
            "vocab": vocabulary(tokens.map(str::to_owned)),
            "merges": [["a", "Ã"]],
        });
        json!({
            "version": "1.0",
            "added_tokens": [special(6, "<|endoftext|>")],
            "pre_tokenizer": byte_level,
            "post_processor": byte_level,
            "decoder": byte_level,
            "model": model,
        })
    }

    /// A decoder that looks at the last token of the text.
    fn word_suffix_json() -> Value {
        json!({
            "version": "1.0",
            "added_tokens": [special(2, "</s>")],
            "decoder": {"type": "BPEDecoder", "suffix": "</w>"},
            "model": {
                "type": "BPE",
                "vocab": {"a</w>": 0, "b</w>": 1, "</s>": 2},
                "merges": [],
            },
        })
    }

    fn read(content: &[u8]) -> Result<Tokenizer, TokenizerError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokenizer.json");
        fs::write(&path, content).unwrap();
        Tokenizer::from_file(&path)
    }

    fn load(json: &Value) -> Tokenizer {
        read(json.to_string().as_bytes()).unwrap()
    }

    fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> String {
        let mut stream = tokenizer.stream();
        let mut text = String::new();
        for &id in ids {
            text.extend(stream.push(id).unwrap());
        }
        text + &stream.finish()
    }

    fn assert_streaming_equals_decoding(tokenizer: &Tokenizer, choices: Vec<u32>) {
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
        let strategy = collection::vec(sample::select(choices), 0..24);
        runner
            .run(&strategy, |ids| {
                prop_assert_eq!(streamed(tokenizer, &ids), tokenizer.decode(&ids).unwrap());
                Ok(())
            })
            .unwrap();
    }

    #[test]
    fn bytes_survive_a_round_trip() {
        let tokenizer = Tokenizer::bytes();
        let text = "one é, two 叫, three 😀\n";
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(ids.len(), text.len());
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
        assert_eq!(streamed(&tokenizer, &ids), text);
    }

    #[test]
    fn the_byte_tokenizer_begins_and_ends_with_end_of_text() {
        let tokenizer = Tokenizer::bytes();
        assert_eq!(tokenizer.begin(), Some(256));
        assert_eq!(tokenizer.ends(), [256]);
        assert_eq!(tokenizer.vocab_size(), 257);
        assert_eq!(tokenizer.decode(&[256, 97, 256]).unwrap(), "a");
    }

    #[test]
    fn a_character_is_held_back_until_its_last_byte() {
        let tokenizer = Tokenizer::bytes();
        let mut stream = tokenizer.stream();
        for id in [0xF0, 0x9F, 0x98] {
            assert_eq!(stream.push(id).unwrap(), None);
        }
        assert_eq!(stream.push(0x80).unwrap().as_deref(), Some("😀"));
        assert_eq!(stream.push(0xC3).unwrap(), None);
        assert_eq!(stream.finish(), "\u{FFFD}");
    }

    #[test]
    fn invalid_bytes_are_replaced_at_once() {
        let tokenizer = Tokenizer::bytes();
        let mut stream = tokenizer.stream();
        assert_eq!(stream.push(0xFF).unwrap().as_deref(), Some("\u{FFFD}"));
        assert_eq!(stream.push(0xE5).unwrap(), None);
        assert_eq!(stream.push(0x61).unwrap().as_deref(), Some("\u{FFFD}a"));
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn an_id_beyond_the_vocabulary_is_refused() {
        for tokenizer in [Tokenizer::bytes(), load(&sentencepiece_json())] {
            let error = tokenizer.decode(&[4000]).unwrap_err();
            assert!(error.to_string().contains("4000"), "{error}");
            let error = tokenizer.stream().push(4000).unwrap_err();
            assert!(matches!(error, TokenizerError::UnknownId { id: 4000 }));
        }
    }

    #[test]
    fn streaming_equals_decoding_for_bytes() {
        let choices =
            vec![0x0A, 0x61, 0xC3, 0xA9, 0xE5, 0x8F, 0xAB, 0xF0, 0x9F, 0x98, 0x80, 0xFF, 256];
        assert_streaming_equals_decoding(&Tokenizer::bytes(), choices);
    }

    #[test]
    fn streaming_equals_decoding_for_byte_fallback() {
        let tokenizer = load(&sentencepiece_json());
        let choices = vec![0, 1, 2, 13, 198, 172, 258, 259, 260, 261, 262, 263, 264];
        assert_streaming_equals_decoding(&tokenizer, choices);
    }

    #[test]
    fn streaming_equals_decoding_for_byte_level() {
        let tokenizer = load(&byte_level_json());
        assert_streaming_equals_decoding(&tokenizer, (0..7).collect());
    }

    #[test]
    fn streaming_equals_decoding_for_word_suffixes() {
        let tokenizer = load(&word_suffix_json());
        assert_streaming_equals_decoding(&tokenizer, (0..3).collect());
    }

    #[test]
    fn a_sentencepiece_like_file_is_read_with_its_special_tokens() {
        let tokenizer = load(&sentencepiece_json());
        assert_eq!(tokenizer.begin(), Some(1));
        assert_eq!(tokenizer.ends(), [2]);
        assert_eq!(tokenizer.vocab_size(), 265);
        assert_eq!(tokenizer.encode("ab a").unwrap(), [1, 264, 262]);
        assert_eq!(tokenizer.encode("é").unwrap(), [1, 259, 198, 172]);
        assert_eq!(tokenizer.decode(&[1, 264, 262, 2]).unwrap(), "ab a");
        assert_eq!(tokenizer.decode(&[1, 2]).unwrap(), "");
    }

    #[test]
    fn only_the_first_space_of_a_stream_is_dropped() {
        let tokenizer = load(&sentencepiece_json());
        let mut stream = tokenizer.stream();
        assert_eq!(stream.push(1).unwrap(), None);
        assert_eq!(stream.push(264).unwrap().as_deref(), Some("ab"));
        assert_eq!(stream.push(262).unwrap().as_deref(), Some(" a"));
        assert_eq!(stream.push(259).unwrap().as_deref(), Some(" "));
        assert_eq!(stream.push(264).unwrap().as_deref(), Some(" ab"));
    }

    #[test]
    fn a_byte_run_is_held_back_until_it_ends() {
        let tokenizer = load(&sentencepiece_json());
        let mut stream = tokenizer.stream();
        assert_eq!(stream.push(13).unwrap(), None);
        assert_eq!(stream.push(261).unwrap().as_deref(), Some("\nb"));
        assert_eq!(stream.push(13).unwrap(), None);
        assert_eq!(stream.finish(), "\n");
    }

    #[test]
    fn a_byte_level_file_gives_out_what_is_complete() {
        let tokenizer = load(&byte_level_json());
        assert_eq!(tokenizer.begin(), Some(6));
        assert_eq!(tokenizer.ends(), [6]);
        assert_eq!(tokenizer.encode("aé a").unwrap(), [5, 3, 0, 1]);
        let mut stream = tokenizer.stream();
        assert_eq!(stream.push(5).unwrap().as_deref(), Some("a"));
        assert_eq!(stream.push(3).unwrap().as_deref(), Some("é"));
        assert_eq!(stream.push(0).unwrap().as_deref(), Some(" "));
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn begin_and_end_can_be_overridden() {
        let tokenizer = load(&sentencepiece_json()).with_begin(None).with_ends(vec![7, 8]);
        assert_eq!(tokenizer.begin(), None);
        assert_eq!(tokenizer.ends(), [7, 8]);
    }

    #[test]
    fn stored_truncation_is_ignored() {
        let mut json = sentencepiece_json();
        json["truncation"] = json!({
            "direction": "Right",
            "max_length": 2,
            "strategy": "LongestFirst",
            "stride": 0,
        });
        assert_eq!(load(&json).encode("ab a").unwrap(), [1, 264, 262]);
    }

    #[test]
    fn a_missing_file_or_a_directory_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("missing.json");
        for path in [missing.as_path(), directory.path()] {
            let error = Tokenizer::from_file(path).unwrap_err();
            assert!(matches!(error, TokenizerError::Read { .. }), "{error}");
            assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        }
    }

    #[test]
    fn hostile_content_is_refused() {
        let longer_than_any_token = json!({
            "model": {"type": "BPE", "vocab": {"aa": 0, "bb": 1}, "merges": [["aa", "bb"]]},
        })
        .to_string();
        let nested = "[".repeat(100_000);
        let contents: [&[u8]; 8] = [
            b"",
            b"not json",
            b"\xFF\xFE\x00",
            b"{\"version\": \"\xFF\"}",
            b"{\"version\": \"1.0\"}",
            b"[1, 2, 3]",
            nested.as_bytes(),
            longer_than_any_token.as_bytes(),
        ];
        for content in contents {
            let error = read(content).unwrap_err();
            assert!(matches!(error, TokenizerError::Malformed { .. }), "{error}");
            assert!(error.to_string().contains("tokenizer.json"), "{error}");
        }
    }

    #[test]
    fn a_truncated_file_is_refused_wherever_it_ends() {
        let json = sentencepiece_json().to_string();
        for length in (0..json.len()).step_by(61) {
            let error = read(&json.as_bytes()[..length]).unwrap_err();
            assert!(matches!(error, TokenizerError::Malformed { .. }), "{error}");
        }
    }
}
