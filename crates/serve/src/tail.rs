//! Following `metrics.jsonl` while it is written, even when a resume cuts it back.

use crate::files;
use hadal_report::run::{EvaluationPoint, Metric, StepPoint};
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The most bytes read at once.
const PIECE: u64 = 4 << 20;
/// Longer lines are left out.
const LINE: usize = 1 << 20;
/// Longer files are not read: this is more than a million steps.
const LONGEST: u64 = 256_000_000;
/// A file that is cut back more often than this while it is read is shown empty.
const RESETS: usize = 3;
/// This many bytes before the cursor must be unchanged.
const WITNESS: u64 = 256;

/// A place between two lines, with a witness of the bytes before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    offset: u64,
    witness: u64,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:x}", self.offset, self.witness)
    }
}

impl FromStr for Cursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (offset, witness) = text.split_once('-').ok_or(())?;
        let witness = u64::from_str_radix(witness, 16).map_err(|_| ())?;
        Ok(Self { offset: offset.parse().map_err(|_| ())?, witness })
    }
}

/// What was appended since the last look.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Points {
    pub(crate) steps: Vec<StepPoint>,
    pub(crate) evaluations: Vec<EvaluationPoint>,
    #[serde(skip)]
    pub(crate) damage: Option<Damage>,
}

impl Points {
    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.evaluations.is_empty()
    }

    fn skip(&mut self, offset: u64, reason: impl fmt::Display) {
        let first = Damage { lines: 0, offset, reason: reason.to_string() };
        self.damage.get_or_insert(first).lines += 1;
    }
}

/// Lines that are left out because they cannot be read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Damage {
    pub(crate) lines: u64,
    /// Where the first one begins, and what is wrong with it.
    offset: u64,
    reason: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lines, offset, reason } = self;
        write!(f, "metrics.jsonl is damaged at byte {offset}: {reason}; ")?;
        match lines {
            1 => f.write_str("this line is left out"),
            _ => write!(f, "{lines} lines are left out"),
        }
    }
}

/// The result of a look.
#[derive(Debug)]
pub(crate) enum Look {
    /// Nothing new.
    Same,
    /// More points.
    More(Points),
    /// Lines that were read before are gone: everything comes again from the start.
    Reset,
}

/// Why metrics cannot be followed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TailError {
    #[error("cannot read metrics.jsonl: {0}")]
    Io(#[from] io::Error),
    #[error(
        "metrics.jsonl has {} MB; those of more than {} MB are not shown",
        length / 1_000_000,
        LONGEST / 1_000_000
    )]
    TooLong { length: u64 },
}

impl TailError {
    /// Whether it is the machine's trouble and not the file's.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Self::Io(error) if files::is_passing(error))
    }
}

/// A reader that knows its position.
pub(crate) struct Tail {
    run: PathBuf,
    cursor: Cursor,
}

impl Tail {
    /// Begins at the start of a run's metrics.
    pub(crate) fn new(run: &Path) -> Self {
        Self::from(run, Cursor::default())
    }

    /// Continues from the position of an earlier reader.
    pub(crate) fn from(run: &Path, cursor: Cursor) -> Self {
        Self { run: run.into(), cursor }
    }

    /// Its position.
    pub(crate) fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Everything up to the last whole line, piece by piece: `add` puts each into what `new` makes.
    pub(crate) fn rest<T>(
        &mut self,
        new: impl Fn() -> T,
        mut add: impl FnMut(&mut T, Points),
    ) -> Result<T, TailError> {
        let mut all = new();
        let mut patience = RESETS;
        loop {
            match self.look()? {
                Look::Same => return Ok(all),
                Look::Reset if patience == 0 => return Ok(new()),
                Look::Reset => {
                    all = new();
                    patience -= 1;
                }
                Look::More(points) => add(&mut all, points),
            }
        }
    }

    /// The next piece.
    pub(crate) fn look(&mut self) -> Result<Look, TailError> {
        let mut file = match files::open(&self.run, "metrics.jsonl") {
            Ok(file) => file,
            // A run writes its first line when its first step is done.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(self.restart()),
            Err(error) => return Err(error.into()),
        };
        let length = file.metadata()?.len();
        if length > LONGEST {
            return Err(TailError::TooLong { length });
        }
        if length < self.cursor.offset || self.cursor.witness != self.witness(&mut file)? {
            return Ok(self.restart());
        }
        file.seek(SeekFrom::Start(self.cursor.offset))?;
        let mut bytes = Vec::new();
        file.by_ref().take(PIECE).read_to_end(&mut bytes)?;
        let points = match bytes.iter().rposition(|&byte| byte == b'\n') {
            Some(end) => {
                bytes.truncate(end + 1);
                parse(&bytes, self.cursor.offset)
            }
            None if bytes.len() <= LINE => return Ok(Look::Same),
            None => {
                let mut points = Points::default();
                points.skip(self.cursor.offset, format!("a line of more than {LINE} bytes"));
                points
            }
        };
        self.cursor.offset += bytes.len() as u64;
        self.cursor.witness = self.witness(&mut file)?;
        // Lines of an unknown kind make no points, but others may follow.
        Ok(Look::More(points))
    }

    fn restart(&mut self) -> Look {
        if self.cursor == Cursor::default() {
            return Look::Same;
        }
        self.cursor = Cursor::default();
        Look::Reset
    }

