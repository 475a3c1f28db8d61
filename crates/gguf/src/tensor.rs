//! Tensors: their descriptions in a file, and their numbers.

use crate::dequantise::decoder;
use crate::error::{Fault, GgufError};
use crate::types::TensorType;
use rayon::prelude::*;
use std::ops::Range;
use std::path::Path;

/// ggml's limit.
pub(crate) const MAX_RANK: usize = 4;
/// How many elements a thread takes at a time: whole blocks of every type, and enough work to be worth it.
const PIECE: usize = 1 << 15;

/// A tensor's name, dimensions and type; the numbers of rows, elements and bytes are known to fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    name: String,
    dimensions: Vec<usize>,
    kind: TensorType,
}

impl TensorInfo {
    /// Describes a tensor, or says why it cannot exist.
    ///
    /// # Shapes
    /// `dimensions` in ggml's order: the length of a row first.
    ///
    /// ```
    /// use hadal_gguf::{TensorInfo, TensorType};
    ///
    /// let info = TensorInfo::new("blk.0.attn_q.weight", &[64, 3], TensorType::Q8_0)?;
    /// assert_eq!((info.row_length(), info.rows()), (64, 3));
    /// assert_eq!(info.byte_length(), 3 * 2 * 34); // two blocks of 32 numbers in each row
    /// // Rows of 50 are no multiple of a block.
    /// assert!(TensorInfo::new("x", &[50, 3], TensorType::Q8_0).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(
        name: impl Into<String>,
        dimensions: &[usize],
        kind: TensorType,
    ) -> Result<Self, Fault> {
        if dimensions.len() > MAX_RANK {
            return Err(Fault::Rank(dimensions.len() as u64));
        }
        if let Some(index) = dimensions.iter().position(|&size| size == 0) {
            return Err(Fault::Empty(index));
        }
        let elements =
            dimensions.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        let elements = elements.ok_or(Fault::Huge)?;
        let info = Self { name: name.into(), dimensions: dimensions.into(), kind };
        if !info.row_length().is_multiple_of(kind.block_elements()) {
            return Err(Fault::Row { row: info.row_length(), kind });
        }
        let blocks = elements / kind.block_elements();
        // It must fit as f32 as well, or it could never be dequantised.
        match (blocks.checked_mul(kind.block_bytes()), elements.checked_mul(size_of::<f32>())) {
            (Some(_), Some(_)) => Ok(info),
            _ => Err(Fault::Huge),
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The dimensions, the length of a row first.
    pub fn dimensions(&self) -> &[usize] {
        &self.dimensions
    }

    /// How the numbers are stored.
    pub fn kind(&self) -> TensorType {
        self.kind
    }

    /// How many elements a row has.
    pub fn row_length(&self) -> usize {
        self.dimensions.first().copied().unwrap_or(1)
    }

    /// How many rows there are, over all other dimensions.
    pub fn rows(&self) -> usize {
        self.dimensions.iter().skip(1).product()
    }

    /// How many elements there are.
    pub fn elements(&self) -> usize {
        self.rows() * self.row_length()
    }

    /// How many bytes a row takes.
    pub fn row_bytes(&self) -> usize {
        self.row_length() / self.kind.block_elements() * self.kind.block_bytes()
    }

    /// How many bytes the tensor takes.
    pub fn byte_length(&self) -> usize {
        self.rows() * self.row_bytes()
    }
}

/// A tensor of an open file.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    path: &'a Path,
    info: &'a TensorInfo,
    bytes: &'a [u8],
}

impl<'a> Tensor<'a> {
    pub(crate) fn new(path: &'a Path, info: &'a TensorInfo, bytes: &'a [u8]) -> Self {
        Self { path, info, bytes }
    }

    /// Name, dimensions and type.
    pub fn info(&self) -> &'a TensorInfo {
        self.info
    }

    /// The bytes as they are in the file.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// All elements, row after row.
    pub fn to_f32(&self) -> Result<Vec<f32>, GgufError> {
        let mut values = vec![0.0; self.info.elements()];
        self.dequantise_rows(0..self.info.rows(), &mut values)?;
        Ok(values)
    }

    /// The elements of some rows.
    ///
    /// # Shapes
    /// `out` has as many rows as the range, each of `row_length`.
    pub fn dequantise_rows(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), GgufError> {
        let (path, name) = (|| self.path.to_owned(), || self.info.name.clone());
        let kind = self.info.kind;
        let decode = decoder(kind).ok_or_else(|| GgufError::Unreadable {
            path: path(),
            name: name(),
            kind,
        })?;
        if rows.start > rows.end || rows.end > self.info.rows() {
            let total = self.info.rows();
            return Err(GgufError::Rows { path: path(), name: name(), rows: total, asked: rows });
        }
        let expected = rows.len() * self.info.row_length();
        if out.len() != expected {
            let found = out.len();
            return Err(GgufError::Buffer { path: path(), name: name(), expected, found });
        }
        let row_bytes = self.info.row_bytes();
        let bytes = &self.bytes[rows.start * row_bytes..rows.end * row_bytes];
        if out.len() <= PIECE {
            decode(bytes, out);
        } else {
            let piece_bytes = PIECE / kind.block_elements() * kind.block_bytes();
            out.par_chunks_mut(PIECE)
                .zip(bytes.par_chunks(piece_bytes))
                .for_each(|(out, bytes)| decode(bytes, out));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_that_cannot_be_is_refused() {
        let check = |dimensions: &[usize], kind| TensorInfo::new("x", dimensions, kind).map(drop);
        let (f32, q8, i8) = (TensorType::F32, TensorType::Q8_0, TensorType::I8);
        assert_eq!(check(&[1, 2, 3, 4], f32), Ok(()));
        assert_eq!(check(&[], f32), Ok(()));
        assert_eq!(check(&[1; 5], f32), Err(Fault::Rank(5)));
        assert_eq!(check(&[4, 0], f32), Err(Fault::Empty(1)));
        assert_eq!(check(&[usize::MAX, 2], i8), Err(Fault::Huge));
        assert_eq!(check(&[usize::MAX / 2], i8), Err(Fault::Huge));
        assert_eq!(check(&[48, 2], q8), Err(Fault::Row { row: 48, kind: q8 }));
    }

    #[test]
    fn sizes_follow_from_dimensions_and_type() {
        let info = TensorInfo::new("x", &[64, 3, 2], TensorType::Q8_0).unwrap();
        assert_eq!((info.row_length(), info.rows(), info.elements()), (64, 6, 384));
        assert_eq!((info.row_bytes(), info.byte_length()), (68, 408));
        let scalar = TensorInfo::new("x", &[], TensorType::F32).unwrap();
        assert_eq!((scalar.rows(), scalar.byte_length()), (1, 4));
    }

    #[test]
    fn a_piece_is_whole_blocks_of_every_type() {
        for kind in TensorType::ALL {
            assert_eq!(PIECE % kind.block_elements(), 0, "{kind}");
        }
    }
}
