//! Faults on purpose: a kill or a full disk at a chosen operation on files, so that tests reach every one of them.
//!
//! The environment variable `HADAL_FAULT` says what happens and where:
//! - `kill:12`: the process ends before its 12th operation, as by `kill -9`;
//! - `full:12`: from the 12th operation on, nothing can be written;
//! - `kill:rename step-000000004`, `full:write metrics.jsonl#3`: the same at the first (here: the third) operation of
//!   that kind on a file or directory whose name begins so.

use super::{Action, FileError, file_error};
use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Says that something is about to be done to a file. Every operation that changes the disk begins with this.
pub fn point(action: Action, path: &Path) -> Result<(), FileError> {
    static PLANNED: OnceLock<Option<Fault>> = OnceLock::new();
    let planned = PLANNED.get_or_init(|| Fault::parse(&std::env::var("HADAL_FAULT").ok()?));
    match planned {
        None => Ok(()),
        Some(fault) => fault.meet(action, path).map_err(file_error(action, path)),
    }
}

#[derive(Debug)]
struct Fault {
    kills: bool,
    /// The operation and the beginning of the name; any operation if there is none.
    only: Option<(String, String)>,
    at: u64,
    met: AtomicU64,
}

impl Fault {
    fn parse(text: &str) -> Option<Self> {
        let (what, place) = text.split_once(':')?;
        let kills = match what {
            "kill" => true,
            "full" => false,
            _ => return None,
        };
        let (only, at) = match (place.parse(), place.split_once(' ')) {
            (Ok(at), _) => (None, at),
            (_, Some((action, name))) => {
                let (name, at) = name.split_once('#').unwrap_or((name, "1"));
                (Some((action.to_owned(), name.to_owned())), at.parse().ok()?)
            }
            _ => return None,
        };
        Some(Self { kills, only, at, met: AtomicU64::new(0) })
    }

    fn meet(&self, action: Action, path: &Path) -> io::Result<()> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let meant = |(action_name, begin): &(String, String)| {
            action.to_string().starts_with(action_name.as_str()) && name.starts_with(begin.as_str())
        };
        if !self.only.as_ref().is_none_or(meant) {
            return Ok(());
        }
        let met = self.met.fetch_add(1, Ordering::Relaxed) + 1;
        let writes = matches!(action, Action::Write | Action::Create | Action::Copy);
        match self.kills {
            true if met == self.at => std::process::abort(),
            false if met >= self.at && writes => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_full_from_the_chosen_operation_on_but_files_can_be_removed() {
        let fault = Fault::parse("full:2").unwrap();
        let path = Path::new("runs/a");
        assert!(fault.meet(Action::Write, path).is_ok());
        assert!(fault.meet(Action::Remove, path).is_ok());
        let error = fault.meet(Action::Write, path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn an_operation_can_be_named() {
        let fault = Fault::parse("full:write metrics#2").unwrap();
        assert!(fault.meet(Action::Write, Path::new("a/metrics.jsonl")).is_ok());
        assert!(fault.meet(Action::Write, Path::new("a/samples.jsonl")).is_ok());
        assert!(fault.meet(Action::Create, Path::new("a/metrics.jsonl")).is_ok());
        assert!(fault.meet(Action::Write, Path::new("a/metrics.jsonl")).is_err());
        assert!(Fault::parse("kill:rename step-000000004").is_some_and(|fault| fault.kills));
        for nonsense in ["", "kill", "kill:", "burn:3", "kill:write a#b"] {
            assert!(Fault::parse(nonsense).is_none(), "{nonsense}");
        }
    }
}
