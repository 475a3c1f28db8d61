//! Texts that end a text, wherever tokens begin and end.

/// Watches a text for stop strings. What may become one is held back, so no part of one is ever shown.
///
/// The text ends where a stop string is first complete; of several that are complete there, the longest counts. So the
/// result does not depend on the pieces in which the text arrives.
///
/// ```
/// use hadal_tokenizer::StopStrings;
///
/// let mut stops = StopStrings::new(vec!["END".into()]);
/// assert_eq!(stops.push("The E"), "The ");
/// assert_eq!(stops.push("N"), "");
/// assert_eq!(stops.push("D of it"), "");
/// assert!(stops.reached());
/// ```
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    reached: bool,
}

impl StopStrings {
    /// Empty ones stop nothing.
    pub fn new(mut stops: Vec<String>) -> Self {
        stops.retain(|stop| !stop.is_empty());
        Self { stops, held: String::new(), reached: false }
    }

    /// Takes the next piece and returns what can be shown.
    pub fn push(&mut self, piece: &str) -> String {
        if self.reached {
            return String::new();
        }
        let mut shown = String::new();
        for c in piece.chars() {
            self.held.push(c);
            let complete = self.stops.iter().filter(|stop| self.held.ends_with(stop.as_str()));
            if let Some(longest) = complete.map(String::len).max() {
                self.reached = true;
                shown.push_str(&self.held[..self.held.len() - longest]);
                self.held.clear();
                return shown;
            }
            let free = self.held.len() - self.begun();
            shown.extend(self.held.drain(..free));
        }
        shown
    }

    /// Bytes at the end of what is held with which a stop string may begin.
    fn begun(&self) -> usize {
        let begins = |&(at, _): &(usize, char)| {
            self.stops.iter().any(|stop| stop.starts_with(&self.held[at..]))
        };
        self.held.char_indices().find(begins).map_or(0, |(at, _)| self.held.len() - at)
    }

    /// Whether a stop string was found; nothing is shown from then on.
    pub fn reached(&self) -> bool {
        self.reached
    }

    /// The end of a text that ended in another way: what is held back was no stop string after all.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::test_runner::{Config, TestRunner};
    use proptest::{prop_assert, prop_assert_eq};

    fn shown(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut watch = StopStrings::new(stops.iter().map(|&stop| stop.into()).collect());
        let text: String = pieces.iter().map(|piece| watch.push(piece)).collect();
        (text + &watch.finish(), watch.reached())
    }

    #[test]
    fn a_stop_string_may_span_pieces_and_is_never_shown() {
        assert_eq!(shown(&["\nUser:"], &["Hi", ".\n", "Us", "er: x"]), ("Hi.".into(), true));
        assert_eq!(shown(&["\nUser:"], &["Hi.\nUs", "a"]), ("Hi.\nUsa".into(), false));
        assert_eq!(shown(&["aab"], &["aa", "aab", "c"]), ("aa".into(), true));
        assert_eq!(shown(&["é!"], &["caf", "é", "!"]), ("caf".into(), true));
        assert_eq!(shown(&[""], &["a", ""]), ("a".into(), false));
        // What only began is text.
        assert_eq!(shown(&["END"], &["the EN"]), ("the EN".into(), false));
    }

    #[test]
    fn the_longest_of_those_complete_at_once_counts() {
        assert_eq!(shown(&["b", "ab"], &["xab"]), ("x".into(), true));
    }

    /// The definition, on the whole text.
    fn expected(stops: &[String], text: &str) -> (String, bool) {
        for (end, _) in text.char_indices().chain([(text.len(), ' ')]) {
            let complete = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
            if let Some(longest) = complete.map(String::len).max() {
                return (text[..end - longest].into(), true);
            }
        }
        (text.into(), false)
    }

    #[test]
    fn how_a_text_arrives_makes_no_difference_and_nothing_of_a_stop_leaks() {
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
        let pieces = vec("[ab\u{e9}]{0,3}", 0..12);
        runner
            .run(&(vec("[ab\u{e9}]{1,3}", 1..3), pieces), |(stops, pieces)| {
                let mut watch = StopStrings::new(stops.clone());
                let mut text = String::new();
                let whole = pieces.concat();
                let (right, stopped) = expected(&stops, &whole);
                for piece in &pieces {
                    text += &watch.push(piece);
                    // At no time was more shown than what is right in the end.
                    prop_assert!(right.starts_with(&text), "{text:?} of {right:?}");
                }
                prop_assert_eq!(watch.reached(), stopped);
                prop_assert_eq!(text + &watch.finish(), right);
                Ok(())
            })
            .unwrap();
    }
}
