//! One run: live curves, samples, settings, diagnosis, resources.

use super::html::{Safe, left, loss, part, scaled};
use super::{answer, page};
use crate::app::{App, Trouble, blocking};
use crate::catalogue::{Snapshot, Standing, Summary};
use crate::files::{self, Contents};
use crate::group::sections;
use crate::limits::Work;
use axum::extract::{Path, State};
use axum::response::{Html, Response};
use hadal_report::palette::Look;
use hadal_report::run::Sample;
use std::fmt::Write;
use std::path::Path as FilePath;
use std::sync::Arc;

/// The newest samples; the rest is in the API.
const SAMPLES: usize = 6;

/// The page.
pub(crate) async fn run(State(app): State<Arc<App>>, Path(id): Path<String>) -> Response {
    let made = blocking(&app, Work::Files, move |app, now| render(app, now, &id)).await;
    answer(&app, made)
}

fn render(app: &App, now: &Snapshot, id: &str) -> Result<Html<String>, Trouble> {
    let folder = now.folder(id)?;
    let summary = now.runs.get(id).map(|entry| entry.summary.clone()).unwrap_or_default();
    let read = Contents::read(&folder);
    let status = match read {
        Ok(_) => summary.status,
        Err(_) => Standing::Broken,
    };
    let (place, look) = place(now, id);
    let name = id.rsplit('/').next().unwrap_or(id);
    let mut body = format!(
        "{place}<div class=\"title\"><h1><i class=\"swatch {}\"></i>{}</h1>\
         <span id=\"status\" class=\"pill {word}\">{word}</span>",
        look.class(),
        Safe(name),
        word = status.word()
    );
    links(&mut body, &folder, &summary);
    body.push_str("</div>\n");
    match read {
        Err(error) => {
            let _ = write!(
                body,
                "<p class=\"reason\" id=\"reason\">This run cannot be read: {}.</p>\n\
                 <p class=\"faint\">Its folder is {}. Nothing in it was changed.</p>",
                Safe(error),
                Safe(folder.display())
            );
            Ok(page(app, id, "", &body))
        }
        Ok(run) => {
            whole(&mut body, app, (&summary, look), &folder, &run);
            Ok(page(app, id, "run", &body))
        }
    }
}

/// Where a run belongs, with links to there, and its colour.
fn place(now: &Snapshot, id: &str) -> (String, Look) {
    let sections = sections(now);
    let all = sections.iter().flat_map(|section| section.groups.iter().map(move |g| (section, g)));
    let of = { all }.find(|(_, group)| group.runs.iter().any(|run| run.id == id));
    let Some((section, group)) = of else { return (String::new(), Look::default()) };
    let mut text = String::from("<p class=\"kicker\">");
    let _ = match section.suite {
        Some(_) => {
            write!(text, "suite <a href=\"/suites/{}\">{}</a>", part(section.id), Safe(section.id))
        }
        None => write!(text, "{}", Safe(section.id)),
    };
    if group.is_many() {
        let _ = write!(
            text,
            " · one of <a href=\"/compare?group={}\">{} seeds of {}</a>",
            part(&group.id),
            group.runs.len(),
            Safe(&group.label)
        );
    }
    text.push_str("</p>\n");
    let is_empty = section.id.is_empty() && !group.is_many();
    (if is_empty { String::new() } else { text }, group.look)
}

/// What else there is of a run.
fn links(body: &mut String, folder: &FilePath, summary: &Summary) {
    let link = part(&summary.id);
    if summary.has_report {
        let _ = write!(body, "<a class=\"chip\" href=\"/runs/{link}/report\">report</a>");
    }
    if files::diagnosis_page(folder).is_some() {
        let _ = write!(body, "<a class=\"chip\" href=\"/runs/{link}/diagnosis\">diagnosis</a>");
    } else if summary.has_diagnosis {
        body.push_str("<a class=\"chip\" href=\"#diagnosis\">diagnosis</a>");
    }
    let _ = write!(body, "<a class=\"chip\" href=\"/runs/{link}/metrics.csv\" download>CSV</a>");
    for tag in &summary.tags {
        let _ = write!(body, "<span class=\"tag\">#{}</span>", Safe(tag));
    }
}

