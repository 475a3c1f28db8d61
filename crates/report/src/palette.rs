//! One colour for each policy, the same wherever it is shown: report, pages, pictures, terminal.
//!
//! A kind of stream has a colour by its name; forms of one kind share it and differ by a variant (a dash, a paler
//! shade). Kinds are not listed here: a new one has a colour without a line of code.

/// A colour on light and on dark ground.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour {
    /// On light ground and on paper.
    pub light: [u8; 3],
    /// On dark ground.
    pub dark: [u8; 3],
}

/// Colours that most eyes can tell apart. The tenth is grey: that of a baseline.
pub const COLOURS: [Colour; 12] = [
    of(0x2f6bc9, 0x7aa8f0),
    of(0xd96a1d, 0xf0985a),
    of(0x1f8f6e, 0x55c9a4),
    of(0xb83f7c, 0xe884b8),
    of(0x7a5cc4, 0xb09af0),
    of(0xb38a00, 0xe0bd4a),
    of(0x1c8ca8, 0x5cc4de),
    of(0xc03b3b, 0xf08080),
    of(0x5f7f2e, 0xa5c767),
    of(0x6b7280, 0xa3acba),
    of(0x8a5a3c, 0xcf9f7e),
    of(0x27408b, 0x8f9ff5),
];

/// How a series looks: the number of its colour, and of the variant among those that share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Look {
    /// The place in [`COLOURS`].
    pub colour: usize,
    /// 0 for the first that has the colour, 1 for the next.
    pub variant: usize,
}

impl Look {
    /// Its classes on a page ([`css`]): `k4 v1`.
    pub fn class(self) -> String {
        format!("k{} v{}", self.colour, self.variant % 4)
    }
}

/// The looks of policies that are shown together. A label begins with its kind: `mgr`, `mgr:streams=8`, `mgr 12 blocks`.
///
/// A kind has the colour of its name. If two kinds have the same, the later one by name takes the next colour that is
/// free. So the order in which policies are shown does not matter.
pub fn looks<'a>(labels: impl IntoIterator<Item = &'a str>) -> Vec<Look> {
    let labels: Vec<&str> = labels.into_iter().collect();
    named(labels.iter().map(|label| (*label, *label))).into_iter().map(|(_, look)| look).collect()
}

/// Names that a page shows, each with the look of its kind: a run or a group of runs may have any name.
///
/// ```
/// let known = hadal_report::palette::named([("first try", "mgr"), ("baseline", "prenorm")]);
/// assert_eq!(known[0].1, hadal_report::palette::looks(["mgr"])[0]);
/// ```
pub fn named<'a>(names: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<(String, Look)> {
    let names: Vec<(&str, &str)> = names.into_iter().collect();
    let mut order: Vec<usize> = (0..names.len()).collect();
    order.sort_by_key(|&at| (kind(names[at].1), names[at].1, names[at].0));
    let mut kinds: Vec<(&str, usize, usize)> = Vec::new();
    let mut found = vec![Look::default(); names.len()];
    for at in order {
        let kind = kind(names[at].1);
        if let Some((_, colour, variant)) = kinds.iter_mut().find(|(name, ..)| *name == kind) {
            *variant += 1;
            found[at] = Look { colour: *colour, variant: *variant };
            continue;
        }
        let own = colour(kind);
        let next = |step: &usize| {
            let colour = (own + step) % COLOURS.len();
            kinds.iter().all(|(_, taken, _)| *taken != colour)
        };
        let step = (0..COLOURS.len()).find(next).unwrap_or(0);
        let colour = (own + step) % COLOURS.len();
        kinds.push((kind, colour, 0));
        found[at] = Look { colour, variant: 0 };
    }
    names.into_iter().map(|(name, _)| name.to_owned()).zip(found).collect()
}

