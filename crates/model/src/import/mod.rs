//! Models of other makers: Hugging Face directories and GGUF files, read as our prenorm models.
//!
//! A [`WeightSource`] answers by its own names; the code that asks also reads our checkpoints. What would not be
//! computed exactly is refused by name, never ignored.

mod family;
mod gguf;
mod json;
mod misspelt;
mod permute;
mod rope;
mod shards;

pub(crate) use family::describe;
pub(crate) use gguf::GgufModel;
pub(crate) use json::token_ids;
pub(crate) use shards::{Naming, Shards};

use crate::config::ModelConfig;
use safetensors::tensor::Dtype;
use std::path::{Path, PathBuf};

/// A foreign file's description of a model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Imported {
    pub(crate) config: ModelConfig,
    pub(crate) begin: Option<u32>,
    pub(crate) ends: Vec<u32>,
}

/// Why a foreign file cannot be read; the message names the key or the tensor.
pub(crate) type Reason = String;

/// Where parameters come from. A tensor is converted only when it is asked for.
pub(crate) trait WeightSource {
    /// The path that errors name.
    fn path(&self) -> &Path;
    /// The files that hold the parameters.
    fn files(&self) -> Vec<PathBuf>;
    /// The name that one of our parameters has there.
    fn name_of(&self, ours: &str) -> String;
    /// All names.
    fn names(&self) -> Vec<String>;
    /// Whether an unused tensor follows from the config and may exist.
    fn may_ignore(&self, name: &str) -> bool;
    /// The shape of a tensor, if it exists.
    fn shape(&self, name: &str) -> Option<Vec<usize>>;
    /// The type in which its elements can be written without loss.
    fn dtype(&self, name: &str) -> Dtype;
    /// The name of the type in which it is stored.
    fn stored_type(&self, name: &str) -> String;
    /// Its elements, all finite.
    fn floats(&self, name: &str) -> Result<Vec<f32>, Reason>;
}
