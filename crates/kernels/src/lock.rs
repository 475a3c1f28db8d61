//! State that several operations use during a pass.

use std::sync::{Mutex, MutexGuard};

/// Locks a state. After a panic in an operation its state is half changed, and every number from it would be wrong.
pub(crate) fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    match state.lock() {
        Ok(state) => state,
        Err(_) => panic!("an operation panicked and left its state half changed"),
    }
}
