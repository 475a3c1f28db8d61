//! Numbers and names as a reader says them.

/// `one`, `two`, .. as far as words are shorter to read than digits.
pub(crate) fn numeral(number: u64) -> String {
    const WORDS: [&str; 11] =
        ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
    let word = usize::try_from(number).ok().and_then(|number| WORDS.get(number));
    word.map_or_else(|| number.to_string(), |word| (*word).to_owned())
}

/// With a capital at its beginning.
pub(crate) fn capital(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// `1 seed`, `6 seeds`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// `a`, `a and b`, `a, b and c`; of many the first few.
pub(crate) fn listed(names: &[String]) -> String {
    const ENOUGH: usize = 4;
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] if names.len() <= ENOUGH => format!("{} and {last}", first.join(", ")),
        many => format!("{} and {} others", many[..ENOUGH - 1].join(", "), many.len() - ENOUGH + 1),
    }
}

/// A number with at most three or four digits: `186 k`, `1.28 M`, `200`.
pub(crate) fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        size if size >= 999_500_000.0 => (value / 1e9, " G"),
        size if size >= 999_500.0 => (value / 1e6, " M"),
        size if size >= 10_000.0 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    if unit.is_empty() && value.fract() == 0.0 {
        return format!("{value}");
    }
    let digits = if scaled.abs() < 9.995 { 2 } else { usize::from(scaled.abs() < 99.95) };
    format!("{scaled:.digits$}{unit}")
}

/// The only value, or the smallest and the largest.
pub(crate) fn range(values: impl Iterator<Item = f64>) -> Option<String> {
    let ends = values.filter(|value| value.is_finite()).fold(None, |ends, value| {
        let (low, high) = ends.unwrap_or((value, value));
        Some((f64::min(low, value), f64::max(high, value)))
    });
    let (low, high) = ends.map(|(low, high)| (short(low), short(high)))?;
    Some(if low == high { low } else { format!("{low} to {high}") })
}

/// A signed difference with a true minus.
pub(crate) fn signed(value: f64, digits: usize) -> String {
    format!("{value:+.digits$}").replace('-', "−")
}

/// `p = 0.034`, or a bound if it is smaller than can be stated.
pub(crate) fn p_value(p: f64) -> String {
    if p < 0.001 { "p < 0.001".into() } else { format!("p = {p:.3}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_short() {
        let said = [0.0, 200.0, 9_999.0, 185_737.0, 1_280_000.0, 0.448].map(short);
        assert_eq!(said, ["0", "200", "9999", "186 k", "1.28 M", "0.45"]);
        assert_eq!(range([3.0, 1.0, f64::NAN].into_iter()).as_deref(), Some("1 to 3"));
        assert_eq!(range([2.0, 2.0].into_iter()).as_deref(), Some("2"));
        assert_eq!(range(std::iter::empty()), None);
        let names: Vec<String> = (0..6).map(|i| format!("n{i}")).collect();
        assert_eq!(listed(&names[..3]), "n0, n1 and n2");
        assert_eq!(listed(&names), "n0, n1, n2 and 3 others");
        assert_eq!(
            (count(1, "seed"), numeral(3), numeral(12)),
            ("1 seed".into(), "three".into(), "12".into())
        );
        assert_eq!(signed(-0.5, 2), "−0.50");
    }
}
