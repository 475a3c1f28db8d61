//! Files of a run's folder. They may be anybody's, so only regular files inside of the folder are read, and only so
//! much of each.

use hadal_report::figure::Figure;
use hadal_report::run::{Outcome, Sample};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::UNIX_EPOCH;

/// A note, in bytes.
pub(crate) const NOTE: u64 = 64 << 10;
/// Settings, `run.json` or an outcome, in bytes.
const SMALL: u64 = 1 << 20;
/// The newest samples, in bytes.
const SAMPLES: u64 = 4 << 20;
/// The table of a suite, in bytes.
pub(crate) const TABLE: u64 = 16 << 20;
/// All figures of a run together, in bytes.
const FIGURES: u64 = 16 << 20;
/// Figures of a run.
const MOST_FIGURES: usize = 64;

/// Opens a regular file of a folder. A link that leads out of the folder is refused.
pub(crate) fn open(folder: &Path, name: &str) -> io::Result<File> {
    let place = fs::canonicalize(folder.join(name))?;
    if !place.starts_with(fs::canonicalize(folder)?) {
        let reason = "it is a link that leads out of its folder";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    hadal_files::open(&place).map_err(|error| error.source)
}

/// Changes when one of these files does: its length or its time.
pub(crate) fn stamps(folder: &Path, names: &[&str]) -> String {
    let stamp = |name: &&str| match fs::metadata(folder.join(name)) {
        Ok(file) => {
            let time = file.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            format!("{}@{}", file.len(), time.map_or(0, |time| time.as_nanos()))
        }
        Err(_) => "-".into(),
    };
    names.iter().map(stamp).collect::<Vec<_>>().join(" ")
}

/// All bytes of a file that has at most so many.
pub(crate) fn read(folder: &Path, name: &str, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(folder, name)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let reason = format!("it has more than {most} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

/// The resolved settings of a run.
pub(crate) fn settings(run: &Path) -> Result<toml::Table, Unreadable> {
    let name = "config.toml";
    let bytes = read(run, name, SMALL).map_err(|error| Unreadable::file(name, error))?;
    let damaged = |reason: String| Unreadable::Damaged(format!("{name} is damaged: {reason}"));
    let text = String::from_utf8(bytes).map_err(|error| damaged(error.to_string()))?;
    toml::from_str(&text).map_err(|error| damaged(error.to_string()))
}

/// A JSON file, if it exists.
pub(crate) fn json<T: DeserializeOwned>(
    folder: &Path,
    name: &str,
    most: u64,
) -> Result<Option<T>, Unreadable> {
    match read(folder, name, most) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| Unreadable::Damaged(format!("{name} is damaged: {error}"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Unreadable::file(name, error)),
    }
}

/// Why a file is not shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("cannot read {name}: {source}")]
    File { name: String, source: io::Error },
    #[error("{0}")]
    Damaged(String),
}

impl Unreadable {
    pub(crate) fn file(name: &str, source: io::Error) -> Self {
        Self::File { name: name.into(), source }
    }

    /// Whether it is the machine's trouble and not the file's, so that the file may be read later.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Self::File { source, .. } if is_passing(source))
    }
}

/// Whether an error says something about the machine at this moment and nothing about a file.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let passing =
        [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::IO, Errno::STALE, Errno::TIMEDOUT];
    passing.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// What a run's folder holds beside its metrics. A part that cannot be read is left out and named.
pub(crate) struct Contents {
    pub(crate) settings: toml::Table,
    pub(crate) about: Value,
    /// The newest ones, oldest first.
    pub(crate) samples: Vec<Sample>,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) trouble: Vec<String>,
}

impl Contents {
    /// Reads a run without its metrics; without settings there is none.
    pub(crate) fn read(run: &Path) -> Result<Self, Unreadable> {
        let settings = settings(run)?;
        let mut trouble = Vec::new();
        let about = told(json(run, "run.json", SMALL), &mut trouble).flatten();
        let outcome = told(json(run, "outcome.json", SMALL), &mut trouble).flatten();
        let samples = told(samples(run), &mut trouble).unwrap_or_default();
        Ok(Self { settings, about: about.unwrap_or_default(), samples, outcome, trouble })
    }
}

