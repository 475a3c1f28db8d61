//! What results are shown on: how wide it is, and whether it has colours.
//!
//! A file or a pipe has no width and no colours unless `--color always` or CLICOLOR_FORCE asks for them, so scripts see
//! every column. Everything that asks the environment is in [`Screen::stdout`]; the rest are arguments.

use console::{Term, measure_text_width};
use hadal_report::palette::{COLOURS, Colour, Look, looks};
use std::sync::OnceLock;

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum When {
    /// On a terminal, unless NO_COLOR or CLICOLOR=0 is set.
    #[default]
    Auto,
    /// In files and pipes, too.
    Always,
    /// Nowhere.
    Never,
}

/// What was asked for on the command line.
static ASKED: OnceLock<When> = OnceLock::new();

/// Says once what was asked for.
pub(crate) fn ask(when: When) {
    // A second call changes nothing: there is one command line.
    let _ = ASKED.set(when);
}

/// How colours are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colours {
    /// Not at all; neither is bold or faint.
    None,
    /// From a cube of 216.
    Few,
    /// With eight bits for each of red, green and blue.
    All,
}

/// The ground that colours stand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ground {
    Light,
    Dark,
    /// Colours are then readable on both.
    Unknown,
}

/// What results are shown on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Screen {
    /// Characters of a line; `None` for a file or a pipe, whose lines have no end.
    pub(crate) width: Option<usize>,
    pub(crate) colours: Colours,
    pub(crate) ground: Ground,
}

/// How a text looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Style {
    pub(crate) bold: bool,
    pub(crate) faint: bool,
    pub(crate) colour: Option<[u8; 3]>,
}

impl Style {
    pub(crate) const FAINT: Self = Self { bold: false, faint: true, colour: None };

    /// The same in bold.
    pub(crate) fn bold(self) -> Self {
        Self { bold: true, ..self }
    }
}

/// The width of a terminal that does not say it.
const USUAL: usize = 80;
/// A terminal that claims less is not believed.
const NARROW: usize = 20;

impl Screen {
    /// A file or a pipe.
    #[cfg(test)]
    pub(crate) const FILE: Self =
        Self { width: None, colours: Colours::None, ground: Ground::Unknown };

    /// Standard output as it is.
    pub(crate) fn stdout() -> Self {
        Self::of(&Term::stdout())
    }

    /// Standard error as it is.
    pub(crate) fn stderr() -> Self {
        Self::of(&Term::stderr())
    }

