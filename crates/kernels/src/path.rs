//! Which form of an operation is taken.

use burn::tensor::Device;
use hadal_cpu::Precision;
use std::cell::Cell;

thread_local! {
    static PLAIN: Cell<bool> = Cell::new(std::env::var_os("HADAL_PLAIN").is_some());
    static PRECISION: Cell<Precision> = const { Cell::new(Precision::F32) };
    static FUSED_CALLS: Cell<u64> = const { Cell::new(0) };
}

/// Runs `work` with plain tensor operations alone. This affects the present thread and what it records for the backward
/// pass meanwhile. The environment variable `HADAL_PLAIN` does the same for a whole program.
pub fn plainly<R>(work: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            PLAIN.set(self.0);
        }
    }
    let _restore = Restore(PLAIN.replace(true));
    work()
}

/// Runs `work` with matrix products of this precision. This affects the present thread and what it records for the backward
/// pass meanwhile; nothing else stays behind.
pub fn with_precision<R>(precision: Precision, work: impl FnOnce() -> R) -> R {
    struct Restore(Precision);
    impl Drop for Restore {
        fn drop(&mut self) {
            PRECISION.set(self.0);
        }
    }
    let _restore = Restore(PRECISION.replace(precision));
    work()
}

/// That of products which begin now on this thread.
pub fn precision() -> Precision {
    PRECISION.get()
}

/// How many fused operations this thread has run; tests check whether there were any.
pub fn fused_calls() -> u64 {
    FUSED_CALLS.get()
}

/// Whether operations on this device are fused.
pub fn fuses(device: &Device) -> bool {
    !PLAIN.get() && device.clone().without_autodiff() == Device::flex()
}

pub(crate) fn count_call() {
    FUSED_CALLS.set(FUSED_CALLS.get() + 1);
}
