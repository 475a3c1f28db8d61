//! Documents in all formats, as `hadal data prepare` reads them.

use crate::{folder, scratch};
use hadal_data::{PrepareOptions, TokenizerChoice, prepare};
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Any files are read as documents, or refused.
pub(super) fn documents(bytes: &[u8]) {
    let inputs = scratch::empty("documents");
    folder::write(&folder::split(bytes), &inputs);
    prepared(inputs);
}

/// Any bytes are a table of documents, or are refused.
pub(super) fn parquet(bytes: &[u8]) {
    prepared(scratch::file("a.parquet", bytes));
}

fn prepared(input: PathBuf) {
    let out = scratch::directory().join("shards");
    let _ = std::fs::remove_dir_all(&out);
    let mut options = PrepareOptions::new(vec![input], &out, TokenizerChoice::Bytes);
    options.threads = 1;
    match prepare(&options, &mut |_| ControlFlow::Continue(())) {
        Ok(manifest) => assert!(!manifest.shards.is_empty()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