    fn of(term: &Term) -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let size = term.size_checked().map(|(_, columns)| usize::from(columns));
        let when = ASKED.get().copied().unwrap_or_default();
        Self::from(when, term.is_term(), size, &variable)
    }

    /// What a place is by these facts.
    pub(crate) fn from(
        when: When,
        terminal: bool,
        size: Option<usize>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Self {
        let is = |name: &str, value: &str| variable(name).is_some_and(|found| found == value);
        let named = || variable("COLUMNS").and_then(|columns| columns.trim().parse().ok());
        let believed = |columns: &usize| *columns >= NARROW;
        let width =
            terminal.then(|| named().filter(believed).or(size.filter(believed)).unwrap_or(USUAL));
        let coloured = match when {
            When::Always => true,
            When::Never => false,
            When::Auto if variable("NO_COLOR").is_some_and(|value| !value.is_empty()) => false,
            When::Auto if variable("CLICOLOR_FORCE").is_some_and(|value| value != "0") => true,
            When::Auto => terminal && !is("CLICOLOR", "0") && !is("TERM", "dumb"),
        };
        let all = is("COLORTERM", "truecolor") || is("COLORTERM", "24bit");
        let colours = match (coloured, all) {
            (false, _) => Colours::None,
            (true, false) => Colours::Few,
            (true, true) => Colours::All,
        };
        // Some terminals say "15;0": the colours of their text and of their ground.
        let ground = variable("COLORFGBG").and_then(|pair| pair.rsplit(';').next()?.parse().ok());
        let ground = match ground {
            Some(7 | 15) => Ground::Light,
            Some(0..=15) => Ground::Dark,
            _ => Ground::Unknown,
        };
        Self { width, colours, ground }
    }

    /// The colours of policies that are shown together, by their labels.
    pub(crate) fn policies<'a>(&self, labels: impl IntoIterator<Item = &'a str>) -> Vec<Style> {
        looks(labels).into_iter().map(|look| self.policy(look)).collect()
    }

    /// The colour of a policy.
    pub(crate) fn policy(&self, look: Look) -> Style {
        let Colour { light, dark } = COLOURS[look.colour % COLOURS.len()];
        let between = |i: usize| u8::midpoint(light[i], dark[i]);
        let colour = match self.ground {
            Ground::Light => light,
            Ground::Dark => dark,
            Ground::Unknown => [between(0), between(1), between(2)],
        };
        Style { colour: Some(colour), ..Style::default() }
    }

    /// The text as it looks.
    pub(crate) fn paint(&self, text: &str, style: Style) -> String {
        let mut codes: Vec<String> = Vec::new();
        codes.extend(style.bold.then(|| "1".into()));
        codes.extend(style.faint.then(|| "2".into()));
        codes.extend(style.colour.map(|[r, g, b]| match self.colours {
            Colours::All => format!("38;2;{r};{g};{b}"),
            Colours::None | Colours::Few => format!("38;5;{}", in_cube([r, g, b])),
        }));
        if self.colours == Colours::None || codes.is_empty() || text.is_empty() {
            return text.to_owned();
        }
        format!("\x1b[{}m{text}\x1b[0m", codes.join(";"))
    }

    /// Sentences in lines that fit, those behind the first indented.
    pub(crate) fn wrapped(&self, text: &str, indent: usize) -> String {
        let Some(width) = self.width else { return text.to_owned() };
        let width = width.saturating_sub(indent).max(NARROW - indent.min(NARROW / 2));
        text.split('\n')
            .map(|line| wrap(line, width).join(&format!("\n{}", " ".repeat(indent))))
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// Its place among a terminal's 256: six steps of each.
fn in_cube(colour: [u8; 3]) -> u8 {
    const STEPS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    let nearest = |value: u8| {
        let away = |&(_, step): &(u8, u8)| step.abs_diff(value);
        (0u8..).zip(STEPS).min_by_key(away).map_or(0, |(at, _)| at)
    };
    let [r, g, b] = colour.map(nearest);
    16 + 36 * r + 6 * g + b
}

/// A text in pieces that end with a space, or with a comma that is not within a number.
fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut start = 0;
    for (at, sign) in text.char_indices().filter(|(_, sign)| [' ', ','].contains(sign)) {
        let end = at + sign.len_utf8();
        if sign == ' ' || !text[end..].starts_with(|next: char| next.is_ascii_digit()) {
            pieces.push(&text[start..end]);
            start = end;
        }
    }
    pieces.push(&text[start..]);
    pieces
}

