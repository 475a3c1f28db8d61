//! A decoder-only Transformer whose residual stream is a policy.
//!
//! The [`Decoder`] holds the branches (attention and MLP) and one residual policy. There are three
//! ways through it, and tests hold them together:
//!
//! - [`Decoder::loss`] and [`Decoder::logits`] train, evaluate and prefill: the policy runs as one
//!   fused operation between two sub-layers, where it has that form.
//! - With a probe in the [`Pass`], which diagnosis uses, the policy runs step by step in plain tensor
//!   operations that can be watched.
//! - A [`Session`] decodes single tokens by kernels over slices, without tensors.
//!
//! A model is data. Everything that a pass does beyond it is in its [`Pass`]. Checkpoints are
//! directories with `config.json`, `model.safetensors` and their hashes in `manifest.json`.

mod apart;
mod attention;
mod cache;
mod checkpoint;
mod companions;
mod config;
mod conversation;
mod convert;
mod cost;
mod decoder;
mod device;
mod export;
mod generate;
mod import;
mod layers;
mod loss;
mod memory;
mod mlp;
mod model_files;
mod not_a_model;
mod part;
mod pass;
mod pass_memory;
mod recording;
mod restream;
mod rope;
mod rope_scaling;
mod sampling;
mod session;
mod stored;
mod streamed;
mod tally;
mod tensor_file;
mod token_decoder;

pub use apart::{apart, some_tokens};
pub use burn::tensor::Device;
pub use cache::Cache;
pub use checkpoint::{
    Checkpoint, CheckpointError, load, load_for, read_config, replace_config, save, save_with,
};
pub use companions::companions;
pub use config::{
    AttentionBias, ConfigError, DepthKv, MlpKind, ModelConfig, SlidingWindow, ValueResidual,
};
pub use conversation::{Answer, Conversation, ConversationError};
pub use convert::{Converted, convert};
pub use cost::{ModelCost, ParameterGroup};
pub use decoder::{Decoder, ReadParameter};
pub use device::{CPU, DEVICES, DeviceError, device_named};
pub use export::{ExportError, ExportFormat, ExportType, Exported, byte_tokenizer, export};
pub use generate::{GenerateError, Generated, Limits, StopReason, generate};
pub use hadal_kernels::Precision;
pub use hadal_tokenizer::{
    ChatError, ChatTemplate, Message, NAMED_TEMPLATES, Role, StopStrings, TextStream, Tokenizer,
    TokenizerError, compute_template, compute_templates_with, guarded, is_guarded, model_at,
};
pub use loss::{cross_entropy, masked_cross_entropy, negative_log_likelihood};
pub use memory::{MemoryError, Need, allowed_memory, free_memory, memory_need};
pub use part::{Part, PartError};
pub use pass::{Pass, PassError, Tokens, Variant};
pub use pass_memory::{PassMemory, UnmadeModel};
pub use recording::Recording;
pub use restream::{Restream, RestreamError, RestreamStage, Restreamed, SAME_LOGITS, restream};
pub use rope_scaling::{RopeScaling, Yarn};
pub use sampling::{Sampler, Sampling, SamplingError};
pub use session::Session;
pub use stored::Stored;
pub use tally::{Saving, SiteTally, Tally};
pub use tensor_file::{TensorFile, TensorFileError, write_tensors};

/// The README's example must compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
