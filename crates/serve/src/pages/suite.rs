//! A suite: what `hadal compare` found, in one sentence and one picture, then the numbers and the runs.

use super::html::{Safe, left, part};
use super::{answer, forest, page, rows};
use crate::api::suite_table;
use crate::app::{App, Trouble, blocking};
use crate::catalogue::{Snapshot, answer_first};
use crate::group::{Section, sections};
use crate::limits::Work;
use crate::looks::policies;
use axum::extract::{Path, State};
use axum::response::{Html, Response};
use hadal_report::palette::Look;
use serde::Deserialize;
use serde_json::Value;
use std::fmt::Write;
use std::sync::Arc;

/// Columns that are shown at once; the rest is folded.
const FIRST: usize = 6;

/// The shown part of `table.json`. What another version leaves out is empty, what it adds is not shown.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Table {
    headline: String,
    verdict: Vec<String>,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
    figures: Vec<Value>,
}

impl Table {
    /// Rows by their difference to the baseline, depth by depth.
    fn best_first(mut self) -> Self {
        let column = |name: &str| self.columns.iter().position(|column| column == name);
        let (blocks, difference) = (column("blocks"), column("difference"));
        let text = |row: &Vec<String>, place: Option<usize>| {
            place.and_then(|place| row.get(place)).cloned().unwrap_or_default()
        };
        // The baseline's is empty; one that is not known comes last.
        let key = |row: &Vec<String>| {
            let text = text(row, difference);
            text.parse().unwrap_or(if text.is_empty() { 0.0 } else { f64::INFINITY })
        };
        let depth = |row: &Vec<String>| text(row, blocks).parse().unwrap_or(0_usize);
        self.rows.sort_by(|a, b| depth(a).cmp(&depth(b)).then(f64::total_cmp(&key(a), &key(b))));
        self
    }
}

/// The page.
pub(crate) async fn suite(State(app): State<Arc<App>>, Path(id): Path<String>) -> Response {
    let made = blocking(&app, Work::Many, move |app, now| render(app, now, &id)).await;
    answer(&app, made)
}

fn render(app: &App, now: &Snapshot, id: &str) -> Result<Html<String>, Trouble> {
    let folder = now.suite(id)?;
    let sections = sections(now);
    let section = sections.iter().find(|section| section.suite.is_some() && section.id == id);
    let mut body = String::new();
    if let Some(section) = section {
        kicker(&mut body, section);
    }
    match suite_table(&folder) {
        Ok(Some(table)) => show(&mut body, id, &table),
        Ok(None) => {
            let _ = writeln!(
                body,
                "<div class=\"title\"><h1>{}</h1></div>\n<p class=\"faint\">The verdict appears when all runs are done.</p>",
                Safe(id)
            );
        }
        Err(trouble) => {
            let _ = writeln!(
                body,
                "<div class=\"title\"><h1>{}</h1></div>\n<p class=\"reason\">{}</p>",
                Safe(id),
                Safe(trouble.message)
            );
        }
    }
    if let Some(section) = section {
        body.push_str("<h2>Runs</h2>\n<div class=\"scroll\"><table id=\"runs\" class=\"plain\">");
        body.push_str(&rows::head());
        body.push_str(&rows::section(section, false));
        body.push_str("</table></div>");
    }
    Ok(page(app, id, "suite", &body))
}

/// What it is, how far it is, and where to go from here.
fn kicker(body: &mut String, section: &Section<'_>) {
    let _ = write!(
        body,
        "<p class=\"kicker\">suite <b>{}</b> · {}",
        Safe(section.id),
        rows::about(section)
    );
    if let Some(seconds) = section.left() {
        let _ = write!(body, " · <span class=\"busy\">about {} left</span>", left(seconds));
    }
    if section.suite.is_some_and(|suite| suite.has_report) {
        let _ = write!(
            body,
            "<a class=\"chip\" href=\"/suites/{}/report\">report</a>",
            part(section.id)
        );
    }
    let query: Vec<String> =
        section.groups.iter().map(|group| format!("group={}", part(&group.id))).collect();
    if !query.is_empty() {
        let link = query.join("&amp;");
        let _ = write!(body, "<a class=\"chip\" href=\"/compare?{link}\">all curves</a>");
    }
    body.push_str("</p>\n");
}

