//! For tests that need what not every machine has.
//!
//! A test that cannot run says so on standard error, one line that begins with `skipped: `. Where everything should be
//! there, `HADAL_STRICT=1` makes it fail instead, unless `HADAL_MAY_SKIP` lists what is missing: `smollm2,gpu`.

mod allocator;

pub use allocator::{Counting, peak};

use std::fmt::Display;
use std::io::{self, Write};

/// Says that the test that runs now is skipped, because `missing` is not here. The test then returns.
///
/// # Panics
///
/// With `HADAL_STRICT=1`, unless `HADAL_MAY_SKIP` lists `missing`.
pub fn skip(missing: &str, reason: impl Display) {
    let thread = std::thread::current();
    let message = format!("skipped: {missing}: {reason} ({})", thread.name().unwrap_or("a test"));
    let set = |name| std::env::var(name).unwrap_or_default();
    assert!(may_skip(missing, &set("HADAL_STRICT"), &set("HADAL_MAY_SKIP")), "{message}");
    // Not a macro: the test harness would hold back what it prints.
    let _ = writeln!(io::stderr(), "{message}");
}

fn may_skip(missing: &str, strict: &str, listed: &str) -> bool {
    matches!(strict, "" | "0") || listed.split(',').any(|name| name.trim() == missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_skipped_where_everything_should_be_there() {
        assert!(may_skip("gpu", "", "") && may_skip("gpu", "0", ""));
        assert!(!may_skip("gpu", "1", ""));
        assert!(!may_skip("gpu", "1", "smollm2,gpus"));
        assert!(may_skip("gpu", "1", "smollm2, gpu"));
    }
}
