//! `state.safetensors`, written one tensor at a time and hashed on the way: a run that fits into memory can be saved.

use crate::optim::Optimizer;
use hadal_files::{Action, FileError, WholeFile, file_error, point};
use hadal_model::{Decoder, ReadParameter};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use std::io;
use std::path::Path;

/// The format's own limit.
const LONGEST_HEADER: usize = 100_000_000;
/// Floats that are written and hashed at once.
const AT_ONCE: usize = 1 << 16;

/// Where the numbers of a tensor are.
enum Source<'a> {
    Slice(&'a [f32]),
    Parameter(ReadParameter),
}

struct Tensor<'a> {
    name: String,
    shape: &'a [usize],
    source: Source<'a>,
}

/// Writes parameters and what the optimiser remembers of them, and returns the file's blake3. The names begin with `w.`,
/// `m.`, `v.` and `o.`: values, two running means, and momentum of outer steps.
pub(super) fn write(
    decoder: &Decoder,
    optimizer: &Optimizer,
    path: &Path,
) -> Result<String, FileError> {
    let tensors = list(decoder, optimizer).map_err(file_error(Action::Write, path))?;
    let header = header(&tensors).map_err(file_error(Action::Write, path))?;
    let mut file = Hashed { file: WholeFile::create(path)?, hasher: blake3::Hasher::new() };
    file.put(&(header.len() as u64).to_le_bytes())?;
    file.put(&header)?;
    for tensor in &tensors {
        point(Action::Write, path)?;
        match &tensor.source {
            Source::Slice(values) => file.floats(values)?,
            Source::Parameter(read) => file.floats(&read())?,
        }
    }
    file.file.finish()?;
    Ok(file.hasher.finalize().to_string())
}

/// All tensors in the order of the format: by name, as all are of one type.
fn list<'a>(decoder: &Decoder, optimizer: &'a Optimizer) -> io::Result<Vec<Tensor<'a>>> {
    let mut tensors = Vec::new();
    for (name, read) in decoder.parameter_readers() {
        let slot = optimizer
            .slots()
            .get(&name)
            .ok_or_else(|| io::Error::other(format!("the optimiser does not know {name}")))?;
        let mut add = |prefix: &str, source| {
            let name = format!("{prefix}.{name}");
            tensors.push(Tensor { name, shape: &slot.shape, source });
        };
        add("w", Source::Parameter(read));
        for (prefix, mean) in [("m", &slot.first), ("o", &slot.outer), ("v", &slot.second)] {
            if !mean.is_empty() {
                add(prefix, Source::Slice(mean));
            }
        }
    }
    tensors.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(tensors)
}

/// Names, shapes and places as JSON, filled with spaces to whole words.
fn header(tensors: &[Tensor<'_>]) -> io::Result<Vec<u8>> {
    let mut end = 0;
    let infos = tensors.iter().map(|tensor| {
        let begin = end;
        end += tensor.shape.iter().product::<usize>() * size_of::<f32>();
        let shape = tensor.shape.to_vec();
        let info = TensorInfo { dtype: Dtype::F32, shape, data_offsets: (begin, end) };
        (tensor.name.clone(), info)
    });
    let metadata = Metadata::new(None, infos.collect()).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&metadata)?;
    header.resize(header.len().next_multiple_of(size_of::<u64>()), b' ');
    match header.len() <= LONGEST_HEADER {
        true => Ok(header),
        false => {
            Err(io::Error::other("the names of all tensors are longer than the format allows"))
        }
    }
}

/// A file whose hash is known when it is written.
struct Hashed {
    file: WholeFile,
    hasher: blake3::Hasher,
}

impl Hashed {
    fn put(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.hasher.update(bytes);
        self.file.put(bytes)
    }

    fn floats(&mut self, values: &[f32]) -> Result<(), FileError> {
        let mut bytes = Vec::with_capacity(AT_ONCE.min(values.len()) * size_of::<f32>());
        for some in values.chunks(AT_ONCE) {
            bytes.clear();
            bytes.extend(some.iter().flat_map(|value| value.to_le_bytes()));
            self.put(&bytes)?;
        }
        Ok(())
    }
}
