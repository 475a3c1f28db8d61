//! The data that a model is looked at with, in batches of bounded size.

use crate::Subject;
use crate::diagnose::{DiagnoseError, Options, SAMPLES, memory};
use hadal_data::{Batch, Feed, FeedError};
use hadal_data::{ShardSet, TokenizerKind};
use hadal_files::{Action, file_error};
use hadal_model::{Tokenizer, Tokens, byte_tokenizer};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Tokens of one pass: what is seen in a pass is kept until its end.
const TOKENS_PER_PASS: usize = 2048;
/// Tokens looked at by default, unless enough sequences are reached before.
const MOST_TOKENS: usize = 1 << 16;
/// Length of sequences for models that do not give one.
const LONGEST: usize = 512;
/// No diagnosis needs more of a text.
const MOST_BYTES: u64 = 4 << 20;

/// Sequences to look at a model with.
#[derive(Debug)]
pub struct Samples<'a> {
    source: Source<'a>,
    seq_len: usize,
    /// Number of sequences; unlimited if `None`.
    available: Option<u64>,
    /// The tokenizer of data that is not lent.
    tokenizer: Option<Tokenizer>,
}

#[derive(Debug)]
enum Source<'a> {
    Own(Box<Feed>),
    Lent(&'a Feed),
    Shards(Box<ShardSet>),
    Tokens(Vec<u32>),
}

impl<'a> Samples<'a> {
    /// The data that was named, or else the run's own held-out data.
    pub fn of(subject: &Subject, data: Option<&Path>) -> Result<Samples<'static>, DiagnoseError> {
        match (data, &subject.config) {
            (Some(path), _) if path.is_dir() => prepared(subject, path),
            (Some(path), _) => text(subject, path),
            (None, Some(config)) => {
                let feed = config.open_feed()?;
                let (seq_len, available) = (feed.seq_len(), feed.held_out_sequences());
                let tokenizer = feed.tokenizer()?;
                let source = Source::Own(Box::new(feed));
                Ok(Samples { source, seq_len, available, tokenizer })
            }
            (None, None) => Err(DiagnoseError::NoData { path: subject.path.clone() }),
        }
    }

    /// The held-out data of a run in progress.
    pub(crate) fn lent(feed: &'a Feed) -> Self {
        let (seq_len, available) = (feed.seq_len(), feed.held_out_sequences());
        Self { source: Source::Lent(feed), seq_len, available, tokenizer: None }
    }

    /// These tokens, in sequences of this length.
    #[cfg(test)]
    pub(crate) fn tokens(ids: Vec<u32>, seq_len: usize) -> Samples<'static> {
        let available = Some((ids.len() as u64 - 1) / seq_len as u64);
        Samples { source: Source::Tokens(ids), seq_len, available, tokenizer: None }
    }

    /// The tokenizer of the data, if it is text.
    pub(crate) fn tokenizer(&self) -> Option<Tokenizer> {
        match &self.source {
            Source::Lent(feed) => feed.tokenizer().ok()?,
            Source::Own(_) | Source::Shards(_) | Source::Tokens(_) => self.tokenizer.clone(),
        }
    }

    /// Sequences of one pass.
    fn rows(&self) -> usize {
        (TOKENS_PER_PASS / self.seq_len).clamp(1, SAMPLES)
    }

    /// Bytes that a diagnosis with this data will have in memory at the most.
    pub fn memory(&self, subject: &Subject, options: &Options) -> Result<f64, DiagnoseError> {
        let all =
            self.available.map_or(usize::MAX, |all| usize::try_from(all).unwrap_or(usize::MAX));
        memory(subject.model(), options, self.rows().min(all), self.seq_len)
    }

    /// How many batches to look at: as many as requested, or enough for the 512 sequences of the literature, but never
    /// more than there are.
    pub(crate) fn batches(&self, wanted: Option<usize>) -> usize {
        let rows = self.rows();
        let enough = SAMPLES.min((MOST_TOKENS / self.seq_len).max(1)).div_ceil(rows);
        let all = self
            .available
            .map_or(usize::MAX, |all| usize::try_from(all).unwrap_or(usize::MAX).div_ceil(rows));
        wanted.unwrap_or(enough).max(1).min(all)
    }

    pub(crate) fn batch(&self, index: usize) -> Result<Batch, DiagnoseError> {
        let rows = self.rows();
        let first = (index * rows) as u64;
        let left = self.available.map_or(u64::MAX, |all| all.saturating_sub(first));
        let count = rows.min(usize::try_from(left).unwrap_or(usize::MAX));
        let window = |i: u64| -> Result<Vec<u32>, DiagnoseError> {
            let start = (first + i) * self.seq_len as u64;
            match &self.source {
                Source::Shards(set) => Ok(set.read(start, self.seq_len + 1)?),
                Source::Tokens(ids) => {
                    Ok(ids[start as usize..start as usize + self.seq_len + 1].to_vec())
                }
                Source::Own(_) | Source::Lent(_) => Ok(Vec::new()),
            }
        };
        match &self.source {
            Source::Own(feed) => return Ok(feed.held_out(first, count)?),
            Source::Lent(feed) => return Ok(feed.held_out(first, count)?),
            Source::Shards(_) | Source::Tokens(_) => {}
        }
        let (mut input, mut target) = (Vec::new(), Vec::new());
        for i in 0..count as u64 {
            let window = window(i)?;
            input.extend(&window[..self.seq_len]);
            target.extend(&window[1..]);
        }
        let rows = |ids| {
            Tokens::rows(ids, count).ok_or_else(|| FeedError::Unfit("a batch is empty".into()))
        };
        Ok(Batch { input: rows(input)?, target: rows(target)?, scored: Vec::new() })
    }

    fn windows(
        source: Source<'static>,
        path: &Path,
        tokens: u64,
        subject: &Subject,
        tokenizer: Option<Tokenizer>,
    ) -> Result<Samples<'static>, DiagnoseError> {
        const LEAST: u64 = 3;
        if tokens < LEAST {
            return Err(DiagnoseError::TooShort { path: path.into(), tokens, least: LEAST });
        }
        let own = subject.config.as_ref().and_then(|config| config.train.seq_len);
        let most = own.unwrap_or(LONGEST).min(subject.model().max_seq_len) as u64;
        // A text shorter than a sequence is one sequence.
        let seq_len = most.min(tokens - 1);
        let available = Some((tokens - 1) / seq_len);
        Ok(Samples { source, seq_len: seq_len as usize, available, tokenizer })
    }
}

