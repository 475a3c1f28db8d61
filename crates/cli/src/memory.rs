//! The allocator. Training allocates and frees the same large buffers in every step; giving their pages back to the
//! system in between and faulting them in again would cost a tenth of the time.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc's header, which the bindings leave out.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// The allocator's own delay, in milliseconds.
const SOON: std::ffi::c_long = 10;

/// Keeps freed pages until the process ends.
pub(crate) fn keep_pages() {
    // SAFETY: sets an option of the allocator, which any thread may do at any time.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, -1) };
}

/// Gives freed pages back soon: for a server, whose clients come and go.
pub(crate) fn return_pages() {
    // SAFETY: as above.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, SOON) };
}
