//! Everything that pages show, as JSON.

use crate::app::{App, Trouble, blocking};
use crate::guard::refuse_write;
use crate::machine::{self, Resources};
use crate::note;
use crate::series::{POINTS, Series};
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use hadal_report::figure::Figure;
use hadal_report::run::Run;
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
    let work = |app: &App| {
        let catalogue = app.catalogue();
        let runs: Vec<_> = catalogue.runs().map(|(_, entry)| &entry.summary).collect();
        Ok(Json(json!({
            "revision": catalogue.revision(),
            "index_trouble": catalogue.index_trouble(),
            "suites": catalogue.suites().keys().collect::<Vec<_>>(),
            "runs": runs,
        })))
    };
    blocking(&app, work).await
}

/// One run: settings, machine, samples, outcome and names of figures.
pub(crate) async fn run(State(app): State<Arc<App>>, Path(id): Path<String>) -> Answer<Value> {
    let work = move |app: &App| {
        let folder = app.folder(&id)?;
        let summary = app.catalogue().run(&id).map(|entry| entry.summary.clone());
        let run = read(&folder)?;
        Ok(Json(json!({
            "summary": summary,
            "settings": run.settings,
            "about": run.about,
            "samples": run.samples,
            "outcome": run.outcome,
            "figures": run.figures.iter().map(|figure| &figure.name).collect::<Vec<_>>(),
        })))
    };
    blocking(&app, work).await
}

/// A broken run exists, but cannot be read.
pub(crate) fn read(folder: &std::path::Path) -> Result<Run, Trouble> {
    Run::read(folder).map_err(|error| Trouble::new(StatusCode::UNPROCESSABLE_ENTITY, error))
}

/// A run's curves.
pub(crate) async fn series(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Query(detail): Query<Detail>,
) -> Answer<Series> {
    let work = move |app: &App| {
        let folder = app.folder(&id)?;
        let series = Series::read(&id, &folder, detail.points());
        series.map(Json).map_err(|error| Trouble::new(StatusCode::UNPROCESSABLE_ENTITY, error))
    };
    blocking(&app, work).await
}

/// A run's figures from `hadal diagnose`.
pub(crate) async fn figures(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Answer<Vec<Figure>> {
    let work = move |app: &App| Ok(Json(read(&app.folder(&id)?)?.figures));
    blocking(&app, work).await
}

/// The process that trains a run, and the size of its folder.
pub(crate) async fn resources(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Answer<Value> {
    let work = move |app: &App| {
        let folder = app.folder(&id)?;
        let process = app.machine().process(&folder);
        let machine = app.machine().resources(&app.root);
        let size = machine::size(&folder);
        Ok(Json(json!({ "process": process, "folder": size, "machine": machine })))
    };
    blocking(&app, work).await
}

/// The machine.
pub(crate) async fn machine(State(app): State<Arc<App>>) -> Answer<Resources> {
    blocking(&app, |app| Ok(Json(app.machine().resources(&app.root)))).await
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
    let work = move |app: &App| {
        let (mut runs, mut broken) = (Vec::new(), Vec::new());
        for id in ids {
            let read = app.folder(&id).map_err(|trouble| trouble.message).and_then(|folder| {
                Series::read(&id, &folder, detail.points()).map_err(|error| error.to_string())
            });
            match read {
                Ok(series) => runs.push(series),
                Err(reason) => broken.push(json!({ "id": id, "reason": reason })),
            }
        }
        Ok(Json(json!({ "runs": runs, "broken": broken })))
    };
    blocking(&app, work).await
}

/// Names of all suites.
pub(crate) async fn suites(State(app): State<Arc<App>>) -> Answer<Vec<String>> {
    blocking(&app, |app| Ok(Json(app.catalogue().suites().keys().cloned().collect()))).await
}

/// A suite: its table, if it has one already, and its runs.
pub(crate) async fn suite(State(app): State<Arc<App>>, Path(id): Path<String>) -> Answer<Value> {
    let work = move |app: &App| {
        let folder = app.suite(&id)?;
        let table = suite_table(&folder)?;
        let catalogue = app.catalogue();
        let runs = catalogue.runs().filter(|(_, entry)| entry.path.starts_with(&folder));
        let runs: Vec<_> = runs.map(|(_, entry)| &entry.summary).collect();
        Ok(Json(json!({ "id": id, "table": table, "runs": runs })))
    };
    blocking(&app, work).await
}

/// `table.json`; `None` before it is written.
pub(crate) fn suite_table(folder: &std::path::Path) -> Result<Option<Value>, Trouble> {
    let path = folder.join("table.json");
    let damaged = |reason: String| {
        let message = format!("table.json is damaged: {reason}; hadal compare writes it again");
        Trouble::new(StatusCode::UNPROCESSABLE_ENTITY, message)
    };
    match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| damaged(e.to_string())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(damaged(error.to_string())),
    }
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
    headers: HeaderMap,
    body: String,
) -> Answer<Value> {
    if let Some((status, message)) = refuse_write(app.token.as_deref(), &headers) {
        return Err(Trouble::new(status, message));
    }
    let bad = |message: String| Trouble::new(StatusCode::BAD_REQUEST, message);
    let note: Note = serde_json::from_str(&body)
        .map_err(|error| bad(format!("a note is {{\"text\": \"..\"}}: {error}")))?;
    if note.text.chars().count() > note::LONGEST {
        return Err(bad(format!("a note has at most {} characters", note::LONGEST)));
    }
    let work = move |app: &App| {
        let folder = app.folder(&id)?;
        note::write(&folder, &note.text).map_err(|error| {
            let message = format!("cannot write note.txt: {}", error.source);
            Trouble::new(StatusCode::INTERNAL_SERVER_ERROR, message)
        })?;
        Ok(Json(json!({ "note": note::read(&folder) })))
    };
    blocking(&app, work).await
}
