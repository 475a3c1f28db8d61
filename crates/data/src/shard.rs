//! A file of tokens: 32 bytes of header, then little-endian numbers. It is read piece by piece, never mapped: a file that is
//! truncated meanwhile is then an error and not a signal.
//!
//! | bytes  | content                              |
//! |--------|--------------------------------------|
//! | 0..8   | `HADALTOK`                           |
//! | 8..12  | version, 1                           |
//! | 12..16 | bytes per token, 2 or 4              |
//! | 16..24 | number of tokens                     |
//! | 24..32 | zero                                 |

use super::error::DataError;
use hadal_files::{Action, WholeFile, file_error};
use std::fs::File;
use std::io::{self, Seek};
use std::ops::Range;
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"HADALTOK";
const VERSION: u32 = 1;
const HEADER: usize = 32;

/// How many bytes a token takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    Two = 2,
    Four = 4,
}

impl Width {
    /// The smallest one that holds every token of a vocabulary.
    pub(super) fn of(vocab_size: usize) -> Self {
        if vocab_size <= 1 << 16 { Self::Two } else { Self::Four }
    }
}

fn header(width: Width, tokens: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&(width as u32).to_le_bytes());
    header[16..24].copy_from_slice(&tokens.to_le_bytes());
    header
}

fn little_endian<const N: usize>(tokens: &[u32], convert: impl Fn(u32) -> [u8; N]) -> Vec<u8> {
    let mut bytes = vec![0; N * tokens.len()];
    for (bytes, token) in bytes.as_chunks_mut::<N>().0.iter_mut().zip(tokens) {
        *bytes = convert(*token);
    }
    bytes
}

/// Writes a shard under another name until it is whole.
pub(super) struct ShardWriter {
    file: WholeFile,
    width: Width,
    tokens: u64,
}

impl ShardWriter {
    /// Begins a shard.
    pub(super) fn create(path: &Path, width: Width) -> Result<Self, DataError> {
        let mut file = WholeFile::create(path)?;
        file.put(&header(width, 0))?;
        Ok(Self { file, width, tokens: 0 })
    }

    /// How many tokens were written.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Appends tokens, which must be below the vocabulary that the width was chosen for.
    pub(super) fn write(&mut self, tokens: &[u32]) -> Result<(), DataError> {
        let bytes = match self.width {
            Width::Two => little_endian(tokens, |token| (token as u16).to_le_bytes()),
            Width::Four => little_endian(tokens, u32::to_le_bytes),
        };
        self.file.put(&bytes)?;
        self.tokens += tokens.len() as u64;
        Ok(())
    }

    /// Completes the header, waits for the disk, and gives the shard its name.
    pub(super) fn finish(mut self) -> Result<(), DataError> {
        let header = header(self.width, self.tokens);
        self.file.rewind().map_err(file_error(Action::Write, self.file.place()))?;
        self.file.put(&header)?;
        Ok(self.file.finish()?)
    }
}

/// An open shard.
#[derive(Debug)]
pub struct Shard {
    path: PathBuf,
    file: File,
    width: Width,
    tokens: u64,
}

impl Shard {
    /// Opens a shard and checks its header against its length.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let damaged = |reason: String| DataError::Damaged { path: path.into(), reason };
        let file = hadal_files::open(path)?;
        let length = file.metadata().map_err(file_error(Action::Read, path))?.len();
        let Some(body) = length.checked_sub(HEADER as u64) else {
            return Err(damaged(format!("it has {length} bytes, fewer than its header")));
        };
        let mut header = [0; HEADER];
        read_at(&file, &mut header, 0).map_err(file_error(Action::Read, path))?;
        if !header.starts_with(MAGIC) {
            return Err(damaged("it does not begin like a token shard".into()));
        }
        let number = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        if number(8) != VERSION {
            let found = number(8);
            return Err(damaged(format!("it has version {found}, but this hadal reads {VERSION}")));
        }
        let width = match number(12) {
            2 => Width::Two,
            4 => Width::Four,
            other => return Err(damaged(format!("it says that a token takes {other} bytes"))),
        };
        let tokens = u64::from(number(16)) | (u64::from(number(20)) << 32);
        if tokens.checked_mul(width as u64) != Some(body) {
            return Err(damaged(format!(
                "its header promises {tokens} tokens, but {body} bytes follow"
            )));
        }
        Ok(Self { path: path.into(), file, width, tokens })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many bytes a token takes in the file.
    pub fn width(&self) -> usize {
        self.width as usize
    }

    /// How many tokens there are.
    pub fn len(&self) -> u64 {
        self.tokens
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tokens == 0
    }

