//! Text that is safe in HTML, addresses that are safe in links, and numbers for people.

use hadal_report::figure::plotly::escaped;
use std::fmt::{self, Display, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Shows a text in HTML, between tags or in a quoted attribute.
pub(crate) struct Safe<T>(pub(crate) T);

impl<T: Display> Display for Safe<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escaped(&self.0.to_string()))
    }
}

/// A name as one part of an address.
pub(crate) fn part(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_~.".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// Four decimals of a loss, or a dash.
pub(crate) fn loss(value: Option<f64>) -> String {
    value.map_or("–".into(), |value| format!("{value:.4}"))
}

/// A mean with its spread: `0.7117 ± 0.1279`.
pub(crate) fn spread(value: Option<(f64, Option<f64>)>) -> String {
    match value {
        None => "–".into(),
        Some((mean, None)) => loss(Some(mean)),
        Some((mean, Some(sd))) => format!("{mean:.4} <span class=\"faint\">± {sd:.3}</span>"),
    }
}

/// A time that is still to pass: `40 s`, `8 min`, `3 h 20 min`, `2 d 4 h`.
pub(crate) fn left(seconds: f64) -> String {
    let seconds = seconds.clamp(0.0, 1e9) as u64;
    let minutes = seconds.div_ceil(60);
    match (seconds, minutes) {
        (0..100, _) => format!("{} s", seconds.max(1)),
        (_, 0..90) => format!("{minutes} min"),
        (_, 90..2880) => format!("{} h {} min", minutes / 60, minutes % 60),
        _ => format!("{} d {} h", minutes / 1440, minutes % 1440 / 60),
    }
}

/// `12.3 k`.
pub(crate) fn scaled(value: Option<f64>) -> String {
    let Some(mut value) = value else { return "–".into() };
    for prefix in ["", " k", " M", " G", " T"] {
        if value.abs() < 999.5 || prefix == " T" {
            let digits = if prefix.is_empty() || value.abs() >= 99.95 { 0 } else { 1 };
            return format!("{value:.digits$}{prefix}");
        }
        value /= 1000.0;
    }
    String::new()
}

/// `3 min ago`.
pub(crate) fn ago(seconds: u64) -> String {
    let then = UNIX_EPOCH + Duration::from_secs(seconds);
    let past = SystemTime::now().duration_since(then).unwrap_or_default().as_secs();
    match past {
        _ if seconds == 0 => "–".into(),
        0..60 => "now".into(),
        60..3600 => format!("{} min ago", past / 60),
        3600..172_800 => format!("{} h ago", past / 3600),
        _ => format!("{} d ago", past / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_name_becomes_markup() {
        let text = Safe("<script>\"'&\u{202e}\u{7}").to_string();
        assert_eq!(text, "&lt;script&gt;&quot;&#39;&amp;\u{fffd}\u{fffd}");
    }

    #[test]
    fn a_name_is_one_part_of_an_address() {
        assert_eq!(part("a b/ü?#%"), "a%20b%2F%C3%BC%3F%23%25");
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 999.0, 1234.0, 123_456.0, 999_900.0, 2.5e9].map(|n| scaled(Some(n)));
        assert_eq!(shown, ["0", "999", "1.2 k", "123 k", "1.0 M", "2.5 G"]);
        assert_eq!(scaled(None), "–");
        assert_eq!(loss(Some(1.0)), "1.0000");
        let times = [0.2, 99.0, 100.0, 480.0, 7300.0, 2e5, f64::NAN].map(left);
        assert_eq!(times, ["1 s", "99 s", "2 min", "8 min", "2 h 2 min", "2 d 7 h", "1 s"]);
    }
}
