//! Tables that fit the screen they are shown on.
//!
//! A table that is too wide first breaks the cells of columns that are text, then leaves out the columns that matter
//! least and says so, or is shown in parts. In a file every column is on one line.

use crate::screen::{Colours, Screen, Style, wrap};
use crate::standard::{Stdout, visible};
use console::measure_text_width;
use std::io::{self, Write};

/// Spaces between columns.
const GAP: usize = 2;
/// The least width that text is broken to.
const LEAST: usize = 12;

/// Rows under a head line, columns as wide as their longest cell.
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<(String, Style)>>,
    too_wide: TooWide,
}

struct Column {
    name: String,
    /// Numbers stand under each other.
    right: bool,
    /// Text that may be broken into several lines.
    text: bool,
}

/// What is done with columns that do not fit.
enum TooWide {
    /// They are shown.
    Shown,
    /// The last in this order are left out; how to see them.
    Dropped { order: Vec<String>, hint: String },
    /// They follow in further tables, which begin with this many of the first columns.
    Parts { keys: usize },
}

impl Table {
    /// A head line; names that start with `>` are columns of numbers, aligned to the right, and those with `~` are text
    /// that may be broken into lines.
    pub(crate) fn new(head: &[&str]) -> Self {
        let column = |name: &&str| Column {
            name: name.trim_start_matches(['>', '~']).to_owned(),
            right: name.starts_with('>'),
            text: name.starts_with('~'),
        };
        let columns = head.iter().map(column).collect();
        Self { columns, rows: Vec::new(), too_wide: TooWide::Shown }
    }

    /// Leaves out columns where there is no room. Those in `order` stay longest, the first of it longest of all; the
    /// others go from the right. The hint says how to see them: `--json`.
    pub(crate) fn dropping(mut self, order: &[&str], hint: &str) -> Self {
        let order = order.iter().map(|name| (*name).to_owned()).collect();
        self.too_wide = TooWide::Dropped { order, hint: hint.into() };
        self
    }

    /// Shows columns for which there is no room in further tables. All begin with the first `keys` columns.
    pub(crate) fn in_parts(mut self, keys: usize) -> Self {
        self.too_wide = TooWide::Parts { keys };
        self
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl ToString>) {
        let cell = |cell: &dyn ToString| (cell.to_string(), Style::default());
        self.rows.push(cells.into_iter().map(|text| cell(&text)).collect());
    }

    /// The look of a cell of the last row.
    pub(crate) fn paint(&mut self, column: usize, style: Style) {
        if let Some(cell) = self.rows.last_mut().and_then(|row| row.get_mut(column)) {
            cell.1 = style;
        }
    }

    /// The last row in bold, colours as they are.
    pub(crate) fn bold(&mut self) {
        for (_, style) in self.rows.last_mut().into_iter().flatten() {
            *style = style.bold();
        }
    }

    /// Prints the table as it fits standard output, in its colours.
    pub(crate) fn show(&self, out: &mut Stdout) {
        out.send(&self.text(&Screen::stdout()));
    }

