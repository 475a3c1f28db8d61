//! Everything that pages show, as JSON.

use crate::app::{App, BODY, Trouble, blocking};
use crate::catalogue::Snapshot;
use crate::files::{self, Contents};
use crate::guard::refuse_write;
use crate::limits::Work;
use crate::machine::{self, Resources};
use crate::note;
use crate::series::{POINTS, Series};
use axum::Json;
use axum::body::to_bytes;
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use hadal_report::figure::Figure;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Runs in one chart; more cannot be told apart.
pub(crate) const COMPARED: usize = 60;
/// Points of a curve, at most.
const MOST_POINTS: usize = 20_000;

type Answer<T> = Result<Json<T>, Trouble>;

/// How much of a curve is requested.
#[derive(Deserialize)]
pub(crate) struct Detail {
    points: Option<usize>,
}

impl Detail {
    fn points(&self) -> usize {
        self.points.unwrap_or(POINTS).clamp(2, MOST_POINTS)
    }
}

/// All runs.
pub(crate) async fn runs(State(app): State<Arc<App>>) -> Answer<Value> {
    let work = |_: &App, now: &Snapshot| {
        Ok(Json(json!({
            "revision": now.revision,
            "index_trouble": now.index_trouble,
            "suites": now.suites.keys().collect::<Vec<_>>(),
            "runs": now.summaries().collect::<Vec<_>>(),
        })))
    };
    blocking(&app, Work::Known, work).await
}

/// One run: settings, machine, newest samples, outcome and names of figures.
pub(crate) async fn run(State(app): State<Arc<App>>, Path(id): Path<String>) -> Answer<Value> {
    let work = move |_: &App, now: &Snapshot| {
        let folder = now.folder(&id)?;
        let run = Contents::read(&folder)
            .map_err(|error| Trouble::new(StatusCode::UNPROCESSABLE_ENTITY, error))?;
        let (figures, more) = files::figures(&folder);
        let trouble: Vec<String> = run.trouble.into_iter().chain(more).collect();
        Ok(Json(json!({
            "summary": now.runs.get(&id).map(|entry| &entry.summary),
            "settings": run.settings,
            "about": run.about,
            "samples": run.samples,
            "outcome": run.outcome,
            "figures": figures.iter().map(|figure| &figure.name).collect::<Vec<_>>(),
            "trouble": trouble,
        })))
    };
    blocking(&app, Work::Many, work).await
}

/// A run's curves.
pub(crate) async fn series(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Query(detail): Query<Detail>,
) -> Answer<Series> {
    let work = move |_: &App, now: &Snapshot| {
        let folder = now.folder(&id)?;
        let series = Series::read(&id, &folder, detail.points());
        series.map(Json).map_err(|error| Trouble::new(StatusCode::UNPROCESSABLE_ENTITY, error))
    };
    blocking(&app, Work::Files, work).await
}

