//! What helps, for each way in which a request can fail.

use hf_hub::HFError;
use std::error::Error;

/// What a repository holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RepositoryKind {
    Dataset,
    Model,
}

/// Says what went wrong with a repository, and what can be done.
pub(crate) fn explain(error: &HFError, kind: RepositoryKind, owner: &str, name: &str) -> String {
    let (what, part, folder) = match kind {
        RepositoryKind::Dataset => ("dataset", "folder", "datasets/"),
        RepositoryKind::Model => ("model", "file", ""),
    };
    let page = format!("https://huggingface.co/{folder}{owner}/{name}");
    match error {
        HFError::Request { .. } | HFError::Xet { .. } => {
            let mut cause: &dyn Error = error;
            while let Some(deeper) = cause.source() {
                cause = deeper;
            }
            let cache = match kind {
                RepositoryKind::Dataset => {
                    "files in the local cache are used without a network only to finish a preparation that was begun"
                }
                RepositoryKind::Model => "the local cache does not hold the model",
            };
            format!(
                "huggingface.co cannot be reached ({cause}); check the network, or download the files where there is \
                 one and give their directory ({cache})"
            )
        }
        HFError::LocalEntryNotFound { .. } => {
            "the local cache does not hold it, and HF_HUB_OFFLINE forbids to fetch it".into()
        }
        // The hub does not tell strangers which names are taken.
        HFError::RepoNotFound { .. } | HFError::AuthRequired { .. } => format!(
            "there is no such {what}, or it is not public, and there is no such file or directory here; check the \
             name, or accept its terms at {page} and set HF_TOKEN"
        ),
        HFError::Forbidden { .. } => {
            format!("it needs permission; accept its terms at {page} and set HF_TOKEN")
        }
        HFError::RevisionNotFound { revision, .. } => format!(
            "there is no revision `{revision}`; name a branch, tag or commit of {page}/tree/main"
        ),
        HFError::EntryNotFound { .. } => {
            format!("it has no such {part}; look for it under `Files` on the {what}'s page")
        }
        other => other.to_string(),
    }
}
