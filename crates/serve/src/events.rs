//! A run's new points as they are written, as server-sent events.
//!
//! `points` has what was appended since the cursor, which is the event's id, so that a browser that reconnects misses
//! nothing; `reset` says that the file was cut back and everything comes again; `status` gives the run's status;
//! `trouble` says why nothing comes.

use crate::app::{App, Trouble};
use crate::limits::Work;
use crate::tail::{Cursor, Look, Tail};
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{Stream, unfold};
use hadal_report::run;
use serde::Deserialize;
use serde_json::json;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, watch};

/// Between two looks at the file.
const PAUSE: Duration = Duration::from_millis(400);
/// A sign of life when there is nothing to report.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Where to continue.
#[derive(Deserialize)]
pub(crate) struct From {
    cursor: Option<String>,
}

/// A connection that watches a run.
struct Watcher {
    app: Arc<App>,
    _permit: OwnedSemaphorePermit,
    folder: PathBuf,
    tail: Option<Tail>,
    told: VecDeque<Event>,
    status: Option<run::Status>,
    trouble: Option<String>,
    ending: watch::Receiver<bool>,
}

/// The stream of a run.
pub(crate) async fn events(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Query(from): Query<From>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Trouble> {
    let folder = app.keeper.fresh().await.folder(&id)?;
    let permit = app.gates.stream()?;
    let again = headers.get("last-event-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
    let cursor: Option<Cursor> = again.or(from.cursor).and_then(|text| text.parse().ok());
    let watcher = Watcher {
        tail: Some(Tail::from(&folder, cursor.unwrap_or_default())),
        folder,
        told: VecDeque::new(),
        status: None,
        trouble: None,
        ending: app.ending.clone(),
        _permit: permit,
        app,
    };
    let stream = unfold(watcher, |mut watcher| async move {
        let event = watcher.next().await?;
        Some((Ok(event), watcher))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(HEARTBEAT).text("still here")))
}

impl Watcher {
    /// The next event, or `None` when the server ends.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if *self.ending.borrow() {
                return None;
            }
            if let Some(event) = self.told.pop_front() {
                return Some(event);
            }
            self.look().await;
            if self.told.is_empty() {
                // Whatever comes first: the pause is over, or the server ends.
                let _ = tokio::time::timeout(PAUSE, self.ending.changed()).await;
            }
        }
    }

    async fn look(&mut self) {
        let Some(mut tail) = self.tail.take() else { return };
        let (folder, from) = (self.folder.clone(), tail.cursor());
        let looked = self.app.gates.run(Work::Watch, move || {
            let look = tail.look();
            (tail, look, run::status(&folder))
        });
        let Ok((tail, look, status)) = looked.await else {
            // Others were before us: the next look continues here.
            self.tail = Some(Tail::from(&self.folder, from));
            return;
        };
        let id = tail.cursor().to_string();
        self.tail = Some(tail);
        match look {
            Ok(Look::Same) => self.trouble = None,
            Ok(Look::Reset) => self.tell("reset", &json!({}), Some(id)),
            Ok(Look::More(points)) => {
                if !points.is_empty() {
                    self.tell("points", &points, Some(id));
                }
                if let Some(damage) = &points.damage {
                    self.tell("trouble", &json!({ "reason": damage.to_string() }), None);
                }
            }
            Err(error) => {
                let message = error.to_string();
                if self.trouble.as_ref() != Some(&message) {
                    self.tell("trouble", &json!({ "reason": message }), None);
                    self.trouble = Some(message);
                }
            }
        }
        if self.status != Some(status) {
            self.status = Some(status);
            self.tell("status", &json!({ "status": status }), None);
        }
    }

    fn tell(&mut self, name: &str, data: &impl serde::Serialize, id: Option<String>) {
        let Ok(event) = Event::default().event(name).json_data(data) else { return };
        self.told.push_back(match id {
            Some(id) => event.id(id),
            None => event,
        });
    }
}
