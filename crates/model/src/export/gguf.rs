//! A file that llama.cpp loads.

use super::names::gguf;
use super::source::Source;
use super::target::Architecture;
use super::vocabulary::Tokens;
use super::{ExportError, ExportType, Exported, rope};
use crate::model_files::Place;
use hadal_gguf::{Fault, Gguf, Metadata, TensorInfo, TensorType, Writer};
use std::path::Path;

/// What files with quantised tensors state about the blocks' layout.
const QUANTIZATION_VERSION: u32 = 2;
/// What llama.cpp divides rotary frequencies by.
const DIVISORS: &str = "rope_freqs.weight";
const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

pub(super) fn write(
    source: &Source,
    out: &Path,
    kind: ExportType,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Exported, ExportError> {
    let architecture = Architecture::of(&source.config)?;
    let mut metadata = metadata(source, architecture, kind);
    vocabulary(source, &mut metadata)?;

    let divisors = rope::divisors(&source.config);
    let mut tensors = Vec::new();
    if let Some(divisors) = &divisors {
        tensors.push(describe(DIVISORS, &[divisors.len()], TensorType::F32)?);
    }
    let mut unpacked = Vec::new();
    for Place { ours, shape, .. } in &source.places {
        let info = describe(&gguf(ours), shape, tensor_type(kind))?;
        if shape.len() > 1 && info.kind() != tensor_type(kind) {
            unpacked.push(info.name().to_owned());
        }
        tensors.push(info);
    }
    let mut notes = Vec::new();
    if !unpacked.is_empty() {
        notes.push(format!(
            "{} tensors have rows that are not multiples of 32 and are stored as F16: {}",
            unpacked.len(),
            unpacked.join(", ")
        ));
    }
    let sizes: Vec<u64> = tensors.iter().map(|info| info.byte_length() as u64).collect();
    let all = sizes.iter().sum();
    // Tensors that do not come from the model come first.
    let (made, stored) = sizes.split_at(sizes.len() - source.places.len());
    let mut done: u64 = made.iter().sum();
    let verification = source.verification();
    let mut writer = Writer::create(out, &metadata, tensors)?;
    if let Some(divisors) = &divisors {
        writer.rows(DIVISORS, divisors)?;
    }
    for (place, bytes) in source.places.iter().zip(stored) {
        let values = source.folded(place)?;
        let name = gguf(&place.ours);
        if rotated(&place.ours, architecture) {
            let rows = interleaved(&values, &place.shape, source.config.head_dim);
            writer.rows(&name, &rows)?;
        } else {
            writer.rows(&name, &values)?;
        }
        done += bytes;
        progress(done, all);
    }
    verification.finish()?;
    writer.finish()?;
    Ok(Exported { architecture: architecture.name().into(), files: vec![out.into()], notes })
}

/// The tokenizer: that of a GGUF file unchanged, any other translated.
fn vocabulary(source: &Source, metadata: &mut Metadata) -> Result<(), ExportError> {
    if source.is_gguf() {
        let file = Gguf::open(&source.path)?;
        for (key, value) in file.metadata().iter().filter(|(key, _)| key.starts_with("tokenizer."))
        {
            metadata.set(key, value.clone());
        }
        return Ok(());
    }
    Tokens::of(source)?.write(source, metadata);
    if let Some(template) = &source.chat_template {
        metadata.set(CHAT_TEMPLATE, template.as_str());
    }
    Ok(())
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

/// Whether llama.cpp rotates neighbours where we rotate halves. It does so only for Llama.
fn rotated(ours: &str, architecture: Architecture) -> bool {
    let turned = [".attn.q.weight", ".attn.k.weight", ".attn.q.bias", ".attn.k.bias"];
    architecture == Architecture::Llama && turned.iter().any(|part| ours.ends_with(part))
}

/// The rows of each head in the order 0, h/2, 1, h/2 + 1, ..: the two rows that a rotation mixes become
/// neighbours.
fn interleaved(values: &[f32], shape: &[usize], head_dim: usize) -> Vec<f32> {
    // The rows of a bias are single numbers.
    let width = shape.get(1).copied().unwrap_or(1);
    let half = head_dim / 2;
    let row = |index: usize| &values[index * width..(index + 1) * width];
    let heads = values.len() / width / head_dim;
    (0..heads)
        .flat_map(|head| (0..head_dim).map(move |i| head * head_dim + i % 2 * half + i / 2))
        .flat_map(|index| row(index).iter().copied())
        .collect()
}

fn metadata(source: &Source, architecture: Architecture, kind: ExportType) -> Metadata {
    let (config, architecture) = (&source.config, architecture.name());
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", architecture);
    metadata.set("general.type", "model");
    if let Some(name) = source.name() {
        metadata.set("general.name", name.as_str());
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
        ("vocab_size", config.vocab_size),
    ] {
        // The config's bounds are far below this.
        metadata.set(&format!("{architecture}.{key}"), value as u32);
    }
    let epsilon = format!("{architecture}.attention.layer_norm_rms_epsilon");
    metadata.set(&epsilon, config.norm_eps as f32);
    rope::metadata(config, architecture, &mut metadata);
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
        assert_eq!(interleaved(&rows, &[8], 4), moved);
    }

    #[test]
    fn only_rows_of_whole_blocks_are_packed() {
        let kind = |shape: &[usize]| describe("x", shape, TensorType::Q8_0).unwrap().kind();
        assert_eq!(kind(&[3, 64]), TensorType::Q8_0);
        assert_eq!(kind(&[64, 3]), TensorType::F16);
        assert_eq!(kind(&[64]), TensorType::F32);
    }
}