/// The colours as custom properties `--series-0`, `--series-1`, .. for a page: light, dark where the reader wants it or
/// `data-theme` of the root says so, and light on paper; and a class `k0`, `k1`, .. for each.
pub fn css() -> String {
    let all = |side: fn(&Colour) -> [u8; 3]| -> String {
        let colour = |(i, colour): (usize, &Colour)| {
            let [r, g, b] = side(colour);
            format!("--series-{i}:#{r:02x}{g:02x}{b:02x};")
        };
        COLOURS.iter().enumerate().map(colour).collect()
    };
    let (light, dark) = (all(|colour| colour.light), all(|colour| colour.dark));
    let class = |i| format!(".k{i}{{color:var(--series-{i})}}");
    let classes: String = (0..COLOURS.len()).map(class).collect();
    format!(
        ":root{{{light}}}\n@media screen{{@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\
         :root[data-theme=dark]{{{dark}}}}}\n{classes}\n"
    )
}

/// The kind that a label begins with.
pub fn kind(label: &str) -> &str {
    let end = label.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    &label[..end.unwrap_or(label.len())]
}

/// A number by a name. The start of the hash was chosen so that the streams most often compared differ, and the usual
/// baseline is grey.
fn colour(kind: &str) -> usize {
    const START: u32 = 0x811c_9dc5 ^ 0x0a4b_fd6b;
    let hash =
        kind.bytes().fold(START, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash ^ (hash >> 15)) as usize % COLOURS.len()
}

const fn of(light: u32, dark: u32) -> Colour {
    const fn parts(colour: u32) -> [u8; 3] {
        let [_, r, g, b] = colour.to_be_bytes();
        [r, g, b]
    }
    Colour { light: parts(light), dark: parts(dark) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn colours(labels: &[&str]) -> Vec<usize> {
        looks(labels.iter().copied()).iter().map(|look| look.colour).collect()
    }

    #[test]
    fn a_policy_has_its_colour_whatever_stands_beside_it() {
        let usual = ["prenorm", "nag", "mgr", "attnres", "hc", "mhc", "siamese", "lns", "sandwich"];
        let all = colours(&usual);
        for (label, colour) in usual.iter().zip(&all) {
            assert_eq!(colours(&[label]), [*colour]);
            assert_eq!(all.iter().filter(|other| *other == colour).count(), 1, "{label}");
        }
        assert_eq!(all[0], 9, "the baseline is grey");
    }

    #[test]
    fn pages_get_every_colour_for_light_and_for_dark() {
        let css = css();
        assert_eq!(css.matches("--series-").count(), 4 * COLOURS.len());
        assert!(
            css.starts_with(":root{--series-0:#2f6bc9;") && css.contains("--series-11:#8f9ff5;")
        );
    }

    #[test]
    fn forms_of_a_kind_share_a_colour_and_differ_by_variant() {
        let looks = looks(["mgr", "nag", "mgr:streams=8", "mgr 12 blocks"]);
        assert_eq!(looks.iter().map(|look| look.variant).collect::<Vec<_>>(), [0, 0, 2, 1]);
        assert!(looks[0].colour == looks[2].colour && looks[0].colour == looks[3].colour);
    }

    #[test]
    fn the_order_on_a_page_changes_no_look() {
        let names: Vec<String> = (0..9).map(|i| format!("kind{}-{i}", i / 2)).collect();
        let pairs = || names.iter().map(|name| (name.as_str(), name.as_str()));
        let (one, mut other) = (named(pairs()), named(pairs().rev()));
        other.reverse();
        assert_eq!(one, other);
    }

    #[test]
    fn kinds_that_are_shown_together_differ_while_there_are_colours() {
        let names: Vec<String> = (0..COLOURS.len()).map(|i| format!("kind{i}")).collect();
        let mut all = colours(&names.iter().map(String::as_str).collect::<Vec<_>>());
        all.sort_unstable();
        assert_eq!(all, (0..COLOURS.len()).collect::<Vec<_>>());
        assert_eq!(looks(std::iter::repeat_n("a", 40)).len(), 40);
    }
}
