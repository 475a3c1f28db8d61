//! `runs.sqlite`: summaries that need not be read again. Losing it loses nothing.

use super::summary::Summary;
use rusqlite::{Connection, OpenFlags, params};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The index's name in the folder of runs.
pub(crate) const FILE: &str = "runs.sqlite";
/// Another number means another layout, and the index is made anew.
const LAYOUT: i64 = 1;
/// How long another process may keep it locked before we continue without it.
const PATIENCE: Duration = Duration::from_millis(200);

/// An open index.
pub(crate) struct Store {
    path: PathBuf,
    connection: Connection,
}

impl Store {
    /// Opens the index or makes it. A file that is not our index is replaced; one that is locked or cannot be written
    /// is left alone, and the reason returned.
    pub(crate) fn open(root: &Path) -> Result<Self, String> {
        let path = root.join(FILE);
        match Self::open_at(&path) {
            Ok(store) => Ok(store),
            Err(error) if is_damage(&error) => {
                for suffix in ["", "-journal", "-wal", "-shm"] {
                    let _ = fs::remove_file(root.join(format!("{FILE}{suffix}")));
                }
                Self::open_at(&path).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn open_at(path: &Path) -> rusqlite::Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let connection =
            Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        connection.busy_timeout(PATIENCE)?;
        let layout: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if layout != LAYOUT {
            connection.execute_batch(&format!(
                "drop table if exists runs;
                 create table runs (
                     id text primary key, stamp text not null, status text not null,
                     residual text not null, seed integer, step integer not null,
                     tokens integer not null, train_loss real, held_out_loss real,
                     tokens_per_second real, summary text not null) without rowid;
                 pragma user_version = {LAYOUT};"
            ))?;
        }
        let store = Self { path: path.into(), connection };
        store.count()?;
        Ok(store)
    }

    /// Whether the file is still where it was opened.
    pub(crate) fn is_there(&self) -> bool {
        self.path.exists()
    }

    fn count(&self) -> rusqlite::Result<i64> {
        self.connection.query_row("select count(*) from runs", [], |row| row.get(0))
    }

    /// All summaries, with the stamps under which they were read. Those that cannot be parsed are left out, and so read
    /// again.
    pub(crate) fn load(&self) -> rusqlite::Result<HashMap<String, (String, Summary)>> {
        let mut statement = self.connection.prepare("select id, stamp, summary from runs")?;
        let rows = statement.query_map([], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?))
        })?;
        let mut known = HashMap::new();
        for row in rows {
            let (id, stamp, summary) = row?;
            if let Ok(summary) = serde_json::from_str(&summary) {
                known.insert(id, (stamp, summary));
            }
        }
        Ok(known)
    }

    /// Stores changed summaries and removes missing ones, all or nothing.
    pub(crate) fn save<'a>(
        &mut self,
        changed: impl Iterator<Item = (&'a str, &'a Summary)>,
        gone: &[String],
    ) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        {
            let mut insert = transaction.prepare(
                "insert or replace into runs values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            )?;
            for (stamp, run) in changed {
                let text = serde_json::to_string(run).unwrap_or_default();
                insert.execute(params![
                    run.id,
                    stamp,
                    run.status.word(),
                    run.residual,
                    run.seed,
                    i64::try_from(run.step).unwrap_or(i64::MAX),
                    i64::try_from(run.tokens).unwrap_or(i64::MAX),
                    run.train_loss,
                    run.held_out_loss,
                    run.tokens_per_second,
                    text
                ])?;
            }
            let mut delete = transaction.prepare("delete from runs where id = ?1")?;
            for id in gone {
                delete.execute([id])?;
            }
        }
        transaction.commit()
    }
}

fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{
        CannotOpen, DatabaseBusy, DatabaseLocked, PermissionDenied, ReadOnly,
    };
    match error.sqlite_error_code() {
        Some(DatabaseBusy | DatabaseLocked | CannotOpen | PermissionDenied | ReadOnly) => false,
        Some(_) => true,
        None => true,
    }
}
