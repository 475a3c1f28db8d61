//! Text in, tokens out: what a training run reads.
//!
//! [`prepare()`] streams documents from files or from a Hugging Face dataset, tokenises them in parallel
//! and writes memory-mapped shards of tokens beside a [`Manifest`]; [`ShardSet`] reads them back as one
//! long row of tokens. The same sources train a tokenizer with [`train_tokenizer()`].

mod compression;
mod dataset;
mod durable;
mod encoder;
mod error;
mod hub;
mod jsonl;
mod manifest;
mod parquet;
mod peek;
mod pieces;
mod prepare;
mod shard;
mod source;
mod stats;
#[cfg(test)]
mod testing;
mod text;
mod train_tokenizer;
mod words;

pub use dataset::ShardSet;
pub use encoder::TokenizerChoice;
pub use error::DataError;
pub use manifest::{
    Manifest, Settings, ShardRecord, SourceRecord, TokenizerKind, TokenizerRecord, Totals,
};
pub use peek::{Peek, peek};
pub use pieces::SEPARATOR;
pub use prepare::{Download, PrepareOptions, PrepareProgress, prepare};
pub use shard::Shard;
pub use stats::{DocumentLengths, Stats, TokenCount, stats};
pub use train_tokenizer::{
    TrainTokenizerOptions, TrainTokenizerProgress, TrainedTokenizer, train_tokenizer,
};
