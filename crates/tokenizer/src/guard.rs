//! Libraries that panic on broken files.

use std::cell::Cell;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Calls a library and turns a panic into an error: some libraries index and unwrap on values from a file, such as
/// merges that are longer than any token.
///
/// ```
/// let outcome = hadal_tokenizer::guarded(|| "seven".parse::<u8>());
/// assert_eq!(outcome.unwrap_err(), "invalid digit found in string");
/// ```
pub fn guarded<T, E: Display>(call: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    let outer = GUARDED.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(call));
    GUARDED.set(outer);
    match outcome {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("its parts contradict each other".to_owned()),
    }
}

/// Whether a panic of this thread would become an error of [`guarded`], so that a panic hook can keep quiet.
pub fn is_guarded() -> bool {
    GUARDED.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_and_only_inside() {
        let broken = || -> Result<(), String> {
            assert!(is_guarded());
            let empty: Vec<u8> = Vec::new();
            let _ = empty[std::hint::black_box(0)];
            Ok(())
        };
        assert!(!is_guarded());
        assert_eq!(guarded(broken), Err("its parts contradict each other".to_owned()));
        assert!(!is_guarded());
        let nested = guarded(|| -> Result<bool, String> {
            let _ = guarded(broken);
            Ok(is_guarded())
        });
        assert_eq!(nested, Ok(true));
    }
}
