//! Text while the ids are still arriving.
//!
//! Our own, because the library's `DecodeStream` returns a byte-fallback run as soon as it is valid UTF-8, although a
//! later byte can still turn the whole run into U+FFFD, and because it cannot return what it holds back at the end.

use super::{Kind, TokenizerError, byte_of, decode_visible, visible_token};
use std::borrow::Cow;
use tokenizers::DecoderWrapper;

/// Decodes ids that arrive one at a time.
///
/// All pushed text followed by [`finish`](Self::finish) equals [`decode`](super::Tokenizer::decode) of all ids.
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

impl<'t> TextStream<'t> {
    pub(super) fn new(kind: &'t Kind) -> Self {
        let source = match kind {
            Kind::Bytes => Source::Bytes(Vec::new()),
            Kind::HuggingFace(inner) => Source::HuggingFace(Window {
                inner,
                cadence: Cadence::of(inner.get_decoder()),
                ids: Vec::new(),
                cut: 0,
                given: 0,
                held: String::new(),
            }),
        };
        Self { source }
    }

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

    /// The text that is held back, with what is incomplete replaced by U+FFFD: the end of the text,
    /// if no more ids come.
    pub fn held(&self) -> Cow<'_, str> {
        match &self.source {
            Source::Bytes(pending) => String::from_utf8_lossy(pending),
            Source::HuggingFace(window) => Cow::Borrowed(&window.held),
        }
    }

    /// Ends the text.
    pub fn finish(self) -> String {
        self.held().into_owned()
    }
}

/// A short stretch of ids that is decoded again and again as it grows.
///
/// Decoding one id alone would be wrong: decoders treat the start of a text specially, such as by dropping its first
/// space. A few ids of context, whose text is already returned, take that treatment in place of the new ones; decoding
/// everything from the start every time would cost the square of the length.
#[derive(Debug)]
struct Window<'t> {
    inner: &'t tokenizers::Tokenizer,
    cadence: Cadence,
    ids: Vec<u32>,
    /// How many of `ids` were in the window when it last slid: they are dropped when it next does.
    cut: usize,
    /// How many bytes of the text of `ids` have been returned.
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
