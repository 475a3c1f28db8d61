//! What people write never becomes a special token.
//!
//! A template must see what was written, because it may strip it or look into it. So only what spells a special token is
//! disguised: its first character is replaced by one that occurs nowhere. After rendering, special tokens are those of
//! the template alone, and the rest is encoded as text, without disguise. A chat in which nobody spells a special token
//! is encoded exactly as its rendered text.

use crate::{Tokenizer, TokenizerError};
use std::borrow::Cow;

/// Characters that stand for others: nobody assigns a meaning to this plane.
const PRIVATE: std::ops::RangeInclusive<char> = '\u{100000}'..='\u{10fffd}';
/// One special token may hide inside another; no vocabulary is as deep as this.
const ROUNDS: usize = 64;

pub(super) struct Guard {
    /// Private characters that occur in no text.
    free: Vec<char>,
    /// What they stand for, as far as they are used.
    hidden: Vec<char>,
}

impl Guard {
    /// For texts that will be put into a template.
    pub(super) fn new(template: &str, contents: &[&str]) -> Self {
        let mut taken: Vec<char> = contents
            .iter()
            .chain([&template])
            .flat_map(|text| text.chars())
            .filter(|c| PRIVATE.contains(c))
            .collect();
        taken.sort_unstable();
        let free = PRIVATE.filter(|c| taken.binary_search(c).is_err());
        // As many as there are characters with which special tokens begin; real vocabularies have a handful.
        Self { free: free.take(256).collect(), hidden: Vec::new() }
    }

    /// The text, with whatever spells a special token disguised.
    pub(super) fn disguise<'t>(
        &mut self,
        text: &'t str,
        tokenizer: &Tokenizer,
    ) -> Result<Cow<'t, str>, TokenizerError> {
        let mut text = Cow::Borrowed(text);
        for _ in 0..ROUNDS {
            let found = tokenizer.specials(&text)?;
            if found.is_empty() {
                return Ok(text);
            }
            let mut hidden = String::with_capacity(text.len() + 4 * found.len());
            let mut done = 0;
            for (range, _) in found {
                // A token may have taken the spaces around it along.
                let spelled = &text[range.clone()];
                let at = range.start + spelled.len() - spelled.trim_start().len();
                let at = if at < range.end { at } else { range.start };
                let Some(first) = text[at..].chars().next() else { continue };
                hidden.push_str(&text[done..at]);
                hidden.push(self.private(first)?);
                done = at + first.len_utf8();
            }
            hidden.push_str(&text[done..]);
            text = Cow::Owned(hidden);
        }
        Err(TokenizerError::Encode { reason: "its special tokens hide in each other".into() })
    }

    /// The private character that stands for another.
    fn private(&mut self, first: char) -> Result<char, TokenizerError> {
        let place = self.hidden.iter().position(|&c| c == first).unwrap_or_else(|| {
            self.hidden.push(first);
            self.hidden.len() - 1
        });
        self.free.get(place).copied().ok_or_else(|| TokenizerError::Encode {
            reason: "its special tokens begin with too many different characters".into(),
        })
    }

    /// The tokens of a rendered template.
    pub(super) fn encode(
        &self,
        rendered: &str,
        tokenizer: &Tokenizer,
    ) -> Result<Vec<u32>, TokenizerError> {
        let real = |c: char| {
            let place = self.free.iter().take(self.hidden.len()).position(|&free| free == c)?;
            self.hidden.get(place).copied()
        };
        if self.hidden.is_empty() || !rendered.chars().any(|c| real(c).is_some()) {
            return tokenizer.encode_alone(rendered);
        }
        let reveal =
            |text: &str| -> String { text.chars().map(|c| real(c).unwrap_or(c)).collect() };
        let (mut ids, mut done) = (Vec::new(), 0);
        let text = tokenizer.without_specials();
        for (range, id) in tokenizer.specials(rendered)? {
            ids.extend(text.encode_text(&reveal(&rendered[done..range.start]))?);
            ids.push(id);
            done = range.end;
        }
        ids.extend(text.encode_text(&reveal(&rendered[done..]))?);
        Ok(ids)
    }
}