/// A run's figures from `hadal diagnose`.
pub(crate) async fn figures(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Answer<Vec<Figure>> {
    let work = move |_: &App, now: &Snapshot| Ok(Json(files::figures(&now.folder(&id)?).0));
    blocking(&app, Work::Many, work).await
}

/// The process that trains a run, and the size of its folder.
pub(crate) async fn resources(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Answer<Value> {
    let work = move |app: &App, now: &Snapshot| {
        let folder = now.folder(&id)?;
        let process = app.machine().process(&folder);
        let machine = app.machine().resources(&app.root);
        let size = machine::size(&folder);
        Ok(Json(json!({ "process": process, "folder": size, "machine": machine })))
    };
    blocking(&app, Work::Files, work).await
}

/// The machine.
pub(crate) async fn machine(State(app): State<Arc<App>>) -> Answer<Resources> {
    blocking(&app, Work::Known, |app, _| Ok(Json(app.machine().resources(&app.root)))).await
}

/// Names in a query, `?run=a&run=b`.
pub(crate) fn named(query: &[(String, String)]) -> Vec<String> {
    let named = query.iter().filter(|(key, _)| key == "run").map(|(_, id)| id.clone());
    let mut seen = std::collections::BTreeSet::new();
    named.filter(|id| seen.insert(id.clone())).collect()
}

/// Curves of several runs; those that cannot be read are named with the reason.
pub(crate) async fn compare(
    State(app): State<Arc<App>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Answer<Value> {
    let ids = named(&query);
    if ids.is_empty() || ids.len() > COMPARED {
        let message = format!("name 1 to {COMPARED} runs: ?run=a&run=b");
        return Err(Trouble::new(StatusCode::BAD_REQUEST, message));
    }
    let points = query.iter().find(|(key, _)| key == "points");
    let detail = Detail { points: points.and_then(|(_, text)| text.parse().ok()) };
    // All curves together are as long as they are at most by default.
    let points = detail.points().min(COMPARED * POINTS / ids.len());
    let work = move |_: &App, now: &Snapshot| {
        let (mut runs, mut broken) = (Vec::new(), Vec::new());
        for id in ids {
            let read = now.folder(&id).map_err(|trouble| trouble.message).and_then(|folder| {
                Series::read(&id, &folder, points).map_err(|error| error.to_string())
            });
            match read {
                Ok(series) => runs.push(series),
                Err(reason) => broken.push(json!({ "id": id, "reason": reason })),
            }
        }
        Ok(Json(json!({ "runs": runs, "broken": broken })))
    };
    blocking(&app, Work::Many, work).await
}

/// Names of all suites.
pub(crate) async fn suites(State(app): State<Arc<App>>) -> Answer<Vec<String>> {
    Ok(Json(app.keeper.fresh().await.suites.keys().cloned().collect()))
}

/// A suite: its table, if it has one already, and its runs.
pub(crate) async fn suite(State(app): State<Arc<App>>, Path(id): Path<String>) -> Answer<Value> {
    let work = move |_: &App, now: &Snapshot| {
        let folder = now.suite(&id)?;
        let table = suite_table(&folder)?;
        Ok(Json(json!({ "id": id, "table": table, "runs": now.below(&folder) })))
    };
    blocking(&app, Work::Many, work).await
}

/// `table.json`; `None` before it is written.
pub(crate) fn suite_table(folder: &std::path::Path) -> Result<Option<Value>, Trouble> {
    files::json(folder, "table.json", files::TABLE).map_err(|reason| {
        let message = format!("{reason}; hadal compare writes it again");
        Trouble::new(StatusCode::UNPROCESSABLE_ENTITY, message)
    })
}

/// A note to leave.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Note {
    text: String,
}

/// Leaves a note with a run: the only thing that can be written, and only with the token.
pub(crate) async fn put_note(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Answer<Value> {
    if let Some((status, message)) = refuse_write(app.token.as_deref(), request.headers()) {
        return Err(Trouble::new(status, message));
    }
    let bad = |message: String| Trouble::new(StatusCode::BAD_REQUEST, message);
    let body = to_bytes(request.into_body(), BODY).await;
    let body = body.map_err(|error| bad(format!("the note does not arrive: {error}")))?;
    let note: Note = serde_json::from_slice(&body)
        .map_err(|error| bad(format!("a note is {{\"text\": \"..\"}}: {error}")))?;
    if note.text.chars().count() > note::LONGEST {
        return Err(bad(format!("a note has at most {} characters", note::LONGEST)));
    }
    let work = move |_: &App, now: &Snapshot| {
        let folder = now.folder(&id)?;
        note::write(&folder, &note.text).map_err(|error| {
            let message = format!("cannot write note.txt: {}", error.source);
            Trouble::new(StatusCode::INTERNAL_SERVER_ERROR, message)
        })?;
        Ok(Json(json!({ "note": note::read(&folder) })))
    };
    blocking(&app, Work::Files, work).await
}
