//! Scripts and styles, part of the binary.

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use hadal_report::comparison::forest;
use hadal_report::palette;

const STYLE: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// Name, kind and content.
const ASSETS: [(&str, &str, &str); 11] = [
    ("style.css", STYLE, include_str!("../assets/style.css")),
    ("icon.svg", "image/svg+xml", include_str!("../assets/icon.svg")),
    ("scale.js", JAVASCRIPT, include_str!("../assets/scale.js")),
    ("labels.js", JAVASCRIPT, include_str!("../assets/labels.js")),
    ("means.js", JAVASCRIPT, include_str!("../assets/means.js")),
    ("marks.js", JAVASCRIPT, include_str!("../assets/marks.js")),
    ("chart.js", JAVASCRIPT, include_str!("../assets/chart.js")),
    ("list.js", JAVASCRIPT, include_str!("../assets/list.js")),
    ("run.js", JAVASCRIPT, include_str!("../assets/run.js")),
    ("compare.js", JAVASCRIPT, include_str!("../assets/compare.js")),
    ("suite.js", JAVASCRIPT, include_str!("../assets/suite.js")),
];

/// One file.
pub(crate) async fn asset(Path(name): Path<String>) -> Response {
    // It must change with an update of hadal, so it is not cached.
    let headers =
        |kind: &'static str| [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")];
    if name == "palette.css" {
        return (headers(STYLE), palette::css() + forest::STYLE).into_response();
    }
    match ASSETS.iter().find(|(known, ..)| *known == name) {
        Some((_, kind, text)) => (headers(kind), *text).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
