//! From text to pieces of documents.
//!
//! [`SEPARATOR`] ends a document wherever it occurs. A document of any length must fit into bounded memory, so a long
//! one comes in several pieces, cut where tokenizers cut anyway: at the end of a line or between two words. Their
//! tokens follow each other as if the document had never been cut.

/// What separates documents in a text.
pub(crate) const SEPARATOR: &str = "<|endoftext|>";

/// The longest piece. Tokenizers take nearly two hundred bytes of memory for a byte of text, in every
/// thread, so this must stay well below what a thread may use.
pub(super) const PIECE_BYTES: usize = 64 << 10;

/// A stretch of one document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The text, without separators.
    pub(super) text: String,
    /// Whether the document begins here.
    pub(super) starts_document: bool,
    /// Whether the document ends here.
    pub(super) ends_document: bool,
}

/// Where the next piece ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// A document ends after this many bytes, and what follows begins at `next`.
    Document { text: usize, next: usize },
    /// The document continues after this many bytes.
    Piece(usize),
    /// More text must be seen to tell.
    Unknown,
}

/// Finds the end of the piece that begins a window of text; `whole` if the text ends with the window.
pub(super) fn cut(window: &[u8], whole: bool, limit: usize) -> Cut {
    let reach = limit + SEPARATOR.len();
    if let Some(text) = find_separator(&window[..window.len().min(reach)]) {
        Cut::Document { text, next: text + SEPARATOR.len() }
    } else if whole && window.len() <= limit {
        Cut::Document { text: window.len(), next: window.len() }
    } else if !whole && window.len() < reach {
        Cut::Unknown
    } else {
        Cut::Piece(boundary(window, limit))
    }
}

fn find_separator(window: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(distance) = window[from..].iter().position(|&byte| byte == b'<') {
        from += distance;
        if window[from..].starts_with(SEPARATOR.as_bytes()) {
            return Some(from);
        }
        from += 1;
    }
    None
}

/// The best place to cut a window that is longer than the limit.
///
/// After a line break that stands alone, or before a single space: there the usual pre-tokenizers separate words
/// whatever comes next, so that the cut changes no token.
fn boundary(window: &[u8], limit: usize) -> usize {
    let solid = |at: usize| window.get(at).is_some_and(|byte| !byte.is_ascii_whitespace());
    let lone_line = |at: &usize| *at >= 2 && window[at - 1] == b'\n' && solid(at - 2) && solid(*at);
    let lone_space = |at: &usize| window[*at] == b' ' && solid(at - 1) && solid(at + 1);
    let any_line = |at: &usize| window[at - 1] == b'\n';
    let places = || ((limit / 2).max(1)..=limit).rev();
    places()
        .find(lone_line)
        .or_else(|| places().find(lone_space))
        .or_else(|| places().find(any_line))
        .unwrap_or_else(|| {
            // Not inside a character; text that is not UTF-8 is cut anywhere and refused later.
            let inside = |at: &usize| (window[*at] & 0b1100_0000) == 0b1000_0000;
            (limit.saturating_sub(3).max(1)..=limit).rev().find(|at| !inside(at)).unwrap_or(limit)
        })
}

/// Knows whether a document is open, and drops documents of nothing but white space.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Follower {
    inside: bool,
}

impl Follower {
    /// The piece, unless it is empty.
    pub(super) fn piece(&mut self, text: String, ends_document: bool) -> Option<Piece> {
        let starts_document = !self.inside;
        if starts_document && ends_document && text.trim_ascii().is_empty() {
            return None;
        }
        self.inside = !ends_document;
        Some(Piece { text, starts_document, ends_document })
    }
}

/// The pieces of a text that is in memory already: a line or a row.
#[derive(Clone, Debug, Default)]
pub(super) struct TextPieces {
    text: String,
    at: usize,
    follower: Follower,
    limit: usize,
}

impl TextPieces {
    /// Begins a text; its end ends a document.
    pub(super) fn new(text: String, limit: usize) -> Self {
        Self { text, at: 0, follower: Follower::default(), limit }
    }
}

impl Iterator for TextPieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        while self.at < self.text.len() {
            let (length, step, ends) = match cut(&self.text.as_bytes()[self.at..], true, self.limit)
            {
                Cut::Document { text, next } => (text, next, true),
                Cut::Piece(length) => (length, length, false),
                Cut::Unknown => return None,
            };
            let text = if length == self.text.len() {
                self.at = 0;
                std::mem::take(&mut self.text)
            } else {
                let text = self.text[self.at..self.at + length].to_owned();
                self.at += step;
                text
            };
            if let Some(piece) = self.follower.piece(text, ends) {
                return Some(piece);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str, limit: usize) -> Vec<(String, bool, bool)> {
        TextPieces::new(text.to_owned(), limit)
            .map(|piece| (piece.text, piece.starts_document, piece.ends_document))
            .collect()
    }

    #[test]
    fn separators_part_documents_and_blank_ones_are_left_out() {
        let found = pieces("one<|endoftext|>\n<|endoftext|>t<wo<|endoftext|>", 100);
        assert_eq!(found, [("one".into(), true, true), ("t<wo".into(), true, true)]);
        assert_eq!(pieces("<|endoftext|>", 100), []);
        assert_eq!(pieces("", 100), []);
    }

    #[test]
    fn long_documents_are_cut_between_words_and_lose_nothing() {
        let text = "alpha beta\ngamma delta\n\nepsilon zeta eta\ntheta".repeat(9);
        for limit in 8..60 {
            let found = pieces(&text, limit);
            let joined: String = found.iter().map(|(text, ..)| text.as_str()).collect();
            assert_eq!(joined, text);
            for (i, (text, starts, ends)) in found.iter().enumerate() {
                assert!(!text.is_empty() && text.len() <= limit);
                assert_eq!((*starts, *ends), (i == 0, i + 1 == found.len()));
            }
        }
        assert_eq!(pieces("one two\nthree four", 12)[0].0, "one two\n");
        assert_eq!(pieces("one two three four", 12)[0].0, "one two");
    }

    #[test]
    fn a_character_is_never_cut() {
        for limit in 4..20 {
            let joined: String =
                pieces(&"äöü€😀".repeat(20), limit).into_iter().map(|(text, ..)| text).collect();
            assert_eq!(joined, "äöü€😀".repeat(20));
        }
    }

    #[test]
    fn a_separator_at_the_limit_still_separates() {
        for length in 0..40 {
            let text = format!("{}<|endoftext|>b", "a".repeat(length));
            let documents = pieces(&text, 16).iter().filter(|(_, _, ends)| *ends).count();
            assert_eq!(documents, if length == 0 { 1 } else { 2 }, "at {length}");
        }
    }
}
