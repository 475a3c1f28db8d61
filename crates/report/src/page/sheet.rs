//! What every page has above and below its contents, and pages that only have figures.

use super::answer::Answer;
use super::html::Html;
use crate::comparison::forest;
use crate::figure::Figure;
use crate::figure::plotly;
use crate::palette;
use std::io::Read;
use std::path::Path;

/// What every page begins with.
const BEGIN: &str = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">";

/// Whether a file begins as our pages do, so that nobody's work is lost if a new page takes its place.
pub fn is_page(path: &Path) -> bool {
    let mut begin = Vec::new();
    let read =
        hadal_files::open(path).map(|file| file.take(BEGIN.len() as u64).read_to_end(&mut begin));
    read.is_ok() && begin == BEGIN.as_bytes()
}

/// The page up to the title.
pub(super) fn head(html: &mut Html, title: &str) {
    html.markup(BEGIN)
        .markup("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")
        // Nothing is loaded from anywhere, even if a file in a run folder asked for it.
        .markup("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; ")
        .markup("script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:\">")
        .markup("<title>")
        .text(title)
        .markup("</title><style>")
        .source(include_str!("../../assets/page.css"))
        .source(forest::STYLE)
        .source(plotly::STYLE)
        .text(palette::css())
        .markup("</style></head>\n<body>");
}

/// The answer between a line of small print and one that says what it holds for.
pub(super) fn title(html: &mut Html, kicker: &str, headline: &str, line: &str) {
    if !kicker.is_empty() {
        html.markup("<p class=\"kicker\">").text(kicker).markup("</p>");
    }
    html.markup("<h1>").text(headline).markup("</h1>");
    html.markup("<button class=\"theme\" type=\"button\" aria-label=\"Colours\"></button>");
    if !line.is_empty() {
        html.markup("<p class=\"line\">").text(line).markup("</p>");
    }
}

/// The page from the footer on.
pub(super) fn foot(html: &mut Html) {
    html.markup("<footer>Written by hadal ")
        .text(env!("CARGO_PKG_VERSION"))
        .markup(". This file needs no network and nothing beside it.</footer>\n<script>")
        .source(plotly::script())
        .markup("</script>\n<script>")
        .source(plotly::DRAWING)
        .source(include_str!("../../assets/page.js"))
        .markup("</script></body></html>\n");
}

/// A page that shows these figures and needs nothing else.
pub fn figures(name: &str, figures: &[Figure]) -> String {
    Answer { headline: name.into(), figures: figures.to_vec(), ..Answer::default() }.html()
}
