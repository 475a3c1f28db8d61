//! A page under construction: text from run folders can only get in escaped.

use crate::figure::plotly::escaped;

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
            self.markup("<tr>");
            for cell in row {
                self.cell(cell);
            }
            self.markup("</tr>");
        }
        self.markup("</tbody></table></div>")
    }

    fn cell(&mut self, cell: &Cell) {
        match cell {
            Cell::Name { text, colour } => {
                self.markup("<td class=\"name\">");
                if let Some(colour) = colour {
                    self.markup("<i data-colour=\"").text(colour.to_string()).markup("\"></i>");
                }
                self.text(text)
            }
            Cell::Number(text) => self.markup("<td class=\"number\">").text(text),
            Cell::Text(text) => self.markup("<td>").text(text),
            Cell::Good(text) => self.markup("<td class=\"good\">").text(text),
            Cell::Bad(text) => self.markup("<td class=\"bad\">").text(text),
            Cell::Differs(text) => self.markup("<td class=\"differs\">").text(text),
        };
        self.markup("</td>");
    }

    pub(super) fn finish(self) -> String {
        self.0
    }
}

/// A table's cell.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Name { text: String, colour: Option<usize> },
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

    /// Whether it shows nothing.
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Number(text) | Self::Text(text) if text.is_empty())
    }
}
