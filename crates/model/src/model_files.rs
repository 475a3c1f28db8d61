//! A model as it is on disk: its config, and where its parameters come from.

use crate::checkpoint::{CONFIG, CheckpointError, WEIGHTS};
use crate::config::ModelConfig;
use crate::decoder::Decoder;
use crate::import::{GgufModel, Imported, Naming, Shards, WeightSource, describe, token_ids};
use crate::not_a_model::refuse_others;
use burn::tensor::Device;
use hadal_files::{HashError, read_at_most, verify};
use hadal_residual::Weights;
pub(crate) use hadal_tokenizer::{TOKENIZER, is_gguf, model_at};
use serde_json::Value;
use std::collections::HashSet;
use std::io;
use std::path::Path;

/// Hugging Face's place for the tokens that begin and end a text.
pub(crate) const GENERATION: &str = "generation_config.json";
/// Where a chat's turns are put together, in Hugging Face's directories.
pub(crate) const CHAT_TEMPLATE: &str = "chat_template.jinja";
/// The tokenizer's settings there, which may hold the template too.
pub(crate) const TOKENIZER_SETTINGS: &str = "tokenizer_config.json";

/// An open model.
pub(crate) struct ModelFiles {
    pub(crate) config: ModelConfig,
    pub(crate) begin: Option<u32>,
    pub(crate) ends: Vec<u32>,
    pub(crate) weights: Box<dyn WeightSource>,
}

impl ModelFiles {
    /// Opens what [`model_at`] finds; no parameter is read yet. The config is compared with its hash; whoever reads
    /// parameters verifies [`WeightSource::files`].
    pub(crate) fn open(path: &Path) -> Result<Self, CheckpointError> {
        let path = &model_at(path);
        refuse_others(path)?;
        if is_gguf(path) {
            let opened = GgufModel::open(path).map_err(|error| explained(path, error));
            let (model, Imported { config, begin, ends }) = opened?;
            config
                .check_stored()
                .map_err(|reason| CheckpointError::Invalid { path: path.into(), reason })?;
            return Ok(Self { config, begin, ends, weights: Box::new(model) });
        }
        let (Imported { config, mut begin, mut ends }, naming) = describe_file(&path.join(CONFIG))?;
        let generation = path.join(GENERATION);
        if generation.exists() {
            // The generation config outranks the model's config.
            let json = read_json(&generation)?;
            let named = token_ids(&json, "eos_token_id");
            ends = if named.is_empty() { ends } else { named };
            begin = token_ids(&json, "bos_token_id").first().copied().or(begin);
        }
        let weights = Shards::open(path, naming);
        let weights = weights.map_err(|error| explained(&path.join(WEIGHTS), error))?;
        Ok(Self { config, begin, ends, weights: Box::new(weights) })
    }

    /// Where each parameter is, if all of them exist and nothing else does. None is read.
    pub(crate) fn places(&self) -> Result<Vec<Place>, CheckpointError> {
        // Parameters are declared, not made: none of them is in memory.
        let decoder = Decoder::declare(&self.config, Weights::fresh(0, &Device::flex()));
        let mut reading = Reading::new(&*self.weights);
        let mut places = Vec::new();
        for declared in decoder.declared() {
            if let Some(stored) = reading.locate(&declared.name, &declared.shape) {
                let (ours, shape) = (declared.name.clone(), declared.shape.clone());
                places.push(Place { ours, stored, shape });
            }
        }
        reading.finish()?;
        Ok(places)
    }
}

/// Why a file cannot be opened: if it is damaged, that is why.
fn explained(path: &Path, error: CheckpointError) -> CheckpointError {
    match verify(path) {
        Ok(()) | Err(HashError::File(_)) => error,
        Err(damage) => damage.into(),
    }
}

/// Where a parameter is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its name in our checkpoints.
    pub(crate) ours: String,
    /// Its name where it is stored.
    pub(crate) stored: String,
    pub(crate) shape: Vec<usize>,
}

/// How a model formats the turns of a chat, if it says so.
pub(crate) fn chat_template(model: &Path) -> Result<Option<String>, CheckpointError> {
    Ok(hadal_tokenizer::template_text(model)?)
}

