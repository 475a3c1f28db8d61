//! What a training run reads: text in, tokens out, or generated tasks; and batches of both. No tensors.
//!
//! [`prepare()`] streams documents from files or from a Hugging Face dataset, tokenises them in parallel
//! and writes shards of tokens beside a [`Manifest`]; [`ShardSet`] reads them back as one
//! long row of tokens. The same sources train a tokenizer with [`train_tokenizer()`]. A [`Feed`] turns prepared
//! text or a task of [`tasks`] into [`Batch`]es.

mod built_in;
mod compression;
mod dataset;
mod encoder;
mod error;
mod feed;
pub mod hub;
mod hub_dataset;
mod jsonl;
mod manifest;
mod order;
mod parquet;
mod peek;
mod pieces;
mod preparation;
mod prepare;
mod shard;
mod source;
mod stats;
pub mod tasks;
#[cfg(test)]
mod testing;
mod text;
mod train_tokenizer;
mod words;

pub use built_in::BuiltIn;
pub use dataset::ShardSet;
pub use encoder::{TokenizerChoice, model_tokenizer};
pub use error::DataError;
pub use feed::{Batch, DataConfig, Feed, FeedError};
pub use manifest::{
    Manifest, Settings, ShardRecord, SourceRecord, TokenizerKind, TokenizerRecord, Totals,
};
pub use peek::{Peek, peek};
pub use preparation::Preparation;
pub use prepare::{Download, PrepareOptions, PrepareProgress, prepare};
pub use shard::Shard;
pub use stats::{DocumentLengths, Stats, TokenCount, stats};
pub use train_tokenizer::{
    TrainTokenizerOptions, TrainTokenizerProgress, TrainedTokenizer, train_tokenizer,
};
