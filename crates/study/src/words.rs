//! Numbers, lists and paths as people write them.

use std::path::Path;

/// `a`, `a and b`, `a, b and c`.
pub(crate) fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [before @ .., last] => format!("{} and {last}", before.join(", ")),
    }
}

/// Three digits that matter, and all of a large number: `1.97`, `37.7`, `1,203`.
pub(crate) fn rounded(value: f64) -> String {
    // As it is after rounding: 0.9999 has one digit before the point.
    let rounded = format!("{value:.2e}");
    let exponent = rounded.rsplit('e').next().and_then(|digits| digits.parse::<i32>().ok());
    let digits = match exponent {
        Some(exponent) if value != 0.0 => (2 - exponent).clamp(0, 6) as usize,
        _ => 0,
    };
    match value.abs() < 1e3 {
        true => format!("{value:.digits$}"),
        // Beyond 64 bits nobody counts digits.
        false if value.abs() < 1e15 => grouped(value.round() as u64),
        false => format!("{value:.2e}"),
    }
}

/// `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A change in per cent, with its sign: `+11 %`, `+0.4 %`.
pub(crate) fn change(after: f64, before: f64) -> String {
    let percent = 100.0 * (after / before - 1.0);
    match percent.abs() {
        size if size < 9.95 => format!("{percent:+.1} %"),
        _ => format!("{percent:+.0} %"),
    }
}

/// `1.28 kB`, `134 M`: three digits and a decimal prefix before the unit.
pub(crate) fn scaled(value: f64, unit: &str) -> String {
    const PREFIXES: [&str; 5] = ["", "k", "M", "G", "T"];
    let (mut value, mut prefix) = (value, 0);
    while value.abs() >= 999.5 && prefix + 1 < PREFIXES.len() {
        value /= 1000.0;
        prefix += 1;
    }
    let number = rounded(value);
    format!("{number} {}{unit}", PREFIXES[prefix]).trim_end().to_owned()
}

/// The same with a large first letter.
pub(crate) fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string());
    format!("{}{}", first.unwrap_or_default(), letters.as_str())
}

/// A path as a shell takes it.
pub(crate) fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_matter() {
        let said = [1.9737, 37.72, 412.3, 1203.4, 0.00123, 0.0, 2e20, f64::NAN].map(rounded);
        assert_eq!(said, ["1.97", "37.7", "412", "1,203", "0.00123", "0", "2.00e20", "NaN"]);
        assert_eq!(
            [change(41.9, 37.7), change(1.004, 1.0), change(0.8, 1.0)],
            ["+11 %", "+0.4 %", "-20 %"]
        );
        let said = [(1280.0, "B"), (134_515_008.0, ""), (512.0, "B"), (999.9, "B")];
        assert_eq!(said.map(|(n, unit)| scaled(n, unit)), ["1.28 kB", "135 M", "512 B", "1.00 kB"]);
    }

    #[test]
    fn paths_survive_a_shell() {
        assert_eq!(quoted(Path::new("/a/b-c.gguf")), "/a/b-c.gguf");
        assert_eq!(quoted(Path::new("it's mine")), r"'it'\''s mine'");
    }

    #[test]
    fn lists_end_with_and() {
        let names = |count: usize| (0..count).map(|i| i.to_string()).collect::<Vec<_>>();
        assert_eq!([0, 1, 2, 3].map(|n| listed(&names(n))), ["", "0", "0 and 1", "0, 1 and 2"]);
        assert_eq!(sentence("reading takes"), "Reading takes");
    }
}
