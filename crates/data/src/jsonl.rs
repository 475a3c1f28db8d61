//! Documents of a file with one JSON object in each line.

use super::error::DataError;
use super::pieces::{Piece, TextPieces};
use hadal_files::{Action, file_error};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use std::fmt;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

/// No document is this long; a longer line means another format, and memory is bounded.
pub(super) const LONGEST_DOCUMENT: usize = 64 << 20;

/// Reads one field of every line.
pub(super) struct JsonLines {
    path: PathBuf,
    reader: Box<dyn BufRead + Send>,
    key: String,
    limit: usize,
    buffer: Vec<u8>,
    /// Lines and bytes before the current line.
    lines: u64,
    bytes: u64,
    pieces: TextPieces,
}

impl JsonLines {
    /// Begins at the first line.
    pub(super) fn new(
        path: &Path,
        reader: Box<dyn BufRead + Send>,
        key: &str,
        limit: usize,
    ) -> Self {
        Self {
            path: path.into(),
            reader,
            key: key.into(),
            limit,
            buffer: Vec::new(),
            lines: 0,
            bytes: 0,
            pieces: TextPieces::default(),
        }
    }

    fn piece(&mut self) -> Result<Option<Piece>, DataError> {
        loop {
            if let Some(piece) = self.pieces.next() {
                return Ok(Some(piece));
            }
            if !self.read_line()? {
                return Ok(None);
            }
            if !self.buffer.trim_ascii().is_empty() {
                self.pieces = TextPieces::new(self.text()?, self.limit);
            }
            self.lines += 1;
            self.bytes += self.buffer.len() as u64;
        }
    }

    fn read_line(&mut self) -> Result<bool, DataError> {
        self.buffer.clear();
        (&mut self.reader)
            .take(LONGEST_DOCUMENT as u64 + 1)
            .read_until(b'\n', &mut self.buffer)
            .map_err(file_error(Action::Read, &self.path))?;
        if self.buffer.len() > LONGEST_DOCUMENT {
            return Err(self.bad(format!(
                "it is longer than {} MiB; the file may not be .jsonl, which has one document in each line",
                LONGEST_DOCUMENT >> 20
            )));
        }
        Ok(!self.buffer.is_empty())
    }

    fn text(&self) -> Result<String, DataError> {
        let line = std::str::from_utf8(&self.buffer).map_err(|error| DataError::NotUtf8 {
            path: self.path.clone(),
            line: self.lines + 1,
            byte: self.bytes + error.valid_up_to() as u64,
        })?;
        let mut json = serde_json::Deserializer::from_str(line.trim_end());
        let found = Field(&self.key).deserialize(&mut json);
        match found.and_then(|text| json.end().map(|()| text)) {
            Ok(Some(text)) => Ok(text),
            Ok(None) => Err(self.bad(format!(
                "there is no key `{}`; name the one that holds the text with --text-key",
                self.key
            ))),
            Err(error) => {
                // The library counts lines within its input, which is always the first.
                let message = error.to_string();
                let what = message.split(" at line ").next().unwrap_or_default();
                Err(self.bad(format!("{what} (column {})", error.column())))
            }
        }
    }

    fn bad(&self, reason: String) -> DataError {
        DataError::BadLine { path: self.path.clone(), line: self.lines + 1, reason }
    }
}

impl Iterator for JsonLines {
    type Item = Result<Piece, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.piece().inspect_err(|_| self.reader = Box::new(std::io::empty())).transpose()
    }
}

/// Takes one string out of an object without building the rest.
struct Field<'k>(&'k str);

impl<'de> DeserializeSeed<'de> for Field<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Field<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut text = None;
        while let Some(wanted) = object.next_key_seed(Key(self.0))? {
            if !wanted {
                object.next_value::<IgnoredAny>()?;
            } else if text.replace(object.next_value()?).is_some() {
                return Err(A::Error::custom(format_args!("the key `{}` comes twice", self.0)));
            }
        }
        Ok(text)
    }
}

struct Key<'k>(&'k str);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<bool, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<bool, E> {
        Ok(key == self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn read(text: &[u8], key: &str) -> Vec<Result<Piece, DataError>> {
        let reader = Box::new(Cursor::new(text.to_vec()));
        JsonLines::new(Path::new("a.jsonl"), reader, key, 100).collect()
    }

    #[test]
    fn the_chosen_key_is_read_and_everything_else_is_passed_over() {
        let text = br#"{"id": {"text": "not this"}, "text": "a \u00fc\n\"b\"", "n": [1, 2]}

{"text": "c<|endoftext|>d", "x": null}"#;
        let found: Vec<_> =
            read(text, "text").into_iter().map(|piece| piece.unwrap().text).collect();
        assert_eq!(found, ["a ü\n\"b\"", "c", "d"]);
        let body = br#"{"text": 7, "te\u0078t2": "here"}"#;
        assert_eq!(read(body, "text2")[0].as_ref().unwrap().text, "here");
    }

    #[test]
    fn bad_lines_are_named() {
        for (line, said) in [
            (&br#"{"text": "b""#[..], "EOF while parsing an object (column 12)"),
            (br#"{"tekst": "b"}"#, "there is no key `text`"),
            (br#"{"text": null}"#, "invalid type: null, expected a string"),
            (br#"["b"]"#, "expected a JSON object"),
            (br#"{"text": "b"} x"#, "trailing characters"),
            (br#"{"text": "b", "text": "c"}"#, "comes twice"),
            (br#"{"text": "\ud800"}"#, "column"),
        ] {
            let text = [b"{\"text\": \"a\"}\n\n", line, b"\n{\"text\": \"after\"}\n"].concat();
            let found = read(&text, "text");
            assert_eq!(found.len(), 2, "reading goes on after {said}");
            let message = found[1].as_ref().unwrap_err().to_string();
            assert!(message.starts_with("a.jsonl: line 3: "), "{message}");
            assert!(message.contains(said), "{message}");
        }
    }

    #[test]
    fn lines_that_are_not_utf8_are_named() {
        let found = read(b"{\"text\": \"a\"}\n{\"text\": \"caf\xe9\"}\n", "text");
        let error = found[1].as_ref().unwrap_err();
        assert!(matches!(error, DataError::NotUtf8 { line: 2, byte: 27, .. }), "{error}");
    }
}
