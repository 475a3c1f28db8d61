//! Models of other makers: Hugging Face directories and GGUF files, read as prenorm models of ours.
//!
//! A [`WeightSource`] answers by its own names; who asks is the same code that reads our checkpoints. What
//! would not be computed exactly is refused by name, never ignored.

mod family;
mod gguf;
mod json;
mod permute;
mod rope;
mod shards;

pub(crate) use family::describe;
pub(crate) use gguf::GgufModel;
pub(crate) use json::token_ids;
pub(crate) use shards::{Naming, Shards};

use crate::config::ModelConfig;
use safetensors::tensor::Dtype;
use std::path::Path;

/// What a foreign file says about a model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Imported {
    pub(crate) config: ModelConfig,
    pub(crate) begin: Option<u32>,
    pub(crate) ends: Vec<u32>,
}

/// Why something foreign cannot be read; the message names the key or the tensor.
pub(crate) type Reason = String;

/// Where parameters come from. Nothing is converted before it is asked for.
pub(crate) trait WeightSource {
    /// What errors call it.
    fn path(&self) -> &Path;
    /// What one of our parameters is called there.
    fn name_of(&self, ours: &str) -> String;
    /// All names.
    fn names(&self) -> Vec<String>;
    /// Whether a tensor that nobody asked for follows from the config and may be there.
    fn may_ignore(&self, name: &str) -> bool;
    /// The shape of a tensor, if it is there.
    fn shape(&self, name: &str) -> Option<Vec<usize>>;
    /// The type in which its elements can be written without loss.
    fn dtype(&self, name: &str) -> Dtype;
    /// Its elements, all finite.
    fn floats(&self, name: &str) -> Result<Vec<f32>, Reason>;
}
