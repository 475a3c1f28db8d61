//! Downloading a file into the cache: written beside its place, and moved there when it is whole.

use super::cache::{Cache, make_parent};
use super::error::RequestError;
use super::http::{Asked, Http, Method, text};
use super::repository::Progress;
use hadal_files::{Action, file_error};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use ureq::Body;
use ureq::http::{Response, StatusCode, header};

const BUFFER: usize = 1 << 18;

/// A file on the server.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) file: String,
    pub(super) url: String,
    pub(super) commit: String,
    /// The server's name for the content.
    pub(super) etag: String,
    pub(super) bytes: u64,
}

/// How much of all files has arrived.
pub(super) struct Arrived<'a> {
    done: AtomicU64,
    total: u64,
    stopped: AtomicBool,
    progress: Progress<'a>,
}

impl<'a> Arrived<'a> {
    pub(super) fn new(total: u64, progress: Progress<'a>) -> Self {
        progress(0, total);
        Self { done: AtomicU64::new(0), total, stopped: AtomicBool::new(false), progress }
    }

    fn add(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (self.progress)(done, self.total);
    }

    /// One file has failed: the others need not continue.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

/// Fetches a file unless its content is cached, and returns its path. What arrives before a connection breaks is kept,
/// and the next call continues there.
pub(super) fn download(
    http: &Http,
    cache: &Cache,
    remote: &Remote,
    arrived: &Arrived<'_>,
) -> Result<PathBuf, RequestError> {
    let blob = cache.blob(&remote.etag);
    make_parent(&blob)?;
    let lock = cache.lock(&remote.etag)?;
    if blob.exists() {
        arrived.add(remote.bytes);
    } else {
        // Other tools write their parts in any order, so theirs cannot be continued.
        let part = blob.with_file_name(format!("{}.hadal-incomplete", remote.etag));
        receive(http, remote, &part, arrived)?;
        fs::rename(&part, &blob).map_err(file_error(Action::Write, &blob))?;
    }
    drop(lock);
    cache.link(&remote.commit, &remote.file, &remote.etag)
}

fn receive(
    http: &Http,
    remote: &Remote,
    part: &Path,
    arrived: &Arrived<'_>,
) -> Result<(), RequestError> {
    let opened = OpenOptions::new().create(true).append(true).open(part);
    let mut file = opened.map_err(file_error(Action::Write, part))?;
    let mut here = file.metadata().map_or(0, |metadata| metadata.len());
    if here > remote.bytes {
        here = restart(&file, part)?;
    }
    if here < remote.bytes {
        let response = http.send(Method::Get { from: here }, &remote.url, Asked::Entry)?;
        if here > 0 && !continues(&response, here) {
            here = restart(&file, part)?;
        }
        arrived.add(here);
        here += copy(response, &mut file, part, arrived)?;
    } else {
        arrived.add(here);
    }
    if here != remote.bytes {
        let reason = format!("{} has {} bytes, but {here} arrived", remote.file, remote.bytes);
        if here > remote.bytes {
            restart(&file, part)?;
        }
        return Err(RequestError::Unreachable(reason));
    }
    Ok(file.sync_all().map_err(file_error(Action::Write, part))?)
}

/// Discards what has arrived.
fn restart(file: &File, part: &Path) -> Result<u64, RequestError> {
    file.set_len(0).map_err(file_error(Action::Write, part))?;
    Ok(0)
}

/// Whether the server begins at the requested byte; some send everything.
fn continues(response: &Response<Body>, from: u64) -> bool {
    response.status() == StatusCode::PARTIAL_CONTENT
        && text(response, header::CONTENT_RANGE.as_str())
            .and_then(|range| range.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok())
            == Some(from)
}

fn copy(
    response: Response<Body>,
    file: &mut File,
    part: &Path,
    arrived: &Arrived<'_>,
) -> Result<u64, RequestError> {
    let mut reader = response.into_body().into_reader();
    let mut buffer = vec![0; BUFFER];
    let mut copied = 0;
    loop {
        if arrived.stopped.load(Ordering::Relaxed) {
            return Err(RequestError::Unreachable(
                "another file of the model did not arrive".into(),
            ));
        }
        let read = reader
            .read(&mut buffer)
            .map_err(|error| RequestError::Unreachable(error.to_string()))?;
        if read == 0 {
            return Ok(copied);
        }
        file.write_all(&buffer[..read]).map_err(file_error(Action::Write, part))?;
        copied += read as u64;
        arrived.add(read as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn bytes_of_all_files_are_added_up() {
        let seen = Mutex::new(Vec::new());
        let progress = |done, total| seen.lock().unwrap().push((done, total));
        let arrived = Arrived::new(100, &progress);
        for bytes in [10, 5, 20] {
            arrived.add(bytes);
        }
        assert_eq!(*seen.lock().unwrap(), [(0, 100), (10, 100), (15, 100), (35, 100)]);
    }
}
