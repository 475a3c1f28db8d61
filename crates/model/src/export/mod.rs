//! Writing models for other tools: Hugging Face directories and GGUF files.
//!
//! A model can be exported if another tool computes the same: prenorm, and lns with its scales folded into the
//! gains, with SwiGLU. That is Llama; with normalised queries and keys it is Qwen3.

mod gguf;
mod hugging_face;
mod names;
#[cfg(test)]
mod tests;
mod vocabulary;

use crate::checkpoint::{Checkpoint, CheckpointError, load};
use crate::config::{DepthKv, MlpKind, ModelConfig};
use crate::tokenizer::{Tokenizer, TokenizerError};
use burn::tensor::Device;
use hadal_gguf::{Fault, WriteError};
use hadal_residual::ResidualConfig;
use safetensors::SafeTensorError;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

/// What to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// `config.json`, `model.safetensors` and the tokenizer, for `transformers`.
    HuggingFace,
    /// One file, for llama.cpp.
    Gguf,
}

/// How matrices are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportType {
    /// 32 bits, as we compute.
    F32,
    /// 16 bits.
    F16,
    /// The upper 16 bits of 32.
    Bf16,
    /// Blocks of 32 in 8 bits each; GGUF alone.
    Q8_0,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// What other tools call it.
    pub architecture: String,
    /// The files.
    pub files: Vec<PathBuf>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// No other tool computes this.
    #[error("cannot export a model with {what}: {reason}")]
    Unsupported {
        /// What of the model.
        what: String,
        /// Why, and what could be exported.
        reason: String,
    },
    /// The format does not store numbers like this.
    #[error("q8_0 is a type of GGUF files; choose f32, f16 or bf16 for a Hugging Face directory")]
    Quantised,
    /// Something is there already.
    #[error("{} exists already; name another place with --out, or remove it", path.display())]
    Exists {
        /// What is there.
        path: PathBuf,
    },
    /// A number is too large for its type.
    #[error("`{name}` holds {value}, which f16 cannot; choose bf16 or f32")]
    Overflow {
        /// The tensor.
        name: String,
        /// The number.
        value: f32,
    },
    /// The tokenizer has no equivalent.
    #[error("cannot export the tokenizer {}: {reason}", path.display())]
    Vocabulary {
        /// Its file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A file cannot be read or written.
    #[error("cannot {action} {}: {reason}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// The model cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The tokenizer cannot be read.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The tensors cannot be written.
    #[error("cannot write {}: {reason}", path.display())]
    Tensors {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: SafeTensorError,
    },
    /// A tensor makes no GGUF tensor.
    #[error("`{name}` {reason}")]
    Shape {
        /// The tensor.
        name: String,
        /// Why.
        reason: Fault,
    },
    /// The GGUF file cannot be written.
    #[error(transparent)]
    Gguf(#[from] WriteError),
}

impl ExportError {
    /// Whether what was asked for makes no sense, rather than having gone wrong on the way.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Unsupported { .. }
                | Self::Quantised
                | Self::Exists { .. }
                | Self::Overflow { .. }
                | Self::Vocabulary { .. }
        )
    }
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ExportError {
    let path = path.to_owned();
    move |reason| ExportError::Io { action, path, reason }
}

/// What other tools call a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Llama,
    Qwen3,
}

