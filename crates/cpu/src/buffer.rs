//! Memory that is written before it is read, without a pass that clears it first, and memory that tasks share.
//!
//! Clearing costs up to as much as what a cheap kernel does with its output. All functions that hand out memory which was
//! not written are unsafe and in this file. In tests, and wherever this crate is built with `debug_assertions`, such memory
//! holds no numbers, so that reading it is seen.

use std::marker::PhantomData;

/// A vector of so many elements without a meaning.
///
/// # Safety
/// No element may be read before it was written.
pub(crate) unsafe fn unwritten(length: usize) -> Vec<f32> {
    // SAFETY: the caller's promise.
    unsafe { unwritten_in(Vec::new(), length) }
}

/// [`unwritten`] in the memory of a vector that is not needed any longer, if it is large enough.
///
/// # Safety
/// No element may be read before it was written.
pub(crate) unsafe fn unwritten_in(mut values: Vec<f32>, length: usize) -> Vec<f32> {
    values.clear();
    values.reserve_exact(length);
    // SAFETY: there is room for so many elements, and the caller reads none before it was written.
    #[allow(clippy::uninit_vec)]
    unsafe {
        values.set_len(length);
    }
    if cfg!(any(test, debug_assertions)) {
        values.fill(f32::NAN);
    }
    values
}

/// A slice of which each task owns one chunk.
#[derive(Debug)]
pub(crate) struct Chunks<'a, T> {
    data: *mut T,
    length: usize,
    size: usize,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: tasks that share this get at its elements by `take` alone, whose callers promise that no two have the same chunk. So
// each element is sent to one task, which `T: Send` allows.
unsafe impl<T: Send> Sync for Chunks<'_, T> {}

impl<'a, T> Chunks<'a, T> {
    /// Chunks of `size` elements; the last one may be shorter, and those after it are empty.
    pub(crate) fn new(values: &'a mut [T], size: usize) -> Self {
        Self { data: values.as_mut_ptr(), length: values.len(), size, borrowed: PhantomData }
    }

    /// The chunk with this index.
    ///
    /// # Safety
    /// No chunk may be taken twice. (The slice is borrowed for `'a`, so the chunk lives as long as it says.)
    #[inline(always)]
    pub(crate) unsafe fn take(&self, index: usize) -> &'a mut [T] {
        let start = self.length.min(index * self.size);
        let count = self.size.min(self.length - start);
        // SAFETY: within the slice, which is borrowed for `'a`, and the caller's alone.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start), count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_all_of_a_slice() {
        let mut values = [0, 1, 2, 3, 4];
        let chunks = Chunks::new(&mut values, 2);
        // SAFETY: each index once.
        let taken = [0, 1, 2, 3].map(|index| unsafe { chunks.take(index) });
        assert_eq!(taken, [&mut [0, 1][..], &mut [2, 3], &mut [4], &mut []]);
        // SAFETY: once.
        assert!(unsafe { Chunks::new(&mut values, 0).take(0) }.is_empty());
    }

    #[test]
    fn memory_is_used_again() {
        let values = vec![1.0; 9];
        let place = values.as_ptr();
        // SAFETY: in tests, everything is written.
        let values = unsafe { unwritten_in(values, 5) };
        assert_eq!((values.as_ptr(), values.len()), (place, 5));
        assert!(values.iter().all(|value| value.is_nan()));
    }
}
