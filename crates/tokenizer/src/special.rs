//! Special tokens, told from text that spells them.

use super::{Kind, Tokenizer, TokenizerError, guarded};
use std::ops::Range;
use tokenizers::{OffsetReferential, OffsetType};

/// A tokenizer to which special tokens are text like any other.
pub(crate) struct TextOnly {
    kind: Kind,
}

impl TextOnly {
    /// The ids of a text, none of them that of a special token which the text spells.
    pub(crate) fn encode_text(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        // Some tokenizers put a space before every text, and even before none.
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let ids = encode_alone(&self.kind, text)?;
        if let Kind::HuggingFace(inner) = &self.kind {
            let added = inner.get_added_vocabulary();
            for &id in &ids {
                let token = inner.id_to_token(id).unwrap_or_default();
                // A piece that is in the vocabulary as a whole may be taken without asking what it is.
                if added.is_special_token(&token) && text.contains(&token) {
                    let reason = format!("{token:?} cannot be told from the special token");
                    return Err(TokenizerError::Encode { reason });
                }
            }
        }
        Ok(ids)
    }
}

impl Tokenizer {
    /// The ids of a text as it is: special tokens are those that it spells, and none is added.
    pub fn encode_alone(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        encode_alone(&self.kind, text)
    }

    /// The id of a special token.
    pub fn special_id(&self, token: &str) -> Option<u32> {
        match &self.kind {
            Kind::Bytes => None,
            Kind::HuggingFace(inner) => inner
                .get_added_vocabulary()
                .is_special_token(token)
                .then(|| inner.token_to_id(token))
                .flatten(),
        }
    }

    /// Where a text spells special tokens, in order.
    pub(crate) fn specials(&self, text: &str) -> Result<Vec<(Range<usize>, u32)>, TokenizerError> {
        let Kind::HuggingFace(inner) = &self.kind else { return Ok(Vec::new()) };
        let added = inner.get_added_vocabulary();
        guarded(|| -> Result<_, String> {
            let cut = added.extract_and_normalize(inner.get_normalizer(), text);
            let splits = cut.get_splits(OffsetReferential::Original, OffsetType::Byte);
            let special = splits.into_iter().filter_map(|(_, (start, end), tokens)| {
                let id = tokens.as_ref()?.first()?.id;
                let token = inner.id_to_token(id)?;
                // `get`, because a normalizer may have moved things.
                let whole = start < end && text.get(start..end).is_some();
                (whole && added.is_special_token(&token)).then_some((start..end, id))
            });
            Ok(special.collect())
        })
        .map_err(|reason| TokenizerError::Encode { reason })
    }

    /// The same tokenizer without special tokens.
    pub(crate) fn without_specials(&self) -> TextOnly {
        let mut kind = self.kind.clone();
        if let Kind::HuggingFace(inner) = &mut kind {
            inner.set_encode_special_tokens(true);
        }
        TextOnly { kind }
    }
}

fn encode_alone(kind: &Kind, text: &str) -> Result<Vec<u32>, TokenizerError> {
    match kind {
        Kind::Bytes => Ok(text.bytes().map(u32::from).collect()),
        Kind::HuggingFace(inner) => {
            let encoding = guarded(|| inner.encode_fast(text, false))
                .map_err(|reason| TokenizerError::Encode { reason })?;
            Ok(encoding.get_ids().to_vec())
        }
    }
}
