//! Documents of a .parquet file: one column of text, row by row (the layout of FineWeb).
//!
//! A row is decoded when its turn comes, and one page is held at a time. So memory is bounded by the largest page that is
//! read, whatever the file claims: [`pages`] sees to that.

mod pages;
mod thrift;

use super::error::DataError;
use super::jsonl::LONGEST_DOCUMENT;
use super::pieces::{Piece, TextPieces};
use ::parquet::basic::Type;
use ::parquet::column::reader::ColumnReaderImpl;
use ::parquet::data_type::ByteArrayType;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use hadal_files::{Action, file_error};
use hadal_tokenizer::guarded;
use pages::{CheckedPages, Handle, Pages};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reads one column.
pub(super) struct ParquetRows {
    path: PathBuf,
    file: SerializedFileReader<Pages>,
    handle: Handle,
    column: usize,
    /// The largest definition level, at which a row is not null.
    defined: i16,
    /// The next group of rows to open, the one that is open, and how many rows are left in it.
    group: usize,
    values: Option<ColumnReaderImpl<ByteArrayType>>,
    left_in_group: u64,
    /// How many rows were returned, and how many there are.
    given: u64,
    total: u64,
    bytes: u64,
    consumed: Arc<AtomicU64>,
    pieces: TextPieces,
    limit: usize,
}

impl ParquetRows {
    /// Opens a file and finds the column. `consumed` follows the share of rows that were read.
    pub(super) fn open(
        path: &Path,
        column: &str,
        limit: usize,
        consumed: &Arc<AtomicU64>,
    ) -> Result<Self, DataError> {
        let wrong = |reason: String| DataError::Parquet { path: path.into(), reason };
        let file = hadal_files::open(path)?;
        let bytes = file.metadata().map_err(file_error(Action::Read, path))?.len();
        let pages = Pages::new(file).map_err(file_error(Action::Read, path))?;
        let handle = pages.handle();
        let file = guarded(|| SerializedFileReader::new(pages)).map_err(wrong)?;
        let metadata = file.metadata().file_metadata();
        let columns = metadata.schema_descr().columns();
        let index = columns.iter().position(|candidate| candidate.path().string() == column);
        let Some(index) = index else {
            let names: Vec<_> = columns.iter().map(|column| column.path().string()).collect();
            return Err(wrong(format!(
                "there is no column `{column}` among {}; name the one that holds the text with --text-key",
                names.join(", ")
            )));
        };
        let found = &columns[index];
        if found.physical_type() != Type::BYTE_ARRAY || found.max_rep_level() != 0 {
            return Err(wrong(format!(
                "the column `{column}` holds no text; name the one that does with --text-key"
            )));
        }
        Ok(Self {
            path: path.into(),
            column: index,
            defined: found.max_def_level(),
            group: 0,
            values: None,
            left_in_group: 0,
            given: 0,
            total: u64::try_from(metadata.num_rows()).unwrap_or(0),
            bytes,
            consumed: Arc::clone(consumed),
            pieces: TextPieces::default(),
            limit,
            handle,
            file,
        })
    }

    fn piece(&mut self) -> Result<Option<Piece>, DataError> {
        loop {
            if let Some(piece) = self.pieces.next() {
                return Ok(Some(piece));
            }
            if self.left_in_group == 0 && !self.next_group()? {
                return Ok(None);
            }
            if self.left_in_group > 0 {
                let text = self.row()?;
                self.pieces = TextPieces::new(text, self.limit);
            }
        }
    }

    /// Opens the next group of rows, or returns that there is none.
    fn next_group(&mut self) -> Result<bool, DataError> {
        self.values = None;
        if self.group == self.file.num_row_groups() {
            self.tell();
            return Ok(false);
        }
        let opened = guarded(|| -> ::parquet::errors::Result<_> {
            let group = self.file.get_row_group(self.group)?;
            let column = group.metadata().column(self.column);
            self.handle.column(column.compression());
            let rows = u64::try_from(group.metadata().num_rows()).unwrap_or(0);
            let inner = group.get_column_page_reader(self.column)?;
            let pages = Box::new(CheckedPages { inner, defined: self.defined });
            Ok((rows, ColumnReaderImpl::new(column.column_descr_ptr(), pages)))
        });
        let (rows, values) = opened.map_err(|reason| self.damaged(reason))?;
        self.left_in_group = rows;
        self.values = Some(values);
        self.group += 1;
        Ok(true)
    }