/// No config is this long; something else was given by mistake.
const LONGEST_CONFIG: u64 = 1 << 20;

fn read_json(path: &Path) -> Result<Value, CheckpointError> {
    let wrong = |reason: String| CheckpointError::Config { path: path.into(), reason };
    let bytes = match read_at_most(path, LONGEST_CONFIG) {
        Err(error) if error.source.kind() == io::ErrorKind::FileTooLarge => {
            return Err(wrong("this file is too long to be a config".into()));
        }
        other => other?,
    };
    verify(path)?;
    serde_json::from_slice(&bytes)
        .map_err(|error| wrong(format!("this is not valid JSON: {error}")))
}

/// Reads a `config.json`, ours or a Hugging Face one, and returns the naming scheme of its parameters.
pub(crate) fn describe_file(path: &Path) -> Result<(Imported, Naming), CheckpointError> {
    let wrong = |reason: String| CheckpointError::Config { path: path.into(), reason };
    let json = read_json(path)?;
    if json["residual"].is_string() {
        return Err(wrong(format!(
            "residual is {}, but it must be an object, such as {{\"kind\": {}}}",
            json["residual"], json["residual"]
        )));
    }
    let (imported, naming) = if json["model_type"] == "hadal" {
        let begin = token_ids(&json, "bos_token_id").first().copied();
        let ends = token_ids(&json, "eos_token_id");
        let config: ModelConfig = serde_json::from_value(ours(json))
            .map_err(|error| wrong(format!("this is not a model config: {error}")))?;
        (Imported { config, begin, ends }, Naming::Ours)
    } else {
        let imported = describe(&json).map_err(wrong)?;
        let tied = imported.config.tie_embeddings;
        (imported, Naming::HuggingFace { tied })
    };
    imported
        .config
        .check_stored()
        .map_err(|reason| CheckpointError::Invalid { path: path.into(), reason })?;
    Ok((imported, naming))
}

/// Our config, which is inside that of a model exported with its own code.
fn ours(mut json: Value) -> Value {
    match json.get_mut("hadal") {
        Some(inner) if inner.is_object() => inner.take(),
        _ => json,
    }
}

/// Reads the parameters that a model declares, and remembers what is wrong and what is left over.
pub(crate) struct Reading<'a> {
    source: &'a dyn WeightSource,
    unused: HashSet<String>,
    problems: Vec<String>,
}

impl<'a> Reading<'a> {
    pub(crate) fn new(source: &'a dyn WeightSource) -> Self {
        Self { source, unused: source.names().into_iter().collect(), problems: Vec::new() }
    }

    /// The stored name of a parameter, if it exists and has this shape.
    pub(crate) fn locate(&mut self, ours: &str, shape: &[usize]) -> Option<String> {
        let name = self.source.name_of(ours);
        self.unused.remove(&name);
        match self.source.shape(&name) {
            None => self.problems.push(format!("missing: {name} {shape:?}")),
            Some(found) if found != shape => {
                self.problems.push(format!("wrong shape: {name} is {found:?}, not {shape:?}"));
            }
            Some(_) => return Some(name),
        }
        None
    }

    /// The elements of a parameter.
    pub(crate) fn floats(&mut self, ours: &str, shape: &[usize]) -> Option<Vec<f32>> {
        let name = self.locate(ours, shape)?;
        match self.source.floats(&name) {
            Ok(values) => Some(values),
            Err(problem) => {
                self.problems.push(problem);
                None
            }
        }
    }

    /// Whether every parameter was found and nothing was left over.
    pub(crate) fn finish(mut self) -> Result<(), CheckpointError> {
        self.unused.retain(|name| !self.source.may_ignore(name));
        let mut extra: Vec<_> =
            self.unused.into_iter().map(|name| format!("unexpected: {name}")).collect();
        extra.sort();
        self.problems.extend(extra);
        if self.problems.is_empty() {
            return Ok(());
        }
        Err(CheckpointError::Mismatch { path: self.source.path().into(), problems: self.problems })
    }
}
