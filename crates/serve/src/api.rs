//! Everything that pages show, as JSON.

use crate::app::{App, Trouble, blocking};
use crate::catalogue::Snapshot;
use crate::files::{self, Contents};
use crate::group::{chosen, sections};
use crate::limits::Work;
use crate::looks;
use crate::machine::{self, Resources};
use crate::series::{POINTS, Series};
use axum::Json;
use axum::extract::{Path, Query, State};
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

/// Curves of several runs; those that cannot be read are named with the reason.
pub(crate) async fn compare(
    State(app): State<Arc<App>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Answer<Value> {
    let points = query.iter().find(|(key, _)| key == "points");
    let detail = Detail { points: points.and_then(|(_, text)| text.parse().ok()) };
    let work = move |_: &App, now: &Snapshot| {
        let chosen = chosen(now, &query);
        if chosen.is_empty() || chosen.len() > COMPARED {
            let message = format!("name 1 to {COMPARED} runs: ?run=a&run=b&group=c");
            return Err(Trouble::new(StatusCode::BAD_REQUEST, message));
        }
        // All curves together are as long as they are at most by default.
        let points = detail.points().min(COMPARED * POINTS / chosen.len());
        let (mut runs, mut broken) = (Vec::new(), Vec::new());
        for one in chosen {
            let read = now.folder(&one.id).map_err(|trouble| trouble.message).and_then(|folder| {
                Series::read(&one.id, &folder, points).map_err(|error| error.to_string())
            });
            match read {
                Ok(series) => runs.push(json!({
                    "name": one.name,
                    "group": one.group,
                    "look": one.look,
                    "id": series.id,
                    "train": series.train,
                    "held_out": series.held_out,
                    "cursor": series.cursor,
                })),
                Err(reason) => broken.push(json!({ "id": one.id, "reason": reason })),
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
        let mut table = suite_table(&now.suite(&id)?)?;
        if let Some(table) = &mut table {
            looks::dress(table);
        }
        let sections = sections(now);
        let ours = sections.iter().find(|section| section.suite.is_some() && section.id == id);
        let runs: Vec<_> = ours.into_iter().flat_map(|section| section.runs()).collect();
        Ok(Json(json!({ "id": id, "table": table, "runs": runs })))
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
