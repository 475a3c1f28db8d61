//! Memory that is written before it is read, without a pass that clears it first: clearing costs up to as much as what a
//! cheap kernel does with its output. All functions that hand out such memory are unsafe and in this file.
//!
//! In tests, what was not written yet is not a number, so that reading it is seen.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A vector of so many elements without a meaning.
///
/// # Safety
/// No element may be read before it was written.
pub(crate) unsafe fn unwritten(length: usize) -> Vec<f32> {
    let mut buffer = Buffer::new(length);
    // SAFETY: the caller's promise.
    unsafe { buffer.chunks(length).take().open() };
    buffer.finish()
}

/// A vector that tasks write chunk by chunk, or one to be changed in place. [`Buffer::finish`] hands it out if every
/// chunk was opened.
#[derive(Debug)]
pub(crate) struct Buffer {
    values: Vec<f32>,
    length: usize,
    /// Elements of the last call to [`Buffer::chunks`] that were opened.
    opened: AtomicUsize,
}

impl Buffer {
    /// Room for `length` elements.
    pub(crate) fn new(length: usize) -> Self {
        Self::reusing(Vec::new(), length)
    }

    /// [`Buffer::new`] in the memory of a vector that is not needed any longer, if it is large enough.
    pub(crate) fn reusing(mut values: Vec<f32>, length: usize) -> Self {
        values.clear();
        values.reserve_exact(length);
        Self { values, length, opened: AtomicUsize::new(0) }
    }

    /// A vector that keeps its elements.
    pub(crate) fn written(values: Vec<f32>) -> Self {
        Self { length: values.len(), values, opened: AtomicUsize::new(0) }
    }

    /// All of it, in chunks of `size` elements; after the last one, empty chunks for ever.
    pub(crate) fn chunks(&mut self, size: usize) -> Chunks<'_> {
        self.opened = AtomicUsize::new(0);
        if self.values.len() == self.length {
            return Chunks::Written(self.values.chunks_mut(size.max(1)));
        }
        let room = &mut self.values.spare_capacity_mut()[..self.length];
        Chunks::Unwritten(room.chunks_mut(size.max(1)), &self.opened)
    }

    /// The vector.
    ///
    /// # Panics
    /// If a chunk was never opened.
    pub(crate) fn finish(mut self) -> Vec<f32> {
        if self.values.len() < self.length {
            assert_eq!(*self.opened.get_mut(), self.length, "elements that were written");
            // SAFETY: the chunks of `chunks` do not overlap, all were opened, and opening one comes with the promise that
            // its elements are written before they are read.
            unsafe { self.values.set_len(self.length) };
        }
        self.values
    }
}

/// The chunks of a [`Buffer`].
pub(crate) enum Chunks<'a> {
    Written(std::slice::ChunksMut<'a, f32>),
    Unwritten(std::slice::ChunksMut<'a, MaybeUninit<f32>>, &'a AtomicUsize),
}

impl<'a> Chunks<'a> {
    /// The next one.
    pub(crate) fn take(&mut self) -> Chunk<'a> {
        match self {
            Self::Written(chunks) => Chunk::Written(chunks.next().unwrap_or_default()),
            Self::Unwritten(chunks, opened) => {
                Chunk::Unwritten(chunks.next().unwrap_or_default(), opened)
            }
        }
    }
}

/// A part of a [`Buffer`] that one task owns.
pub(crate) enum Chunk<'a> {
    Written(&'a mut [f32]),
    Unwritten(&'a mut [MaybeUninit<f32>], &'a AtomicUsize),
}

impl<'a> Chunk<'a> {
    /// Zeros if nothing was written yet.
    pub(crate) fn zeroed(mut self) -> &'a mut [f32] {
        self.fill(0.0);
        // SAFETY: everything is written.
        unsafe { self.open_as_it_is() }
    }

    /// What was written, or elements without a meaning.
    ///
    /// # Safety
    /// No element may be read before it was written.
    pub(crate) unsafe fn open(mut self) -> &'a mut [f32] {
        if cfg!(test) {
            self.fill(f32::NAN);
        }
        // SAFETY: the caller's promise.
        unsafe { self.open_as_it_is() }
    }

    /// Fills what was not written yet.
    fn fill(&mut self, value: f32) {
        if let Self::Unwritten(room, _) = self {
            room.fill(MaybeUninit::new(value));
        }
    }

    /// # Safety
    /// As [`Chunk::open`].
    unsafe fn open_as_it_is(self) -> &'a mut [f32] {
        match self {
            Self::Written(values) => values,
            Self::Unwritten(room, opened) => {
                opened.fetch_add(room.len(), Ordering::Relaxed);
                // SAFETY: the caller reads no element before it was written.
                unsafe { &mut *(std::ptr::from_mut(room) as *mut [f32]) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_what_its_chunks_became() {
        let mut buffer = Buffer::new(5);
        let mut chunks = buffer.chunks(2);
        for first in [0.0, 2.0, 4.0] {
            for (j, value) in chunks.take().zeroed().iter_mut().enumerate() {
                *value += first + j as f32;
            }
        }
        assert!(chunks.take().zeroed().is_empty());
        let mut again = Buffer::written(buffer.finish());
        again.chunks(3).take().zeroed()[0] = 9.0;
        assert_eq!(again.finish(), [9.0, 1.0, 2.0, 3.0, 4.0]);
        assert!(Buffer::new(0).finish().is_empty());
    }

    #[test]
    #[should_panic(expected = "elements that were written")]
    fn what_was_not_written_is_not_handed_out() {
        let mut buffer = Buffer::new(5);
        for _ in 0..2 {
            buffer.chunks(3).take().zeroed();
        }
        buffer.finish();
    }
}
