//! Opening text files, compressed or not, and knowing how far they have been read.

use super::error::DataError;
use flate2::bufread::MultiGzDecoder;
use hadal_files::{Action, file_error};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a file is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstandard,
}

const BUFFER: usize = 256 << 10;

/// What some editors put before a text to say that it is UTF-8; it is not part of the text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Opens a file for reading its decompressed content. `consumed` counts bytes of the file itself.
pub(super) fn open(
    path: &Path,
    compression: Compression,
    consumed: &Arc<AtomicU64>,
) -> Result<Box<dyn BufRead + Send>, DataError> {
    let read = || file_error(Action::Read, path);
    let file = hadal_files::open(path)?;
    let file = BufReader::with_capacity(BUFFER, Counted { file, count: Arc::clone(consumed) });
    let mut reader: Box<dyn BufRead + Send> = match compression {
        Compression::None => Box::new(file),
        // Files made of several compressed ones are common: `cat a.gz b.gz > c.gz`.
        Compression::Gzip => Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(file))),
        Compression::Zstandard => {
            let decoder = zstd::stream::read::Decoder::with_buffer(file).map_err(read())?;
            Box::new(BufReader::with_capacity(BUFFER, decoder))
        }
    };
    if reader.fill_buf().map_err(read())?.starts_with(BYTE_ORDER_MARK) {
        reader.consume(BYTE_ORDER_MARK.len());
    }
    Ok(reader)
}

struct Counted {
    file: File,
    count: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.count.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}
