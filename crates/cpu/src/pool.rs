//! Rayon's threads, and work that runs on them from the start.
//!
//! A step is hundreds of parallel regions. A thread outside the pool would hand over and wait at each of
//! them; one inside takes part.

/// What the main thread of a program has; rayon's own would be smaller.
const STACK: usize = 8 << 20;

/// Makes the program's pool, with as many threads as there are cores unless told otherwise.
pub fn start_pool(threads: Option<usize>) -> Result<(), rayon::ThreadPoolBuildError> {
    let builder = rayon::ThreadPoolBuilder::new().stack_size(STACK);
    match threads {
        Some(threads) => builder.num_threads(threads),
        None => builder,
    }
    .build_global()
}

/// Runs `work` on a thread of the pool.
pub fn in_pool<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    rayon::scope(|_| work())
}
