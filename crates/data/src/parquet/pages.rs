//! What stands between the parquet library and a file that may be anybody's: sizes that the file claims are compared with
//! what it has, and with what a page may have, before the library asks for memory.

use super::thrift::{Kind, fields};
use ::parquet::basic::{Compression, Encoding};
use ::parquet::column::page::{Page, PageMetadata, PageReader};
use ::parquet::errors::{ParquetError, Result};
use ::parquet::file::reader::{ChunkReader, Length};
use bytes::{Buf, Bytes};
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::sync::{Arc, Mutex, MutexGuard};

/// The largest page. Usual ones have a megabyte.
pub(super) const LARGEST_PAGE: u64 = 256 << 20;
/// The longest header of a page. It may hold the smallest and the largest value.
const LONGEST_HEADER: usize = 1 << 20;
/// The most values of a page or a dictionary: the library has an entry for each of them.
const MOST_VALUES: u32 = 1 << 22;
/// The most groups of columns, each of which may be inside another.
const MOST_GROUPS: usize = 500;

fn wrong(reason: impl Into<String>) -> ParquetError {
    ParquetError::General(reason.into())
}

/// A file of which nothing is read that it does not have.
pub(super) struct Pages {
    file: File,
    length: u64,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// How the pages of the current column are packed; none while the file's own description is read.
    compression: Option<Compression>,
    /// Where the header that was read last begins, and its bytes.
    begin: u64,
    header: Vec<u8>,
}

impl Pages {
    pub(super) fn new(file: File) -> io::Result<Self> {
        Ok(Self { length: file.metadata()?.len(), file, state: Arc::default() })
    }

    /// Says how the pages that follow are packed.
    pub(super) fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.state))
    }

    /// Compares the claims of the header that ends where a page begins.
    fn check_page(&self, start: u64, length: usize) -> Result<Header> {
        let state = held(&self.state);
        if state.begin + state.header.len() as u64 != start {
            return Err(wrong("a page does not follow its header"));
        }
        let header = Header::parse(&state.header).ok_or_else(|| wrong("a page has no header"))?;
        let largest = header.unpacked.max(length as u64);
        if largest > LARGEST_PAGE {
            return Err(wrong(format!(
                "a page has {largest} bytes, but only {LARGEST_PAGE} are read at once; write it again in smaller pages"
            )));
        }
        Ok(header)
    }
}

/// Tells [`Pages`] which column is read.
pub(super) struct Handle(Arc<Mutex<State>>);

impl Handle {
    pub(super) fn column(&self, compression: Compression) {
        held(&self.0).compression = Some(compression);
    }
}

fn held(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(|held| held.into_inner())
}

/// The numbers of a page's header that matter here.
#[derive(Debug, Default, PartialEq)]
struct Header {
    unpacked: u64,
    /// How many bytes of levels come before what is packed.
    levels: u64,
    packed: bool,
}

impl Header {
    /// `None` if a field comes twice or is of another kind than it should: the library would see something else.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (mut header, mut plausible) = (Self { packed: true, ..Self::default() }, true);
        let mut seen = Vec::new();
        fields(bytes, &mut |path, kind, value| {
            let expected = match path {
                [1..=4] | [5, 1..=4] | [7, 1 | 2] | [8, 1..=6] => Kind::Integer,
                [5..=8] | [5, 5] | [8, 8] => Kind::Structure,
                [7, 3] | [8, 7] => Kind::Bool,
                // The library passes over what it does not know.
                _ => return,
            };
            plausible &= kind == expected && !seen.contains(&path.to_vec());
            seen.push(path.to_vec());
            let size = u64::try_from(value).ok();
            match path {
                [2] => header.unpacked = size.unwrap_or(u64::MAX),
                [8, 5 | 6] => {
                    header.levels = header.levels.saturating_add(size.unwrap_or(u64::MAX))
                }
                [8, 7] => header.packed = value == 1,
                _ => {}
            }
        })?;
        (plausible && seen.contains(&vec![2])).then_some(header)
    }
}

impl Length for Pages {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for Pages {
    type T = HeaderReader;

    fn get_read(&self, start: u64) -> Result<HeaderReader> {
        let inner = self.file.get_read(start)?;
        Ok(HeaderReader { inner, begin: start, read: 0, state: Arc::clone(&self.state) })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.length) {
            return Err(wrong(format!(
                "{length} bytes should follow byte {start}, but it ends before"
            )));
        }
        let compression = held(&self.state).compression;
        match compression {
            None => {
                let bytes = self.file.get_bytes(start, length)?;
                // The last eight bytes are not a description but say how long that is.
                if length > 8 {
                    check_schema(&bytes)?;
                }
                Ok(bytes)
            }
            Some(compression) => {
                let header = self.check_page(start, length)?;
                let bytes = self.file.get_bytes(start, length)?;
                // Of all codecs, this one does not stop where the header says that the page ends.
                if matches!(compression, Compression::GZIP(_)) && header.packed {
                    check_gzip(&bytes, &header)?;
                }
                Ok(bytes)
            }
        }
    }
}

