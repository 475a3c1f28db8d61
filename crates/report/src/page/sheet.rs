//! What every page has above and below its contents, and pages that only have figures.

use super::html::Html;
use crate::figure::Figure;
use crate::figure::plotly::{self, Shared};

/// The page up to the title.
pub(super) fn head(html: &mut Html, title: &str) {
    html.markup("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">")
        .markup("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")
        // Nothing is loaded from anywhere, even if a file in a run folder asked for it.
        .markup("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; ")
        .markup("script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:\">")
        .markup("<title>")
        .text(title)
        .markup("</title><style>")
        .source(include_str!("../../assets/page.css"))
        .source(plotly::STYLE)
        .markup("</style></head>\n<body>");
}

/// The title, below a line of small print.
pub(super) fn title(html: &mut Html, title: &str) {
    html.markup("<h1>")
        .text(title)
        .markup("</h1><button class=\"theme\" type=\"button\" aria-label=\"Colours\"></button>");
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
    let mut html = Html::default();
    head(&mut html, name);
    html.markup("<header>");
    title(&mut html, name);
    html.markup("</header>\n<main><section><div class=\"charts two\">");
    for figure in figures {
        let alone = [(String::new(), figure.clone())];
        if let Some(chart) = plotly::html(&alone, Shared::default()) {
            html.chart(&chart);
        }
    }
    html.markup("</div></section></main>\n");
    foot(&mut html);
    html.finish()
}
