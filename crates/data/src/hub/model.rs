//! Models of Hugging Face, fetched into the local cache: `owner/name[@revision]`, or one file of it as
//! `owner/name[@revision]:file.gguf`.

use super::settings::is_offline;
use super::{Repository, RepositoryKind, RepositoryName, RequestError, Settings, explain};
use std::fmt;
use std::path::PathBuf;

const REVISION: &str = "main";

/// The files that make a model, besides its weights.
const FILES: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];

/// Why a model cannot be fetched.
#[derive(Debug, thiserror::Error)]
#[error("model {name}: {reason}")]
pub struct HubError {
    /// The model.
    pub name: String,
    /// What went wrong, and what helps.
    pub reason: String,
}

/// The name of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName(RepositoryName);

impl ModelName {
    /// Reads `owner/name[@revision][:file.gguf]`; `None` if it cannot be a model.
    pub fn parse(input: &str) -> Option<Self> {
        let name = RepositoryName::parse(input)?;
        let is_file = |file: &String| file.to_ascii_lowercase().ends_with(".gguf");
        name.part.as_ref().is_none_or(is_file).then_some(Self(name))
    }

    /// The last part: a good name for a directory of this model.
    pub fn short(&self) -> &str {
        &self.0.name
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Fetches what the cache does not have and returns where the model is: a directory, or the named file. Files that have
/// arrived are kept, so a second call continues. Without a network, or with `HF_HUB_OFFLINE` set, only the cache is
/// used. `progress` receives the number of bytes that have arrived and their total.
pub fn fetch_model(
    name: &ModelName,
    progress: impl Fn(u64, u64) + Send + Sync + 'static,
) -> Result<PathBuf, HubError> {
    let RepositoryName { owner, name: short, revision, part } = &name.0;
    let explained = |error: RequestError| HubError {
        name: name.to_string(),
        reason: explain(&error, RepositoryKind::Model, owner, short),
    };
    let settings = Settings::from_environment().map_err(explained)?;
    let repository = Repository::new(&settings, RepositoryKind::Model, owner, short);
    let revision = revision.as_deref().unwrap_or(REVISION);
    let cached = || match part {
        Some(file) => repository.cached(revision, file),
        None => repository.cached_all(revision),
    };
    if is_offline() {
        return cached().map_err(explained);
    }
    let fetched = match part {
        Some(file) => repository.fetch(revision, file, &progress),
        None => repository.fetch_all(revision, belongs_to_a_model, &progress),
    };
    match fetched {
        // Without a network, what was fetched earlier is as good.
        Err(error) if error.is_passing() => cached().map_err(|_| explained(error)),
        other => other.map_err(explained),
    }
}

fn belongs_to_a_model(file: &str) -> bool {
    FILES.contains(&file) || (file.starts_with("model") && file.ends_with(".safetensors"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_models_are_told_from_other_names() {
        for name in ["Qwen/Qwen3-0.6B", "a/b:model-Q4_K_M.gguf", "a/b@main:x.GGUF"] {
            assert_eq!(ModelName::parse(name).unwrap().to_string(), name);
        }
        assert_eq!(ModelName::parse("Qwen/Qwen3-0.6B@main").unwrap().short(), "Qwen3-0.6B");
        for other in ["plain", "a/b:c.bin"] {
            assert_eq!(ModelName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_model_is_its_weights_and_what_explains_them() {
        for file in ["config.json", "model.safetensors", "model-00001-of-00002.safetensors"] {
            assert!(belongs_to_a_model(file), "{file}");
        }
        for file in ["pytorch_model.bin", "README.md", "onnx/model.onnx", "sub/config.json"] {
            assert!(!belongs_to_a_model(file), "{file}");
        }
    }
}
