//! From documents to shards: read, tokenise in parallel, write in the order of reading.
//!
//! The output depends on the sources and settings alone, never on threads or on when the work was interrupted. A shard
//! is closed between two pieces; after each one `progress.json` records where the next piece is, so that a killed
//! preparation continues there and ends with the same bytes.

mod output;
mod reader;
#[cfg(test)]
mod tests;

pub(super) use output::PROGRESS;

use super::dataset::ShardSet;
use super::encoder::{Encoder, TokenizerChoice};
use super::error::DataError;
use super::manifest::{Manifest, Settings, ShardRecord};
use super::pieces::{PIECE_BYTES, Piece};
use super::shard::{ShardWriter, Width};
use super::source::{Reading, Source, Watch, resolve};
use output::{Found, Output, State};
use rayon::ThreadPool;
use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};
use reader::{Batch, Position, read};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

/// What to prepare, and how.
#[derive(Clone, Debug)]
pub struct PrepareOptions {
    /// Files, directories and datasets, read in this order; a directory stands for every readable file
    /// in it, sorted.
    pub inputs: Vec<PathBuf>,
    /// The directory to write.
    pub out: PathBuf,
    /// The tokenizer.
    pub tokenizer: TokenizerChoice,
    /// The largest number of tokens in a shard, unless a single piece of text has more.
    pub shard_tokens: u64,
    /// The JSON key or column that holds the text.
    pub text_key: String,
    /// How many threads tokenise; 0 for one on each core. The result does not depend on it.
    pub threads: usize,
    /// Stop with an error when there is more text than this. A small packed file may hold any amount.
    pub max_bytes: Option<u64>,
}

impl PrepareOptions {
    /// Shards of 200 MB or so: few enough files for any corpus, small enough to copy.
    pub const SHARD_TOKENS: u64 = 100_000_000;
    /// The usual name for the text.
    pub const TEXT_KEY: &str = "text";

    /// The usual settings.
    pub fn new(inputs: Vec<PathBuf>, out: impl Into<PathBuf>, tokenizer: TokenizerChoice) -> Self {
        Self {
            inputs,
            out: out.into(),
            tokenizer,
            shard_tokens: Self::SHARD_TOKENS,
            text_key: Self::TEXT_KEY.into(),
            threads: 0,
            max_bytes: None,
        }
    }
}

/// How far a preparation has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrepareProgress {
    /// Bytes of the source files that are done.
    pub read_bytes: u64,
    /// Bytes of all source files.
    pub total_bytes: u64,
    /// Documents that were written.
    pub documents: u64,
    /// Tokens that were written.
    pub tokens: u64,
    /// Shards that are finished and will survive whatever happens.
    pub shards: usize,
    /// The file that is being fetched, if one is.
    pub download: Option<Download>,
}

/// A file that is being fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Download {
    /// Bytes that have arrived.
    pub done: u64,
    /// Bytes of the file.
    pub total: u64,
}

/// Called several times in a second; breaking stops the work as a kill would.
type Callback<'a> = &'a mut dyn FnMut(&PrepareProgress) -> ControlFlow<()>;

/// Writes shards and a manifest, continuing where an earlier call was interrupted. A directory that was finished with
/// the same sources and settings is left unchanged.
pub fn prepare(options: &PrepareOptions, progress: Callback) -> Result<Manifest, DataError> {
    if options.shard_tokens == 0 {
        return Err(DataError::Setting {
            name: "the number of tokens in a shard",
            value: 0,
            must: "a shard holds at least one",
        });
    }
    let encoder = Encoder::load(&options.tokenizer)?;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(options.threads)
        .build()
        .map_err(|reason| DataError::Threads { path: options.out.clone(), reason })?;
    let output = Output::open(&options.out)?;
    let found = output.find()?;
    let sources = resolve(&options.inputs, found.sources())?;
    let plan = Manifest::planned(
        encoder.record().clone(),
        Settings {
            text_key: options.text_key.clone(),
            shard_tokens: options.shard_tokens,
            piece_bytes: PIECE_BYTES,
        },
        sources.iter().map(|source| source.record.clone()).collect(),
    );
    let state = match found {
        Found::Nothing => State::new(plan),
        Found::Unfinished(state) => {
            output.same(&state.manifest, &plan)?;
            ShardSet::from_manifest(output.directory(), state.manifest.clone())?
                .verify_shards(&mut |_| ())?;
            state
        }
        Found::Finished(manifest) => {
            output.same(&manifest, &plan)?;
            ShardSet::open(output.directory())?;
            output.tidy();
            return Ok(manifest);
        }
    };
    let mut writer = Writer::new(&output, &encoder, state, &sources);
    writer.max_bytes = options.max_bytes;
    run(writer, &pool, &sources, progress)
}

/// Reads in one thread, tokenises in the pool, and writes here.
fn run(
    mut writer: Writer,
    pool: &ThreadPool,
    sources: &[Source],
    progress: Callback,
) -> Result<Manifest, DataError> {
    let settings = &writer.state.manifest.settings;
    let reading =
        Reading { text_key: settings.text_key.clone(), piece_bytes: settings.piece_bytes };
    let from = writer.position;
    let watch = Watch::default();
    let batch_bytes = reader::batch_bytes(pool.current_num_threads());
    thread::scope(|scope| {
        let (send, receive) = sync_channel(1);
        let in_thread = watch.clone();
        scope.spawn(move || read(sources, &reading, from, batch_bytes, &in_thread, &send));
        writer.tell(&watch, progress)?;
        while let Some(batch) = wait(&receive, || writer.tell(&watch, progress))? {
            writer.write(batch?, pool, &watch, progress)?;
        }
        writer.finish()
    })
}

