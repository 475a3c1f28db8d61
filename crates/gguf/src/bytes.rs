//! Takes bytes off a slice, never more than there are.

use crate::error::Fault;

/// The rest of a file.
pub(crate) struct Bytes<'a> {
    rest: &'a [u8],
}

impl<'a> Bytes<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    /// How many bytes are left.
    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    /// Refuses a count of items of at least `size` bytes each if the rest is too short for them.
    pub(crate) fn expect(&self, count: u64, size: usize) -> Result<usize, Fault> {
        let needed = count.saturating_mul(size as u64);
        match usize::try_from(needed) {
            Ok(needed) if needed <= self.rest.len() => Ok(needed),
            _ => Err(Fault::Ends { needed, left: self.rest.len() as u64 }),
        }
    }

    /// The next `count` items of `size` bytes.
    pub(crate) fn take(&mut self, count: u64, size: usize) -> Result<&'a [u8], Fault> {
        let (taken, rest) = self.rest.split_at(self.expect(count, size)?);
        self.rest = rest;
        Ok(taken)
    }

    /// A number.
    pub(crate) fn number<const N: usize, T>(
        &mut self,
        convert: fn([u8; N]) -> T,
    ) -> Result<T, Fault> {
        match self.rest.split_first_chunk() {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(convert(*taken))
            }
            None => Err(Fault::Ends { needed: N as u64, left: self.rest.len() as u64 }),
        }
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Fault> {
        self.number(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Fault> {
        self.number(u64::from_le_bytes)
    }

    /// Its length, then UTF-8.
    pub(crate) fn string(&mut self) -> Result<String, Fault> {
        let length = self.u64()?;
        let bytes = self.take(length, 1)?;
        str::from_utf8(bytes).map(String::from).map_err(|_| Fault::Text)
    }
}
