//! A text that grows: the model reads more tokens and returns the logits of the next.

use crate::cache::Cache;
use crate::decoder::Decoder;
use crate::pass::{Pass, PassError, Tokens, Variant};
use crate::tally::Tally;
use crate::token_decoder::TokenDecoder;
use hadal_kernels::read_back;

/// A model and the text it has read.
///
/// Several tokens at once are a pass through the cache. A single one is a decode step: kernels over slices alone,
/// without tensors and without allocating, wherever a model has that form ([`Session::decodes_tokens`]).
#[derive(Debug)]
pub struct Session<'a> {
    decoder: &'a Decoder,
    variant: Variant<'a>,
    cache: Cache,
    token_decoder: Option<TokenDecoder>,
    /// Tokens for which there is room from the first decode step on.
    expected: usize,
    logits: Vec<f32>,
}

impl<'a> Session<'a> {
    /// A session that has read nothing yet.
    pub fn new(decoder: &'a Decoder, variant: Variant<'a>) -> Result<Self, PassError> {
        decoder.check_absent(variant.absent)?;
        Ok(Self {
            decoder,
            variant,
            cache: Cache::new(decoder.config()),
            token_decoder: TokenDecoder::new(decoder, variant),
            expected: 0,
            logits: Vec::new(),
        })
    }

    /// Expects the text to become this long. If it becomes longer, memory is allocated on the way.
    pub fn reserve(&mut self, tokens: usize) {
        self.expected = tokens.min(self.decoder.config().max_seq_len);
    }

    /// Tokens read so far.
    pub fn len(&self) -> usize {
        self.cache.len()
    }

    /// Whether nothing has been read yet.
    pub fn is_empty(&self) -> bool {
        self.cache.is_empty()
    }

    /// Whether the model's `max_seq_len` is reached.
    pub fn is_full(&self) -> bool {
        self.len() == self.decoder.config().max_seq_len
    }

    /// Whether single tokens are read by kernels over slices alone.
    pub fn decodes_tokens(&self) -> bool {
        self.token_decoder.is_some()
    }

    /// Reads more of the text and returns the logits of what comes next. A session that is stopped has read nothing.
    pub fn feed(&mut self, ids: &[u32], tally: Option<&mut Tally>) -> Result<&[f32], PassError> {
        let Self { decoder, cache, token_decoder, .. } = self;
        decoder.check(ids, cache.len() + ids.len())?;
        if let (Some(token_decoder), &[token]) = (token_decoder, ids) {
            if self.expected > 0 {
                token_decoder.reserve(cache, std::mem::take(&mut self.expected));
            }
            return Ok(token_decoder.step(token, decoder.config(), cache, tally));
        }
        let pass = Pass { cache: Some(cache), only_last: true, tally, ..self.variant.pass() };
        let logits = decoder.logits(&Tokens::row(ids), pass);
        if matches!(logits, Err(PassError::Stopped)) {
            // Some blocks have seen the text and others have not.
            self.cache = Cache::new(decoder.config());
        }
        self.logits = read_back(logits?)?;
        Ok(&self.logits)
    }
}
