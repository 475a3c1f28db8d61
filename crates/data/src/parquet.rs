//! Documents of a .parquet file: one column of text, row by row (the layout of FineWeb).

use super::error::DataError;
use super::pieces::{Piece, TextPieces};
use ::parquet::basic::Type;
use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use ::parquet::data_type::{ByteArray, ByteArrayType};
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use hadal_files::{Action, file_error};
use hadal_tokenizer::guarded;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rows are decoded a few at a time, since one may be megabytes.
const ROWS_AT_ONCE: usize = 64;

/// Reads one column.
pub(super) struct ParquetRows {
    path: PathBuf,
    file: SerializedFileReader<File>,
    column: usize,
    /// The largest definition level, at which a row is not null.
    defined: i16,
    /// The next group of rows to open, the one that is open, and how many rows are left in it.
    group: usize,
    values: Option<ColumnReaderImpl<ByteArrayType>>,
    left_in_group: u64,
    rows: std::vec::IntoIter<ByteArray>,
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
        let handle = File::open(path).map_err(file_error(Action::Read, path))?;
        let bytes = handle.metadata().map_err(file_error(Action::Read, path))?.len();
        let file = guarded(|| SerializedFileReader::new(handle)).map_err(wrong)?;
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
            rows: Vec::new().into_iter(),
            given: 0,
            total: u64::try_from(metadata.num_rows()).unwrap_or(0),
            bytes,
            consumed: Arc::clone(consumed),
            pieces: TextPieces::default(),
            limit,
            file,
        })
    }

    fn piece(&mut self) -> Result<Option<Piece>, DataError> {
        loop {
            if let Some(piece) = self.pieces.next() {
                return Ok(Some(piece));
            }
            let Some(row) = self.rows.next() else {
                if self.more_rows()? {
                    continue;
                }
                return Ok(None);
            };
            self.given += 1;
            let text = std::str::from_utf8(row.data()).map_err(|error| DataError::BadRow {
                path: self.path.clone(),
                row: self.given,
                reason: format!("it is not UTF-8 after {} bytes", error.valid_up_to()),
            })?;
            self.pieces = TextPieces::new(text.to_owned(), self.limit);
        }
    }

    /// Decodes the next rows, or returns that there are none.
    fn more_rows(&mut self) -> Result<bool, DataError> {
        let share = u128::from(self.bytes) * u128::from(self.given) / u128::from(self.total.max(1));
        self.consumed.store(share as u64, Ordering::Relaxed);
        let damaged = |path: &Path, reason: String| DataError::Parquet {
            path: path.into(),
            reason: format!("{reason}; it may be truncated or damaged: copy or download it again"),
        };
        if self.left_in_group == 0 {
            if self.group == self.file.num_row_groups() {
                return Ok(false);
            }
            let opened = guarded(|| -> ::parquet::errors::Result<_> {
                let group = self.file.get_row_group(self.group)?;
                let rows = u64::try_from(group.metadata().num_rows()).unwrap_or(0);
                Ok((rows, group.get_column_reader(self.column)?))
            });
            match opened.map_err(|reason| damaged(&self.path, reason))? {
                (rows, ColumnReader::ByteArrayColumnReader(values)) => {
                    self.left_in_group = rows;
                    self.values = Some(values);
                }
                _ => return Err(damaged(&self.path, "its columns change their type".into())),
            }
            self.group += 1;
            return Ok(true);
        }
        let Some(values) = &mut self.values else { return Ok(false) };
        let mut rows = Vec::with_capacity(ROWS_AT_ONCE);
        let mut levels = Vec::new();
        let (count, ..) =
            guarded(|| values.read_records(ROWS_AT_ONCE, Some(&mut levels), None, &mut rows))
                .map_err(|reason| damaged(&self.path, reason))?;
        if count == 0 || count as u64 > self.left_in_group {
            let reason = format!("row group {} has another length than it says", self.group);
            return Err(damaged(&self.path, reason));
        }
        if let Some(null) = levels.iter().position(|&level| level < self.defined) {
            return Err(DataError::BadRow {
                path: self.path.clone(),
                row: self.given + null as u64 + 1,
                reason: "it is null instead of a text; remove such rows".into(),
            });
        }
        self.left_in_group -= count as u64;
        self.rows = rows.into_iter();
        Ok(true)
    }
}

impl Iterator for ParquetRows {
    type Item = Result<Piece, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.piece()
            .inspect_err(|_| {
                self.rows = Vec::new().into_iter();
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
