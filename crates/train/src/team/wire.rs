//! Numbers as bytes on their way between ranks.

use crate::plan::Wire;

/// Whole numbers and floats, read in the order in which they were written.
#[derive(Debug, Default)]
pub(crate) struct Letter(Vec<u8>);

impl Letter {
    pub(crate) fn new(first: u8) -> Self {
        Self(vec![first])
    }

    pub(crate) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(crate) fn word(&mut self, word: u64) {
        self.0.extend_from_slice(&word.to_le_bytes());
    }

    pub(crate) fn number(&mut self, number: f64) {
        self.word(number.to_bits());
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.word(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    pub(crate) fn floats(&mut self, values: &[f32]) {
        let start = self.0.len();
        self.0.resize(start + 4 * values.len(), 0);
        let places = self.0[start..].chunks_exact_mut(4);
        places.zip(values).for_each(|(place, value)| place.copy_from_slice(&value.to_le_bytes()));
    }

    /// Floats in the form in which gradients travel. Rounded ones must have been rounded before.
    pub(crate) fn gradient(&mut self, values: &[f32], wire: Wire) {
        if wire == Wire::F32 {
            return self.floats(values);
        }
        let start = self.0.len();
        self.0.resize(start + 2 * values.len(), 0);
        let places = self.0[start..].chunks_exact_mut(2);
        places.zip(values).for_each(|(place, value)| {
            place.copy_from_slice(&((value.to_bits() >> 16) as u16).to_le_bytes());
        });
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Reads a letter. What is not there is `None`.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(crate) fn word(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    pub(crate) fn size(&mut self) -> Option<usize> {
        usize::try_from(self.word()?).ok()
    }

    pub(crate) fn number(&mut self) -> Option<f64> {
        self.word().map(f64::from_bits)
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        let length = self.size()?;
        String::from_utf8(self.take(length)?.to_vec()).ok()
    }

    pub(crate) fn floats(&mut self, count: usize) -> Option<Vec<f32>> {
        let bytes = self.take(count.checked_mul(4)?)?;
        Some(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    pub(crate) fn gradient(&mut self, count: usize, wire: Wire) -> Option<Vec<f32>> {
        if wire == Wire::F32 {
            return self.floats(count);
        }
        let bytes = self.take(count.checked_mul(2)?)?;
        let widened = |bytes: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
        Some(bytes.as_chunks().0.iter().map(widened).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut letter = Letter::new(9);
        letter.word(u64::MAX);
        letter.number(-0.0);
        letter.text("ä");
        letter.floats(&[f32::NAN, 1e-40]);
        letter.gradient(&[1.5, -3.0], Wire::Bf16);
        let bytes = letter.into_bytes();
        let mut reader = Reader::new(&bytes);
        assert_eq!((reader.byte(), reader.word()), (Some(9), Some(u64::MAX)));
        assert_eq!(reader.number().map(f64::to_bits), Some((-0.0f64).to_bits()));
        assert_eq!(reader.text().as_deref(), Some("ä"));
        let floats = reader.floats(2).unwrap();
        assert!(floats[0].is_nan() && floats[1] == 1e-40);
        assert_eq!(reader.gradient(2, Wire::Bf16), Some(vec![1.5, -3.0]));
        assert!(reader.is_empty() && reader.word().is_none() && reader.floats(1).is_none());
        assert_eq!(Reader::new(&[255; 8]).text(), None);
    }
}
