//! Making a tokenizer: byte-level BPE as in GPT-2, trained on the same sources as `prepare` reads.
//!
//! The result depends on the text and the size alone: the library breaks ties between pairs of equal
//! frequency by their ids, and ids of single bytes are sorted.

use super::error::DataError;
use super::pieces::{PIECE_BYTES, Piece, SEPARATOR};
use super::source::{Pieces, Reading, Source, Watch, resolve};
use serde::Serialize;
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::{AddedToken, TokenizerImpl};

type ByteLevelBpe = TokenizerImpl<
    BPE,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// Every byte and the end of a text.
const SMALLEST: usize = 257;

/// What to train on and how large.
#[derive(Clone, Debug)]
pub struct TrainTokenizerOptions {
    /// Files, directories and datasets.
    pub inputs: Vec<PathBuf>,
    /// The key or column that holds the text.
    pub text_key: String,
    /// The size of the vocabulary, with 256 bytes and `<|endoftext|>`.
    pub vocab_size: usize,
    /// Read no more than about this much text. The library counts pairs in 32 bits, which tens of
    /// gigabytes can overflow, and frequencies settle long before.
    pub max_bytes: u64,
    /// Where to write the tokenizer.
    pub out: PathBuf,
    /// How many threads; 0 for one on each core.
    pub threads: usize,
}

impl TrainTokenizerOptions {
    /// A limit that is far from overflowing, and far above what matters.
    pub const MAX_BYTES: u64 = 10_000_000_000;
}

/// How far the reading has come; the training after it reports nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrainTokenizerProgress {
    /// Bytes of the files that were read.
    pub read_bytes: u64,
    /// Bytes of all files.
    pub total_bytes: u64,
}

/// The trained tokenizer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TrainedTokenizer {
    /// The file.
    pub path: PathBuf,
    /// The size of the vocabulary; smaller than requested if the text has no more pairs to merge.
    pub vocab_size: usize,
    /// How many documents were read.
    pub documents: u64,
    /// How much text was read.
    pub bytes: u64,
    /// Whether there was more text than `max_bytes`.
    pub cut_short: bool,
}

/// Trains a tokenizer and writes it as a `tokenizer.json`.
pub fn train_tokenizer(
    options: &TrainTokenizerOptions,
    progress: &mut (dyn FnMut(&TrainTokenizerProgress) -> ControlFlow<()> + Send),
) -> Result<TrainedTokenizer, DataError> {
    if options.vocab_size < SMALLEST {
        return Err(DataError::Setting {
            name: "the vocabulary size",
            value: options.vocab_size as u64,
            must: "it must be at least 257: every byte and <|endoftext|>",
        });
    }
    let failed = |reason: String| DataError::Training { reason };
    let sources = resolve(&options.inputs, &[])?;
    let reading = Reading { text_key: options.text_key.clone(), piece_bytes: PIECE_BYTES };
    let mut corpus = Corpus::new(options, &sources, &reading, progress);
    let mut tokenizer = ByteLevelBpe::new(BPE::default());
    let byte_level = ByteLevel::default().add_prefix_space(false);
    tokenizer.with_pre_tokenizer(Some(byte_level));
    tokenizer.with_decoder(Some(byte_level));
    let mut trainer = BpeTrainer::builder()
        .vocab_size(options.vocab_size)
        .special_tokens(vec![AddedToken::from(SEPARATOR, true)])
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect::<HashSet<char>>())
        .show_progress(false)
        .build();
    rayon::ThreadPoolBuilder::new()
        .num_threads(options.threads)
        .build()
        .map_err(|error| failed(error.to_string()))?
        .install(|| tokenizer.train(&mut trainer, &mut corpus).map(|_| ()))
        .map_err(|error| failed(error.to_string()))?;
    if let Some(failure) = corpus.failure {
        return Err(failure);
    }
    if corpus.documents == 0 {
        return Err(DataError::Empty);
    }
    let json = tokenizer.to_string(true).map_err(|error| failed(error.to_string()))?;
    hadal_files::write_whole(&options.out, json)?;
    Ok(TrainedTokenizer {
        path: options.out.clone(),
        vocab_size: tokenizer.get_vocab_size(true),
        documents: corpus.documents,
        bytes: corpus.bytes,
        cut_short: corpus.cut_short,
    })
}

/// The text of all sources, up to the limit. The library takes no errors from its input, so the first one is kept and
/// ends the text.
struct Corpus<'a> {
    options: &'a TrainTokenizerOptions,
    reading: &'a Reading,
    sources: std::slice::Iter<'a, Source>,
    current: Option<Pieces>,
    watch: Watch,
    /// Bytes of the files before the current one, of the current one, and of all.
    before: u64,
    current_bytes: u64,
    total_bytes: u64,
    progress: &'a mut (dyn FnMut(&TrainTokenizerProgress) -> ControlFlow<()> + Send),
    documents: u64,
    bytes: u64,
    cut_short: bool,
    failure: Option<DataError>,
}

