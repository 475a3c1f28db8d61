//! What people may leave with a run, with the token alone: a note and tags.

use crate::app::{App, BODY, Trouble, blocking};
use crate::catalogue::Snapshot;
use crate::guard::refuse_write;
use crate::limits::Work;
use crate::{note, tags};
use axum::Json;
use axum::body::to_bytes;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use hadal_files::FileError;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path as FilePath;
use std::sync::Arc;

/// What is left: a note, or tags between spaces.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    text: String,
}

/// Leaves a note with a run.
pub(crate) async fn put_note(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<Value>, Trouble> {
    let text = text(&app, request, "a note").await?;
    if text.chars().count() > note::LONGEST {
        return Err(bad(format!("a note has at most {} characters", note::LONGEST)));
    }
    put(&app, id, move |folder| {
        note::write(folder, &text)?;
        Ok(json!({ "note": note::read(folder) }))
    })
    .await
}

/// Puts tags on a run, in the place of those that it has.
pub(crate) async fn put_tags(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<Value>, Trouble> {
    let tags = tags::parse(&text(&app, request, "a set of tags").await?).map_err(bad)?;
    put(&app, id, move |folder| {
        tags::write(folder, &tags)?;
        Ok(json!({ "tags": tags::read(folder) }))
    })
    .await
}

fn bad(message: String) -> Trouble {
    Trouble::new(StatusCode::BAD_REQUEST, message)
}

/// The text of a request that may write.
async fn text(app: &App, request: Request, what: &str) -> Result<String, Trouble> {
    if let Some((status, message)) = refuse_write(app.token.as_deref(), request.headers()) {
        return Err(Trouble::new(status, message));
    }
    let body = to_bytes(request.into_body(), BODY).await;
    let body = body.map_err(|error| bad(format!("{what} does not arrive: {error}")))?;
    let text: Text = serde_json::from_slice(&body)
        .map_err(|error| bad(format!("{what} is {{\"text\": \"..\"}}: {error}")))?;
    Ok(text.text)
}

async fn put(
    app: &Arc<App>,
    id: String,
    write: impl FnOnce(&FilePath) -> Result<Value, FileError> + Send + 'static,
) -> Result<Json<Value>, Trouble> {
    let work = move |_: &App, now: &Snapshot| {
        let written = write(&now.folder(&id)?);
        written.map(Json).map_err(|error| {
            let name = error.path.file_name().unwrap_or_default().display();
            let message = format!("cannot write {name}: {}", error.source);
            Trouble::new(StatusCode::INTERNAL_SERVER_ERROR, message)
        })
    };
    blocking(app, Work::Files, work).await
}
