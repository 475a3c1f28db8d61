//! Which form of an operation is taken.

use burn::tensor::Device;
use hadal_cpu::Precision;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

thread_local! {
    static PLAIN: Cell<bool> = Cell::new(std::env::var_os("HADAL_PLAIN").is_some());
    static PRECISION: Cell<Precision> = const { Cell::new(Precision::F32) };
    static FUSED_CALLS: Cell<u64> = const { Cell::new(0) };
    static PLANES: Cell<Planes> = const { Cell::new(Planes::OfTheDevice) };
    static CUBE_CALLS: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// Whether the units of a plane (a warp, a subgroup) of a GPU add their values directly, in kernels of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Planes {
    /// Where the device says that it can.
    #[default]
    OfTheDevice,
    /// Whatever the device says; for tests.
    Always,
    /// Never; for tests.
    Never,
}

/// Runs `work` with GPU kernels of ours in this form. This affects the present thread and what it records for the backward
/// pass meanwhile.
pub fn with_planes<R>(planes: Planes, work: impl FnOnce() -> R) -> R {
    struct Restore(Planes);
    impl Drop for Restore {
        fn drop(&mut self) {
            PLANES.set(self.0);
        }
    }
    let _restore = Restore(PLANES.replace(planes));
    work()
}

/// That of kernels which begin now on this thread.
#[cfg(feature = "gpu")]
pub(crate) fn planes() -> Planes {
    PLANES.get()
}

/// How often this thread has called each GPU operation of ours, backward passes not counted; tests check whether it did.
pub fn cube_calls() -> BTreeMap<&'static str, u64> {
    CUBE_CALLS.with_borrow(Clone::clone)
}

/// Whether operations on this device take GPU kernels of ours.
pub fn takes_cubes(device: &Device) -> bool {
    !PLAIN.get() && is_cube(device)
}

#[cfg(feature = "gpu")]
fn is_cube(device: &Device) -> bool {
    use burn::backend::DispatchDevice;
    matches!(device.clone().without_autodiff().as_dispatch(), DispatchDevice::Cube(_))
}

#[cfg(not(feature = "gpu"))]
fn is_cube(_: &Device) -> bool {
    false
}

#[cfg(feature = "gpu")]
pub(crate) fn count_cube(operation: &'static str) {
    CUBE_CALLS.with_borrow_mut(|calls| *calls.entry(operation).or_default() += 1);
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