    /// The text of the next row.
    fn row(&mut self) -> Result<String, DataError> {
        if self.given.is_multiple_of(64) {
            self.tell();
        }
        let (mut rows, mut levels) = (Vec::new(), Vec::new());
        let mut read = || match &mut self.values {
            Some(values) => values.read_records(1, Some(&mut levels), None, &mut rows),
            None => Ok((0, 0, 0)),
        };
        let (count, ..) = guarded(&mut read).map_err(|reason| self.damaged(reason))?;
        if count != 1 {
            let reason = format!("row group {} has another length than it says", self.group);
            return Err(self.damaged(reason));
        }
        self.left_in_group -= 1;
        self.given += 1;
        let bad =
            |reason: String| DataError::BadRow { path: self.path.clone(), row: self.given, reason };
        if levels.iter().any(|&level| level < self.defined) {
            return Err(bad("it is null instead of a text; remove such rows".into()));
        }
        let bytes = rows.first().map_or(&[][..], |row| row.data());
        if bytes.len() > LONGEST_DOCUMENT {
            return Err(bad(format!(
                "it is longer than {} MiB; the column may hold something else than documents",
                LONGEST_DOCUMENT >> 20
            )));
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => Err(bad(format!("it is not UTF-8 after {} bytes", error.valid_up_to()))),
        }
    }

    /// Says how far the file has been read.
    fn tell(&self) {
        let share = u128::from(self.bytes) * u128::from(self.given) / u128::from(self.total.max(1));
        self.consumed.store(share as u64, Ordering::Relaxed);
    }

    fn damaged(&self, reason: String) -> DataError {
        DataError::Parquet {
            path: self.path.clone(),
            reason: format!("{reason}; it may be truncated or damaged: copy or download it again"),
        }
    }
}

impl Iterator for ParquetRows {
    type Item = Result<Piece, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.piece()
            .inspect_err(|_| {
                self.left_in_group = 0;
                self.group = self.file.num_row_groups();
            })
            .transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{documents, parquet};
    use super::*;
    use ::parquet::basic::Compression;
    use std::fs;

    fn read(path: &Path, column: &str) -> Result<Vec<String>, DataError> {
        let consumed = Arc::default();
        let rows = ParquetRows::open(path, column, 1 << 20, &consumed)?;
        let texts: Result<Vec<_>, _> = rows.map(|piece| Ok(piece?.text)).collect();
        if texts.is_ok() {
            let length = fs::metadata(path).unwrap().len();
            assert_eq!(consumed.load(Ordering::Relaxed), length);
        }
        texts
    }

    #[test]
    fn a_damaged_file_is_an_error_and_never_a_panic() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.parquet");
        let documents = documents(150);
        let rows: Vec<_> = documents.iter().map(|text| Some(text.as_str())).collect();
        let good = parquet(&rows, Compression::SNAPPY);
        fs::write(&path, &good).unwrap();
        assert_eq!(read(&path, "text").unwrap(), documents);
        // Some damage cannot be noticed: pages have no checksums here.
        let check = |bad: &[u8]| {
            fs::write(&path, bad).unwrap();
            let consumed = Arc::default();
            let rows = ParquetRows::open(&path, "text", 1 << 20, &consumed);
            if let Err(error) = rows.and_then(|rows| rows.collect::<Result<Vec<_>, _>>()) {
                assert!(error.to_string().contains("a.parquet"), "{error}");
            }
        };
        for byte in 0..good.len() {
            let mut bad = good.clone();
            bad[byte] ^= 0x55;
            check(&bad);
        }
        for length in (0..good.len()).step_by(7) {
            check(&good[..length]);
        }
    }

    #[test]
    fn a_row_without_text_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.parquet");
        let mut rows = vec![Some("text"); 130];
        rows[121] = None;
        fs::write(&path, parquet(&rows, Compression::SNAPPY)).unwrap();
        let message = read(&path, "text").unwrap_err().to_string();
        assert!(message.contains("a.parquet: row 122: it is null"), "{message}");
    }
}
