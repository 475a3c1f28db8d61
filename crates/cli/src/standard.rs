//! Standard output and error, as commands use them.
//!
//! Neither ends a command. Whoever has closed standard error misses messages, and no more. What cannot be written to
//! standard output is remembered: the command still finishes its work and its files. If nobody reads any more, as after
//! `| head`, its exit code is what it would have been; any other trouble is a failure at its end.
//!
//! Names and text come from files of anybody, so control characters are shown instead of sent to a terminal.
#![expect(clippy::disallowed_methods, reason = "everything else goes through this")]

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Why standard output takes no more.
static LOST: Mutex<Option<io::Error>> = Mutex::new(None);

/// Whether another process of this job tells what there is to tell.
static SILENT: AtomicBool = AtomicBool::new(false);

/// From now on nothing is said but what goes wrong: another process of this job says it.
pub(crate) fn be_silent() {
    SILENT.store(true, Ordering::Relaxed);
}

/// Whether nothing is said but what goes wrong.
pub(crate) fn is_silent() -> bool {
    SILENT.load(Ordering::Relaxed)
}

/// Results.
pub(crate) fn stdout() -> Stdout {
    let out = io::stdout();
    let escaped = out.is_terminal();
    Stdout { out, escaped }
}

/// Text for people.
pub(crate) fn stderr() -> Stderr {
    Stderr(io::stderr())
}

/// A line for people.
pub(crate) fn tell(message: &str) {
    if !is_silent() {
        tell_anyway(message);
    }
}

/// A line for people about what goes wrong.
pub(crate) fn tell_anyway(message: &str) {
    stderr().send(&format!("{}\n", visible(message)));
}

/// Whether standard output has failed or is closed.
pub(crate) fn stdout_is_lost() -> bool {
    LOST.lock().unwrap_or_else(PoisonError::into_inner).is_some()
}

/// Whether results go to a terminal.
pub(crate) fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Writes what is still held back, and says what could not be written for another reason than that nobody reads.
pub(crate) fn finish() -> io::Result<()> {
    stdout().flush()?;
    match LOST.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Standard output. Writing to it never fails.
pub(crate) struct Stdout {
    out: io::Stdout,
    escaped: bool,
}

impl Stdout {
    /// Writes a text as it is, colours included.
    pub(crate) fn send(&mut self, text: &str) {
        self.attempt(|out| out.write_all(text.as_bytes()));
    }

    fn attempt(&mut self, write: impl FnOnce(&mut io::Stdout) -> io::Result<()>) {
        if is_silent() || stdout_is_lost() {
            return;
        }
        if let Err(error) = write(&mut self.out) {
            *LOST.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = if self.escaped { visible_bytes(bytes) } else { Cow::Borrowed(bytes) };
        self.attempt(|out| out.write_all(&text));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.attempt(Write::flush);
        Ok(())
    }
}

/// Standard error. Writing to it never fails.
pub(crate) struct Stderr(io::Stderr);

impl Stderr {
    pub(crate) fn is_terminal(&self) -> bool {
        !is_silent() && self.0.is_terminal()
    }

    /// Writes a text as it is, colours included.
    pub(crate) fn send(&mut self, text: &str) {
        // There is nowhere to report to if stderr is gone.
        let _ = self.0.write_all(text.as_bytes());
    }
}

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.write_all(&visible_bytes(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A text whose control characters are spelled out. Line breaks and tabs stay.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hostile) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_hostile(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

fn visible_bytes(bytes: &[u8]) -> Cow<'_, [u8]> {
    match str::from_utf8(bytes).map(visible) {
        Ok(Cow::Borrowed(text)) => Cow::Borrowed(text.as_bytes()),
        Ok(Cow::Owned(text)) => Cow::Owned(text.into_bytes()),
        Err(_) => Cow::Owned(visible(&String::from_utf8_lossy(bytes)).into_owned().into_bytes()),
    }
}

/// Whether a terminal obeys a character instead of showing it, or shows what follows in another order.
fn is_hostile(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t')
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_and_text_stays() {
        for text in ["", "plain\ttext\n", "Größe 漢字 🎉 עברית\u{200f}"] {
            assert!(matches!(visible(text), Cow::Borrowed(same) if same == text), "{text}");
        }
        for (text, shown) in [
            ("\x1b]0;title\x07", "\\u{1b}]0;title\\u{7}"),
            ("a\rb\0c\x7f", "a\\rb\\u{0}c\\u{7f}"),
            ("\u{9b}31mred", "\\u{9b}31mred"),
            ("abc\u{202e}fdp.exe\u{2066}", "abc\\u{202e}fdp.exe\\u{2066}"),
        ] {
            assert_eq!(visible(text), shown);
            assert_eq!(visible_bytes(text.as_bytes()), shown.as_bytes());
        }
        // Every control character that there is.
        for c in (0..=0x9f).filter_map(char::from_u32).filter(|c| c.is_control()) {
            let kept = matches!(c, '\n' | '\t');
            assert_eq!(visible(&c.to_string()).contains(c), kept, "{c:?}");
        }
        assert_eq!(&*visible_bytes(b"\xff\x1b"), "\u{fffd}\\u{1b}".as_bytes());
    }
}
