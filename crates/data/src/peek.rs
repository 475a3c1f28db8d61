//! A look at prepared tokens, for people.

use super::dataset::ShardSet;
use super::error::DataError;
use super::pieces::SEPARATOR;
use serde::Serialize;

/// A window of tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Peek {
    /// Where it begins.
    pub start: u64,
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Their text, with `<|endoftext|>` between documents. A character that the window cuts is shown as U+FFFD.
    pub text: String,
}

/// Decodes up to `count` tokens from `start` on.
pub fn peek(set: &ShardSet, start: u64, count: usize) -> Result<Peek, DataError> {
    let tokens = set.len();
    if start >= tokens {
        return Err(DataError::OutOfRange {
            start,
            end: start.saturating_add(count as u64),
            tokens,
        });
    }
    let count = usize::try_from(tokens - start).unwrap_or(usize::MAX).min(count);
    let tokens = set.read(start, count)?;
    let tokenizer = set.tokenizer()?;
    let documents = tokens
        .split(|&token| token == set.manifest().tokenizer.end_of_text)
        .map(|document| tokenizer.decode(document))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Peek { start, text: documents.join(SEPARATOR), tokens })
}

#[cfg(test)]
mod tests {
    use super::super::testing::Workshop;
    use super::*;

    #[test]
    fn any_window_is_decoded_with_its_document_ends() {
        let workshop = Workshop::new();
        workshop.write("a.txt", "one<|endoftext|>two<|endoftext|>drei und zwölf");
        let set = workshop.prepared(|options| options.shard_tokens = 4);
        let all = peek(&set, 0, 1000).unwrap();
        assert_eq!(all.text, "one<|endoftext|>two<|endoftext|>drei und zwölf<|endoftext|>");
        assert_eq!(all.tokens.len() as u64, set.len());
        assert_eq!(peek(&set, 2, 4).unwrap().text, "e<|endoftext|>tw");
        assert_eq!(peek(&set, 19, 1).unwrap().text, "\u{fffd}");
        let error = peek(&set, set.len(), 1).unwrap_err();
        assert!(matches!(error, DataError::OutOfRange { .. }), "{error}");
    }
}
