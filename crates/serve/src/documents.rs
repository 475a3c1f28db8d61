//! Files of a run or a suite that a browser opens or saves: metrics as CSV, and pages that hadal has written.
//!
//! A written page has scripts of its own, and anybody may have written it. So it is shown in a sandbox: it belongs to no
//! origin, reads nothing of this server and reaches nobody.

use crate::app::{App, Trouble, blocking};
use crate::catalogue::Snapshot;
use crate::csv::{HEAD, Lines};
use crate::files;
use crate::limits::Work;
use crate::tail::{Look, Tail};
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use futures_util::stream::unfold;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// A written page, in bytes.
const PAGE: u64 = 32 << 20;
/// What such a page may do: show itself, and save its own charts.
const SANDBOX: &str = "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; \
    style-src 'unsafe-inline'; img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

/// A suite's report.
pub(crate) async fn suite_report(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Response, Trouble> {
    written(&app, move |now| Ok((now.suite(&id)?, Some("report.html".into())))).await
}

/// A run's report.
pub(crate) async fn run_report(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Response, Trouble> {
    written(&app, move |now| Ok((now.folder(&id)?, Some("report.html".into())))).await
}

/// The page of a run's diagnosis.
pub(crate) async fn diagnosis(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Response, Trouble> {
    written(&app, move |now| {
        let folder = now.folder(&id)?;
        let page = files::diagnosis_page(&folder);
        Ok((folder, page))
    })
    .await
}

/// A page of a folder, in its sandbox.
async fn written(
    app: &Arc<App>,
    find: impl FnOnce(&Snapshot) -> Result<(PathBuf, Option<String>), Trouble> + Send + 'static,
) -> Result<Response, Trouble> {
    let work = move |_: &App, now: &Snapshot| {
        let (folder, name) = find(now)?;
        let absent = || Trouble::new(StatusCode::NOT_FOUND, "there is no such page yet");
        let name = name.ok_or_else(absent)?;
        let bytes = files::read(&folder, &name, PAGE).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => absent(),
            _ => Trouble::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                format!("cannot read {name}: {error}"),
            ),
        })?;
        Ok(([(header::CONTENT_SECURITY_POLICY, SANDBOX)], Html(bytes)).into_response())
    };
    blocking(app, Work::Many, work).await
}

/// What is left to send of a run's metrics.
struct Rest {
    app: Arc<App>,
    tail: Tail,
    lines: Lines,
}

impl Rest {
    /// The next piece; `None` when everything is sent. Between two pieces nothing is held but a place in the file.
    async fn next(mut self) -> Option<(io::Result<Bytes>, Option<Self>)> {
        let app = Arc::clone(&self.app);
        let work = move || {
            let piece = match self.tail.look() {
                Ok(Look::More(points)) => Ok((self.lines.more(points), true)),
                Ok(Look::Same) => Ok((self.lines.rest(), false)),
                Ok(Look::Reset) => Err(io::Error::other("the file was cut back")),
                Err(error) => Err(io::Error::other(error)),
            };
            (piece, self)
        };
        match app.gates.run(Work::Files, work).await {
            Ok((Ok((text, true)), rest)) => Some((Ok(text.into()), Some(rest))),
            Ok((Ok((text, false)), _)) => Some((Ok(text.into()), None)),
            Ok((Err(error), _)) => Some((Err(error), None)),
            Err(trouble) => Some((Err(io::Error::other(trouble.message)), None)),
        }
    }
}

/// A run's metrics as CSV, in pieces.
pub(crate) async fn csv(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Response, Trouble> {
    let folder = app.keeper.fresh().await.folder(&id)?;
    let rest = Rest { app, tail: Tail::new(&folder), lines: Lines::default() };
    let head = (Ok(Bytes::from_static(HEAD.as_bytes())), Some(rest));
    let pieces = unfold((Some(head), None), |(first, rest): (_, Option<Rest>)| async move {
        let (piece, rest) = match (first, rest) {
            (Some(head), _) => head,
            (None, Some(rest)) => rest.next().await?,
            (None, None) => return None,
        };
        Some((piece, (None, rest)))
    });
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let name: String = id.rsplit('/').next().unwrap_or("run").chars().map(plain).collect();
    let headers = [
        (header::CONTENT_TYPE, "text/csv; charset=utf-8".to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}.csv\"")),
    ];
    Ok((headers, Body::from_stream(pieces)).into_response())
}
