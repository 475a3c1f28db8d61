//! `.hadal-index.sqlite`: summaries that need not be read again. Losing it loses nothing.
//!
//! Only a file with our mark in its header is ever opened for writing, emptied or replaced. Nothing is written beside it:
//! the journal is in memory, and an index that a crash has torn is made anew.

use super::summary::Summary;
use rusqlite::{Connection, ErrorCode, OpenFlags, params};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The index's name in the folder of runs.
pub(crate) const FILE: &str = ".hadal-index.sqlite";
/// SQLite's `application_id`: "hadl".
const MARK: [u8; 4] = *b"hadl";
/// Another number means another layout, and the index is made anew.
const LAYOUT: i64 = 3;
/// How long another process may keep it locked before we continue without it.
const PATIENCE: Duration = Duration::from_millis(200);

/// Where a database says what it is, and how SQLite's files begin.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
const MARK_AT: usize = 68;
const HEADER: usize = 100;

/// An open index.
pub(crate) struct Store {
    path: PathBuf,
    connection: Connection,
}

/// Why there is no index.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("{FILE} is not an index of hadal and stays as it is; move it away to have one")]
    Foreign,
    #[error("{FILE}{0} is not ours and stays as it is; move it away to have an index")]
    Beside(&'static str),
    #[error("{FILE} is damaged")]
    Damaged,
    #[error("{FILE}: {0}")]
    File(#[from] io::Error),
    #[error("{FILE}: {0}")]
    Index(#[from] rusqlite::Error),
}

impl StoreError {
    /// Whether it is ours, was read and makes no sense.
    fn is_damage(&self) -> bool {
        use ErrorCode::{DatabaseCorrupt, NotADatabase, Unknown};
        match self {
            Self::Damaged => true,
            Self::Index(error) => match error.sqlite_error_code() {
                Some(code) => matches!(code, DatabaseCorrupt | NotADatabase | Unknown),
                None => true,
            },
            _ => false,
        }
    }
}

impl Store {
    /// Opens the index or makes it. A damaged one is made anew; one that is not ours, is locked or cannot be written is
    /// left alone, and the reason returned.
    pub(crate) fn open(root: &Path) -> Result<Self, StoreError> {
        // SQLite refuses links anywhere in a path.
        let path = fs::canonicalize(root)?.join(FILE);
        match Self::open_ours(&path) {
            Err(error) if error.is_damage() => {
                // Still ours: it was just looked at.
                fs::remove_file(&path)?;
                Self::open_ours(&path)
            }
            opened => opened,
        }
    }

    fn open_ours(path: &Path) -> Result<Self, StoreError> {
        for suffix in ["-journal", "-wal", "-shm"] {
            if fs::symlink_metadata(beside(path, suffix)).is_ok() {
                return Err(StoreError::Beside(suffix));
            }
        }
        match fs::symlink_metadata(path) {
            Ok(about) if about.is_file() => {
                let mut header = [0; HEADER];
                let file = hadal_files::open(path).map_err(|error| error.source)?;
                let whole = { file }.read_exact(&mut header).is_ok();
                if !whole || !header.starts_with(MAGIC) || header[MARK_AT..][..4] != MARK {
                    return Err(StoreError::Foreign);
                }
            }
            Ok(_) => return Err(StoreError::Foreign),
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(path)?,
            Err(error) => return Err(error.into()),
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let connection =
            Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        connection.busy_timeout(PATIENCE)?;
        connection.pragma_update_and_check(None, "journal_mode", "memory", |_| Ok(()))?;
        let layout: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if layout != LAYOUT {
            connection.execute_batch(&format!(
                "begin;
                 drop table if exists runs;
                 create table runs (
                     id text primary key, stamp text not null, status text not null,
                     residual text not null, seed integer, step integer not null,
                     tokens integer not null, train_loss real, held_out_loss real,
                     tokens_per_second real, summary text not null) without rowid;
                 pragma user_version = {LAYOUT};
                 commit;"
            ))?;
        }
        let store = Self { path: path.into(), connection };
        store.check()?;
        Ok(store)
    }

    /// Whether the file is still where it was opened.
    pub(crate) fn is_there(&self) -> bool {
        self.path.exists()
    }

    fn check(&self) -> Result<(), StoreError> {
        let ask = |query: &str| self.connection.query_row(query, [], |row| row.get::<_, String>(0));
        if ask("pragma quick_check(1)")? != "ok" {
            return Err(StoreError::Damaged);
        }
        ask("select cast(count(summary) as text) from runs")?;
        Ok(())
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

/// Makes an empty database with our mark, where there is no file: one page with an empty schema.
fn make(path: &Path) -> io::Result<()> {
    const PAGE: u16 = 4096;
    let mut page = vec![0; usize::from(PAGE)];
    let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, MAGIC);
    put(16, &PAGE.to_be_bytes());
    // Versions of the format, and shares that are fixed.
    put(18, &[1, 1, 0, 64, 32, 32]);
    // Changes, pages.
    put(24, &1_u32.to_be_bytes());
    put(28, &1_u32.to_be_bytes());
    // Format of the schema, UTF-8.
    put(44, &4_u32.to_be_bytes());
    put(56, &1_u32.to_be_bytes());
    put(MARK_AT, &MARK);
    put(92, &1_u32.to_be_bytes());
    put(96, &rusqlite::version_number().to_be_bytes());
    // A leaf without cells.
    put(HEADER, &[0x0d]);
    put(HEADER + 5, &PAGE.to_be_bytes());
    // Fails if the name is taken, also by a link.
    let mut file = File::options().write(true).create_new(true).open(path)?;
    file.write_all(&page).inspect_err(|_| drop(fs::remove_file(path)))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
