//! Several runs in one chart.

use super::html::{Safe, loss, part, scaled};
use super::{answer, page};
use crate::api::{COMPARED, named};
use crate::app::{App, blocking};
use crate::catalogue::Snapshot;
use crate::limits::Work;
use axum::extract::{Query, State};
use axum::response::{Html, Response};
use hadal_report::provenance::{Provenance, together};
use std::fmt::Write;
use std::sync::Arc;

/// The page.
pub(crate) async fn compare(
    State(app): State<Arc<App>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    let ids = named(&query);
    let made = blocking(&app, Work::Many, move |app, now| Ok(render(app, now, &ids))).await;
    answer(&app, made)
}

fn render(app: &App, now: &Snapshot, ids: &[String]) -> Html<String> {
    let mut body = format!("<div class=\"title\"><h1>{} runs compared</h1></div>\n", ids.len());
    if ids.is_empty() || ids.len() > COMPARED {
        let _ = write!(
            body,
            "<p class=\"empty\">Select 1 to {COMPARED} runs in <a href=\"/\">the list</a>; {} are selected.</p>",
            ids.len()
        );
        return page(app, "compare", "", &body);
    }
    for sentence in about_origins(now, ids) {
        let _ = writeln!(body, "<p class=\"reason\">{}</p>", Safe(&sentence));
    }
    body.push_str(
        "<div class=\"tools\"><label>By <select id=\"by\"><option value=\"step\">step</option>\
         <option value=\"tokens\">tokens</option><option value=\"seconds\">time</option></select></label>\
         <label>Smoothing <select id=\"smooth\"><option value=\"0\">none</option>\
         <option value=\"0.9\" selected>some</option><option value=\"0.98\">much</option></select></label>\
         <span class=\"grow\"></span><span id=\"live\" class=\"faint\"></span></div>\n\
         <div class=\"charts\" id=\"compare\"><div class=\"chart wide\" id=\"held\"></div>\
         <div class=\"chart wide\" id=\"train\"></div>\
         <div class=\"chart wide\" id=\"accuracy\" hidden></div></div>\n<p class=\"reason\" id=\"broken\"></p>\n",
    );
    body.push_str(
        "<h2>Last values</h2>\n<div class=\"scroll\"><table><thead><tr><th>Run</th><th>Policy</th>\
         <th class=\"number\">Seed</th><th class=\"number\">Steps</th><th class=\"number\">Training loss</th>\
         <th class=\"number\">Held-out</th><th class=\"number\">Tokens/s</th></tr></thead><tbody>\n",
    );
    for id in ids {
        let Some(run) = now.runs.get(id).map(|entry| &entry.summary) else {
            let _ = writeln!(
                body,
                "<tr><td>{}</td><td colspan=\"6\" class=\"reason\">not there</td></tr>",
                Safe(id)
            );
            continue;
        };
        let _ = writeln!(
            body,
            "<tr><td><a href=\"/runs/{}\">{}</a></td><td>{}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{}</td></tr>",
            part(id),
            Safe(id),
            Safe(&run.residual),
            run.seed.map_or("–".into(), |seed| seed.to_string()),
            run.step,
            loss(run.train_loss),
            loss(run.held_out_loss),
            scaled(run.tokens_per_second)
        );
    }
    body.push_str("</tbody></table></div>");
    page(app, "compare", "compare", &body)
}

/// Why these runs cannot be compared, or what may make a difference besides their settings.
fn about_origins(now: &Snapshot, ids: &[String]) -> Vec<String> {
    let known = ids.iter().filter_map(|id| Some((id.as_str(), &now.runs.get(id)?.path)));
    let made: Vec<(&str, Provenance)> =
        known.map(|(id, path)| (id, Provenance::read(path))).collect();
    let made: Vec<(&str, &Provenance)> = made.iter().map(|(id, made)| (*id, made)).collect();
    together(&made).unwrap_or_else(|apart| vec![apart.to_string()])
}