fn told<T>(read: Result<T, Unreadable>, trouble: &mut Vec<String>) -> Option<T> {
    read.map_err(|error| trouble.push(error.to_string())).ok()
}

/// The newest samples. Lines that cannot be read are left out.
fn samples(run: &Path) -> Result<Vec<Sample>, Unreadable> {
    let name = "samples.jsonl";
    let newest = || {
        let mut file = open(run, name)?;
        let start = file.metadata()?.len().saturating_sub(SAMPLES);
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.take(SAMPLES).read_to_end(&mut bytes)?;
        Ok((start > 0, bytes))
    };
    let (is_cut, bytes) = match newest() {
        Ok(read) => read,
        Err(error) if io::Error::kind(&error) == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Unreadable::file(name, error)),
    };
    let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    let lines = bytes[..whole].split_inclusive(|&byte| byte == b'\n').skip(usize::from(is_cut));
    Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

/// The page that `hadal diagnose` wrote beside its figures, if there is one: its name in the run's folder.
pub(crate) fn diagnosis_page(run: &Path) -> Option<String> {
    let entries = fs::read_dir(run.join("diagnosis")).ok()?.take(1000);
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let page = names.filter(|name| name.ends_with(".html")).min()?;
    Some(format!("diagnosis/{page}"))
}

/// A run's figures from `hadal diagnose`, by name, and what cannot be shown of them.
pub(crate) fn figures(run: &Path) -> (Vec<Figure>, Vec<String>) {
    let (mut figures, mut trouble, mut left) = (Vec::new(), Vec::new(), FIGURES);
    for name in figure_files(run) {
        let name = format!("diagnosis/{name}");
        let length = fs::metadata(run.join(&name)).map_or(0, |file| file.len());
        if let Some(figure) = told(json::<Figure>(run, &name, left), &mut trouble).flatten() {
            figures.push(figure);
            left = left.saturating_sub(length);
        }
    }
    figures.sort_by(|a, b| a.name.cmp(&b.name));
    (figures, trouble)
}

/// Names of files that may be figures.
pub(crate) fn figure_files(run: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(run.join("diagnosis")) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter(|name| name.ends_with(".json")).take(MOST_FIGURES).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_inside_of_a_folder_are_followed_and_those_that_leave_it_are_not() {
        let root = tempfile::tempdir().unwrap();
        let run = root.path().join("run");
        fs::create_dir_all(run.join("inner")).unwrap();
        fs::write(root.path().join("secret"), "secret").unwrap();
        fs::write(run.join("inner/file"), "ours").unwrap();
        symlink("inner/file", run.join("inside")).unwrap();
        symlink("../secret", run.join("outside")).unwrap();
        symlink("..", run.join("up")).unwrap();
        assert_eq!(read(&run, "inside", 10).unwrap(), b"ours");
        for name in ["outside", "up/secret", "../secret"] {
            let error = read(&run, name, 10).unwrap_err();
            assert!(error.to_string().contains("leads out"), "{name}: {error}");
        }
        assert!(read(&run, "inside", 3).unwrap_err().to_string().contains("more than 3 bytes"));
        symlink(&run, root.path().join("other")).unwrap();
        assert_eq!(read(&root.path().join("other"), "inside", 10).unwrap(), b"ours");
    }

    #[test]
    fn of_many_samples_the_newest_are_shown() {
        let run = tempfile::tempdir().unwrap();
        let line =
            |step: u64| format!("{{\"step\":{step},\"text\":\"{}\"}}\n", "x".repeat(1 << 20));
        let text: String = (0..6).map(line).collect::<String>() + "damaged\n{\"step\":9,\"te";
        fs::write(run.path().join("samples.jsonl"), text).unwrap();
        let steps: Vec<u64> = samples(run.path()).unwrap().iter().map(|s| s.step).collect();
        assert_eq!(steps, [3, 4, 5]);
    }
}