/// Lines of at most `width`, broken behind spaces and commas, never within a word or a number.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = vec![String::new()];
    for word in pieces(text) {
        let line = lines.last_mut().map(|line| measure_text_width(line));
        let fits = line.unwrap_or(0) + measure_text_width(word.trim_end()) <= width;
        match lines.last_mut() {
            Some(line) if fits || line.is_empty() => line.push_str(word),
            _ => lines.push(word.to_owned()),
        }
    }
    for line in &mut lines {
        line.truncate(line.trim_end().len());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(when: When, terminal: bool, variables: &[(&str, &str)]) -> Screen {
        let size = terminal.then_some(132);
        Screen::from(when, terminal, size, &|name| {
            variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).into())
        })
    }

    #[test]
    fn files_have_no_width_and_terminals_their_own() {
        assert_eq!(screen(When::Auto, false, &[("COLUMNS", "40")]), Screen::FILE);
        let width = |variables: &[(&str, &str)]| screen(When::Auto, true, variables).width;
        assert_eq!(width(&[]), Some(132));
        assert_eq!(width(&[("COLUMNS", "90")]), Some(90));
        for nonsense in ["0", "wide", "", "-3"] {
            assert_eq!(width(&[("COLUMNS", nonsense)]), Some(132), "{nonsense}");
        }
        let silent = |size| Screen::from(When::Auto, true, size, &|_| None).width;
        assert_eq!((silent(None), silent(Some(0))), (Some(USUAL), Some(USUAL)));
    }

    #[test]
    fn colours_are_where_they_are_wanted() {
        let coloured = |when, terminal, variables: &[(&str, &str)]| {
            screen(when, terminal, variables).colours != Colours::None
        };
        assert!(coloured(When::Auto, true, &[]) && !coloured(When::Auto, false, &[]));
        assert!(!coloured(When::Auto, true, &[("NO_COLOR", "1")]));
        // An empty variable is as good as none (no-color.org).
        assert!(coloured(When::Auto, true, &[("NO_COLOR", "")]));
        assert!(!coloured(When::Auto, true, &[("CLICOLOR", "0")]));
        assert!(!coloured(When::Auto, true, &[("TERM", "dumb")]));
        assert!(coloured(When::Auto, false, &[("CLICOLOR_FORCE", "1")]));
        assert!(!coloured(When::Auto, false, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
        assert!(coloured(When::Always, false, &[("NO_COLOR", "1")]));
        assert!(!coloured(When::Never, true, &[("CLICOLOR_FORCE", "1")]));
        let true_colour = screen(When::Auto, true, &[("COLORTERM", "truecolor")]);
        assert_eq!(true_colour.colours, Colours::All);
        let ground = |pair| screen(When::Auto, true, &[("COLORFGBG", pair)]).ground;
        assert_eq!((ground("0;15"), ground("15;default;0")), (Ground::Light, Ground::Dark));
        assert_eq!(ground("default"), Ground::Unknown);
    }

    #[test]
    fn paint_is_left_off_where_there_are_no_colours() {
        let style = Style { colour: Some([95, 135, 255]), ..Style::default() }.bold();
        let with = |colours| Screen { colours, ..Screen::FILE }.paint("x", style);
        assert_eq!(with(Colours::None), "x");
        assert_eq!(with(Colours::Few), "\x1b[1;38;5;69mx\x1b[0m");
        assert_eq!(with(Colours::All), "\x1b[1;38;2;95;135;255mx\x1b[0m");
        let all = Screen { colours: Colours::All, ..Screen::FILE };
        assert_eq!(all.paint("x", Style::default()), "x");
    }

    #[test]
    fn a_policy_has_one_colour_on_each_ground() {
        let colour = |ground, labels: &[&str]| {
            Screen { ground, ..Screen::FILE }.policies(labels.iter().copied())[0].colour.unwrap()
        };
        for ground in [Ground::Light, Ground::Dark, Ground::Unknown] {
            assert_eq!(colour(ground, &["one"]), colour(ground, &["one:a=2", "two"]));
        }
        assert_ne!(colour(Ground::Light, &["one"]), colour(Ground::Dark, &["one"]));
    }

    #[test]
    fn sentences_break_between_words() {
        let narrow = Screen { width: Some(30), ..Screen::FILE };
        let text = "a sentence that is longer than thirty characters\nnext";
        let lines = "a sentence that is longer\n  than thirty characters\nnext";
        assert_eq!(narrow.wrapped(text, 2), lines);
        assert_eq!(Screen::FILE.wrapped(text, 2), text);
        assert_eq!(
            wrap("mgr:streams=4,gate=competitive", 20),
            ["mgr:streams=4,", "gate=competitive"]
        );
        assert_eq!(wrap("260,032 parameters", 5), ["260,032", "parameters"]);
        assert_eq!(wrap("unbreakable", 4), ["unbreakable"]);
        assert_eq!(wrap("", 4), [""]);
    }
}
