//! Pages: HTML from here, behaviour from `assets/`.

mod compare;
mod forest;
mod html;
mod list;
mod rows;
mod run;
mod spark;
mod suite;

pub(crate) use compare::compare;
pub(crate) use list::{changes, list};
pub(crate) use run::run;
pub(crate) use suite::suite;

use crate::app::{App, Trouble};
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{Html, IntoResponse, Response};
use html::Safe;
pub(crate) use html::part;
use std::sync::Arc;

/// A page in its frame. `script` names a module of `assets/`, `body` is already HTML.
fn page(app: &App, title: &str, script: &str, body: &str) -> Html<String> {
    let script = match script {
        "" => String::new(),
        name => format!("<script type=\"module\" src=\"/assets/{name}.js\"></script>\n"),
    };
    let (title, folder) = (Safe(title), app.name());
    let folder = Safe(&folder);
    Html(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title} · hadal</title>\n\
         <link rel=\"icon\" href=\"/assets/icon.svg\">\n\
         <link rel=\"stylesheet\" href=\"/assets/palette.css\">\n\
         <link rel=\"stylesheet\" href=\"/assets/style.css\">\n{script}</head>\n<body>\n\
         <header class=\"top\"><a class=\"brand\" href=\"/\"><img src=\"/assets/icon.svg\" alt=\"\" \
         width=\"22\" height=\"22\">hadal</a><a class=\"crumb\" href=\"/\">{folder}</a>\
         <span class=\"machine\" id=\"machine\"></span></header>\n\
         <main>\n{body}\n</main>\n</body>\n</html>\n"
    ))
}

/// A page that shows an error.
fn trouble_page(app: &App, trouble: &Trouble) -> Response {
    let body = format!(
        "<h1>{}</h1>\n<p class=\"reason\">{}</p>\n<p><a href=\"/\">All runs</a></p>",
        trouble.status.canonical_reason().unwrap_or("Trouble"),
        Safe(&trouble.message)
    );
    let mut response = (trouble.status, page(app, "not found", "", &body)).into_response();
    trouble.tell_when(response.headers_mut());
    response
}

fn answer(app: &App, made: Result<Html<String>, Trouble>) -> Response {
    made.map_or_else(|trouble| trouble_page(app, &trouble), IntoResponse::into_response)
}

/// Unknown addresses.
pub(crate) async fn missing(State(app): State<Arc<App>>, address: Uri) -> Response {
    let path: String = address.path().chars().take(200).collect();
    let trouble = Trouble::new(StatusCode::NOT_FOUND, format!("there is nothing at {path}"));
    if path.starts_with("/api/") { trouble.into_response() } else { trouble_page(&app, &trouble) }
}
