//! State of all requests, and the routes.

use crate::catalogue::Catalogue;
use crate::guard::{Hosts, guard};
use crate::machine::Machine;
use crate::{api, assets, events, pages};
use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// State of all requests.
pub(crate) struct App {
    pub(crate) root: PathBuf,
    pub(crate) hosts: Hosts,
    pub(crate) token: Option<String>,
    /// Turns true when the server ends.
    pub(crate) ending: watch::Receiver<bool>,
    catalogue: Mutex<Catalogue>,
    machine: Mutex<Machine>,
}

impl App {
    pub(crate) fn new(
        root: PathBuf,
        hosts: Hosts,
        token: Option<String>,
        ending: watch::Receiver<bool>,
    ) -> Self {
        let catalogue = Mutex::new(Catalogue::open(&root));
        Self { root, hosts, token, ending, catalogue, machine: Mutex::default() }
    }

    /// The present catalogue. Blocks while the disk is read.
    pub(crate) fn catalogue(&self) -> MutexGuard<'_, Catalogue> {
        // A panic in another thread leaves a catalogue that the next look mends.
        let mut catalogue = self.catalogue.lock().unwrap_or_else(PoisonError::into_inner);
        catalogue.refresh();
        catalogue
    }

    pub(crate) fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A run's folder.
    pub(crate) fn folder(&self, id: &str) -> Result<PathBuf, Trouble> {
        let catalogue = self.catalogue();
        catalogue.run(id).map(|entry| entry.path.clone()).ok_or_else(|| Trouble::missing("run", id))
    }

    /// A suite's folder.
    pub(crate) fn suite(&self, id: &str) -> Result<PathBuf, Trouble> {
        self.catalogue().suites().get(id).cloned().ok_or_else(|| Trouble::missing("suite", id))
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

    fn missing(what: &str, id: &str) -> Self {
        let id: String = id.chars().take(200).collect();
        Self::new(StatusCode::NOT_FOUND, format!("there is no {what} {id:?}"))
    }
}

impl IntoResponse for Trouble {
    fn into_response(self) -> Response {
        (self.status, axum::Json(json!({ "error": self.message }))).into_response()
    }
}

/// Reads files on a thread that may wait for them.
pub(crate) async fn blocking<T: Send + 'static>(
    app: &Arc<App>,
    work: impl FnOnce(&App) -> Result<T, Trouble> + Send + 'static,
) -> Result<T, Trouble> {
    let app = Arc::clone(app);
    match tokio::task::spawn_blocking(move || work(&app)).await {
        Ok(answer) => answer,
        Err(error) => Err(Trouble::new(StatusCode::INTERNAL_SERVER_ERROR, error)),
    }
}

/// The routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(pages::list))
        .route("/runs/{id}", get(pages::run))
        .route("/compare", get(pages::compare))
        .route("/suites/{id}", get(pages::suite))
        .route("/assets/{name}", get(assets::asset))
        .route("/api/runs", get(api::runs))
        .route("/api/rows", get(pages::rows))
        .route("/api/runs/{id}", get(api::run))
        .route("/api/runs/{id}/series", get(api::series))
        .route("/api/runs/{id}/events", get(events::events))
        .route("/api/runs/{id}/figures", get(api::figures))
        .route("/api/runs/{id}/resources", get(api::resources))
        .route("/api/runs/{id}/note", put(api::put_note))
        .route("/api/compare", get(api::compare))
        .route("/api/suites", get(api::suites))
        .route("/api/suites/{id}", get(api::suite))
        .route("/api/machine", get(api::machine))
        .fallback(pages::missing)
        .layer(from_fn_with_state(Arc::clone(&app), guard))
        .with_state(app)
}
