//! What was probably meant by a word that nobody knows.

/// A word shorter than this is nobody's beginning.
const BEGINNING: usize = 3;

/// The known word that was probably meant: the same but for upper case, `-` and `_`; else one a slip of the fingers away;
/// else the only one that begins like it.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |word: &str| word.trim().to_lowercase().replace('-', "_");
    let word = plain(word);
    let known: Vec<(&str, String)> = known.into_iter().map(|known| (known, plain(known))).collect();
    if let Some((same, _)) = known.iter().find(|(_, known)| *known == word) {
        return Some(same);
    }
    let slips = |known: &str| strsim::damerau_levenshtein(&word, known);
    // One slip in a short word; a third of a long one may be wrong.
    let most = |known: &str| (word.chars().count().min(known.chars().count()) / 3).max(1);
    // A word of one or two letters is one slip away from too many.
    let near = known
        .iter()
        .filter(|(_, known)| known.chars().count() >= BEGINNING && slips(known) <= most(known));
    if let Some((near, _)) = near.min_by_key(|(_, known)| slips(known)) {
        return Some(near);
    }
    if word.chars().count() < BEGINNING {
        return None;
    }
    let mut longer = known.iter().filter(|(_, known)| known.starts_with(&word));
    match (longer.next(), longer.next()) {
        (Some((only, _)), None) => Some(only),
        _ => None,
    }
}

/// `unknown preset `mico`; did you mean micro? (known are nano, micro)`
pub fn unknown(what: &str, word: &str, known: &[&str]) -> String {
    let all = known.join(", ");
    match nearest(word, known.iter().copied()) {
        Some(meant) => format!("unknown {what} `{word}`; did you mean {meant}? (known are {all})"),
        None => format!("unknown {what} `{word}`; known are {all}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_forgiven_and_a_stranger_is_not() {
        let known = ["prenorm", "postnorm", "mgr", "mhc", "hc", "mhc_lite", "attnres", "s", "m"];
        for (word, meant) in [
            ("MGR", Some("mgr")),
            (" Mhc-Lite", Some("mhc_lite")),
            ("mrg", Some("mgr")),
            ("mg", Some("mgr")),
            ("prenrom", Some("prenorm")),
            ("pre-norm", Some("prenorm")),
            ("attn", Some("attnres")),
            ("S", Some("s")),
            ("x", None),
            ("", None),
            ("rezero", None),
            ("transformer", None),
        ] {
            assert_eq!(nearest(word, known), meant, "{word}");
        }
        // Two begin alike: neither was meant more than the other.
        assert_eq!(nearest("skip", ["skip_threshold", "skip_shrink"]), None);
    }

    #[test]
    fn what_is_known_is_listed_in_any_case() {
        assert_eq!(unknown("preset", "x", &["nano", "l"]), "unknown preset `x`; known are nano, l");
        let meant = "unknown preset `NANO`; did you mean nano? (known are nano, l)";
        assert_eq!(unknown("preset", "NANO", &["nano", "l"]), meant);
    }
}
