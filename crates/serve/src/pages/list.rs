//! All runs in one table.

use super::html::{Safe, ago, loss, part, scaled};
use super::{answer, page};
use crate::app::{App, Trouble, blocking};
use crate::catalogue::{Snapshot, Standing, Summary};
use crate::limits::Work;
use axum::Json;
use axum::extract::{Query, State};
use axum::response::{Html, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::Arc;

const WIDTH: f32 = 120.0;
const HEIGHT: f32 = 26.0;

/// Heads of columns: key for sorting, title, class.
const COLUMNS: [(&str, &str, &str); 9] = [
    ("name", "Run", ""),
    ("status", "Status", ""),
    ("policy", "Policy", ""),
    ("seed", "Seed", "number"),
    ("step", "Steps", "number"),
    ("train", "Training loss", "number"),
    ("held", "Held-out", "number"),
    ("speed", "Tokens/s", "number"),
    ("changed", "Written", "number"),
];

/// The page.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Response {
    let made = blocking(&app, Work::Known, |app, now| Ok(render(app, now))).await;
    answer(&app, made)
}

/// Rows that changed since a revision, as HTML, so that there is only one way to render them.
#[derive(Deserialize)]
pub(crate) struct Since {
    since: Option<u64>,
}

/// What changed in the list.
pub(crate) async fn rows(
    State(app): State<Arc<App>>,
    Query(since): Query<Since>,
) -> Result<Json<Value>, Trouble> {
    let work = move |_: &App, now: &Snapshot| {
        let since = since.since.unwrap_or(0);
        let changed = now.runs.iter().filter(|(_, entry)| entry.revision > since);
        let rows: Vec<Value> =
            changed.map(|(id, entry)| json!({ "id": id, "html": row(&entry.summary) })).collect();
        let total = now.runs.len();
        Ok(Json(json!({ "revision": now.revision, "total": total, "rows": rows })))
    };
    blocking(&app, Work::Known, work).await
}

fn render(app: &App, now: &Snapshot) -> Html<String> {
    let mut body = String::from("<div class=\"title\"><h1>Runs</h1>");
    for id in now.suites.keys() {
        let (link, name) = (part(id), Safe(id));
        let _ = write!(body, "<a class=\"chip\" href=\"/suites/{link}\">suite {name}</a>");
    }
    body.push_str("</div>\n");
    if now.runs.is_empty() {
        body.push_str(
            "<p class=\"empty\">There is no run in this folder yet. <code>hadal train --out \
             FOLDER/NAME</code> makes one, and it appears here by itself.</p>\n",
        );
    }
    body.push_str(
        "<div class=\"tools\"><input id=\"filter\" type=\"search\" placeholder=\"Filter: name, policy, \
         status, note\" aria-label=\"Filter\" autocomplete=\"off\"><span id=\"states\" class=\"states\">\
         </span><span class=\"grow\"></span><span id=\"count\" class=\"faint\"></span>\
         <button id=\"compare\" disabled>Compare</button></div>\n",
    );
    let revision = now.revision;
    let _ = writeln!(
        body,
        "<div class=\"scroll\"><table id=\"runs\" data-revision=\"{revision}\">{}<tbody>",
        head()
    );
    for run in now.summaries() {
        body.push_str(&row(run));
        body.push('\n');
    }
    body.push_str("</tbody></table></div>");
    if let Some(trouble) = &now.index_trouble {
        let _ = write!(body, "\n<p class=\"faint\">Works without an index: {}</p>", Safe(trouble));
    }
    page(app, "runs", "list", &body)
}

/// The head line.
pub(super) fn head() -> String {
    let mut text = String::from(
        "<thead><tr><th class=\"pick\"><input type=\"checkbox\" id=\"all\" aria-label=\"Select all shown\"></th>",
    );
    for (key, title, class) in COLUMNS {
        let _ = write!(
            text,
            "<th class=\"{class} c-{key}\"><button data-key=\"{key}\">{title}</button></th>"
        );
        if key == "step" {
            text.push_str("<th class=\"c-curve\">Curve</th>");
        }
    }
    text + "</tr></thead>"
}

