//! How many files may be open at once.

/// Raises the limit as far as the system allows: prepared data may have thousands of shards, each of which stays open,
/// so that what was verified is what is read.
pub(crate) fn allow_many() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls get a pointer to a whole structure that lives longer than they do.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            // Where this is not allowed, the old limit holds, and too many files are an error that names one.
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}