fn prepared(subject: &Subject, path: &Path) -> Result<Samples<'static>, DiagnoseError> {
    let set = ShardSet::open(path)?;
    let (record, model) = (&set.manifest().tokenizer, subject.model().vocab_size);
    if record.vocab_size > model {
        let data = record.vocab_size;
        return Err(DiagnoseError::Vocabulary { path: path.into(), data, model });
    }
    if let Some(tokenizer) = subject.tokenizer_file() {
        let own = hadal_files::read(&tokenizer)?;
        let same = match record.kind {
            TokenizerKind::File => blake3::hash(&own).to_hex().as_str() == record.blake3,
            TokenizerKind::Bytes => serde_json::from_slice(&own)
                .is_ok_and(|own: serde_json::Value| own == byte_tokenizer()),
        };
        if !same {
            return Err(DiagnoseError::OtherTokenizer { path: path.into(), tokenizer });
        }
    }
    let tokens = set.len();
    // Without a tokenizer the numbers of tokens are shown instead of words.
    let tokenizer = tokenizer(subject).ok();
    Samples::windows(Source::Shards(Box::new(set)), path, tokens, subject, tokenizer)
}

fn text(subject: &Subject, path: &Path) -> Result<Samples<'static>, DiagnoseError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes))
        .map_err(file_error(Action::Read, path))?;
    let whole = (bytes.len() as u64) < MOST_BYTES;
    let text = match std::str::from_utf8(&bytes) {
        Ok(text) => text,
        // The last character of a long text may be cut in two.
        Err(error) if !whole && bytes.len() - error.valid_up_to() < 4 => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return Err(DiagnoseError::NotText { path: path.into() }),
    };
    let tokenizer = tokenizer(subject)?;
    let model = subject.model().vocab_size;
    let ids = tokenizer.encode(text)?;
    if let Some(&id) = ids.iter().find(|&&id| id as usize >= model) {
        let data = tokenizer.vocab_size().max(id as usize + 1);
        let path = subject.tokenizer_file().unwrap_or_else(|| path.into());
        return Err(DiagnoseError::Vocabulary { path, data, model });
    }
    let tokens = ids.len() as u64;
    Samples::windows(Source::Tokens(ids), path, tokens, subject, Some(tokenizer))
}

/// The model's own tokenizer: beside it or in its file, with its data, or bytes if it can be nothing else.
pub(crate) fn tokenizer(subject: &Subject) -> Result<Tokenizer, DiagnoseError> {
    if let Some(tokenizer) = subject.tokenizer()? {
        return Ok(tokenizer);
    }
    if let Some(config) = &subject.config {
        if let Some(task) = &config.data.generated {
            return Err(DiagnoseError::NoText { path: subject.path.clone(), task: task.name() });
        }
        if let Some(tokenizer) = config.open_feed()?.tokenizer()? {
            return Ok(tokenizer);
        }
    }
    if (256..=257).contains(&subject.model().vocab_size) {
        return Ok(Tokenizer::bytes());
    }
    Err(DiagnoseError::NoTokenizer { path: subject.path.clone() })
}
