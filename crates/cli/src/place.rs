//! Where results go. Commands that take long look at it first.

use crate::failure::Failure;
use std::fs;
use std::path::Path;

/// A place for results, and how it was named.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) path: &'a Path,
    /// The option that names another place, as `--out`.
    pub(crate) option: &'static str,
    /// Something that could follow the option.
    pub(crate) example: &'static str,
}

impl Place<'_> {
    /// Refuses a place that is taken, or where nothing can be written. A directory without entries is free.
    pub(crate) fn free(self, force: bool) -> Result<(), Failure> {
        if force { self.writable() } else { self.unused(", or over it with --force") }
    }

    /// The same for what is never written over.
    pub(crate) fn never_over(self) -> Result<(), Failure> {
        self.unused("")
    }

    fn unused(self, otherwise: &str) -> Result<(), Failure> {
        let Self { path, option, example } = self;
        let is_empty = |path| fs::read_dir(path).is_ok_and(|mut all| all.next().is_none());
        if fs::symlink_metadata(path).is_ok() && !is_empty(path) {
            return Err(Failure::usage(format!(
                "{} exists already; write elsewhere with {option} {example}{otherwise}",
                path.display()
            )));
        }
        self.writable()
    }

    /// Makes the folders above a file that will be written. What is a directory itself makes its own.
    pub(crate) fn make_folders(self) -> Result<(), Failure> {
        match self.path.parent() {
            Some(parent) => hadal_files::create_directory(parent).map_err(Failure::failed),
            None => Ok(()),
        }
    }

    /// Refuses a place where nothing can be written.
    pub(crate) fn writable(self) -> Result<(), Failure> {
        let Self { path, option, example } = self;
        hadal_files::check_writable(path).map_err(|error| {
            Failure::usage(format!("{error}; write elsewhere with {option} {example}"))
        })
    }
}
