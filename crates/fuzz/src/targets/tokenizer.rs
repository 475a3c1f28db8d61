//! `tokenizer.json`.

use hadal_tokenizer::Tokenizer;
use std::path::Path;

/// Words, spaces, digits, bytes of several kinds, and names of special tokens.
const TEXT: &str = "Once upon a time, 1234  caf\u{e9} \u{1f30a}\n\t<s> aaaaaaaa \u{0} \u{301}</s>";

/// Any file is a tokenizer, or is refused.
pub(super) fn tokenizer(bytes: &[u8]) {
    match Tokenizer::from_bytes(Path::new("tokenizer.json"), bytes) {
        Ok(tokenizer) => try_tokenizer(&tokenizer),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Text becomes tokens and text again, at once and token by token.
pub(super) fn try_tokenizer(tokenizer: &Tokenizer) {
    let Ok(ids) = tokenizer.encode(TEXT) else { return };
    let _ = tokenizer.decode(&ids);
    let mut stream = tokenizer.stream();
    for &id in ids.iter().take(200) {
        let _ = tokenizer.token(id);
        if stream.push(id).is_err() {
            return;
        }
    }
}