    /// Prints the table as it fits standard output, without colours.
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let plain = Screen { colours: Colours::None, ..Screen::stdout() };
        out.write_all(self.text(&plain).as_bytes())
    }

    /// The table on this screen.
    pub(crate) fn text(&self, screen: &Screen) -> String {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        let Some(width) = screen.width else { return self.part(&all, screen) };
        let parts = match &self.too_wide {
            TooWide::Shown => vec![all],
            TooWide::Parts { keys } => self.parts(*keys, width),
            TooWide::Dropped { order, hint } => {
                let kept = self.kept(order, width);
                let mut text = self.part(&kept, screen);
                if kept.len() < all.len() {
                    let note = format!("{} of {} columns; {hint}", kept.len(), all.len());
                    text += &format!("{}\n", screen.paint(&note, Style::FAINT));
                }
                return text;
            }
        };
        let texts: Vec<String> = parts.iter().map(|part| self.part(part, screen)).collect();
        texts.join("\n")
    }

    /// The columns that fit, the most important ones.
    fn kept(&self, order: &[String], width: usize) -> Vec<usize> {
        let rank = |&column: &usize| {
            let named = order.iter().position(|name| *name == self.columns[column].name);
            (named.unwrap_or(order.len()), column)
        };
        let mut kept: Vec<usize> = (0..self.columns.len()).collect();
        while kept.len() > 1 && !self.fits(&kept, width) {
            let Some(last) = kept.iter().copied().max_by_key(rank) else { break };
            kept.retain(|column| *column != last);
        }
        kept
    }

    /// Columns in groups that fit; each begins with the keys.
    fn parts(&self, keys: usize, width: usize) -> Vec<Vec<usize>> {
        let keys: Vec<usize> = (0..keys.min(self.columns.len())).collect();
        let mut parts = vec![keys.clone()];
        for column in keys.len()..self.columns.len() {
            let Some(last) = parts.last_mut() else { break };
            let mut longer = last.clone();
            longer.push(column);
            if last.len() == keys.len() || self.fits(&longer, width) {
                *last = longer;
            } else {
                parts.push(keys.iter().copied().chain([column]).collect());
            }
        }
        parts
    }

    fn fits(&self, columns: &[usize], width: usize) -> bool {
        total(&self.widths(columns, Some(width))) <= width
    }

    /// How wide columns are if they shall fit: text is broken, the widest first.
    fn widths(&self, columns: &[usize], limit: Option<usize>) -> Vec<usize> {
        let cells = |column: usize| {
            let head = self.columns[column].name.as_str();
            let cells = self.rows.iter().filter_map(move |row| Some(row.get(column)?.0.as_str()));
            cells.chain([head])
        };
        let mut widths: Vec<usize> = columns
            .iter()
            .map(|&column| cells(column).map(measure_text_width).max().unwrap_or(0))
            .collect();
        let Some(limit) = limit else { return widths };
        let least: Vec<usize> = columns
            .iter()
            .zip(&widths)
            .map(|(&column, &width)| {
                let words = |cell: &str| wrap(cell, 1).iter().map(|w| measure_text_width(w)).max();
                let longest = cells(column).filter_map(words).max().unwrap_or(0);
                if self.columns[column].text { longest.max(LEAST).min(width) } else { width }
            })
            .collect();
        while total(&widths) > limit {
            let can = (0..widths.len()).filter(|&at| widths[at] > least[at]);
            let Some(widest) = can.max_by_key(|&at| widths[at]) else { break };
            widths[widest] -= 1;
        }
        widths
    }

    /// Some columns as a table.
    fn part(&self, columns: &[usize], screen: &Screen) -> String {
        let widths = self.widths(columns, screen.width);
        let head: Vec<(String, Style)> =
            self.columns.iter().map(|column| (column.name.clone(), Style::FAINT)).collect();
        let mut text = String::new();
        for row in [&head].into_iter().chain(&self.rows) {
            let cells: Vec<(Vec<String>, Style)> = columns
                .iter()
                .zip(&widths)
                .map(|(&column, &width)| {
                    let Some((cell, style)) = row.get(column) else { return Default::default() };
                    // Whatever a terminal would obey is shown instead; a file holds what there is.
                    let cell = if screen.width.is_some() { visible(cell) } else { cell.into() };
                    let lines = if self.columns[column].text && screen.width.is_some() {
                        wrap(&cell, width)
                    } else {
                        vec![cell.into_owned()]
                    };
                    (lines, *style)
                })
                .collect();
            let height = cells.iter().map(|(lines, _)| lines.len()).max().unwrap_or(0);
            for at in 0..height {
                let mut line = String::new();
                let mut owed = 0;
                for ((&column, &width), (lines, style)) in columns.iter().zip(&widths).zip(&cells) {
                    let cell = lines.get(at).map_or("", String::as_str);
                    let space = width.saturating_sub(measure_text_width(cell));
                    let (before, after) =
                        if self.columns[column].right { (space, 0) } else { (0, space) };
                    // Spaces are written only if something follows them.
                    owed += before;
                    if !cell.is_empty() {
                        line += &" ".repeat(owed);
                        line += &screen.paint(cell, *style);
                        owed = 0;
                    }
                    owed += after + GAP;
                }
                text += &line;
                text.push('\n');
            }
        }
        text
    }
}