/// Exports the model of a directory. Existing files are never overwritten.
pub fn export(
    directory: &Path,
    out: &Path,
    format: ExportFormat,
    kind: ExportType,
) -> Result<Exported, ExportError> {
    if format == ExportFormat::HuggingFace && kind == ExportType::Q8_0 {
        return Err(ExportError::Quantised);
    }
    if out.exists() {
        return Err(ExportError::Exists { path: out.into() });
    }
    let Checkpoint { decoder, begin, ends } = load(directory, &Device::flex())?;
    let family = family(decoder.config())?;
    let config = decoder.config().clone();
    let mut weights: HashMap<String, Vec<f32>> = decoder.parameters().into_iter().collect();
    let shapes = decoder.declared().iter().map(|d| (d.name.clone(), d.shape.clone())).collect();
    drop(decoder);
    fold(&config, &mut weights);
    let file = directory.join("tokenizer.json");
    let tokenizer = match file.is_file() {
        true => Some(Tokenizer::from_file(&file)?),
        false => (256..=257).contains(&config.vocab_size).then(Tokenizer::bytes),
    };
    let in_vocabulary = |id: &u32| (*id as usize) < config.vocab_size;
    let begin = begin.or(tokenizer.as_ref().and_then(Tokenizer::begin)).filter(in_vocabulary);
    let mut ends = if ends.is_empty() {
        tokenizer.as_ref().map(Tokenizer::ends).unwrap_or_default()
    } else {
        ends
    };
    ends.retain(in_vocabulary);
    let model = Model { config, family, weights, shapes, tokenizer, begin, ends };
    match format {
        ExportFormat::HuggingFace => hugging_face::write(&model, directory, out, kind),
        ExportFormat::Gguf => gguf::write(&model, directory, out, kind),
    }
}

/// A model as others will see it.
struct Model {
    config: ModelConfig,
    family: Family,
    /// By our names; whatever depends on depth is folded in.
    weights: HashMap<String, Vec<f32>>,
    shapes: Vec<(String, Vec<usize>)>,
    tokenizer: Option<Tokenizer>,
    begin: Option<u32>,
    ends: Vec<u32>,
}

/// Fields that are written to the other config. Whatever a config says besides changes what is computed.
const UNDERSTOOD: [&str; 16] = [
    "model_type",
    "vocab_size",
    "d_model",
    "n_layers",
    "n_heads",
    "n_kv_heads",
    "head_dim",
    "d_ff",
    "mlp",
    "rope_theta",
    "norm_eps",
    "qk_norm",
    "tie_embeddings",
    "depth_kv",
    "max_seq_len",
    "residual",
];

fn family(config: &ModelConfig) -> Result<Family, ExportError> {
    let refuse =
        |what: String, reason: &str| Err(ExportError::Unsupported { what, reason: reason.into() });
    if !matches!(config.residual, ResidualConfig::PreNorm(_) | ResidualConfig::LayerNormScaling(_))
    {
        return refuse(
            format!("the residual policy {}", config.residual),
            "no architecture of transformers or llama.cpp has such a stream; prenorm and lns can be exported",
        );
    }
    if config.mlp != MlpKind::Swiglu {
        return refuse(
            "the MLP relu2".into(),
            "Llama's is silu(gate) * up, and no gate can be made of relu(up)^2; train with model.mlp = \"swiglu\"",
        );
    }
    if config.depth_kv != DepthKv::None {
        return refuse(
            "depth_kv".into(),
            "attention elsewhere sees no earlier depth; train with model.depth_kv = \"none\"",
        );
    }
    let fields = serde_json::to_value(config).unwrap_or_default();
    let unknown = fields.as_object().into_iter().flat_map(|fields| fields.keys());
    if let Some(field) = unknown.into_iter().find(|key| !UNDERSTOOD.contains(&key.as_str())) {
        return refuse(
            field.clone(),
            "the export does not write it, and leaving it out would change the model",
        );
    }
    Ok(if config.qk_norm { Family::Qwen3 } else { Family::Llama })
}

/// Multiplies the gains of lns by what its readers multiply their inputs by.
fn fold(config: &ModelConfig, weights: &mut HashMap<String, Vec<f32>>) {
    if !matches!(config.residual, ResidualConfig::LayerNormScaling(_)) {
        return;
    }
    for block in 0..config.n_layers {
        let scale = 1.0 / ((block + 1) as f64).sqrt();
        for half in ["attn", "mlp"] {
            let gains = weights.get_mut(&format!("layers.{block}.{half}_norm.weight"));
            for gain in gains.into_iter().flatten() {
                *gain = (f64::from(*gain) * scale) as f32;
            }
        }
    }
}
