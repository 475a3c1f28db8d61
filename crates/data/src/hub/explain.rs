//! A remedy for each way in which a request can fail.

use super::{RepositoryKind, RequestError};

/// Explains what went wrong with a repository, and what can be done.
pub(crate) fn explain(
    error: &RequestError,
    kind: RepositoryKind,
    owner: &str,
    name: &str,
) -> String {
    let (what, part) = match kind {
        RepositoryKind::Dataset => ("dataset", "folder"),
        RepositoryKind::Model => ("model", "file"),
    };
    let page = format!("https://huggingface.co/{}{owner}/{name}", kind.folder());
    match error {
        RequestError::Unreachable(cause) => {
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
        RequestError::NotCached => {
            "the local cache does not hold it, and HF_HUB_OFFLINE forbids to fetch it".into()
        }
        // The hub does not reveal to clients without access which names are taken.
        RequestError::NoRepository | RequestError::Unauthorized => format!(
            "there is no such {what}, or it is not public, and there is no such file or directory here; check the \
             name, or accept its terms at {page} and set HF_TOKEN"
        ),
        RequestError::Forbidden => {
            format!("it needs permission; accept its terms at {page} and set HF_TOKEN")
        }
        RequestError::NoRevision(revision) => format!(
            "there is no revision `{revision}`; name a branch, tag or commit of {page}/tree/main"
        ),
        RequestError::NoEntry => {
            format!("it has no such {part}; look for it under `Files` on the {what}'s page")
        }
        other => other.to_string(),
    }
}