impl<'a> Corpus<'a> {
    fn new(
        options: &'a TrainTokenizerOptions,
        sources: &'a [Source],
        reading: &'a Reading,
        progress: &'a mut (dyn FnMut(&TrainTokenizerProgress) -> ControlFlow<()> + Send),
    ) -> Self {
        Self {
            options,
            reading,
            sources: sources.iter(),
            current: None,
            watch: Watch::default(),
            before: 0,
            current_bytes: 0,
            total_bytes: sources.iter().map(|source| source.record.bytes).sum(),
            progress,
            documents: 0,
            bytes: 0,
            cut_short: false,
            failure: None,
        }
    }

    fn piece(&mut self) -> Result<Option<Piece>, DataError> {
        loop {
            if let Some(piece) = self.current.as_mut().and_then(Iterator::next) {
                return piece.map(Some);
            }
            let Some(source) = self.sources.next() else { return Ok(None) };
            self.before += self.current_bytes;
            self.current_bytes = source.record.bytes;
            self.watch.consumed.store(0, Ordering::Relaxed);
            self.current = Some(source.open(self.reading, &self.watch)?);
        }
    }

    fn report(&mut self) -> Result<(), DataError> {
        let report = TrainTokenizerProgress {
            read_bytes: self.before + self.watch.consumed.load(Ordering::Relaxed),
            total_bytes: self.total_bytes,
        };
        match (self.progress)(&report) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(DataError::Stopped { path: self.options.out.clone() }),
        }
    }
}

impl Iterator for Corpus<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        if self.failure.is_some() || self.cut_short {
            return None;
        }
        let piece = match self.piece().and_then(|piece| self.report().map(|()| piece)) {
            Ok(piece) => piece?,
            Err(failure) => {
                self.failure = Some(failure);
                return None;
            }
        };
        if self.bytes >= self.options.max_bytes {
            self.cut_short = true;
            return None;
        }
        self.documents += u64::from(piece.starts_document);
        self.bytes += piece.text.len() as u64;
        Some(piece.text)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Workshop, prose};
    use super::*;
    use hadal_tokenizer::Tokenizer;
    use std::fs;

    fn options(workshop: &Workshop, vocab_size: usize) -> TrainTokenizerOptions {
        TrainTokenizerOptions {
            inputs: vec![workshop.input()],
            text_key: "text".into(),
            vocab_size,
            max_bytes: u64::MAX,
            out: workshop.path("tokenizer.json"),
            threads: 2,
        }
    }

    fn train(options: &TrainTokenizerOptions) -> Result<TrainedTokenizer, DataError> {
        train_tokenizer(options, &mut |_| ControlFlow::Continue(()))
    }

    #[test]
    fn a_trained_tokenizer_speaks_every_text_and_shortens_its_own() {
        let workshop = Workshop::new();
        let text = prose(40);
        workshop.write("a.txt", &text);
        let options = options(&workshop, 300);
        let trained = train(&options).unwrap();
        assert_eq!((trained.vocab_size, trained.documents), (300, 40));
        let tokenizer = Tokenizer::from_file(&options.out).unwrap();
        assert_eq!(tokenizer.vocab_size(), 300);
        assert_eq!(tokenizer.ends().len(), 1);
        let text = text.replace(SEPARATOR, "\n");
        for text in ["Ünïcode 😀\n\ttabs\u{0}", &text] {
            let ids = tokenizer.encode(text).unwrap();
            assert_eq!(tokenizer.decode(&ids).unwrap(), text);
        }
        assert!(tokenizer.encode(&text).unwrap().len() < text.len() / 3);
    }

    #[test]
    fn training_again_gives_the_same_file_whatever_the_threads() {
        let workshop = Workshop::new();
        // Numbers, so that many pairs are equally frequent.
        let text: String = (0..4000).map(|i| format!("{:x} {i}\n", i * 7919 % 4099)).collect();
        workshop.write("a.txt", text.replace("99\n", "<|endoftext|>"));
        let mut options = options(&workshop, 700);
        let mut files = Vec::new();
        for threads in [1, 2, 5, 2] {
            options.threads = threads;
            assert_eq!(train(&options).unwrap().vocab_size, 700);
            files.push(fs::read(&options.out).unwrap());
        }
        assert!(files.windows(2).all(|pair| pair[0] == pair[1]));
    }

    #[test]
    fn training_stops_at_the_limit_and_says_so() {
        let workshop = Workshop::new();
        workshop.write("a.txt", prose(200));
        let mut options = options(&workshop, 300);
        options.max_bytes = 1000;
        let trained = train(&options).unwrap();
        assert!(trained.cut_short);
        assert!((1000..3000).contains(&trained.bytes), "{}", trained.bytes);
    }

    #[test]
    fn what_cannot_be_trained_is_refused() {
        let workshop = Workshop::new();
        workshop.write("a.jsonl", "{\"text\": \"a b c\"}\n{\"body\": \"b\"}\n");
        let error = train(&options(&workshop, 300)).unwrap_err().to_string();
        assert!(error.contains("a.jsonl: line 2"), "{error}");
        let error = train(&options(&workshop, 256)).unwrap_err().to_string();
        assert!(error.contains("at least 257"), "{error}");
        workshop.write("a.jsonl", "\n");
        let error = train(&options(&workshop, 300)).unwrap_err();
        assert!(matches!(error, DataError::Empty), "{error}");
        assert!(!workshop.path("tokenizer.json").exists());
    }
}
