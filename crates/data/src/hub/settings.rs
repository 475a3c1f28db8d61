//! The variables that every tool of Hugging Face knows.

use super::error::RequestError;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

const ENDPOINT: &str = "https://huggingface.co";

/// Where the hub and the cache are, and which token the client has.
#[derive(Clone)]
pub(crate) struct Settings {
    /// The server, without a slash at the end: `HF_ENDPOINT`.
    pub(super) endpoint: String,
    /// `HF_TOKEN`, or the token stored by `hf auth login`.
    pub(super) token: Option<String>,
    /// `HF_HUB_CACHE`, or `hub` below `HF_HOME`.
    pub(super) cache: PathBuf,
    /// How often a request that may succeed later is sent again.
    pub(super) retries: u32,
}

impl Settings {
    /// The settings of the environment.
    pub(crate) fn from_environment() -> Result<Self, RequestError> {
        let home = home();
        let cache = variable("HF_HUB_CACHE")
            .or_else(|| variable("HUGGINGFACE_HUB_CACHE"))
            .map_or_else(|| home.join("hub"), PathBuf::from);
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.into());
        Ok(Self { endpoint: checked(&endpoint)?, token: token(&home), cache, retries: 5 })
    }

    /// Another server, asked only once.
    #[cfg(test)]
    pub(crate) fn at(endpoint: &str, cache: &Path) -> Self {
        Self { endpoint: endpoint.into(), token: None, cache: cache.into(), retries: 0 }
    }
}

/// Whether nothing may be fetched.
pub(super) fn is_offline() -> bool {
    env::var_os("HF_HUB_OFFLINE").is_some_and(|value| value != "0")
}

fn checked(endpoint: &str) -> Result<String, RequestError> {
    if ["http://", "https://"].iter().any(|scheme| endpoint.starts_with(scheme)) {
        return Ok(endpoint.trim_end_matches('/').to_owned());
    }
    let must = "a URL that begins with https:// or http://";
    Err(RequestError::Setting { name: "HF_ENDPOINT", value: endpoint.into(), must })
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn home() -> PathBuf {
    if let Some(home) = variable("HF_HOME") {
        return home.into();
    }
    let caches = variable("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .unwrap_or_else(|| env::home_dir().unwrap_or_else(env::temp_dir).join(".cache"));
    caches.join("huggingface")
}

fn token(home: &Path) -> Option<String> {
    if variable("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_some() {
        return None;
    }
    let stored = |path: PathBuf| fs::read_to_string(path).ok();
    [
        variable("HF_TOKEN"),
        variable("HF_TOKEN_PATH").and_then(|path| stored(path.into())),
        stored(home.join("token")),
    ]
    .into_iter()
    .flatten()
    .map(|token| token.trim().to_owned())
    .find(|token| !token.is_empty())
}
