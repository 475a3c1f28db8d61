//! A decoder-only Transformer whose residual stream is a policy.
//!
//! The [`Decoder`] holds the branches (attention and MLP) and one residual policy; a single
//! [`Decoder::logits`] serves training, prefill, one-token decoding and diagnosis, as its [`Pass`]
//! says. Checkpoints are directories with `config.json` and `model.safetensors`.

mod attention;
mod cache;
mod checkpoint;
mod config;
mod cost;
mod decoder;
mod device;
mod export;
mod generate;
mod import;
mod layers;
mod loss;
mod mlp;
mod part;
mod rope;
mod sampling;
mod tally;
mod tensor_file;
mod tokenizer;

pub use burn::tensor::Device;
pub use cache::Cache;
pub use checkpoint::{Checkpoint, CheckpointError, load, read_config, save};
pub use config::{ConfigError, DepthKv, MlpKind, ModelConfig};
pub use cost::{ModelCost, ParameterGroup};
pub use decoder::{Decoder, Pass, PassError, Tokens};
pub use device::{DEVICES, DeviceError, device_named};
pub use export::{ExportError, ExportFormat, ExportType, Exported, export};
pub use generate::{GenerateError, Generated, Limits, StopReason, generate};
pub use loss::{cross_entropy, masked_cross_entropy, negative_log_likelihood};
pub use part::{Part, PartError};
pub use sampling::{Sampler, Sampling, SamplingError};
pub use tally::{SiteTally, Tally};
pub use tensor_file::{TensorFile, TensorFileError};
pub use tokenizer::{TextStream, Tokenizer, TokenizerError};

/// The README's example must compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
