//! Working memory that a thread keeps from task to task, so that small tasks need not allocate and clear it.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::thread::LocalKey;

/// Where a thread keeps it.
pub(crate) type Home<T> = LocalKey<Cell<T>>;

/// A thread's memory in the hands of one task; a task that runs inside another one finds none and makes
/// its own.
#[derive(Debug)]
pub(crate) struct Lent<T: Default + 'static> {
    value: T,
    home: &'static Home<T>,
}

impl<T: Default> Lent<T> {
    /// Takes what this thread keeps.
    pub(crate) fn from(home: &'static Home<T>) -> Self {
        Self { value: home.take(), home }
    }
}

impl<T: Default> Deref for Lent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Default> DerefMut for Lent<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: Default> Drop for Lent<T> {
    fn drop(&mut self) {
        self.home.set(std::mem::take(&mut self.value));
    }
}
