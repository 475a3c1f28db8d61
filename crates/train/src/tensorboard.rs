//! Curves as TensorBoard event files, written by hand: two small formats need no dependency.
//!
//! A file is a row of TFRecords, `length: u64 | masked crc32c(length) | data | masked crc32c(data)`,
//! all little-endian. Each record is an `Event` in protobuf encoding, of which this much is used:
//! ```text
//! Event   { 1: wall_time double, 2: step int64, 3: file_version string, 5: summary Summary }
//! Summary { 1: value repeated { 1: tag string, 2: simple_value float } }
//! ```
//! TensorBoard looks for files whose name contains `tfevents`, by convention
//! `events.out.tfevents.<seconds since 1970>.<writer>`, and shows each directory as a run.

use super::lines::read_to;
use hadal_files::{Action, FileError, file_error, point};
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Marks the format; TensorBoard reads it from the first event.
const FILE_VERSION: &str = "brain.Event:2";

/// Bytes of a record before its data (length and checksum) and after it (checksum).
const HEADER: usize = 12;
const FOOTER: usize = 4;

/// Appends scalars to one event file.
#[derive(Debug)]
pub(crate) struct EventWriter {
    path: PathBuf,
    file: BufWriter<File>,
}

impl EventWriter {
    /// Begins a new file, in place of what the path held.
    pub(crate) fn create(path: &Path) -> Result<Self, FileError> {
        point(Action::Write, path)?;
        let file = File::create(path).map_err(file_error(Action::Write, path))?;
        let mut writer = Self { path: path.into(), file: BufWriter::new(file) };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let mut event = Message::default();
        event.double(1, now);
        event.bytes(3, FILE_VERSION.as_bytes());
        writer.record(&event.0)?;
        // The file is valid from its first moment: TensorBoard may be watching, and a run may die.
        writer.flush()?;
        Ok(writer)
    }

    /// Continues a file of which this many bytes count. Readers stop at a record that is not whole, so what follows
    /// the last whole one is cut off; where there is none, a new file begins. A warning says what was lost.
    pub(crate) fn append(path: &Path, length: u64) -> Result<(Self, Option<String>), FileError> {
        let (contents, _) = read_to(path, length)?;
        let whole = whole_records(&contents);
        let warning = ((whole as u64) < length).then(|| {
            format!("{} is not whole: {whole} of {length} bytes can be used", path.display())
        });
        if whole == 0 {
            return Ok((Self::create(path)?, warning));
        }
        let write = file_error(Action::Write, path);
        point(Action::Write, path)?;
        let file = OpenOptions::new().append(true).open(path).map_err(&write)?;
        file.set_len(whole as u64).map_err(&write)?;
        Ok((Self { path: path.into(), file: BufWriter::new(file) }, warning))
    }

    /// One point of the curve `tag`, at a time in seconds since 1970. Buffered: see
    /// [`flush`](Self::flush).
    pub(crate) fn scalar(
        &mut self,
        tag: &str,
        step: u64,
        value: f32,
        wall_time: f64,
    ) -> Result<(), FileError> {
        let mut point = Message::default();
        point.bytes(1, tag.as_bytes());
        point.float(2, value);
        let mut summary = Message::default();
        summary.bytes(1, &point.0);
        let mut event = Message::default();
        event.double(1, wall_time);
        event.varint(2, step);
        event.bytes(5, &summary.0);
        self.record(&event.0)
    }

    /// Hands what is buffered to the operating system.
    pub(crate) fn flush(&mut self) -> Result<(), FileError> {
        point(Action::Write, &self.path)?;
        self.file.flush().map_err(file_error(Action::Write, &self.path))
    }

    /// Waits for the disk, and says how long the file is.
    pub(crate) fn sync(&mut self) -> Result<u64, FileError> {
        self.flush()?;
        let file = self.file.get_ref();
        let length = file.sync_all().and_then(|()| file.metadata());
        Ok(length.map_err(file_error(Action::Write, &self.path))?.len())
    }

    fn record(&mut self, data: &[u8]) -> Result<(), FileError> {
        let length = (data.len() as u64).to_le_bytes();
        let mut record = Vec::with_capacity(HEADER + data.len() + FOOTER);
        record.extend(length);
        record.extend(masked_crc32c(&length).to_le_bytes());
        record.extend(data);
        record.extend(masked_crc32c(data).to_le_bytes());
        self.file.write_all(&record).map_err(file_error(Action::Write, &self.path))
    }
}

/// How many bytes at the beginning are whole records with the right checksums.
fn whole_records(contents: &[u8]) -> usize {
    let mut end = 0;
    while let Some(size) = record_size(&contents[end..]) {
        end += size;
    }
    end
}

/// The size of the record at the beginning, if it is whole.
fn record_size(bytes: &[u8]) -> Option<usize> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let (length_checksum, rest) = rest.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*length_checksum) != masked_crc32c(length) {
        return None;
    }
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (data, rest) = rest.split_at_checked(length)?;
    let (checksum, _) = rest.split_first_chunk::<4>()?;
    (u32::from_le_bytes(*checksum) == masked_crc32c(data)).then_some(HEADER + length + FOOTER)
}

/// A protobuf message under construction: each field is its number and wire type, then its value.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn key(&mut self, field: u64, wire_type: u64) {
        self.raw_varint((field << 3) | wire_type);
    }

    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn varint(&mut self, field: u64, value: u64) {
        self.key(field, 0);
        self.raw_varint(value);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, value: &[u8]) {
        self.key(field, 2);
        self.raw_varint(value.len() as u64);
        self.0.extend(value);
    }

    fn float(&mut self, field: u64, value: f32) {
        self.key(field, 5);
        self.0.extend(value.to_le_bytes());
    }
}

/// TFRecord's checksum: rotated and shifted, so that a checksum of data that holds checksums stays
/// as good as any.
fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), a byte at a time.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, byte| CRC_TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8))
}

/// What each byte does to the checksum.
static CRC_TABLE: [u32; 256] = crc_table();

const fn crc_table() -> [u32; 256] {
    const REVERSED_POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ REVERSED_POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests;
