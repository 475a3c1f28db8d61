//! Small files of every kind for the tests of this module.

use super::dataset::ShardSet;
use super::encoder::TokenizerChoice;
use super::error::DataError;
use super::manifest::Manifest;
use super::prepare::{PrepareOptions, prepare};
use super::train_tokenizer::{TrainTokenizerOptions, train_tokenizer};
use ::parquet::basic::Compression;
use ::parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// A directory with inputs and an output, removed at the end.
pub(super) struct Workshop {
    directory: TempDir,
}

impl Workshop {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("in")).unwrap();
        Self { directory }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(super) fn input(&self) -> PathBuf {
        self.path("in")
    }

    pub(super) fn out(&self) -> PathBuf {
        self.path("out")
    }

    /// Writes an input.
    pub(super) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.input().join(name), content).unwrap();
    }

    /// Reads the inputs as bytes into the output.
    pub(super) fn options(&self) -> PrepareOptions {
        PrepareOptions::new(vec![self.input()], self.out(), TokenizerChoice::Bytes)
    }

    pub(super) fn prepare(
        &self,
        change: impl FnOnce(&mut PrepareOptions),
    ) -> Result<Manifest, DataError> {
        let mut options = self.options();
        change(&mut options);
        prepare(&options, &mut |_| ControlFlow::Continue(()))
    }

    pub(super) fn prepared(&self, change: impl FnOnce(&mut PrepareOptions)) -> ShardSet {
        self.prepare(change).unwrap();
        ShardSet::open(&self.out()).unwrap()
    }
}

/// Every file of a directory.
pub(super) fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    fs::read_dir(directory)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).unwrap())
        })
        .collect()
}

/// Documents that look like a language, always the same.
pub(super) fn documents(count: usize) -> Vec<String> {
    const WORDS: [&str; 12] = [
        "the", "deep", "water", "über", "moves", "slowly,", "and", "light", "does", "not", "reach",
        "it.\n",
    ];
    let mut state = 7u32;
    let mut word = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        WORDS[(state >> 16) as usize % WORDS.len()]
    };
    (0..count).map(|i| (0..5 + i * 7 % 31).map(|_| word()).collect::<Vec<_>>().join(" ")).collect()
}

/// The same as one text.
pub(super) fn prose(count: usize) -> String {
    documents(count).join("<|endoftext|>")
}

/// A small tokenizer that splits as GPT-2 does.
pub(super) fn trained(workshop: &Workshop, vocab_size: usize) -> PathBuf {
    let words: String = (0..500).map(|i| format!(" {:x}", i * 7919 % 4099)).collect();
    fs::write(workshop.path("learn.txt"), prose(50) + &words).unwrap();
    let options = TrainTokenizerOptions {
        inputs: vec![workshop.path("learn.txt")],
        text_key: "text".into(),
        vocab_size,
        max_bytes: u64::MAX,
        out: workshop.path("trained.json"),
        threads: 1,
    };
    train_tokenizer(&options, &mut |_| ControlFlow::Continue(())).unwrap();
    options.out
}

pub(super) fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn zstandard(content: &[u8]) -> Vec<u8> {
    zstd::encode_all(content, 1).unwrap()
}

pub(super) fn json_lines(documents: &[String]) -> String {
    documents
        .iter()
        .enumerate()
        .map(|(i, text)| serde_json::json!({ "id": i, "text": text }).to_string() + "\n")
        .collect()
}

/// A file with a number and a text in each row, in groups of a few rows.
pub(super) fn parquet(rows: &[Option<&str>], compression: Compression) -> Vec<u8> {
    let schema = "message schema { required int64 id; optional binary text (UTF8); }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
    let mut file = SerializedFileWriter::new(Vec::new(), schema, properties).unwrap();
    for rows in rows.chunks(100) {
        let mut group = file.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let ids: Vec<i64> = (0..).take(rows.len()).collect();
        column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let levels: Vec<i16> = rows.iter().map(|row| i16::from(row.is_some())).collect();
        let texts: Vec<ByteArray> = rows.iter().flatten().map(|text| (*text).into()).collect();
        column.typed::<ByteArrayType>().write_batch(&texts, Some(&levels), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    file.finish().unwrap();
    file.inner().clone()
}
