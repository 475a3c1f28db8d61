//! Ends that nobody asked for: panics, and mapped files that are taken away.

use crate::failure::Failure;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{self, PanicHookInfo};

/// Reports every panic of every thread, except those that become ordinary errors.
pub(crate) fn report_panics() {
    panic::set_hook(Box::new(|panic| {
        if let Some(failure) = bug(panic) {
            failure.report();
        }
    }));
}

/// A panic: ours to mend, not the user's. `None` if it will become an ordinary error, as panics of libraries that read
/// broken files do. With `RUST_BACKTRACE=1` it says how it came about.
fn bug(panic: &PanicHookInfo) -> Option<Failure> {
    if hadal_model::is_guarded() {
        return None;
    }
    let text = panic.payload_as_str().unwrap_or("unknown");
    let place = panic.location().map(|place| format!(" ({place})")).unwrap_or_default();
    let backtrace = Backtrace::capture();
    let how = match backtrace.status() {
        BacktraceStatus::Captured => format!("\n{backtrace}"),
        _ => String::new(),
    };
    Some(Failure::bug(format!("this is a bug in hadal, please report it: {text}{place}{how}")))
}

/// Says what a bus error means before it ends the process, as it would anyway.
#[cfg(unix)]
pub(crate) fn report_bus_errors() {
    use signal_hook::consts::SIGBUS;
    use signal_hook::low_level::{emulate_default_handler, register};
    use std::os::fd::AsFd;

    // Borrowed here: the handler must not take the lock that writing to it elsewhere takes.
    #[expect(clippy::disallowed_methods, reason = "only the number is used, for write(2)")]
    static STDERR: std::sync::LazyLock<std::io::Stderr> = std::sync::LazyLock::new(std::io::stderr);
    let stderr = STDERR.as_fd();
    let handler = move || {
        let _ = rustix::io::write(stderr, BUS_ERROR.as_bytes());
        let _ = emulate_default_handler(SIGBUS);
    };
    // SAFETY: the handler calls write(2) and what signal-hook offers for handlers: no lock, no allocation.
    // A message is all that is lost if it cannot be registered.
    let _ = unsafe { register(SIGBUS, handler) };
}

#[cfg(unix)]
const BUS_ERROR: &str = "error: a file that hadal had mapped became shorter or could not be read (SIGBUS); \
    do not write to a model or to data that is in use, and look at the disk if nobody did\n";

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Output};
    use std::thread;

    /// Runs one ignored test of this file in a process of its own.
    fn alone(test: &str, backtrace: &str) -> Output {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("crash::tests::{test}"), "--ignored", "--nocapture"]);
        command.env("RUST_BACKTRACE", backtrace).output().unwrap()
    }

    fn said(output: &Output) -> String {
        String::from_utf8(output.stderr.clone()).unwrap()
    }

    #[test]
    #[ignore = "panics; another test starts it"]
    fn panics() {
        report_panics();
        let helper = thread::spawn(|| panic!("the {} is {}", "sky", "falling"));
        assert!(helper.join().is_err());
        let guarded = hadal_model::guarded(|| -> Result<(), String> { panic!("a broken file") });
        assert!(guarded.is_err());
    }

    #[test]
    fn a_panic_of_any_thread_is_reported_with_its_place_unless_it_becomes_an_error() {
        let plain = alone("panics", "0");
        let text = said(&plain);
        assert!(plain.status.success(), "{text}");
        let line =
            include_str!("crash.rs").lines().position(|line| line.contains("spawn(|| panic!"));
        let place = format!("crash.rs:{}:", line.unwrap() + 1);
        assert!(text.contains("please report it: the sky is falling ("), "{text}");
        assert!(text.contains(&place), "no {place} in {text}");
        assert!(!text.contains("a broken file"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }

    #[test]
    fn a_backtrace_is_shown_on_request() {
        let text = said(&alone("panics", "1"));
        assert!(text.contains("crash::tests::panics"), "{text}");
    }

    #[test]
    #[cfg(unix)]
    #[ignore = "dies of SIGBUS; another test starts it"]
    fn reads_what_is_gone() {
        report_bus_errors();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 100_000]).unwrap();
        // SAFETY: that the file changes meanwhile is the point, and the process dies of it.
        let map = unsafe { memmap2::Mmap::map(&file).unwrap() };
        assert_eq!(map[99_999], 1);
        file.set_len(0).unwrap();
        panic!("read {}", map[99_999]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_mapped_file_that_is_cut_is_named_as_the_reason() {
        use std::os::unix::process::ExitStatusExt;
        let gone = alone("reads_what_is_gone", "0");
        assert_eq!(gone.status.signal(), Some(signal_hook::consts::SIGBUS), "{}", said(&gone));
        assert_eq!(said(&gone), BUS_ERROR);
    }
}
