//! A suite: the results of `hadal compare`, and its runs.

use super::html::{Safe, part};
use super::{answer, list, page};
use crate::api::suite_table;
use crate::app::{App, Trouble, blocking};
use crate::catalogue::Snapshot;
use crate::limits::Work;
use axum::extract::{Path, State};
use axum::response::{Html, Response};
use serde::Deserialize;
use serde_json::Value;
use std::fmt::Write;
use std::sync::Arc;

/// The shown part of `table.json`. What another version leaves out is empty, what it adds is not shown.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Table {
    verdict: Vec<String>,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
    figures: Vec<Value>,
}

/// The page.
pub(crate) async fn suite(State(app): State<Arc<App>>, Path(id): Path<String>) -> Response {
    let made = blocking(&app, Work::Many, move |app, now| render(app, now, &id)).await;
    answer(&app, made)
}

fn render(app: &App, now: &Snapshot, id: &str) -> Result<Html<String>, Trouble> {
    let folder = now.suite(id)?;
    let mut body = format!("<div class=\"title\"><h1>Suite {}</h1>", Safe(id));
    let runs = now.below(&folder);
    if !runs.is_empty() {
        let query: Vec<String> = runs.iter().map(|run| format!("run={}", part(&run.id))).collect();
        let link = query.join("&amp;");
        let _ = write!(body, "<a class=\"chip\" href=\"/compare?{link}\">all curves</a>");
    }
    body.push_str("</div>\n");
    match suite_table(&folder) {
        Ok(Some(table)) => show(&mut body, id, &table),
        Ok(None) => {
            body.push_str("<p class=\"faint\">The table appears when the suite has run.</p>\n");
        }
        Err(trouble) => {
            let _ = writeln!(body, "<p class=\"reason\">{}</p>", Safe(trouble.message));
        }
    }
    body.push_str("<h2>Runs</h2>\n<div class=\"scroll\"><table class=\"plain\">");
    body.push_str(&list::head());
    body.push_str("<tbody>\n");
    for run in runs {
        body.push_str(&list::row(run));
        body.push('\n');
    }
    body.push_str("</tbody></table></div>");
    Ok(page(app, id, "suite", &body))
}

fn show(body: &mut String, id: &str, value: &Value) {
    let table = match Table::deserialize(value) {
        Ok(table) => table,
        Err(error) => {
            let _ = writeln!(
                body,
                "<p class=\"reason\">table.json is not understood: {}; hadal compare writes it again</p>",
                Safe(error)
            );
            return;
        }
    };
    for sentence in &table.verdict {
        let _ = writeln!(body, "<p class=\"verdict\">{}</p>", Safe(sentence));
    }
    let in_words = |name: &str| matches!(name, "policy" | "verdict");
    let class = |place: usize| match table.columns.get(place) {
        Some(name) if !in_words(name) => "number",
        _ => "",
    };
    body.push_str("<div class=\"scroll\"><table id=\"table\"><thead><tr>");
    for (place, name) in table.columns.iter().enumerate() {
        let _ = write!(body, "<th class=\"{}\">{}</th>", class(place), Safe(name));
    }
    body.push_str("</tr></thead><tbody>\n");
    for row in &table.rows {
        body.push_str("<tr>");
        for (place, text) in row.iter().enumerate() {
            let _ = write!(body, "<td class=\"{}\">{}</td>", class(place), Safe(text));
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</tbody></table></div>\n");
    if !table.figures.is_empty() {
        let link = part(id);
        let _ = writeln!(
            body,
            "<h2>Figures</h2>\n<div class=\"charts\" id=\"figures\" data-link=\"{link}\"></div>"
        );
    }
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
