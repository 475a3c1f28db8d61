//! Following `metrics.jsonl` while it is written, even when a resume cuts it back.

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
}

impl Points {
    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.evaluations.is_empty()
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
    #[error("metrics.jsonl is damaged at byte {offset}: {reason}")]
    Damaged { offset: u64, reason: String },
}

/// A reader that knows its position.
pub(crate) struct Tail {
    path: PathBuf,
    cursor: Cursor,
}

impl Tail {
    /// Begins at the start of a run's metrics.
    pub(crate) fn new(run: &Path) -> Self {
        Self::from(run, Cursor::default())
    }

    /// Continues from the position of an earlier reader.
    pub(crate) fn from(run: &Path, cursor: Cursor) -> Self {
        Self { path: run.join("metrics.jsonl"), cursor }
    }

    /// Its position.
    pub(crate) fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Everything up to the last whole line.
    pub(crate) fn rest(&mut self) -> Result<Points, TailError> {
        let mut all = Points::default();
        loop {
            match self.look()? {
                Look::Same => return Ok(all),
                Look::Reset => all = Points::default(),
                Look::More(points) => {
                    all.steps.extend(points.steps);
                    all.evaluations.extend(points.evaluations);
                }
            }
        }
    }

    /// The next piece.
    pub(crate) fn look(&mut self) -> Result<Look, TailError> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            // A run writes its first line when its first step is done.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(self.restart()),
            Err(error) => return Err(error.into()),
        };
        let length = file.metadata()?.len();
        if length < self.cursor.offset || self.cursor.witness != self.witness(&mut file)? {
            return Ok(self.restart());
        }
        file.seek(SeekFrom::Start(self.cursor.offset))?;
        let mut bytes = Vec::new();
        file.by_ref().take(PIECE).read_to_end(&mut bytes)?;
        let Some(end) = bytes.iter().rposition(|&byte| byte == b'\n') else {
            return Ok(Look::Same);
        };
        bytes.truncate(end + 1);
        let points = parse(&bytes, self.cursor.offset)?;
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

fn parse(bytes: &[u8], start: u64) -> Result<Points, TailError> {
    let mut points = Points::default();
    let mut offset = start;
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        match serde_json::from_slice(line) {
            Ok(Metric::Train(step)) => points.steps.push(step),
            Ok(Metric::Eval(evaluation)) => points.evaluations.push(evaluation),
            Ok(Metric::Other) => {}
            Err(error) => return Err(TailError::Damaged { offset, reason: error.to_string() }),
        }
        offset += line.len() as u64;
    }
    Ok(points)
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
        tail.rest().unwrap();
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
        tail.rest().unwrap();
        let cursor: Cursor = tail.cursor().to_string().parse().unwrap();
        let mut tail = Tail::from(run.path(), cursor);
        assert!(matches!(tail.look(), Ok(Look::Same)));
        for wrong in ["", "7", "x-1", "7-z", "-"] {
            assert!(wrong.parse::<Cursor>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn damage_is_named_with_its_place() {
        let run = tempfile::tempdir().unwrap();
        let first = line(1, 10.0);
        fs::write(run.path().join("metrics.jsonl"), format!("{first}not json\n")).unwrap();
        let error = Tail::new(run.path()).rest().unwrap_err().to_string();
        assert!(error.contains(&format!("damaged at byte {}", first.len())), "{error}");
    }
}