/// One run.
pub(super) fn row(run: &Summary) -> String {
    let (id, status) = (Safe(&run.id), run.status.word());
    let (group, name) = run.id.rsplit_once('/').unwrap_or(("", &run.id));
    let group = if group.is_empty() {
        String::new()
    } else {
        format!("<span class=\"faint\">{}/</span>", Safe(group))
    };
    let below = match (&run.reason, run.note.as_str()) {
        (Some(reason), _) => format!("<div class=\"reason\">{}</div>", Safe(reason)),
        (None, "") => String::new(),
        (None, note) => {
            format!("<div class=\"note\">{}</div>", Safe(note.lines().next().unwrap_or("")))
        }
    };
    let words = format!("{} {} {} {}", run.id, run.residual, status, run.note).to_lowercase();
    let words = Safe(words.replace('\n', " "));
    let link = part(&run.id);
    let mut text = format!(
        "<tr data-id=\"{id}\" data-status=\"{status}\" data-words=\"{words}\">\
         <td class=\"pick\"><input type=\"checkbox\" aria-label=\"Select {id}\"></td>\
         <td class=\"c-name\" data-v=\"{id}\"><a href=\"/runs/{link}\">{group}{name}</a>{below}</td>\
         <td class=\"c-status\" data-v=\"{status}\"><span class=\"pill {status}\">{status}</span></td>\
         <td class=\"c-policy\" data-v=\"{policy}\">{policy}{shape}</td>",
        name = Safe(name),
        policy = Safe(&run.residual),
        shape = shape(run),
    );
    let seed = run.seed.map_or("–".into(), |seed| seed.to_string());
    number(&mut text, "seed", run.seed.map(|seed| seed as f64), &seed);
    number(&mut text, "step", Some(run.step as f64), &progress(run));
    let _ = write!(text, "<td class=\"c-curve\">{}</td>", sparkline(&run.spark));
    number(&mut text, "train", run.train_loss, &loss(run.train_loss));
    number(&mut text, "held", run.held_out_loss, &loss(run.held_out_loss));
    number(&mut text, "speed", run.tokens_per_second, &scaled(run.tokens_per_second));
    number(&mut text, "changed", Some(run.changed as f64), &ago(run.changed));
    text + "</tr>"
}

fn number(text: &mut String, key: &str, value: Option<f64>, shown: &str) {
    let value = value.map_or(String::new(), |value| value.to_string());
    let _ = write!(text, "<td class=\"number c-{key}\" data-v=\"{value}\">{shown}</td>");
}

fn shape(run: &Summary) -> String {
    match (run.blocks, run.width) {
        (Some(blocks), Some(width)) => format!(" <span class=\"faint\">{blocks}×{width}</span>"),
        _ => String::new(),
    }
}

fn progress(run: &Summary) -> String {
    match run.steps {
        Some(steps) if run.status != Standing::Done => format!(
            "{} <span class=\"faint\">/ {steps}</span><progress value=\"{}\" max=\"{}\"></progress>",
            run.step,
            run.step.min(steps),
            steps.max(1)
        ),
        _ => run.step.to_string(),
    }
}

/// The loss as a line without axes; values far above the rest are cut off.
fn sparkline(points: &[(f32, f32)]) -> String {
    let finite: Vec<(f32, f32)> = points.iter().copied().filter(|(_, y)| y.is_finite()).collect();
    let (Some(first), Some(last)) = (finite.first(), finite.last()) else { return String::new() };
    let low = finite.iter().map(|p| p.1).fold(f32::INFINITY, f32::min);
    let high = finite.iter().map(|p| p.1).fold(f32::NEG_INFINITY, f32::max);
    let (width, height) = ((last.0 - first.0).max(1.0), (high - low).max(f32::MIN_POSITIVE));
    let mut path = String::new();
    for (place, (x, y)) in finite.iter().enumerate() {
        let command = if place == 0 { 'M' } else { 'L' };
        let x = 1.0 + (x - first.0) / width * (WIDTH - 2.0);
        let y = 2.0 + (high - y) / height * (HEIGHT - 4.0);
        let _ = write!(path, "{command}{x:.0} {y:.1}");
    }
    format!(
        "<svg class=\"spark\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         aria-hidden=\"true\"><path d=\"{path}\"/></svg>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparklines_stay_in_their_box_whatever_the_numbers() {
        assert_eq!(sparkline(&[]), "");
        assert_eq!(sparkline(&[(1.0, f32::NAN)]), "");
        let flat = sparkline(&[(5.0, 2.0)]);
        assert!(flat.contains("M1 2.0"), "{flat}");
        let steep = sparkline(&[(0.0, 1e30), (1.0, 0.0)]);
        assert!(steep.contains("M1 2.0L119 24.0"), "{steep}");
    }

    #[test]
    fn a_row_shows_odd_names_as_text() {
        let run = Summary { id: "<img src=x>/\"a' b".into(), ..Summary::default() };
        let row = row(&run);
        assert!(!row.contains("<img"), "{row}");
        assert!(row.contains("/runs/%3Cimg%20src%3Dx%3E%2F%22a%27%20b"), "{row}");
    }
}
