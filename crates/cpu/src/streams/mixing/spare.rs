//! Large buffers that are used again.
//!
//! Streams kept for the way back are by far the largest memory here, and are needed again in the next
//! step. Fresh memory comes zeroed, page by page, which takes as long as all else that a junction does
//! on its way forward. So buffers are laid aside when they are no longer needed; only those of the
//! length asked for last, so that no more memory is held than was in use at once.

use crate::rows::filled;
use std::sync::{Mutex, MutexGuard, PoisonError};

static SPARE: Mutex<Vec<Vec<f32>>> = Mutex::new(Vec::new());

fn spare() -> MutexGuard<'static, Vec<Vec<f32>>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A buffer of `length` elements, all written by `fill`, which must not read before it writes.
pub(super) fn reused(length: usize, fill: impl FnOnce(&mut [f32])) -> Vec<f32> {
    let found = {
        let mut spare = spare();
        spare.retain(|buffer| buffer.len() == length);
        spare.pop()
    };
    let Some(mut buffer) = found else {
        return filled(length, fill);
    };
    if cfg!(test) {
        buffer.fill(f32::NAN);
    }
    fill(&mut buffer);
    buffer
}

/// Lays a buffer aside.
pub(super) fn lay_aside(buffer: Vec<f32>) {
    let mut spare = spare();
    if spare.first().is_none_or(|other| other.len() == buffer.len()) {
        spare.push(buffer);
    }
}