    fn witness(&self, file: &mut File) -> io::Result<u64> {
        if self.cursor.offset == 0 {
            return Ok(0);
        }
        let start = self.cursor.offset.saturating_sub(WITNESS);
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(start))?;
        file.take(self.cursor.offset - start).read_to_end(&mut bytes)?;
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        Ok(hasher.finish())
    }
}

fn parse(bytes: &[u8], start: u64) -> Points {
    let mut points = Points::default();
    let mut offset = start;
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        match serde_json::from_slice(line) {
            Ok(Metric::Train(step)) => points.steps.push(step),
            Ok(Metric::Eval(evaluation)) => points.evaluations.push(evaluation),
            Ok(Metric::Other) => {}
            Err(error) => points.skip(offset, error),
        }
        offset += line.len() as u64;
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn line(step: u64, speed: f64) -> String {
        format!(
            "{{\"kind\":\"train\",\"step\":{step},\"loss\":2.5,\"gradient_norm\":1.0,\"rate\":1.0,\
             \"tokens\":{step},\"tokens_per_second\":{speed}}}\n"
        )
    }

    fn all(tail: &mut Tail) -> Points {
        let add = |all: &mut Points, points: Points| {
            all.steps.extend(points.steps);
            if let Some(damage) = points.damage {
                let before = all.damage.take().map_or(0, |damage| damage.lines);
                all.damage = Some(Damage { lines: damage.lines + before, ..damage });
            }
        };
        tail.rest(Points::default, add).unwrap()
    }

    fn steps(look: Look) -> Vec<u64> {
        let Look::More(points) = look else { panic!("no points: {look:?}") };
        points.steps.iter().map(|step| step.step).collect()
    }

    #[test]
    fn a_line_counts_once_it_is_whole() {
        let run = tempfile::tempdir().unwrap();
        let file = run.path().join("metrics.jsonl");
        let mut tail = Tail::new(run.path());
        assert!(matches!(tail.look(), Ok(Look::Same)));
        let (first, second) = (line(1, 10.0), line(2, 10.0));
        fs::write(&file, format!("{first}{}", &second[..20])).unwrap();
        assert_eq!(steps(tail.look().unwrap()), [1]);
        assert!(matches!(tail.look(), Ok(Look::Same)));
        fs::write(&file, format!("{first}{second}")).unwrap();
        assert_eq!(steps(tail.look().unwrap()), [2]);
    }

    #[test]
    fn a_file_that_was_cut_back_starts_again_even_if_it_has_grown_since() {
        let run = tempfile::tempdir().unwrap();
        let file = run.path().join("metrics.jsonl");
        fs::write(&file, format!("{}{}", line(1, 10.0), line(2, 10.0))).unwrap();
        let mut tail = Tail::new(run.path());
        all(&mut tail);
        fs::write(&file, line(1, 10.0)).unwrap();
        assert!(matches!(tail.look(), Ok(Look::Reset)));
        assert_eq!(steps(tail.look().unwrap()), [1]);
        fs::write(&file, format!("{}{}{}", line(1, 11.0), line(2, 11.0), line(3, 11.0))).unwrap();
        assert!(matches!(tail.look(), Ok(Look::Reset)));
        assert_eq!(steps(tail.look().unwrap()), [1, 2, 3]);
    }

    #[test]
    fn a_cursor_survives_being_written_down() {
        let run = tempfile::tempdir().unwrap();
        fs::write(run.path().join("metrics.jsonl"), line(1, 10.0)).unwrap();
        let mut tail = Tail::new(run.path());
        all(&mut tail);
        let cursor: Cursor = tail.cursor().to_string().parse().unwrap();
        let mut tail = Tail::from(run.path(), cursor);
        assert!(matches!(tail.look(), Ok(Look::Same)));
        for wrong in ["", "7", "x-1", "7-z", "-"] {
            assert!(wrong.parse::<Cursor>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn damaged_lines_are_left_out_and_named_with_their_place() {
        let run = tempfile::tempdir().unwrap();
        let first = line(1, 10.0);
        let text = format!("{first}not json\n\0\0\n{}", line(2, 10.0));
        fs::write(run.path().join("metrics.jsonl"), text).unwrap();
        let points = all(&mut Tail::new(run.path()));
        assert_eq!(points.steps.len(), 2);
        let damage = points.damage.unwrap().to_string();
        assert!(damage.contains(&format!("damaged at byte {}", first.len())), "{damage}");
        assert!(damage.contains("2 lines are left out"), "{damage}");
    }

    #[test]
    fn a_line_without_an_end_is_passed_over() {
        let run = tempfile::tempdir().unwrap();
        let path = run.path().join("metrics.jsonl");
        let text = format!("{}{}\n{}", line(1, 10.0), "x".repeat(9 << 20), line(2, 10.0));
        fs::write(path, text).unwrap();
        let points = all(&mut Tail::new(run.path()));
        assert_eq!(points.steps.iter().map(|step| step.step).collect::<Vec<_>>(), [1, 2]);
        assert!(points.damage.is_some());
    }

    #[test]
    fn a_huge_file_and_what_is_no_file_are_refused_at_once() {
        let run = tempfile::tempdir().unwrap();
        let path = run.path().join("metrics.jsonl");
        File::create(&path).unwrap().set_len(1 << 30).unwrap();
        let error = Tail::new(run.path()).look().unwrap_err().to_string();
        assert!(error.contains("has 1073 MB; those of more than 256 MB"), "{error}");
        fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
        let error = Tail::new(run.path()).look().unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }
}
