//! All runs in one table: suites with their policies, and single runs.

use super::html::Safe;
use super::{answer, page, rows};
use crate::app::{App, Trouble, blocking};
use crate::catalogue::Snapshot;
use crate::group::sections;
use crate::limits::Work;
use axum::Json;
use axum::extract::{Query, State};
use axum::response::{Html, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::Arc;

/// The page.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Response {
    let made = blocking(&app, Work::Known, |app, now| Ok(render(app, now))).await;
    answer(&app, made)
}

/// Lines that changed since a revision, as HTML, so that there is only one way to render them.
#[derive(Deserialize)]
pub(crate) struct Since {
    since: Option<u64>,
}

/// What changed in the list: runs, and the lines of their policies and sections.
pub(crate) async fn changes(
    State(app): State<Arc<App>>,
    Query(since): Query<Since>,
) -> Result<Json<Value>, Trouble> {
    let work = move |_: &App, now: &Snapshot| {
        let since = since.since.unwrap_or(0);
        let changed = |id: &String| now.runs.get(id).is_some_and(|entry| entry.revision > since);
        let (mut runs, mut policies, mut titles) = (Vec::new(), Vec::new(), Vec::new());
        for section in sections(now) {
            let before = runs.len();
            for group in &section.groups {
                let news = group.runs.iter().filter(|run| changed(&run.id));
                let news: Vec<Value> = news
                    .map(|run| json!({ "id": run.id, "html": rows::run(run, Some((&section, group))) }))
                    .collect();
                if group.is_many() && !news.is_empty() {
                    policies.push(json!({ "id": group.id, "html": rows::policy(group) }));
                }
                runs.extend(news);
            }
            let is_new = section.suite.is_some_and(|suite| suite.revision > since);
            if runs.len() > before || is_new {
                titles.push(json!({ "id": section.id, "html": rows::title(&section) }));
            }
        }
        Ok(Json(json!({
            "revision": now.revision, "total": now.runs.len(), "rows": runs, "policies": policies, "titles": titles,
        })))
    };
    blocking(&app, Work::Known, work).await
}

fn render(app: &App, now: &Snapshot) -> Html<String> {
    let mut body = String::from("<div class=\"title\"><h1>Runs</h1></div>\n");
    if now.runs.is_empty() {
        body.push_str(
            "<p class=\"empty\">There is no run in this folder yet. <code>hadal train --out \
             FOLDER/NAME</code> makes one, and it appears here by itself.</p>\n",
        );
    }
    body.push_str(
        "<div class=\"tools\"><input id=\"filter\" type=\"search\" placeholder=\"Filter: name, policy, \
         state, note, #tag\" aria-label=\"Filter\" autocomplete=\"off\"><span id=\"states\" class=\"states\">\
         </span><span class=\"grow\"></span><span id=\"count\" class=\"faint\"></span>\
         <button id=\"compare\" disabled>Compare</button></div>\n",
    );
    let _ = writeln!(
        body,
        "<div class=\"scroll\"><table id=\"runs\" data-revision=\"{}\">{}",
        now.revision,
        rows::head()
    );
    let sections = sections(now);
    // Runs that lie in the folder itself need no title.
    let titled = sections.len() > 1 || sections.iter().any(|section| !section.prefix.is_empty());
    for section in &sections {
        body.push_str(&rows::section(section, titled));
    }
    body.push_str("</table></div>");
    if let Some(trouble) = &now.index_trouble {
        let _ = write!(body, "\n<p class=\"faint\">Works without an index: {}</p>", Safe(trouble));
    }
    page(app, "runs", "list", &body)
}