    /// Some of the tokens, as far as they exist.
    pub fn tokens(&self, range: Range<u64>) -> Result<Vec<u32>, DataError> {
        let end = range.end.min(self.tokens);
        let start = range.start.min(end);
        let width = self.width as u64;
        let mut bytes = vec![0; ((end - start) * width) as usize];
        self.read_at(&mut bytes, HEADER as u64 + start * width)?;
        let two = |token: &[u8; 2]| u32::from(u16::from_le_bytes(*token));
        Ok(match self.width {
            Width::Two => bytes.as_chunks().0.iter().map(two).collect(),
            Width::Four => {
                bytes.as_chunks().0.iter().map(|token| u32::from_le_bytes(*token)).collect()
            }
        })
    }

    /// The blake3 hash of the open file: of what is read, whatever has its name by now.
    pub(super) fn hash(&self) -> Result<String, DataError> {
        const PIECE: u64 = 1 << 20;
        let length = HEADER as u64 + self.tokens * self.width as u64;
        let mut hasher = blake3::Hasher::new();
        let mut piece = Vec::new();
        for at in (0..length).step_by(PIECE as usize) {
            piece.resize(PIECE.min(length - at) as usize, 0);
            self.read_at(&mut piece, at)?;
            hasher.update(&piece);
        }
        Ok(hasher.finalize().to_string())
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> Result<(), DataError> {
        read_at(&self.file, bytes, at).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => DataError::Damaged {
                path: self.path.clone(),
                reason: "it became shorter while it was read".into(),
            },
            _ => file_error(Action::Read, &self.path)(error).into(),
        })
    }
}

/// Reads from a place in a file, wherever others read it at the same time.
#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

#[cfg(windows)]
fn read_at(file: &File, mut bytes: &mut [u8], mut at: u64) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !bytes.is_empty() {
        match file.seek_read(bytes, at)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                bytes = &mut bytes[count..];
                at += count as u64;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tempfile::tempdir;

    fn write(path: &Path, vocab_size: usize, tokens: &[u32]) {
        let mut writer = ShardWriter::create(path, Width::of(vocab_size)).unwrap();
        writer.write(tokens).unwrap();
        writer.finish().unwrap();
    }

    #[test]
    fn tokens_take_two_bytes_as_long_as_the_vocabulary_allows() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("a.bin");
        for (vocab_size, width) in [(257, 2), (65_536, 2), (65_537, 4), (200_000, 4)] {
            let last = vocab_size as u32 - 1;
            write(&path, vocab_size, &[0, 1, last, 7]);
            let shard = Shard::open(&path).unwrap();
            assert_eq!((shard.width(), shard.len()), (width, 4));
            assert_eq!(fs::metadata(&path).unwrap().len(), 32 + 4 * width as u64);
            assert_eq!(shard.tokens(0..4).unwrap(), [0, 1, last, 7]);
            assert_eq!(shard.tokens(1..3).unwrap(), [1, last]);
            assert_eq!(shard.tokens(3..9).unwrap(), [7]);
            assert!(shard.tokens(8..9).unwrap().is_empty());
        }
    }

    #[test]
    fn a_shard_appears_only_when_it_is_whole() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("a.bin");
        let mut writer = ShardWriter::create(&path, Width::Two).unwrap();
        writer.write(&[1, 2, 3]).unwrap();
        assert!(!path.exists());
        drop(writer);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_shard_that_is_truncated_while_it_is_open_is_an_error() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("a.bin");
        write(&path, 257, &(0..5000).map(|i| i % 257).collect::<Vec<_>>());
        let shard = Shard::open(&path).unwrap();
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
        assert_eq!(shard.tokens(0..2).unwrap(), [0, 1]);
        for error in [shard.tokens(4990..5000).unwrap_err(), shard.hash().unwrap_err()] {
            let message = error.to_string();
            assert!(message.contains("a.bin is damaged: it became shorter"), "{message}");
        }
    }

    #[test]
    fn damage_to_the_header_or_the_length_is_named() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("a.bin");
        write(&path, 257, &[1, 2, 3]);
        let good = fs::read(&path).unwrap();
        let message = |content: &[u8]| {
            fs::write(&path, content).unwrap();
            let message = Shard::open(&path).unwrap_err().to_string();
            assert!(message.contains("a.bin is damaged: "), "{message}");
            message
        };
        assert!(message(&good[..37]).contains("3 tokens, but 5 bytes"));
        assert!(message(&good[..10]).contains("10 bytes"));
        assert!(message(&[]).contains("0 bytes"));
        for byte in 0..24 {
            let mut bad = good.clone();
            bad[byte] ^= 0x40;
            message(&bad);
        }
    }
}
