//! Pages that answer one question: what is so, in what, why, how it looks, what to do next.

use super::html::Html;
use super::sheet;
use crate::figure::Figure;
use crate::figure::plotly::{self, Shared};
use crate::palette::Look;

/// A page that answers one question and needs nothing else: one HTML file, light and dark, from a phone to paper.
///
/// From top to bottom: `kicker` in small print, `headline`, `line`, `sentences` as a list, `figures` (the first as wide
/// as the page, the others side by side), `next` as commands to copy. What is empty is left out. Everything is escaped.
///
/// ```
/// use hadal_report::page::{Answer, Next};
///
/// let page = Answer {
///     kicker: "hadal prune plan · models/stories260K".into(),
///     headline: "Block 3 of 5 can go: perplexity 4.37 becomes 4.81".into(),
///     line: "5 blocks, 260 k parameters · measured on 4,096 tokens of story.txt".into(),
///     sentences: vec!["Without it the model is 18 % smaller and writes 1.2 times as fast.".into()],
///     next: vec![Next::new("Cut it out", "hadal prune apply plan.json --out smaller")],
///     ..Answer::default()
/// };
/// assert!(page.html().contains("<h1>Block 3 of 5 can go"));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// What the page is of: `hadal diagnose · runs/nag`.
    pub kicker: String,
    /// The answer, in one sentence without a full stop; also the browser's title.
    pub headline: String,
    /// What it holds for: model, data, budget.
    pub line: String,
    /// The evidence, a sentence each, the most important first.
    pub sentences: Vec<String>,
    /// Charts, the most important first.
    pub figures: Vec<Figure>,
    /// Looks of series that are policies ([`crate::palette::named`]); others have colours by order.
    pub looks: Vec<(String, Look)>,
    /// What to do next.
    pub next: Vec<Next>,
}

/// A command that somebody may want to run next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Next {
    /// What it does, without a full stop: `Cut it out`.
    pub what: String,
    /// The command as it is typed.
    pub command: String,
}

impl Next {
    /// A command and what it does.
    pub fn new(what: impl Into<String>, command: impl Into<String>) -> Self {
        Self { what: what.into(), command: command.into() }
    }
}

impl Answer {
    /// The page.
    pub fn html(&self) -> String {
        let mut html = Html::default();
        sheet::head(&mut html, &self.headline);
        html.markup("<header>");
        sheet::title(&mut html, &self.kicker, &self.headline, &self.line);
        html.markup("</header>\n<main>");
        sentences(&mut html, &self.sentences);
        let shared = Shared { looks: &self.looks, range: None };
        let mut charts = self
            .figures
            .iter()
            .filter_map(|figure| plotly::html(&[(String::new(), figure.clone())], shared));
        if let Some(first) = charts.next() {
            html.markup("<section><div class=\"charts\">").chart(&first).markup("</div>");
            html.markup("<div class=\"charts two\">");
            for chart in charts {
                html.chart(&chart);
            }
            html.markup("</div></section>");
        }
        commands(&mut html, &self.next);
        html.markup("</main>\n");
        sheet::foot(&mut html);
        html.finish()
    }
}

/// Evidence as a list.
pub(super) fn sentences(html: &mut Html, sentences: &[String]) {
    if sentences.is_empty() {
        return;
    }
    html.markup("<section class=\"evidence\"><ul class=\"verdict\">");
    for sentence in sentences {
        html.markup("<li>").text(sentence).markup("</li>");
    }
    html.markup("</ul></section>");
}

/// Commands to copy.
pub(super) fn commands(html: &mut Html, next: &[Next]) {
    if next.is_empty() {
        return;
    }
    html.markup("<section class=\"next\"><h2>What to do next</h2><dl>");
    for Next { what, command } in next {
        html.markup("<dt>").text(what).markup("</dt><dd><code>").text(command);
        html.markup("</code></dd>");
    }
    html.markup("</dl></section>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{Axis, Line, Marks};

    fn figure(name: &str) -> Figure {
        let line = Line { name: "a".into(), x: vec![1.0], y: vec![Some(1.0)], ..Line::default() };
        Figure {
            name: name.into(),
            title: name.into(),
            caption: String::new(),
            x: Axis::new("block"),
            y: Axis::new("loss"),
            marks: Marks::Lines { series: vec![line] },
        }
    }

    #[test]
    fn an_answer_stands_above_its_evidence_and_nothing_can_leave_its_place() {
        let page = Answer {
            kicker: "hadal diagnose · <i>".into(),
            headline: "Blocks 3 to 5 do little <b>".into(),
            line: "6 blocks".into(),
            sentences: vec!["First <u>.".into(), "Second.".into()],
            figures: vec![figure("one"), figure("two")],
            next: vec![Next::new("Cut <s>", "hadal prune plan 'a' <x>")],
            ..Answer::default()
        };
        let html = page.html().replace(plotly::script(), "");
        let parts = [
            "hadal diagnose",
            "<h1>Blocks 3",
            "6 blocks",
            "First",
            "id=\"one\"",
            "id=\"two\"",
            "prune plan",
        ];
        let places: Vec<usize> = parts.iter().map(|part| html.rfind(part).unwrap()).collect();
        assert!(places.is_sorted(), "{places:?}");
        assert!(["<i>", "<b>", "<u>", "<s>", "<x>"].iter().all(|tag| !html.contains(tag)));
    }

    #[test]
    fn what_is_empty_is_left_out() {
        let html = Answer { headline: "Yes".into(), ..Answer::default() }.html();
        assert!(!html.contains("<section") && !html.contains("class=\"kicker\""));
    }
}
