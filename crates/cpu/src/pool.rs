//! Rayon's threads, and work that runs on them from the start.
//!
//! A step is hundreds of parallel regions. A thread outside the pool would hand over and wait at each of
//! them; one inside takes part.

use crate::machine::cores;

/// What the main thread of a program has; rayon's own would be smaller.
const STACK: usize = 8 << 20;

/// Makes the program's pool, with [`threads`] unless told otherwise.
pub fn start_pool(asked: Option<usize>) -> Result<(), rayon::ThreadPoolBuildError> {
    rayon::ThreadPoolBuilder::new()
        .stack_size(STACK)
        .num_threads(asked.unwrap_or_else(threads))
        .build_global()
}

/// Threads that compute unless told otherwise: what `RAYON_NUM_THREADS` says, else one for each physical core that this
/// process may use. Two threads on one core share its multipliers, and one that waits takes turns from the other.
pub fn threads() -> usize {
    said(std::env::var("RAYON_NUM_THREADS").ok().as_deref()).unwrap_or_else(cores)
}

/// What rayon would read; zero is no number of threads.
fn said(text: Option<&str>) -> Option<usize> {
    text?.parse().ok().filter(|&threads| threads > 0)
}

/// Runs `work` on a thread of the pool.
pub fn in_pool<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    rayon::scope(|_| work())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_number_of_threads_is_one() {
        assert_eq!(said(Some("3")), Some(3));
        for text in [None, Some(""), Some("0"), Some("-1"), Some("two")] {
            assert_eq!(said(text), None, "{text:?}");
        }
    }
}