/// The width of a line.
fn total(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide(width: usize) -> Screen {
        Screen { width: Some(width), ..Screen::FILE }
    }

    fn sample() -> Table {
        let mut table = Table::new(&["policy", ">loss", "verdict", ">tokens", ">memory"]);
        table.row(["one", "1.25", "baseline", "1,000", "7"]);
        table.row(["another", "0.5", "better", "20", "12"]);
        table
    }

    #[test]
    fn numbers_stand_under_each_other() {
        let mut table = Table::new(&["name", ">count"]);
        table.row(["a", "7"]);
        table.row(["long name", "1,000"]);
        let text = "name       count\na              7\nlong name  1,000\n";
        assert_eq!(table.text(&Screen::FILE), text);
        assert_eq!(table.text(&wide(80)), text);
    }

    #[test]
    fn letters_that_are_wide_or_none_are_measured_as_they_are_seen() {
        let mut table = Table::new(&["name", ">n"]);
        table.row(["漢字", "1"]);
        table.row(["ab", "±2"]);
        assert_eq!(table.text(&wide(80)), "name   n\n漢字   1\nab    ±2\n");
    }

    #[test]
    fn columns_that_matter_least_go_first_and_it_is_said() {
        let table = sample().dropping(&["policy", "verdict", "memory"], "--json for the rest");
        let head = |width| table.text(&wide(width)).lines().next().unwrap().to_owned();
        assert_eq!(head(80), "policy   loss  verdict   tokens  memory");
        assert_eq!(head(38), "policy   loss  verdict   memory");
        assert_eq!(head(26), "policy   verdict   memory");
        assert_eq!(head(20), "policy   verdict");
        assert!(table.text(&wide(26)).ends_with("3 of 5 columns; --json for the rest\n"));
        assert!(!table.text(&wide(80)).contains("columns;"));
        assert_eq!(table.text(&Screen::FILE), table.text(&wide(80)), "a file has them all");
        for width in 20..60 {
            let text = table.text(&wide(width));
            let lines = text.lines().filter(|line| !line.contains("columns;"));
            assert!(lines.clone().all(|line| line.chars().count() <= width), "{width}:\n{text}");
        }
    }

    #[test]
    fn parts_begin_alike_and_hold_every_column_once() {
        let text = sample().in_parts(1).text(&wide(24));
        let heads: Vec<&str> = text.lines().filter(|line| line.starts_with("policy")).collect();
        assert_eq!(heads, ["policy   loss  verdict", "policy   tokens  memory"]);
        // Even what fits nowhere is shown.
        let text = sample().in_parts(1).text(&wide(9));
        assert_eq!(text.lines().filter(|line| line.starts_with("policy")).count(), 4);
        assert_eq!(sample().in_parts(1).text(&Screen::FILE), sample().text(&Screen::FILE));
    }

    #[test]
    fn text_is_broken_between_words_before_a_column_goes() {
        let mut table = Table::new(&["~policy", ">n", "~paper"]).dropping(&[], "");
        table.row(["mgr:streams=4,gate=competitive", "4", "Some Authors, a title, 2024"]);
        table.row(["x", "1", "short"]);
        let text = "\
policy            n  paper
mgr:streams=4,    4  Some Authors, a
gate=competitive     title, 2024
x                 1  short
";
        assert_eq!(table.text(&wide(36)), text);
        assert_eq!(table.text(&Screen::FILE).lines().count(), 3);
    }

    #[test]
    fn paint_does_not_move_columns_and_files_have_none() {
        let mut table = sample();
        table.paint(0, Style { colour: Some([255, 0, 0]), ..Style::default() });
        table.bold();
        let plain = table.text(&wide(80));
        assert!(!plain.contains('\x1b'));
        let painted = table.text(&Screen { colours: Colours::Few, ..wide(80) });
        assert!(
            painted.contains("\x1b[1;38;5;196manother\x1b[0m   \x1b[1m0.5\x1b[0m"),
            "{painted}"
        );
        assert_eq!(console::strip_ansi_codes(&painted), plain);
    }

    #[test]
    fn nothing_in_a_cell_is_obeyed_by_a_terminal() {
        let mut table = Table::new(&["name"]);
        table.row(["\x1b]0;title\x07"]);
        assert!(!table.text(&Screen { colours: Colours::All, ..wide(80) }).contains("\x1b]"));
    }
}
