//! Finds the commit that is built, so that every run can say what made it. Files of the repository are only read: git
//! itself would run what its settings name. Without a repository, as in an unpacked archive, there is no commit.

#![allow(clippy::print_stdout, reason = "this is how a build script speaks to cargo")]

use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // As it is now: worktrees that share a target directory share this program as well.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    if let Some(commit) = commit(&Path::new(&package).join("../../.git")) {
        println!("cargo:rustc-env=HADAL_COMMIT={commit}");
    }
}

/// The commit of the repository whose `.git` this is.
pub(crate) fn commit(place: &Path) -> Option<String> {
    // In a worktree `.git` is a file that names the directory.
    let git = match watched(place) {
        Some(text) => place.parent()?.join(text.strip_prefix("gitdir:")?.trim()),
        None => place.to_owned(),
    };
    let head = watched(&git.join("HEAD"))?;
    // Grows with every commit, also where the branch has no file of its own.
    watched(&git.join("logs/HEAD"));
    let Some(name) = head.trim().strip_prefix("ref: ") else { return hash(&head) };
    // Branches are shared between worktrees.
    let common: PathBuf = match watched(&git.join("commondir")) {
        Some(path) => git.join(path.trim()),
        None => git,
    };
    let packed = watched(&common.join("packed-refs")).unwrap_or_default();
    let of_name = |line: &str| {
        let (hash, other) = line.split_once(' ')?;
        (other == name).then(|| hash.to_owned())
    };
    let loose = watched(&common.join(name));
    hash(&loose.or_else(|| packed.lines().find_map(of_name))?)
}

/// The text of a file; the build runs again when it changes.
fn watched(path: &Path) -> Option<String> {
    let text = fs::read(path).ok()?;
    println!("cargo:rerun-if-changed={}", path.display());
    Some(String::from_utf8_lossy(&text).into_owned())
}

fn hash(text: &str) -> Option<String> {
    let text = text.trim();
    let is_hash = text.len() >= 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then(|| text.to_owned())
}
