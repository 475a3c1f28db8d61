//! A file that llama.cpp loads.

use super::names::gguf;
use super::vocabulary::Vocabulary;
use super::{ExportError, ExportType, Exported, Family, Model};
use hadal_gguf::{Fault, Metadata, TensorInfo, TensorType, Writer};
use std::path::Path;

/// What files with quantised tensors say about the blocks' layout.
const QUANTIZATION_VERSION: u32 = 2;

pub(super) fn write(
    model: &Model,
    directory: &Path,
    out: &Path,
    kind: ExportType,
) -> Result<Exported, ExportError> {
    let mut notes = Vec::new();
    let architecture = match model.family {
        Family::Llama => "llama",
        Family::Qwen3 => "qwen3",
    };
    let mut metadata = metadata(model, architecture, kind, directory);
    let vocabulary = Vocabulary::of(model, &directory.join("tokenizer.json"))?;
    vocabulary.write(model, &mut metadata);
    notes.extend(vocabulary.notes);

    let mut tensors = Vec::new();
    let mut unpacked = Vec::new();
    for (name, shape) in &model.shapes {
        let info = describe(&gguf(name), shape, tensor_type(kind))?;
        if shape.len() > 1 && info.kind() != tensor_type(kind) {
            unpacked.push(info.name().to_owned());
        }
        tensors.push(info);
    }
    if !unpacked.is_empty() {
        notes.push(format!(
            "{} tensors have rows that are not multiples of 32 and are stored as F16: {}",
            unpacked.len(),
            unpacked.join(", ")
        ));
    }
    let names: Vec<String> = tensors.iter().map(|info| info.name().to_owned()).collect();
    let mut writer = Writer::create(out, &metadata, tensors)?;
    for ((ours, shape), name) in model.shapes.iter().zip(&names) {
        let values = model.weights.get(ours).map(Vec::as_slice).unwrap_or_default();
        match rotated(ours, model.family) {
            true => writer.rows(name, &interleaved(values, shape, model.config.head_dim))?,
            false => writer.rows(name, values)?,
        }
    }
    writer.finish()?;
    Ok(Exported { architecture: architecture.into(), files: vec![out.into()], notes })
}

fn tensor_type(kind: ExportType) -> TensorType {
    match kind {
        ExportType::F32 => TensorType::F32,
        ExportType::F16 => TensorType::F16,
        ExportType::Bf16 => TensorType::BF16,
        ExportType::Q8_0 => TensorType::Q8_0,
    }
}

/// Vectors stay f32, as llama.cpp wants them; rows that cannot be packed become f16.
fn describe(name: &str, shape: &[usize], kind: TensorType) -> Result<TensorInfo, ExportError> {
    let dimensions: Vec<usize> = shape.iter().rev().copied().collect();
    let kind = if shape.len() > 1 { kind } else { TensorType::F32 };
    match TensorInfo::new(name, &dimensions, kind) {
        Err(Fault::Row { .. }) => TensorInfo::new(name, &dimensions, TensorType::F16),
        other => other,
    }
    .map_err(|reason| ExportError::Shape { name: name.into(), reason })
}

/// Whether llama.cpp rotates neighbours where we rotate halves. It does so for Llama alone.
fn rotated(ours: &str, family: Family) -> bool {
    family == Family::Llama
        && (ours.ends_with(".attn.q.weight") || ours.ends_with(".attn.k.weight"))
}

/// The rows of each head in the order 0, h/2, 1, h/2 + 1, ..: the two rows that a rotation mixes become
/// neighbours.
fn interleaved(values: &[f32], shape: &[usize], head_dim: usize) -> Vec<f32> {
    let width = shape.last().copied().unwrap_or(1);
    let half = head_dim / 2;
    let row = |index: usize| &values[index * width..(index + 1) * width];
    let heads = values.len() / width / head_dim;
    (0..heads)
        .flat_map(|head| (0..head_dim).map(move |i| head * head_dim + i % 2 * half + i / 2))
        .flat_map(|index| row(index).iter().copied())
        .collect()
}

fn metadata(model: &Model, architecture: &str, kind: ExportType, directory: &Path) -> Metadata {
    let config = &model.config;
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", architecture);
    metadata.set("general.type", "model");
    if let Some(name) = std::path::absolute(directory).ok().as_deref().and_then(Path::file_name) {
        metadata.set("general.name", name.to_string_lossy().as_ref());
    }
    // llama.cpp's numbers for what most tensors are.
    let file_type: u32 = match kind {
        ExportType::F32 => 0,
        ExportType::F16 => 1,
        ExportType::Q8_0 => 7,
        ExportType::Bf16 => 32,
    };
    metadata.set("general.file_type", file_type);
    metadata.set("general.quantization_version", QUANTIZATION_VERSION);
    for (key, value) in [
        ("block_count", config.n_layers),
        ("context_length", config.max_seq_len),
        ("embedding_length", config.d_model),
        ("feed_forward_length", config.d_ff),
        ("attention.head_count", config.n_heads),
        ("attention.head_count_kv", config.n_kv_heads),
        ("attention.key_length", config.head_dim),
        ("attention.value_length", config.head_dim),
        ("rope.dimension_count", config.head_dim),
        ("vocab_size", config.vocab_size),
    ] {
        // The config's bounds are far below this.
        metadata.set(&format!("{architecture}.{key}"), value as u32);
    }
    let epsilon = format!("{architecture}.attention.layer_norm_rms_epsilon");
    metadata.set(&epsilon, config.norm_eps as f32);
    metadata.set(&format!("{architecture}.rope.freq_base"), config.rope_theta as f32);
    metadata
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_rotate_together_become_neighbours() {
        // Two heads of four rows, each of one number that names it.
        let rows: Vec<f32> = (0..8u8).map(f32::from).collect();
        let moved = interleaved(&rows, &[8, 1], 4);
        assert_eq!(moved, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    }

    #[test]
    fn only_rows_of_whole_blocks_are_packed() {
        let kind = |shape: &[usize]| describe("x", shape, TensorType::Q8_0).unwrap().kind();
        assert_eq!(kind(&[3, 64]), TensorType::Q8_0);
        assert_eq!(kind(&[64, 3]), TensorType::F16);
        assert_eq!(kind(&[64]), TensorType::F32);
    }
}
