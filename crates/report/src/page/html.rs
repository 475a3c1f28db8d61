//! A page under construction: text from run folders can only get in escaped.

use crate::figure::plotly::escaped;
use crate::palette::Look;

/// HTML so far.
#[derive(Default)]
pub(super) struct Html(String);

impl Html {
    /// Our own markup.
    pub(super) fn markup(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Text from any source, escaped.
    pub(super) fn text(&mut self, text: impl AsRef<str>) -> &mut Self {
        self.0.push_str(&escaped(text.as_ref()));
        self
    }

    /// A chart's element, escaped where it was made.
    pub(super) fn chart(&mut self, chart: &str) -> &mut Self {
        self.0.push_str(chart);
        self
    }

    /// One of our scripts or styles, which need no escapes.
    pub(super) fn source(&mut self, source: &'static str) -> &mut Self {
        self.0.push_str(source);
        self
    }

    /// A table; cells may be marked by one of our classes.
    pub(super) fn table(&mut self, head: &[String], rows: &[Vec<Cell>]) -> &mut Self {
        let numbers =
            |column: usize| rows.iter().any(|row| row.get(column).is_some_and(Cell::is_number));
        self.markup("<div class=\"wide\"><table><thead><tr>");
        for (column, name) in head.iter().enumerate() {
            self.markup(if numbers(column) { "<th class=\"number\">" } else { "<th>" });
            self.text(name).markup("</th>");
        }
        self.markup("</tr></thead><tbody>");
        for row in rows {
            let is_best = row.iter().any(|cell| matches!(cell, Cell::Name { is_best: true, .. }));
            self.markup(if is_best { "<tr class=\"best\">" } else { "<tr>" });
            for (i, cell) in row.iter().enumerate() {
                self.cell(cell, head.get(i).map_or("", String::as_str));
            }
            self.markup("</tr>");
        }
        self.markup("</tbody></table></div>")
    }

    /// On a narrow page a row is a card, and each cell says what it is.
    fn cell(&mut self, cell: &Cell, label: &str) {
        let class = match cell {
            _ if cell.is_empty() => "empty",
            Cell::Name { .. } => "name",
            Cell::Number(_) => "number",
            Cell::Text(_) => "",
            Cell::Good(_) => "good",
            Cell::Bad(_) => "bad",
            Cell::Differs(_) => "differs",
        };
        self.markup("<td");
        if !class.is_empty() {
            self.markup(" class=\"").markup(class).markup("\"");
        }
        self.markup(" data-label=\"").text(label).markup("\">");
        if let Cell::Name { look: Some(look), .. } = cell {
            self.markup("<i class=\"swatch ").text(look.class()).markup("\"></i>");
        }
        self.text(cell.text());
        if let Cell::Name { is_best: true, .. } = cell {
            self.markup(" <b class=\"badge\">best</b>");
        }
        self.markup("</td>");
    }

    pub(super) fn finish(self) -> String {
        self.0
    }
}

/// A table's cell.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Name { text: String, look: Option<Look>, is_best: bool },
    Number(String),
    Text(String),
    Good(String),
    Bad(String),
    Differs(String),
}

impl Cell {
    fn is_number(&self) -> bool {
        matches!(self, Self::Number(_))
    }

    /// What it shows.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Name { text, .. }
            | Self::Number(text)
            | Self::Text(text)
            | Self::Good(text)
            | Self::Bad(text)
            | Self::Differs(text) => text,
        }
    }

    /// Whether it shows nothing.
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Number(text) | Self::Text(text) if text.is_empty())
    }
}
