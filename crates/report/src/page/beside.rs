//! Tables that a suite has beside its results, such as what each policy was tuned to.

use super::html::{Cell, Html};
use crate::figure::Figure;
use crate::palette::Look;
use crate::suite::{SideTable, SuiteTable};

/// What stands apart from the comparison itself.
#[derive(Default)]
pub(super) struct Beside {
    pub(super) figures: Vec<Figure>,
    pub(super) tables: Vec<SideTable>,
}

impl Beside {
    pub(super) fn about(&self) -> &'static str {
        match self.tables.iter().any(|table| table.name == "tuning") {
            true => {
                "Every policy enters the comparison at its own best, chosen on seeds that the comparison does not use."
            }
            false => "",
        }
    }
}

/// Side tables with the figures that are called like them, and the other figures.
pub(super) fn parted(suite: Option<&SuiteTable>, figures: Vec<Figure>) -> (Beside, Vec<Figure>) {
    let tables = suite.map_or_else(Vec::new, |suite| suite.tables.clone());
    let is_beside = |figure: &Figure| {
        let belongs = |table: &SideTable| figure.name.starts_with(&format!("{}-", table.name));
        tables.iter().any(belongs)
    };
    let (mine, others) = figures.into_iter().partition(is_beside);
    (Beside { figures: mine, tables }, others)
}

/// Writes a table with its title and caption.
pub(super) fn write(html: &mut Html, table: &SideTable, looks: &[(String, Look)]) {
    html.markup("<h3>").text(&table.title).markup("</h3><p class=\"soft\">");
    html.text(&table.caption).markup("</p>");
    let cell = |(column, text): (usize, &String)| {
        let look = looks.iter().find(|(name, _)| name == text).map(|(_, look)| *look);
        match text {
            _ if column == 0 => Cell::Name { text: text.clone(), look, is_best: false },
            _ if table.columns.get(column).is_some_and(|name| name == "edge")
                && !text.is_empty() =>
            {
                Cell::Bad(text.clone())
            }
            _ if text.parse::<f64>().is_ok() => Cell::Number(text.clone()),
            _ => Cell::Text(text.clone()),
        }
    };
    let rows: Vec<Vec<Cell>> =
        table.rows.iter().map(|row| row.iter().enumerate().map(cell).collect()).collect();
    html.table(&table.columns, &rows);
}
