//! Counts the floating-point operations that kernels do, so that formulas can be held against them.
//!
//! What counts is what a model needs: a multiply and an add for each element of a product. Norms, softmax
//! and element-wise steps do not count, nor does what a kernel computes a second time to save memory.

use std::cell::Cell;

thread_local! {
    static DONE: Cell<u64> = const { Cell::new(0) };
}

/// Called by a kernel, on the thread that called the kernel.
pub(crate) fn add(flops: usize) {
    DONE.set(DONE.get() + flops as u64);
}

/// Runs `work` and counts what this thread asked kernels to do meanwhile.
pub fn counted<R>(work: impl FnOnce() -> R) -> (R, u64) {
    let before = DONE.get();
    let result = work();
    (result, DONE.get() - before)
}
