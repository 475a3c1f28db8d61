//! Where runs and suites are below a folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Deeper folders are not searched: `group/suite/depth/runs/run` is five.
const DEPTH: usize = 6;

/// Runs and suites, each with its name: the path below the root, joined by `/`.
#[derive(Debug, Default, PartialEq)]
pub struct Found {
    /// Folders that hold a run, whole or broken.
    pub runs: Vec<(String, PathBuf)>,
    /// Folders of suites; their runs are among `runs`.
    pub suites: Vec<(String, PathBuf)>,
    /// Names of folders that could not be looked into; the root's is empty.
    pub unread: Vec<String>,
}

impl Found {
    /// Whether something of this name may be there although it was not found.
    pub fn may_hide(&self, id: &str) -> bool {
        let hides = |folder: &String| match id.strip_prefix(folder.as_str()) {
            Some(rest) => folder.is_empty() || rest.is_empty() || rest.starts_with('/'),
            None => false,
        };
        self.unread.iter().any(hides)
    }
}

/// Looks for folders that hold a run, whole or broken, and for suites.
///
/// Folders inside of runs, hidden ones and links to folders that are no runs are left out.
pub fn find(root: &Path) -> Found {
    let mut found = Found::default();
    // The folder itself is called by its name, since `.` is no part of an address.
    let name = std::path::absolute(root).unwrap_or_else(|_| root.into());
    let name = name.file_name().map_or("runs".into(), printable);
    match kind(root) {
        Err(_) => found.unread.push(String::new()),
        Ok(Kind::Suite) => {
            found.suites.push((name, root.into()));
            inside_suite(root, "", DEPTH, &mut found);
        }
        Ok(Kind::Run) => found.runs.push((name, root.into())),
        Ok(Kind::Other) => search(root, "", DEPTH, &mut found),
    }
    found.runs.sort();
    found.suites.sort();
    found
}

fn search(folder: &Path, name: &str, depth: usize, found: &mut Found) {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => {
            if !is_absent(&error) {
                found.unread.push(name.into());
            }
            return;
        }
    };
    for entry in entries {
        let Ok(entry) = entry else {
            found.unread.push(name.into());
            continue;
        };
        let part = printable(&entry.file_name());
        let path = entry.path();
        let name = if name.is_empty() { part.clone() } else { format!("{name}/{part}") };
        let Ok(type_of) = entry.file_type() else {
            found.unread.push(name);
            continue;
        };
        if part.starts_with('.') || !(type_of.is_dir() || type_of.is_symlink()) {
            continue;
        }
        match kind(&path) {
            Err(_) => found.unread.push(name),
            Ok(Kind::Suite) => {
                inside_suite(&path, &name, depth - 1, found);
                found.suites.push((name, path));
            }
            Ok(Kind::Run) => found.runs.push((name, path)),
            Ok(Kind::Other) if type_of.is_dir() && depth > 1 => {
                search(&path, &name, depth - 1, found);
            }
            Ok(Kind::Other) => {}
        }
    }
}

/// A suite keeps its runs in `runs`; what is beside it, such as trials of speed, is not part of the list.
fn inside_suite(suite: &Path, name: &str, depth: usize, found: &mut Found) {
    let name = if name.is_empty() { "runs".into() } else { format!("{name}/runs") };
    search(&suite.join("runs"), &name, depth.max(1), found);
}

enum Kind {
    Suite,
    Run,
    Other,
}

/// Metrics without settings are a run, too: a broken one.
fn kind(path: &Path) -> io::Result<Kind> {
    let has = |name: &str| match fs::metadata(path.join(name)) {
        Ok(about) => Ok(!about.is_dir()),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => Err(error),
    };
    if has("table.json")? || has("suite.json")? {
        Ok(Kind::Suite)
    } else if has("config.toml")? || has("metrics.jsonl")? {
        Ok(Kind::Run)
    } else {
        Ok(Kind::Other)
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// A name that is not UTF-8 is shown with escapes, so that no two are the same.
fn printable(name: &std::ffi::OsStr) -> String {
    name.to_str().map_or_else(|| format!("{name:?}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(root: &Path, folder: &str, file: &str) {
        fs::create_dir_all(root.join(folder)).unwrap();
        fs::write(root.join(folder).join(file), "").unwrap();
    }

    #[test]
    fn runs_are_found_alone_and_in_suites_but_not_inside_of_runs() {
        let root = tempfile::tempdir().unwrap();
        make(root.path(), "alone", "config.toml");
        make(root.path(), "alone/inner", "config.toml");
        make(root.path(), "suite", "table.json");
        make(root.path(), "suite/runs/mgr-0", "config.toml");
        make(root.path(), "suite/pace/mgr", "config.toml");
        make(root.path(), "started", "suite.json");
        make(root.path(), "half", "metrics.jsonl");
        make(root.path(), ".hidden", "config.toml");
        make(root.path(), "nothing/here", "notes.txt");
        let found = find(root.path());
        let names: Vec<&str> = found.runs.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["alone", "half", "suite/runs/mgr-0"]);
        let names: Vec<&str> = found.suites.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["started", "suite"]);
        let suite = find(&root.path().join("suite"));
        assert_eq!((suite.runs[0].0.as_str(), suite.suites[0].0.as_str()), ("runs/mgr-0", "suite"));
    }

    #[test]
    fn a_folder_that_is_a_run_is_the_only_one() {
        let root = tempfile::tempdir().unwrap();
        make(root.path(), "mine", "config.toml");
        let found = find(&root.path().join("mine"));
        assert_eq!(found.runs, [("mine".to_owned(), root.path().join("mine"))]);
    }

    #[test]
    fn what_could_not_be_looked_into_may_hide_runs() {
        let found = Found { unread: vec!["a/b".into()], ..Found::default() };
        assert!(found.may_hide("a/b") && found.may_hide("a/b/c"));
        assert!(!found.may_hide("a") && !found.may_hide("a/bc"));
        let found = Found { unread: vec![String::new()], ..Found::default() };
        assert!(found.may_hide("a"));
        let absent = find(Path::new("/nowhere/at/all"));
        assert!(!absent.may_hide("a"));
    }

    #[cfg(unix)]
    #[test]
    fn links_to_runs_are_runs_and_links_in_circles_do_no_harm() {
        let root = tempfile::tempdir().unwrap();
        make(root.path(), "run", "config.toml");
        std::os::unix::fs::symlink(root.path().join("run"), root.path().join("link")).unwrap();
        std::os::unix::fs::symlink(root.path(), root.path().join("circle")).unwrap();
        let found = find(root.path());
        let names: Vec<&str> = found.runs.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["link", "run"]);
    }
}
