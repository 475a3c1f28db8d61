//! A suite: its table as `hadal compare` wrote it, and its runs.
//!
//! The table is shown by its shape, not by its meaning: lists of records become tables, records become
//! pairs. So a column that `hadal compare` adds is shown without a change here.

use super::html::{Safe, part};
use super::{answer, list, page};
use crate::api::suite_table;
use crate::app::{App, Trouble, blocking};
use axum::extract::{Path, State};
use axum::response::{Html, Response};
use serde_json::{Map, Value};
use std::fmt::Write;
use std::sync::Arc;

/// Deeper values are shown as JSON.
const DEPTH: usize = 4;

/// The page.
pub(crate) async fn suite(State(app): State<Arc<App>>, Path(id): Path<String>) -> Response {
    let made = blocking(&app, move |app| render(app, &id)).await;
    answer(&app, made)
}

fn render(app: &App, id: &str) -> Result<Html<String>, Trouble> {
    let folder = app.suite(id)?;
    let mut body = format!("<div class=\"title\"><h1>Suite {}</h1>", Safe(id));
    let catalogue = app.catalogue();
    let runs = catalogue.runs().filter(|(_, entry)| entry.path.starts_with(&folder));
    let runs: Vec<_> = runs.map(|(_, entry)| &entry.summary).collect();
    if !runs.is_empty() {
        let query: Vec<String> = runs.iter().map(|run| format!("run={}", part(&run.id))).collect();
        let _ = write!(
            body,
            "<a class=\"chip\" href=\"/compare?{}\">all curves</a>",
            query.join("&amp;")
        );
    }
    body.push_str("</div>\n");
    match suite_table(&folder) {
        Ok(Some(table)) => value(&mut body, &table, DEPTH),
        Ok(None) => {
            body.push_str("<p class=\"faint\">The table appears when the suite has run.</p>\n")
        }
        Err(trouble) => {
            let _ = writeln!(body, "<p class=\"reason\">{}</p>", Safe(trouble.message));
        }
    }
    body.push_str("<h2>Runs</h2>\n<div class=\"scroll\"><table class=\"plain\"><tbody>\n");
    for run in runs {
        body.push_str(&list::row(run));
        body.push('\n');
    }
    body.push_str("</tbody></table></div>");
    Ok(page(app, id, "", &body))
}

fn value(body: &mut String, shown: &Value, depth: usize) {
    match shown {
        Value::Object(fields) if depth > 0 => record(body, fields, depth),
        Value::Array(rows) if !rows.is_empty() && rows.iter().all(Value::is_object) => {
            table(body, rows);
        }
        other => {
            let _ = writeln!(body, "<p>{}</p>", Safe(cell(other)));
        }
    }
}

fn record(body: &mut String, fields: &Map<String, Value>, depth: usize) {
    let is_plain = |value: &Value| !value.is_object() && !value.is_array();
    let sentences =
        fields.iter().filter(|(_, v)| v.as_str().is_some_and(|text| text.contains(' ')));
    for (_, text) in sentences.clone() {
        let _ = writeln!(body, "<p class=\"verdict\">{}</p>", Safe(cell(text)));
    }
    let plain: Vec<_> = fields
        .iter()
        .filter(|(_, v)| is_plain(v) && !v.as_str().is_some_and(|text| text.contains(' ')))
        .collect();
    if !plain.is_empty() {
        body.push_str("<div class=\"tiles\">");
        for (name, value) in plain {
            let _ = write!(
                body,
                "<div class=\"tile\"><span>{}</span><b>{}</b></div>",
                Safe(title(name)),
                Safe(cell(value))
            );
        }
        body.push_str("</div>\n");
    }
    for (name, inner) in fields.iter().filter(|(_, v)| !is_plain(v)) {
        let _ = writeln!(body, "<h2>{}</h2>", Safe(title(name)));
        value(body, inner, depth - 1);
    }
}

/// Columns are all names that occur, in the order of their first occurrence.
fn table(body: &mut String, rows: &[Value]) {
    let mut columns: Vec<&String> = Vec::new();
    for name in rows.iter().filter_map(Value::as_object).flat_map(Map::keys) {
        if !columns.contains(&name) {
            columns.push(name);
        }
    }
    body.push_str("<div class=\"scroll\"><table><thead><tr>");
    let is_number = |name: &String| {
        rows.iter()
            .filter_map(|row| row.get(name))
            .all(|v| v.is_number() || v.is_null() || v.is_object())
    };
    for name in &columns {
        let class = if is_number(name) { "number" } else { "" };
        let _ = write!(body, "<th class=\"{class}\">{}</th>", Safe(title(name)));
    }
    body.push_str("</tr></thead><tbody>\n");
    for row in rows {
        body.push_str("<tr>");
        for name in &columns {
            let class = if is_number(name) { "number" } else { "" };
            let shown = row.get(*name).map_or(String::new(), cell);
            let _ = write!(body, "<td class=\"{class}\">{}</td>", Safe(shown));
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</tbody></table></div>\n");
}

fn title(name: &str) -> String {
    name.replace('_', " ")
}

/// A value in a few characters.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "–".into(),
        Value::Bool(yes) => (if *yes { "yes" } else { "no" }).into(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => whole.to_string(),
            (None, Some(value)) if value == 0.0 || (1e-3..1e6).contains(&value.abs()) => {
                format!("{value:.4}")
            }
            (None, Some(value)) => format!("{value:.2e}"),
            (None, None) => number.to_string(),
        },
        Value::Array(values) => values.iter().map(cell).collect::<Vec<_>>().join(", "),
        Value::Object(fields) => {
            let parts =
                fields.iter().map(|(name, value)| format!("{} {}", title(name), cell(value)));
            parts.collect::<Vec<_>>().join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn any_table_is_shown_and_nothing_in_it_becomes_markup() {
        let mut body = String::new();
        let shown = json!({
            "verdict": "mgr is not distinguishable from prenorm",
            "baseline": "prenorm",
            "rows": [
                { "policy": "<b>", "loss": { "mean": 1.5, "low": 1.4 }, "p": 1e-9 },
                { "policy": "mgr", "speed": 12 },
            ],
        });
        value(&mut body, &shown, DEPTH);
        assert!(body.contains("<p class=\"verdict\">mgr is not"), "{body}");
        assert!(body.contains("&lt;b&gt;") && body.contains("low 1.4000, mean 1.5000"), "{body}");
        assert!(body.contains("1.00e-9") && body.contains("<th class=\"number\">speed"), "{body}");
        for odd in [json!(null), json!([]), json!([1, "a"]), json!("text"), json!([[[[[[1]]]]]])] {
            value(&mut String::new(), &odd, DEPTH);
        }
    }
}