fn show(body: &mut String, id: &str, value: &Value) {
    let table = match Table::deserialize(value) {
        Ok(table) => table.best_first(),
        Err(error) => {
            let _ = writeln!(
                body,
                "<p class=\"reason\">table.json is not understood: {}; hadal compare writes it again</p>",
                Safe(error)
            );
            return;
        }
    };
    let mut sentences = table.verdict.iter().map(String::as_str);
    let headline =
        if table.headline.is_empty() { sentences.next() } else { Some(table.headline.as_str()) };
    let (found, method) = answer_first(headline.unwrap_or(id));
    let _ = writeln!(body, "<h1 class=\"verdict\">{}</h1>", Safe(found));
    if !method.is_empty() {
        let _ = writeln!(body, "<p class=\"faint\">By {}.</p>", Safe(method));
    }
    let policies = policies(value);
    let picture = forest::picture(value, &policies);
    if !picture.is_empty() {
        let _ = writeln!(body, "<div class=\"card\">{picture}</div>");
    }
    let sentences: Vec<&str> = sentences.collect();
    if !sentences.is_empty() {
        body.push_str("<details class=\"more\"><summary>In sentences</summary>");
        for sentence in sentences {
            let _ = writeln!(body, "<p>{}</p>", Safe(sentence));
        }
        body.push_str("</details>\n");
    }
    if table.figures.iter().any(|figure| figure["name"] != forest::FIGURE) {
        let link = part(id);
        let _ = writeln!(body, "<div class=\"charts\" id=\"figures\" data-link=\"{link}\"></div>");
    }
    if !table.rows.is_empty() {
        body.push_str("<h2>Numbers</h2>\n");
        numbers(body, &table, &policies, FIRST);
        if table.columns.len() > FIRST {
            let _ = write!(
                body,
                "<details class=\"more\"><summary>All {} columns</summary>",
                table.columns.len()
            );
            numbers(body, &table, &policies, usize::MAX);
            body.push_str("</details>\n");
        }
    }
}

/// The table, as far as so many columns.
fn numbers(body: &mut String, table: &Table, policies: &[(String, Look)], columns: usize) {
    let in_words = |name: &str| matches!(name, "policy" | "verdict");
    let kind = |place: usize| match table.columns.get(place) {
        // A phone has room for the loss and its difference.
        Some(name) if ["95 % interval", "p (Holm)"].contains(&name.as_str()) => "number c-more",
        Some(name) if !in_words(name) => "number",
        Some(name) if name == "verdict" => "c-verdict",
        _ => "",
    };
    let id = if columns == FIRST { " id=\"table\"" } else { "" };
    let _ = write!(body, "<div class=\"scroll\"><table{id}><thead><tr>");
    for (place, name) in table.columns.iter().enumerate().take(columns) {
        let _ = write!(body, "<th class=\"{}\">{}</th>", kind(place), Safe(name));
    }
    body.push_str("</tr></thead><tbody>\n");
    for row in &table.rows {
        body.push_str("<tr>");
        for (place, text) in row.iter().enumerate().take(columns) {
            let known = policies.iter().find(|(name, _)| place == 0 && name == text);
            let swatch = known.map_or(String::new(), |(_, look)| {
                format!("<i class=\"swatch {}\"></i>", look.class())
            });
            let _ = write!(body, "<td class=\"{}\">{swatch}{}</td>", kind(place), Safe(text));
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</tbody></table></div>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tables_of_other_versions_do_no_harm() {
        for odd in [json!(null), json!([]), json!(7), json!({}), json!({"rows": [["<b>"], []]})] {
            let mut body = String::new();
            show(&mut body, "suite", &odd);
            assert!(!body.contains("<b>"), "{body}");
        }
        let mut body = String::new();
        show(&mut body, "suite", &json!({"rows": {"policy": "mgr"}}));
        assert!(body.contains("not understood"), "{body}");
    }
}
