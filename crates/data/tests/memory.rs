//! How much memory a hostile .parquet file may take, measured by counting allocations.

use hadal_data::{DataError, PrepareOptions, TokenizerChoice, prepare};
use hadal_files::testing::{Counting, peak};
use parquet::basic::{Compression, Encoding, GzipLevel, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

#[global_allocator]
static COUNTING: Counting = Counting;

const MIB: usize = 1 << 20;

/// Prepares a file of which at most a megabyte is wanted. Returns what it said, and the most bytes that were live.
fn prepared(directory: &Path, file: &[u8]) -> (Result<(), DataError>, usize) {
    let input = directory.join("a.parquet");
    fs::write(&input, file).unwrap();
    let out = directory.join("out");
    let _ = fs::remove_dir_all(&out);
    let mut options = PrepareOptions::new(vec![input], out, TokenizerChoice::Bytes);
    options.threads = 1;
    options.max_bytes = Some(MIB as u64);
    peak(|| prepare(&options, &mut |_| ControlFlow::Continue(())).map(drop))
}

/// A row in each page.
fn written(rows: &[ByteArray], change: impl FnOnce(Builder) -> Builder) -> Vec<u8> {
    let schema =
        Arc::new(parse_message_type("message schema { required binary text (UTF8); }").unwrap());
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_write_batch_size(1)
        .set_data_page_row_count_limit(1)
        .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None);
    let properties = Arc::new(change(properties).build());
    let mut file = SerializedFileWriter::new(Vec::new(), schema, properties).unwrap();
    let mut group = file.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<ByteArrayType>().write_batch(rows, None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    file.finish().unwrap();
    file.inner().clone()
}

type Builder = parquet::file::properties::WriterPropertiesBuilder;

fn zstd(builder: Builder) -> Builder {
    builder.set_compression(Compression::ZSTD(ZstdLevel::default()))
}

/// A number as Thrift writes it, padded to five bytes.
fn five_bytes(number: u32) -> [u8; 5] {
    let zigzag = u64::from(number) << 1;
    [0, 7, 14, 21, 28].map(|shift| (zigzag >> shift) as u8 & 127 | if shift < 28 { 128 } else { 0 })
}

/// Replaces what follows a unique beginning.
fn patched(file: &[u8], before: &[u8], old: usize, new: &[u8]) -> Vec<u8> {
    let at = file.windows(before.len()).position(|window| window == before).unwrap() + before.len();
    [&file[..at], new, &file[at + old..]].concat()
}

/// One test, because the counters are global.
#[test]
fn memory_is_bounded_by_a_page_and_not_by_what_a_file_says() {
    let directory = tempfile::tempdir().unwrap();
    let check = |name: &str, file: &[u8], most: usize, said: &str| {
        let (result, peak) = prepared(directory.path(), file);
        let message = result.unwrap_err().to_string();
        assert!(message.contains(said), "{name}: {message}");
        assert!(peak < most, "{name}: {} MiB were live", peak / MIB);
    };
    let row = |mib: usize| ByteArray::from("a".repeat(mib * MIB).into_bytes());

    // Twenty-four rows of 48 MiB, which are a gigabyte together and a few kilobytes here.
    let many = written(&vec![row(48); 24], zstd);
    assert!(many.len() < MIB);
    check("rows", &many, 400 * MIB, "more than 1048576 bytes of text");
    let long = written(&[row(65)], zstd);
    check("a long row", &long, 400 * MIB, "a.parquet: row 1: it is longer than 64 MiB");
    let wide = written(&[row(300)], zstd);
    check("a large page", &wide, 20 * MIB, "a page has 314572804 bytes");

    // A page that unpacks to 300 MiB and says that it has a thousand bytes.
    let gzip = |builder: Builder| builder.set_compression(Compression::GZIP(GzipLevel::default()));
    let honest = written(&[row(300)], gzip);
    let size = five_bytes(314_572_804);
    let lying = patched(&honest, &[0x15, 0, 0x15], 5, &five_bytes(1000));
    assert_ne!(lying, patched(&honest, &[0x15, 0, 0x15], 5, &size));
    check("a gzip page", &lying, 20 * MIB, "another size than its header says");

    // A dictionary of two values that says that it has two thousand million.
    let rows = ["deep", "water", "deep"].map(ByteArray::from);
    let dictionary = written(&rows, |builder| builder.set_dictionary_enabled(true));
    let lying = patched(&dictionary, &[0x4c, 0x15], 1, &five_bytes(i32::MAX as u32));
    check("a dictionary", &lying, 20 * MIB, "a page claims 2147483647 values");

    // Lengths that come first, and a number of them that nobody has.
    let lengths = |builder: Builder| builder.set_encoding(Encoding::DELTA_LENGTH_BYTE_ARRAY);
    let honest = written(&rows, lengths);
    prepared(directory.path(), &honest).0.unwrap();
    let lying = patched(&honest, &[0x80, 1, 4], 1, &[0xff, 0xff, 0xff, 0xff, 0x7f]);
    check("lengths", &lying, 20 * MIB, "a page claims");
    let refused = written(&rows, |builder| builder.set_encoding(Encoding::DELTA_BYTE_ARRAY));
    check("prefixes", &refused, 20 * MIB, "DELTA_BYTE_ARRAY");

    // A root with two thousand million columns. The file says at its end how long its description is.
    let plain = written(&rows, |builder| builder);
    prepared(directory.path(), &plain).0.unwrap();
    let mut lying = patched(&plain, b"schema\x15", 1, &five_bytes(i32::MAX as u32));
    let end = lying.len() - 8;
    let length = u32::from_le_bytes(*lying[end..].first_chunk().unwrap()) + 4;
    lying[end..end + 4].copy_from_slice(&length.to_le_bytes());
    check("columns", &lying, 20 * MIB, "its description of itself is damaged");
    // Any length that is not there.
    for length in [1 << 20, i32::MAX as u32, u32::MAX] {
        let mut lying = plain.clone();
        let end = lying.len() - 8;
        lying[end..end + 4].copy_from_slice(&u32::to_le_bytes(length));
        check("a description", &lying, 20 * MIB, "a.parquet");
    }
}
