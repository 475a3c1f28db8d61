//! State of all requests, and the routes.

use crate::catalogue::{Keeper, Snapshot};
use crate::guard::{Hosts, Reading, guard};
use crate::limits::{Gates, Limits, Work};
use crate::machine::Machine;
use crate::{api, assets, documents, events, marks, pages};
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Bytes of a request's body. Only notes and tags have one.
pub(crate) const BODY: usize = 64 << 10;
/// Seconds after which a client that was sent away may come back.
const RETRY: &str = "2";

/// State of all requests.
pub(crate) struct App {
    pub(crate) root: PathBuf,
    pub(crate) hosts: Hosts,
    /// The token for leaving notes.
    pub(crate) token: Option<String>,
    /// Who may read.
    pub(crate) reading: Reading,
    pub(crate) limits: Limits,
    pub(crate) gates: Gates,
    /// Turns true when the server ends.
    pub(crate) ending: watch::Receiver<bool>,
    pub(crate) keeper: Keeper,
    machine: Mutex<Machine>,
}

impl App {
    pub(crate) fn new(
        root: PathBuf,
        hosts: Hosts,
        (token, reading): (Option<String>, Reading),
        limits: Limits,
        ending: watch::Receiver<bool>,
    ) -> std::io::Result<Self> {
        let (keeper, gates) = (Keeper::start(&root)?, Gates::new(&limits));
        let machine = Mutex::default();
        Ok(Self { root, hosts, token, reading, limits, gates, ending, keeper, machine })
    }

    pub(crate) fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of the folder of runs.
    pub(crate) fn name(&self) -> String {
        let path = std::path::absolute(&self.root).unwrap_or_else(|_| self.root.clone());
        path.file_name().map_or_else(
            || Path::new("/").display().to_string(),
            |name| name.to_string_lossy().into_owned(),
        )
    }
}

/// An answer that is an error: a status and one sentence, as JSON.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl Trouble {
    pub(crate) fn new(status: StatusCode, message: impl ToString) -> Self {
        Self { status, message: message.to_string() }
    }

    /// There is too much to do; later there may be less.
    pub(crate) fn busy(message: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, format!("{message}; try again soon"))
    }

    /// Adds when to try again, if that helps.
    pub(crate) fn tell_when(&self, headers: &mut HeaderMap) {
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, header::HeaderValue::from_static(RETRY));
        }
    }

    fn missing(what: &str, id: &str) -> Self {
        let id: String = id.chars().take(200).collect();
        Self::new(StatusCode::NOT_FOUND, format!("there is no {what} {id:?}"))
    }
}

impl IntoResponse for Trouble {
    fn into_response(self) -> Response {
        let body = axum::Json(json!({ "error": self.message }));
        let mut response = (self.status, body).into_response();
        self.tell_when(response.headers_mut());
        response
    }
}

impl Snapshot {
    /// A run's folder.
    pub(crate) fn folder(&self, id: &str) -> Result<PathBuf, Trouble> {
        self.runs.get(id).map(|entry| entry.path.clone()).ok_or_else(|| Trouble::missing("run", id))
    }

    /// A suite's folder.
    pub(crate) fn suite(&self, id: &str) -> Result<PathBuf, Trouble> {
        self.suites
            .get(id)
            .map(|suite| suite.path.clone())
            .ok_or_else(|| Trouble::missing("suite", id))
    }
}

/// Does work on a thread that may wait for files, with the runs that there are now.
pub(crate) async fn blocking<T: Send + 'static>(
    app: &Arc<App>,
    kind: Work,
    work: impl FnOnce(&App, &Snapshot) -> Result<T, Trouble> + Send + 'static,
) -> Result<T, Trouble> {
    let runs = app.keeper.fresh().await;
    let state = Arc::clone(app);
    app.gates.run(kind, move || work(&state, &runs)).await?
}

/// The routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(pages::list))
        .route("/runs/{id}", get(pages::run))
        .route("/runs/{id}/metrics.csv", get(documents::csv))
        .route("/runs/{id}/report", get(documents::run_report))
        .route("/runs/{id}/diagnosis", get(documents::diagnosis))
        .route("/compare", get(pages::compare))
        .route("/suites/{id}", get(pages::suite))
        .route("/suites/{id}/report", get(documents::suite_report))
        .route("/assets/{name}", get(assets::asset))
        .route("/api/runs", get(api::runs))
        .route("/api/rows", get(pages::changes))
        .route("/api/runs/{id}", get(api::run))
        .route("/api/runs/{id}/series", get(api::series))
        .route("/api/runs/{id}/events", get(events::events))
        .route("/api/runs/{id}/figures", get(api::figures))
        .route("/api/runs/{id}/resources", get(api::resources))
        .route("/api/runs/{id}/note", put(marks::put_note))
        .route("/api/runs/{id}/tags", put(marks::put_tags))
        .route("/api/compare", get(api::compare))
        .route("/api/suites", get(api::suites))
        .route("/api/suites/{id}", get(api::suite))
        .route("/api/machine", get(api::machine))
        .fallback(pages::missing)
        .layer(DefaultBodyLimit::max(BODY))
        .layer(from_fn_with_state(Arc::clone(&app), guard))
        .with_state(app)
}
