//! Documents of a plain text, streamed.

use super::error::DataError;
use super::pieces::{Cut, Follower, Piece, cut};
use hadal_files::{Action, file_error};
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

/// Reads a text whose documents are between separators; a text without any is one document.
pub(super) struct TextDocuments {
    path: PathBuf,
    reader: Box<dyn BufRead + Send>,
    /// Text that was read, of which the first `start` bytes are already given out.
    window: Vec<u8>,
    start: usize,
    finished: bool,
    follower: Follower,
    limit: usize,
    /// Line breaks and bytes before the window's start, to say where something is wrong.
    lines: u64,
    bytes: u64,
}

impl TextDocuments {
    /// Begins at the start of the text.
    pub(super) fn new(path: &Path, reader: Box<dyn BufRead + Send>, limit: usize) -> Self {
        Self {
            path: path.into(),
            reader,
            window: Vec::new(),
            start: 0,
            finished: false,
            follower: Follower::default(),
            limit,
            lines: 0,
            bytes: 0,
        }
    }

    fn piece(&mut self) -> Result<Option<Piece>, DataError> {
        while !(self.finished && self.start == self.window.len()) {
            let (length, step, ends) =
                match cut(&self.window[self.start..], self.finished, self.limit) {
                    Cut::Document { text, next } => (text, next, true),
                    Cut::Piece(length) => (length, length, false),
                    Cut::Unknown => {
                        self.fill()?;
                        continue;
                    }
                };
            let text = self.text(length)?;
            self.advance(step);
            if let Some(piece) = self.follower.piece(text, ends) {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }

    /// Reads several pieces at once, so that leftover text is seldom moved.
    fn fill(&mut self) -> Result<(), DataError> {
        self.window.drain(..self.start);
        self.start = 0;
        let wanted = 4 * self.limit;
        let count = (&mut self.reader)
            .take(wanted as u64)
            .read_to_end(&mut self.window)
            .map_err(file_error(Action::Read, &self.path))?;
        self.finished = count < wanted;
        Ok(())
    }

    fn text(&self, length: usize) -> Result<String, DataError> {
        let bytes = &self.window[self.start..self.start + length];
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => {
                let valid = &bytes[..error.valid_up_to()];
                Err(DataError::NotUtf8 {
                    path: self.path.clone(),
                    line: self.lines + line_breaks(valid) + 1,
                    byte: self.bytes + valid.len() as u64,
                })
            }
        }
    }

    fn advance(&mut self, step: usize) {
        self.lines += line_breaks(&self.window[self.start..self.start + step]);
        self.bytes += step as u64;
        self.start += step;
    }
}

fn line_breaks(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|&&byte| byte == b'\n').count() as u64
}

impl Iterator for TextDocuments {
    type Item = Result<Piece, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.piece()
            .inspect_err(|_| {
                self.finished = true;
                self.start = self.window.len();
            })
            .transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn read(bytes: impl Into<Vec<u8>>, limit: usize) -> Vec<Result<Piece, DataError>> {
        let reader = Box::new(Cursor::new(bytes.into()));
        TextDocuments::new(Path::new("a.txt"), reader, limit).collect()
    }

    #[test]
    fn streaming_gives_the_pieces_of_the_text_in_memory() {
        let text = "The first one.\n<|endoftext|>\nThe second, with ünïcode.<|endoftext|>  \n\
                    <|endoftext|>And a third one that goes on and on\nfor lines"
            .repeat(5);
        for limit in [8, 13, 16, 64, 1000] {
            let streamed: Vec<_> =
                read(text.as_str(), limit).into_iter().map(Result::unwrap).collect();
            let at_once: Vec<_> = crate::pieces::TextPieces::new(text.clone(), limit).collect();
            assert_eq!(streamed, at_once, "limit {limit}");
        }
    }

    #[test]
    fn text_that_is_not_utf8_is_named_with_its_line() {
        let mut bytes = "good line\n".repeat(30).into_bytes();
        bytes.extend(b"caf\xe9\n");
        for limit in [16, 64, 4096] {
            let found = read(bytes.clone(), limit);
            let Some(Err(error)) = found.last() else { panic!("accepted") };
            assert_eq!(found.iter().filter(|piece| piece.is_err()).count(), 1);
            assert!(
                matches!(error, DataError::NotUtf8 { line: 31, byte: 303, .. }),
                "{error} at limit {limit}"
            );
            assert!(error.to_string().contains("a.txt: line 31"), "{error}");
        }
    }
}