/// Remembers what the library reads of a header.
pub(super) struct HeaderReader {
    inner: BufReader<File>,
    begin: u64,
    read: usize,
    state: Arc<Mutex<State>>,
}

impl Read for HeaderReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = held(&self.state);
        if state.compression.is_none() {
            return self.inner.read(buffer);
        }
        let left = LONGEST_HEADER.saturating_sub(self.read);
        if left == 0 && !buffer.is_empty() {
            return Err(io::Error::other("the header of a page is too long"));
        }
        let most = buffer.len().min(left);
        let count = self.inner.read(&mut buffer[..most])?;
        // At the end of a file the library would go on, once for each of the billions of fields that a header may claim.
        if count == 0 && !buffer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if self.read == 0 {
            state.begin = self.begin;
            state.header.clear();
        }
        state.header.extend_from_slice(&buffer[..count]);
        self.read += count;
        Ok(count)
    }
}

fn check_gzip(bytes: &Bytes, header: &Header) -> Result<()> {
    let levels = usize::try_from(header.levels).unwrap_or(usize::MAX);
    let packed = bytes.get(levels..).ok_or_else(|| wrong("a page is shorter than its levels"))?;
    let expected = header.unpacked.saturating_sub(header.levels);
    let mut content = MultiGzDecoder::new(packed).take(expected + 1);
    let found = io::copy(&mut content, &mut io::sink())?;
    // A page without values may be left unpacked.
    if found != expected && expected > 0 {
        return Err(wrong("a page unpacks to another size than its header says"));
    }
    Ok(())
}

/// Refuses a tree of columns that claims more of them than it has, or that may be too deep.
fn check_schema(metadata: &[u8]) -> Result<()> {
    let damaged = || wrong("its description of itself is damaged");
    let (mut columns, mut groups, mut plausible) = (0i64, 0, true);
    fields(metadata, &mut |path, kind, value| {
        if let [2, 0, field @ (1..=3 | 5..=9)] = path {
            plausible &= kind == Kind::Integer;
            if *field == 5 && value > 0 {
                columns = columns.saturating_add(value);
                groups += 1;
            }
        }
    })
    .ok_or_else(damaged)?;
    // A column takes at least two bytes of the description.
    if !plausible || columns > metadata.len() as i64 {
        return Err(damaged());
    }
    if groups > MOST_GROUPS {
        return Err(wrong(format!("it has {groups} groups of columns, more than {MOST_GROUPS}")));
    }
    Ok(())
}

/// Pages whose numbers of values are compared before entries are made for them.
pub(super) struct CheckedPages {
    pub(super) inner: Box<dyn PageReader>,
    /// The largest definition level of the column.
    pub(super) defined: i16,
}

impl CheckedPages {
    fn check(&self, page: &Page) -> Result<()> {
        let count = page.num_values();
        let too_many = || {
            wrong(format!("a page claims {count} values, but only {MOST_VALUES} are read at once"))
        };
        match page {
            // Each takes at least four bytes.
            Page::DictionaryPage { buf, .. }
                if count > MOST_VALUES || count as usize > buf.len() / 4 =>
            {
                Err(too_many())
            }
            Page::DictionaryPage { .. } => Ok(()),
            _ => match page.encoding() {
                Encoding::DELTA_LENGTH_BYTE_ARRAY => match lengths(page, self.defined) {
                    Some(count) if count <= u64::from(MOST_VALUES) => Ok(()),
                    _ => Err(too_many()),
                },
                Encoding::DELTA_BYTE_ARRAY => Err(wrong(
                    "its text has the encoding DELTA_BYTE_ARRAY, which is not read; write it again as PLAIN or with a \
                     dictionary",
                )),
                _ => Ok(()),
            },
        }
    }
}

/// How many lengths begin a page of texts whose lengths come first.
fn lengths(page: &Page, defined: i16) -> Option<u64> {
    let levels = match page {
        Page::DataPage { buf, def_level_encoding: Encoding::RLE, .. } if defined > 0 => {
            4 + u32::from_le_bytes(*buf.first_chunk()?) as usize
        }
        Page::DataPage { .. } if defined == 0 => 0,
        Page::DataPageV2 { def_levels_byte_len, rep_levels_byte_len, .. } => {
            *def_levels_byte_len as usize + *rep_levels_byte_len as usize
        }
        _ => return None,
    };
    let mut values = page.buffer().get(levels..)?;
    // The size of a block, its parts, and the number of values.
    let mut number = || {
        let mut number = 0u64;
        for place in 0..10 {
            let byte = values.has_remaining().then(|| values.get_u8())?;
            number |= u64::from(byte & 127).checked_shl(7 * place)?;
            if byte < 128 {
                return Some(number);
            }
        }
        None
    };
    number()?;
    number()?;
    number()
}

impl Iterator for CheckedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.inner.get_next_page()?;
        page.as_ref().map_or(Ok(()), |page| self.check(page))?;
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.inner.skip_next_page()
    }
}
