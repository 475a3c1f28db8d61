//! Progress, readable numbers, and JSON for scripts.

use crate::failure::Failure;
use crate::job::rank_name;
use crate::standard::{is_silent, stderr, stdout, tell, tell_anyway, visible};
pub(crate) use crate::table::Table;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::Write;
use std::time::Duration;

/// A spinner on stderr for work that takes time; invisible off a terminal.
pub(crate) fn spinner(message: String) -> ProgressBar {
    if is_silent() {
        return ProgressBar::hidden();
    }
    let spinner = ProgressBar::new_spinner().with_message(visible(&message).into_owned());
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

/// A bar on stderr that looks like the template; invisible off a terminal.
pub(crate) fn bar(template: &str) -> ProgressBar {
    let bar = if stderr().is_terminal() { ProgressBar::new(1) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template(template);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// A line above a bar, or in a log if there is no bar to be seen.
pub(crate) fn line(bar: &ProgressBar, text: &str) {
    if bar.is_hidden() { tell(text) } else { bar.println(visible(text)) }
}

/// A bar of bytes.
pub(crate) fn bytes_bar(message: String) -> ProgressBar {
    bar("{msg} {bar:24} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left")
        .with_message(visible(&message).into_owned())
}

/// Moves a bar of bytes.
pub(crate) fn show_bytes(bar: &ProgressBar, done: u64, all: u64) {
    bar.set_length(all.max(1));
    bar.set_position(done);
}

/// Prints a value as indented JSON on stdout.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(Failure::failed)?;
    writeln!(stdout(), "{text}")?;
    Ok(())
}

/// Says on stderr what the user should know, though nothing failed.
pub(crate) fn warn(message: &str) {
    tell_anyway(&format!("warning: {}{message}", rank_name()));
}

/// `1,234,567`.
pub(crate) fn grouped(number: i128) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0 { format!("-{text}") } else { text }
}

/// `1.23 M`: three digits and a decimal prefix.
pub(crate) fn scaled(number: f64) -> String {
    const PREFIXES: [&str; 7] = ["", " k", " M", " G", " T", " P", " E"];
    let mut value = number;
    let mut prefix = 0;
    while value.abs() >= 1000.0 && prefix + 1 < PREFIXES.len() {
        value /= 1000.0;
        prefix += 1;
    }
    if prefix == 0 { format!("{value}") } else { format!("{value:.2}{}", PREFIXES[prefix]) }
}

/// `768 B`, `1.28 kB`.
pub(crate) fn bytes(number: f64) -> String {
    let text = scaled(number);
    if text.contains(' ') { format!("{text}B") } else { format!("{text} B") }
}

/// How long something will take. Two digits are more than a guess is worth.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{:.0} s", s.max(1.0)),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s if s < 36.0 * 3600.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_scaled() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(-12_345), "-12,345");
        assert_eq!(scaled(999.0), "999");
        assert_eq!(scaled(1_234_567.0), "1.23 M");
    }

    #[test]
    fn every_unit_is_apart_from_its_number() {
        assert_eq!([768.0, 1280.0, 2e9].map(bytes), ["768 B", "1.28 kB", "2.00 GB"]);
    }

    #[test]
    fn guesses_have_few_digits() {
        let words = [0.2, 42.4, 200.0, 9000.0, 400_000.0].map(duration);
        assert_eq!(words, ["1 s", "42 s", "3 min", "2.5 h", "4.6 days"]);
    }
}