/// The next batch, or `None` after the last; while there is none yet, progress is reported.
fn wait<T>(
    receive: &Receiver<T>,
    mut meanwhile: impl FnMut() -> Result<(), DataError>,
) -> Result<Option<T>, DataError> {
    loop {
        match receive.recv_timeout(Duration::from_millis(200)) {
            Ok(value) => return Ok(Some(value)),
            Err(RecvTimeoutError::Timeout) => meanwhile()?,
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
}

/// Writes tokens into shards.
struct Writer<'a> {
    output: &'a Output,
    encoder: &'a Encoder,
    state: State,
    width: Width,
    shard: Option<ShardWriter>,
    /// Documents and bytes in the open shard.
    documents: u64,
    bytes: u64,
    /// The position after the last piece that was written.
    position: Position,
    begun: bool,
    read_bytes: u64,
    total_bytes: u64,
    max_bytes: Option<u64>,
}

impl<'a> Writer<'a> {
    fn new(output: &'a Output, encoder: &'a Encoder, state: State, sources: &[Source]) -> Self {
        let sizes = sources.iter().map(|source| source.record.bytes);
        Self {
            width: Width::of(encoder.record().vocab_size),
            position: state.position,
            read_bytes: sizes.clone().take(state.position.source).sum(),
            total_bytes: sizes.sum(),
            output,
            encoder,
            state,
            shard: None,
            documents: 0,
            bytes: 0,
            begun: false,
            max_bytes: None,
        }
    }

    fn write(
        &mut self,
        batch: Batch,
        pool: &ThreadPool,
        watch: &Watch,
        progress: Callback,
    ) -> Result<(), DataError> {
        self.begin()?;
        let encoder = self.encoder;
        // One piece at a time, since they differ in length.
        let encode = || {
            let tokens = batch.pieces.par_iter().with_max_len(1);
            tokens.map(|(piece, _)| encoder.encode(piece)).collect::<Result<Vec<_>, _>>()
        };
        let encoded = pool.install(encode)?;
        for ((piece, position), tokens) in batch.pieces.iter().zip(encoded) {
            self.check_size(piece)?;
            let held = self.shard.as_ref().map_or(0, ShardWriter::tokens);
            if held > 0 && held + tokens.len() as u64 > self.state.manifest.settings.shard_tokens {
                self.close()?;
                self.tell(watch, progress)?;
            }
            self.shard()?.write(&tokens)?;
            self.documents += u64::from(piece.ends_document);
            self.bytes += piece.text.len() as u64;
            self.position = *position;
        }
        self.read_bytes = batch.read_bytes;
        self.tell(watch, progress)
    }

    fn check_size(&self, piece: &Piece) -> Result<(), DataError> {
        let bytes = self.state.manifest.totals.bytes + self.bytes + piece.text.len() as u64;
        match self.max_bytes {
            Some(most) if bytes > most => {
                Err(DataError::TooMuch { path: self.output.directory().into(), most })
            }
            _ => Ok(()),
        }
    }

    /// Leaves the directory alone until there is something to write.
    fn begin(&mut self) -> Result<(), DataError> {
        if !self.begun {
            self.output.begin(&self.state, self.encoder)?;
            self.begun = true;
        }
        Ok(())
    }

    fn shard(&mut self) -> Result<&mut ShardWriter, DataError> {
        let shard = match self.shard.take() {
            Some(shard) => shard,
            None => ShardWriter::create(&self.output.path(&self.name()), self.width)?,
        };
        Ok(self.shard.insert(shard))
    }

    fn name(&self) -> String {
        format!("shard-{:05}.bin", self.state.manifest.shards.len())
    }

    /// Finishes the open shard and records where to continue.
    fn close(&mut self) -> Result<(), DataError> {
        let Some(shard) = self.shard.take() else { return Ok(()) };
        let file = self.name();
        let tokens = shard.tokens();
        shard.finish()?;
        let blake3 = self.output.hash(&file)?;
        let (documents, bytes) = (self.documents, self.bytes);
        self.state.manifest.push(ShardRecord { file, tokens, documents, bytes, blake3 });
        self.state.position = self.position;
        (self.documents, self.bytes) = (0, 0);
        self.output.save(&self.state)
    }

    fn finish(mut self) -> Result<Manifest, DataError> {
        self.close()?;
        if self.state.manifest.shards.is_empty() {
            return Err(DataError::Empty);
        }
        self.output.finish(&self.state.manifest)?;
        Ok(self.state.manifest)
    }

    fn tell(&self, watch: &Watch, progress: Callback) -> Result<(), DataError> {
        let open = self.shard.as_ref().map_or(0, ShardWriter::tokens);
        let manifest = &self.state.manifest;
        let arriving = watch.arrival.total.load(Ordering::Relaxed);
        let report = PrepareProgress {
            read_bytes: self.read_bytes,
            total_bytes: self.total_bytes,
            documents: manifest.totals.documents + self.documents,
            tokens: manifest.totals.tokens + open,
            shards: manifest.shards.len(),
            download: (arriving > 0).then(|| Download {
                done: watch.arrival.done.load(Ordering::Relaxed),
                total: arriving,
            }),
        };
        match progress(&report) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => {
                Err(DataError::Stopped { path: self.output.directory().into() })
            }
        }
    }
}
