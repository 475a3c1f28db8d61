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

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn purge_delay() -> i64 {
        // SAFETY: reads an option of the allocator, which any thread may do at any time.
        unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) as i64 }
    }

    #[test]
    #[ignore = "another test starts it with MIMALLOC_PURGE_DELAY=4321"]
    fn the_delay_is_4321_until_pages_are_kept() {
        assert_eq!(purge_delay(), 4321);
        keep_pages();
        assert_eq!(purge_delay(), -1);
    }

    /// mimalloc reads its options from the environment by their names, so the name tells whether the number is right.
    #[test]
    fn the_number_is_that_of_the_delay_before_pages_are_given_back() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "memory::tests::the_delay_is_4321_until_pages_are_kept"]);
        command.arg("--ignored").env("MIMALLOC_PURGE_DELAY", "4321");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
}
