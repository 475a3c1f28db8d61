//! Models of Hugging Face, fetched into the local cache: `owner/name[@revision]`, or one file of it as
//! `owner/name[@revision]:file.gguf`.

use super::{RepositoryKind, RepositoryName, explain};
use hf_hub::progress::{DownloadEvent, ProgressEvent, ProgressHandler};
use hf_hub::{HFClientSync, HFError, HFRepositorySync, RepoTypeModel};
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// What of a repository makes a model.
const FILES: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "model*.safetensors",
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
    /// Reads `owner/name[@revision][:file.gguf]`; nothing if it cannot be a model.
    pub fn parse(input: &str) -> Option<Self> {
        let name = RepositoryName::parse(input)?;
        let is_file = |file: &String| file.to_ascii_lowercase().ends_with(".gguf");
        name.part.as_ref().is_none_or(is_file).then_some(Self(name))
    }

    /// The last part: what a directory of this model could be called.
    pub fn short(&self) -> &str {
        &self.0.name
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Fetches what the cache does not have and says where the model is: a directory, or the file that was named. Files that
/// have arrived are kept, so a second call goes on. Without a network, or with `HF_HUB_OFFLINE` set, the cache must do.
/// `progress` is told how many bytes have arrived, and of how many.
pub fn fetch_model(
    name: &ModelName,
    progress: impl Fn(u64, u64) + Send + Sync + 'static,
) -> Result<PathBuf, HubError> {
    let explained = |error: HFError| HubError {
        name: name.to_string(),
        reason: explain(&error, RepositoryKind::Model, &name.0.owner, &name.0.name),
    };
    let client = HFClientSync::new().map_err(explained)?;
    let repository = client.model(name.0.owner.clone(), name.0.name.clone());
    if std::env::var_os("HF_HUB_OFFLINE").is_some_and(|value| value != "0") {
        return get(&repository, name, true, progress).map_err(explained);
    }
    match get(&repository, name, false, progress) {
        // Without a network, what was fetched earlier is as good.
        Err(error @ HFError::Request { .. }) => {
            get(&repository, name, true, |_, _| ()).map_err(|_| explained(error))
        }
        other => other.map_err(explained),
    }
}

fn get(
    repository: &HFRepositorySync<RepoTypeModel>,
    name: &ModelName,
    local: bool,
    progress: impl Fn(u64, u64) + Send + Sync + 'static,
) -> Result<PathBuf, HFError> {
    let watcher = Watcher { progress, arrived: Mutex::default() };
    match &name.0.part {
        Some(file) => repository
            .download_file()
            .filename(file.clone())
            .maybe_revision(name.0.revision.clone())
            .local_files_only(local)
            .progress(watcher)
            .send(),
        None => repository
            .snapshot_download()
            .maybe_revision(name.0.revision.clone())
            .allow_patterns(FILES.map(Into::into).into())
            .local_files_only(local)
            .progress(watcher)
            .send(),
    }
}

/// What has arrived of each file, and of all that come in one piece.
#[derive(Default)]
struct Arrived {
    files: HashMap<String, u64>,
    together: u64,
    total: u64,
}

struct Watcher<F> {
    progress: F,
    arrived: Mutex<Arrived>,
}

impl<F: Fn(u64, u64) + Send + Sync> ProgressHandler for Watcher<F> {
    fn on_progress(&self, event: &ProgressEvent) {
        let ProgressEvent::Download(event) = event else { return };
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            DownloadEvent::Start { total_bytes, .. } => arrived.total = *total_bytes,
            DownloadEvent::Progress { files } => {
                for file in files {
                    arrived.files.insert(file.filename.clone(), file.bytes_completed);
                }
            }
            DownloadEvent::AggregateProgress { bytes_completed, .. } => {
                arrived.together = *bytes_completed;
            }
            DownloadEvent::Complete => {}
        }
        let done = arrived.together.max(arrived.files.values().sum());
        (self.progress)(done, arrived.total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hf_hub::progress::{FileProgress, FileStatus};

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
    fn bytes_of_all_files_are_added_up() {
        let seen = std::sync::Arc::new(Mutex::new((0, 0)));
        let told = std::sync::Arc::clone(&seen);
        let progress = move |done, all| *told.lock().unwrap() = (done, all);
        let watcher = Watcher { progress, arrived: Mutex::default() };
        let tell = |event| watcher.on_progress(&ProgressEvent::Download(event));
        tell(DownloadEvent::Start { total_files: 2, total_bytes: 100 });
        for (name, bytes_completed) in [("a", 10), ("b", 5), ("a", 30)] {
            let file = FileProgress {
                filename: name.into(),
                bytes_completed,
                total_bytes: 50,
                status: FileStatus::InProgress,
            };
            tell(DownloadEvent::Progress { files: vec![file] });
        }
        assert_eq!(*seen.lock().unwrap(), (35, 100));
    }
}
