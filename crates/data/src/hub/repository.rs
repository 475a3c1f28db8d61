//! A repository: what it holds, and its files in the local cache.

use super::RepositoryKind;
use super::cache::{Cache, inside, is_commit};
use super::download::{Arrived, Remote, download};
use super::error::RequestError;
use super::http::{Asked, Http, Method, encoded, text};
use super::settings::Settings;
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use ureq::http::header;

const AT_ONCE: usize = 8;

/// Receives the number of bytes that have arrived and their total.
pub(crate) type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// One repository of the hub.
pub(crate) struct Repository {
    http: Http,
    cache: Cache,
    /// Its page.
    url: String,
    /// The address of its API.
    api: String,
}

/// A file that a repository lists.
#[derive(Debug, Deserialize)]
pub(crate) struct Entry {
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) size: u64,
    #[serde(rename = "type")]
    kind: String,
}

impl Repository {
    /// Prepares a client; nothing is sent yet.
    pub(crate) fn new(settings: &Settings, kind: RepositoryKind, owner: &str, name: &str) -> Self {
        let endpoint = &settings.endpoint;
        Self {
            http: Http::new(settings),
            cache: Cache::new(&settings.cache, kind, owner, name),
            url: format!("{endpoint}/{}{owner}/{name}", kind.folder()),
            api: format!("{endpoint}/api/{}/{owner}/{name}", kind.plural()),
        }
    }

    /// The present commit of a revision; of the newest if none is given.
    pub(crate) fn commit(&self, revision: Option<&str>) -> Result<String, RequestError> {
        #[derive(Deserialize)]
        struct Information {
            sha: Option<String>,
        }
        let (url, asked) = match revision {
            Some(revision) if is_commit(revision) => return Ok(revision.into()),
            Some(revision) => (
                format!("{}/revision/{}", self.api, encoded(revision, false)),
                Asked::Revision(revision),
            ),
            None => (self.api.clone(), Asked::Repository),
        };
        let (Information { sha }, _) = self.http.json(&url, asked)?;
        sha.filter(|sha| is_commit(sha)).ok_or_else(|| unusable(&url, "the server names no commit"))
    }

    /// Every file of a commit, or of a folder of it.
    pub(crate) fn files(
        &self,
        commit: &str,
        folder: Option<&str>,
    ) -> Result<Vec<Entry>, RequestError> {
        let folder = folder.map(|folder| format!("/{}", encoded(folder, true))).unwrap_or_default();
        let mut page = Some(format!("{}/tree/{commit}{folder}?recursive=true", self.api));
        let mut files = Vec::new();
        while let Some(url) = page {
            let (entries, next): (Vec<Entry>, _) = self.http.json(&url, Asked::Entry)?;
            files.extend(entries.into_iter().filter(|entry| entry.kind == "file"));
            page = next;
        }
        Ok(files)
    }

    /// One file, fetched unless the cache has it.
    pub(crate) fn fetch(
        &self,
        revision: &str,
        file: &str,
        progress: Progress<'_>,
    ) -> Result<PathBuf, RequestError> {
        if is_commit(revision)
            && let Some(path) = self.cache.file(revision, file)
        {
            return Ok(path);
        }
        let remote = self.describe(revision, file)?;
        let arrived = Arrived::new(remote.bytes, progress);
        let path = download(&self.http, &self.cache, &remote, &arrived)?;
        self.cache.remember(revision, &remote.commit)?;
        Ok(path)
    }

    /// All files of a revision that are `wanted`, and the directory that holds them.
    pub(crate) fn fetch_all(
        &self,
        revision: &str,
        wanted: impl Fn(&str) -> bool,
        progress: Progress<'_>,
    ) -> Result<PathBuf, RequestError> {
        let commit = self.commit(Some(revision))?;
        let mut files = self.files(&commit, None)?;
        files.retain(|file| wanted(&file.path) && self.cache.file(&commit, &file.path).is_none());
        let remotes = at_once(&files, |file| self.describe(&commit, &file.path))?;
        let arrived = Arrived::new(remotes.iter().map(|remote| remote.bytes).sum(), progress);
        at_once(&remotes, |remote| {
            download(&self.http, &self.cache, remote, &arrived).inspect_err(|_| arrived.stop())
        })?;
        // Only now, so that a partial download is not taken for a whole one.
        self.cache.remember(revision, &commit)?;
        Ok(self.cache.snapshot(&commit))
    }

    /// A file from the cache.
    pub(crate) fn cached(&self, revision: &str, file: &str) -> Result<PathBuf, RequestError> {
        let commit = self.cache.commit(revision).ok_or(RequestError::NotCached)?;
        self.cache.file(&commit, file).ok_or(RequestError::NotCached)
    }

    /// A revision from the cache.
    pub(crate) fn cached_all(&self, revision: &str) -> Result<PathBuf, RequestError> {
        let commit = self.cache.commit(revision).ok_or(RequestError::NotCached)?;
        Some(self.cache.snapshot(&commit))
            .filter(|path| path.exists())
            .ok_or(RequestError::NotCached)
    }

    /// The server's description of a file before it sends it.
    fn describe(&self, revision: &str, file: &str) -> Result<Remote, RequestError> {
        inside(file).ok_or(RequestError::NoEntry)?;
        let url =
            format!("{}/resolve/{}/{}", self.url, encoded(revision, false), encoded(file, true));
        let response = self.http.send(Method::Head, &url, Asked::Entry)?;
        let bytes = text(&response, "x-linked-size")
            .or_else(|| text(&response, header::CONTENT_LENGTH.as_str()))
            .and_then(|bytes| bytes.parse().ok())
            .ok_or_else(|| unusable(&url, "the server does not say how long the file is"))?;
        let etag = text(&response, "x-linked-etag")
            .or_else(|| text(&response, header::ETAG.as_str()))
            .map(|etag| etag.trim_start_matches("W/").trim_matches('"').to_owned())
            .filter(|etag| inside(etag).is_some_and(|path| path.components().count() == 1))
            .ok_or_else(|| unusable(&url, "the server gives the file no ETag"))?;
        let commit = text(&response, "x-repo-commit").unwrap_or(revision).to_owned();
        if !is_commit(&commit) {
            return Err(unusable(&url, "the server names no commit"));
        }
        Ok(Remote { file: file.into(), url, commit, etag, bytes })
    }
}

fn unusable(url: &str, reason: &str) -> RequestError {
    RequestError::Unusable { url: url.into(), reason: reason.into() }
}

/// Does something for each item, a few at a time, in any order; after a failure nothing new is begun. Returns the first
/// failure.
fn at_once<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> Result<R, RequestError> + Sync,
) -> Result<Vec<R>, RequestError> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Ok(Vec::new())));
    let locked = || done.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(items.len()) {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed))
                    && locked().is_ok()
                {
                    let outcome = work(item);
                    let mut done = locked();
                    match (outcome, done.as_mut()) {
                        (Ok(result), Ok(results)) => results.push(result),
                        (Err(error), Ok(_)) => *done = Err(error),
                        (_, Err(_)) => {}
                    }
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}
