//! Reading ahead: batches of pieces, each of which knows the position of the next one.

use crate::error::DataError;
use crate::pieces::Piece;
use crate::source::{Reading, Source, Watch};
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;

/// A place between two pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Position {
    /// Which source.
    pub(super) source: usize,
    /// How many of its pieces come before.
    pub(super) piece: u64,
}

/// Pieces to be tokenised together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Each with the position after it.
    pub(super) pieces: Vec<(Piece, Position)>,
    /// Bytes of the sources up to here.
    pub(super) read_bytes: u64,
    bytes: usize,
}

/// Tiny documents weigh more than their text.
const MOST_PIECES: usize = 1 << 16;

/// Enough work for every thread, little enough memory for a few batches at once.
pub(super) fn batch_bytes(threads: usize) -> usize {
    (threads << 20).clamp(8 << 20, 32 << 20)
}

/// Sends batches until the sources, the receiver or the first error ends it.
pub(super) fn read(
    sources: &[Source],
    reading: &Reading,
    from: Position,
    batch_bytes: usize,
    watch: &Watch,
    send: &SyncSender<Result<Batch, DataError>>,
) {
    let mut deliver = |batch: Batch| send.send(Ok(batch)).is_ok();
    if let Err(error) = batches(sources, reading, from, batch_bytes, watch, &mut deliver) {
        // A receiver that no longer listens has failed for a reason of its own.
        let _ = send.send(Err(error));
    }
}

fn batches(
    sources: &[Source],
    reading: &Reading,
    from: Position,
    batch_bytes: usize,
    watch: &Watch,
    deliver: &mut dyn FnMut(Batch) -> bool,
) -> Result<(), DataError> {
    let mut batch = Batch::default();
    let mut before: u64 = sources.iter().take(from.source).map(|s| s.record.bytes).sum();
    for (index, source) in sources.iter().enumerate().skip(from.source) {
        watch.consumed.store(0, Ordering::Relaxed);
        let mut pieces = source.open(reading, watch)?;
        let mut position = Position { source: index, piece: 0 };
        if index == from.source {
            for _ in 0..from.piece {
                let piece = pieces.next();
                piece.ok_or_else(|| DataError::Changed { path: source.record.path.clone() })??;
            }
            position = from;
        }
        for piece in pieces {
            let piece = piece?;
            position.piece += 1;
            batch.bytes += piece.text.len();
            batch.pieces.push((piece, position));
            if batch.bytes >= batch_bytes || batch.pieces.len() >= MOST_PIECES {
                batch.read_bytes = before + watch.consumed.load(Ordering::Relaxed);
                if !deliver(std::mem::take(&mut batch)) {
                    return Ok(());
                }
            }
        }
        before += source.record.bytes;
    }
    if !batch.pieces.is_empty() {
        batch.read_bytes = before;
        deliver(batch);
    }
    Ok(())
}
