//! Everything before the tensors' bytes, checked against the file's length.

use crate::bytes::Bytes;
use crate::error::{Fault, GgufError, Place};
use crate::metadata::Metadata;
use crate::tensor::{MAX_RANK, TensorInfo};
use crate::types::TensorType;
use crate::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, decode};
use std::path::Path;

/// Key length, type and one byte.
const LEAST_ENTRY: usize = 8 + 4 + 1;
/// Name length, rank, type and offset.
const LEAST_TENSOR: usize = 8 + 4 + 4 + 8;

/// The contents of a header.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) metadata: Metadata,
    pub(crate) alignment: usize,
    /// In the order of the file, each with the place of its first byte.
    pub(crate) tensors: Vec<(TensorInfo, usize)>,
    /// Indices of tensors, sorted by name.
    pub(crate) by_name: Vec<usize>,
}

impl Header {
    pub(crate) fn parse(path: &Path, file: &[u8]) -> Result<Self, GgufError> {
        let malformed = |(place, fault)| GgufError::Malformed { path: path.into(), place, fault };
        let mut bytes = Bytes::new(file);
        match bytes.number(|magic: [u8; 4]| magic) {
            Ok(MAGIC) => {}
            _ => return Err(GgufError::NotGguf { path: path.into() }),
        }
        let version = bytes.u32().map_err(at(Place::Header)).map_err(malformed)?;
        match version {
            2 | 3 => {}
            // The magic reads the same in both byte orders, the version does not.
            _ if matches!(version.swap_bytes(), 1..=0xffff) => {
                return Err(GgufError::BigEndian { path: path.into() });
            }
            _ => return Err(GgufError::Version { path: path.into(), version }),
        }
        Self::body(version, &mut bytes, file.len()).map_err(malformed)
    }

    fn body(version: u32, bytes: &mut Bytes<'_>, length: usize) -> Result<Self, (Place, Fault)> {
        let tensor_count = bytes.u64().map_err(at(Place::Header))?;
        let entry_count = bytes.u64().map_err(at(Place::Header))?;
        let metadata = metadata(bytes, entry_count)?;
        let alignment = alignment(&metadata)?;

        bytes.expect(tensor_count, LEAST_TENSOR).map_err(at(Place::Header))?;
        let mut announced = Vec::new();
        for index in 0..tensor_count {
            let name = bytes.string().map_err(at(Place::TensorEntry(index)))?;
            let place = Place::Tensor(name.clone());
            announced.push(tensor(bytes, name).map_err(at(place))?);
        }
        let data = Data::new(length, bytes.left(), alignment);
        let mut tensors = Vec::with_capacity(announced.len());
        for (info, offset) in announced {
            match data.place(&info, offset) {
                Ok(start) => tensors.push((info, start)),
                Err(fault) => return Err((Place::Tensor(info.name().into()), fault)),
            }
        }
        refuse_overlaps(&tensors)?;
        let by_name = by_name(&tensors)?;
        Ok(Self { version, metadata, alignment, tensors, by_name })
    }
}

fn at(place: Place) -> impl FnOnce(Fault) -> (Place, Fault) {
    move |fault| (place, fault)
}

fn metadata(bytes: &mut Bytes<'_>, count: u64) -> Result<Metadata, (Place, Fault)> {
    bytes.expect(count, LEAST_ENTRY).map_err(at(Place::Header))?;
    let mut entries = Vec::new();
    for index in 0..count {
        let key = bytes.string().map_err(at(Place::Entry(index)))?;
        match decode::value(bytes) {
            Ok(value) => entries.push((key, value)),
            Err(fault) => return Err((Place::Key(key), fault)),
        }
    }
    Metadata::from_entries(entries).map_err(|key| (Place::Key(key), Fault::Duplicate))
}

/// The alignment of tensors.
pub(crate) fn alignment(metadata: &Metadata) -> Result<usize, (Place, Fault)> {
    let Some(value) = metadata.value(ALIGNMENT_KEY) else { return Ok(DEFAULT_ALIGNMENT) };
    match metadata.get::<u32>(ALIGNMENT_KEY) {
        Ok(alignment) if alignment.is_power_of_two() => Ok(alignment as usize),
        _ => Err((Place::Key(ALIGNMENT_KEY.into()), Fault::Alignment(value.describe()))),
    }
}

/// A tensor's description and its stated offset, after its name.
fn tensor(bytes: &mut Bytes<'_>, name: String) -> Result<(TensorInfo, u64), Fault> {
    let rank = bytes.u32()?;
    if rank > MAX_RANK as u32 {
        return Err(Fault::Rank(rank.into()));
    }
    let mut dimensions = Vec::with_capacity(rank as usize);
    for _ in 0..rank {
        dimensions.push(usize::try_from(bytes.u64()?).map_err(|_| Fault::Huge)?);
    }
    let id = bytes.u32()?;
    let kind = TensorType::from_id(id).ok_or(Fault::TensorType(id))?;
    let offset = bytes.u64()?;
    Ok((TensorInfo::new(name, &dimensions, kind)?, offset))
}

/// The tensors' bytes: what follows the header, from the next aligned place on.
struct Data {
    start: usize,
    length: usize,
    alignment: usize,
}

impl Data {
    fn new(file: usize, left: usize, alignment: usize) -> Self {
        let start = (file - left).checked_next_multiple_of(alignment).unwrap_or(usize::MAX);
        Self { start, length: file.saturating_sub(start), alignment }
    }

    /// The position in the file of a tensor with this offset in the data.
    fn place(&self, info: &TensorInfo, offset: u64) -> Result<usize, Fault> {
        if !offset.is_multiple_of(self.alignment as u64) {
            return Err(Fault::Misaligned { offset, alignment: self.alignment });
        }
        let left = (self.length as u64).saturating_sub(offset);
        let needed = info.byte_length() as u64;
        match usize::try_from(offset) {
            Ok(offset) if needed <= left => Ok(self.start + offset),
            _ => Err(Fault::Ends { needed, left }),
        }
    }
}

fn refuse_overlaps(tensors: &[(TensorInfo, usize)]) -> Result<(), (Place, Fault)> {
    let mut order: Vec<_> = tensors.iter().collect();
    order.sort_unstable_by_key(|(_, start)| *start);
    for pair in order.windows(2) {
        let ((first, start), (second, next)) = (pair[0], pair[1]);
        if start + first.byte_length() > *next {
            let place = Place::Tensor(second.name().into());
            return Err((place, Fault::Overlap(first.name().into())));
        }
    }
    Ok(())
}

fn by_name(tensors: &[(TensorInfo, usize)]) -> Result<Vec<usize>, (Place, Fault)> {
    let name = |index: usize| tensors[index].0.name();
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_unstable_by(|&a, &b| name(a).cmp(name(b)));
    match order.windows(2).find(|pair| name(pair[0]) == name(pair[1])) {
        Some(pair) => Err((Place::Tensor(name(pair[0]).into()), Fault::Duplicate)),
        None => Ok(order),
    }
}