fn whole(
    body: &mut String,
    app: &App,
    (summary, look): (&Summary, Look),
    folder: &FilePath,
    run: &Contents,
) {
    let id = &summary.id;
    for trouble in summary.reason.iter().chain(&run.trouble) {
        let _ = writeln!(body, "<p class=\"reason\">{}.</p>", Safe(trouble));
    }
    tiles(body, summary, run);
    let writable = app.token.is_some();
    let _ = writeln!(
        body,
        "<section id=\"run\" data-id=\"{}\" data-link=\"{}\" data-steps=\"{}\" data-colour=\"{}\">\n\
         <div class=\"tools\"><label>By <select id=\"by\"><option value=\"step\">step</option>\
         <option value=\"tokens\">tokens</option><option value=\"seconds\">time</option></select></label>\
         <label>Smoothing <select id=\"smooth\"><option value=\"0\">none</option>\
         <option value=\"0.9\" selected>some</option><option value=\"0.98\">much</option></select></label>\
         <span class=\"grow\"></span><span id=\"live\" class=\"faint\"></span></div>\n\
         <div class=\"charts\"><div class=\"chart\" id=\"loss\"></div><div class=\"chart\" id=\"accuracy\" hidden></div>\
         <div class=\"chart\" id=\"gradient\"></div><div class=\"chart\" id=\"speed\"></div></div>\n</section>",
        Safe(id),
        part(id),
        summary.steps.unwrap_or(0),
        look.colour,
    );
    note(body, summary, writable);
    if files::figure_files(folder).is_empty() {
        let _ = writeln!(
            body,
            "<h2 id=\"diagnosis\">Diagnosis</h2>\n<p class=\"faint\">No figures yet: <code>hadal diagnose {}</code> makes them.</p>",
            Safe(folder.display())
        );
    } else {
        body.push_str(
            "<h2 id=\"diagnosis\">Diagnosis</h2>\n<div class=\"charts\" id=\"figures\"></div>\n",
        );
    }
    samples(body, &run.samples);
    settings(body, folder, run);
}

fn tiles(body: &mut String, summary: &Summary, run: &Contents) {
    let steps = summary.steps.map_or(String::new(), |steps| format!("<small>of {steps}</small>"));
    let accuracy = summary.accuracy.map_or(String::new(), |share| {
        tile("Accuracy", "t-accuracy", &format!("{:.1} %", share * 100.0))
    });
    let parameters = run.outcome.map_or(String::new(), |outcome| {
        tile("Parameters", "t-parameters", &scaled(Some(outcome.parameters as f64)))
    });
    let left =
        summary.left().map_or(String::new(), |seconds| tile("Time left", "t-left", &left(seconds)));
    let seed = summary.seed.unwrap_or(0);
    let policy = format!("{} <small>seed {seed}</small>", Safe(&summary.residual));
    let _ = writeln!(
        body,
        "<div class=\"tiles\">{}{}{left}{}{}{accuracy}{}{}{parameters}{}{}</div>",
        tile("Policy", "t-policy", &policy),
        tile("Step", "t-step", &format!("{}{steps}", summary.step)),
        tile("Training loss", "t-train", &loss(summary.train_loss)),
        tile("Held-out loss", "t-held", &loss(summary.held_out_loss)),
        tile("Tokens", "t-tokens", &scaled(Some(summary.tokens as f64))),
        tile("Tokens/s", "t-speed", &scaled(summary.tokens_per_second)),
        tile(
            "Memory",
            "t-memory",
            &run.outcome.map_or("–".into(), |o| format!("{:.0} MB", o.peak_rss_mb))
        ),
        tile("Folder", "t-folder", "–"),
    );
}

/// `value` is already HTML.
fn tile(title: &str, id: &str, value: &str) -> String {
    format!("<div class=\"tile\"><span>{title}</span><b id=\"{id}\">{value}</b></div>")
}

fn note(body: &mut String, summary: &Summary, writable: bool) {
    if writable {
        let _ = writeln!(
            body,
            "<h2>Note and tags</h2>\n<div class=\"noteform\"><textarea id=\"note\" rows=\"3\" maxlength=\"4000\" \
             aria-label=\"Note\" placeholder=\"What to remember of this run\">{}</textarea>\
             <div class=\"tools\"><input id=\"tags\" value=\"{}\" placeholder=\"Tags: best lr=3e-4\" \
             aria-label=\"Tags\" autocomplete=\"off\"><input id=\"token\" type=\"password\" \
             placeholder=\"Token\" aria-label=\"Token\" autocomplete=\"off\"><button id=\"save\">Save</button>\
             <span id=\"saved\" class=\"faint\"></span></div></div>",
            Safe(&summary.note),
            Safe(summary.tags.join(" "))
        );
    } else if !summary.note.is_empty() {
        let _ = writeln!(body, "<h2>Note</h2>\n<pre class=\"text\">{}</pre>", Safe(&summary.note));
    }
}

fn samples(body: &mut String, samples: &[Sample]) {
    if samples.is_empty() {
        return;
    }
    body.push_str("<h2>Samples</h2>\n<div class=\"samples\">");
    for sample in samples.iter().rev().take(SAMPLES) {
        let _ = write!(
            body,
            "<figure><figcaption>step {}</figcaption><pre class=\"text\">{}</pre></figure>",
            sample.step,
            Safe(&sample.text)
        );
    }
    body.push_str("</div>\n");
}

fn settings(body: &mut String, folder: &FilePath, run: &Contents) {
    let text = toml::to_string(&run.settings).unwrap_or_default();
    let about = serde_json::to_string_pretty(&run.about).unwrap_or_default();
    let _ = write!(
        body,
        "<h2>Settings</h2>\n<details><summary>config.toml</summary><pre class=\"text\">{}</pre></details>\n\
         <details><summary>run.json</summary><pre class=\"text\">{}</pre></details>\n\
         <p class=\"faint\">{}</p>",
        Safe(text.trim_end()),
        Safe(about),
        Safe(folder.display())
    );
}
