//! Reports: runs and suites as one HTML file that needs nothing else, with its figures as files if wanted.

mod answer;
mod beside;
mod columns;
mod comparable;
mod curves;
mod diagnosis;
mod export;
mod forest;
mod glossary;
mod group;
mod html;
mod part;
mod said;
mod settings;
mod sheet;
mod spikes;
mod task;
mod verdict;

pub use answer::{Answer, Next};
pub use export::ReportError;
pub use sheet::{figures, is_page};
pub use task::Task;

use crate::figure::Figure;
use crate::figure::plotly::Shared;
use crate::words::capital;
use comparable::apart;
use export::Found;
use html::Html;
use part::Part;
use std::path::PathBuf;

/// What to report on, and where to.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Runs, suites, or folders that hold runs and suites.
    pub inputs: Vec<PathBuf>,
    /// The HTML file.
    pub output: PathBuf,
    /// A folder for every figure's numbers.
    pub csv: Option<PathBuf>,
    /// A folder for every figure as SVG.
    pub svg: Option<PathBuf>,
    /// A folder for every figure as PNG.
    pub png: Option<PathBuf>,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Written {
    /// The HTML file.
    pub report: PathBuf,
    /// Its headline.
    pub headline: String,
    /// The answers, if runs stand apart because they cannot be compared; else the headline alone.
    pub answers: Vec<String>,
    /// Runs in it.
    pub runs: usize,
    /// Where they come from: `30 runs of the suite compare, 2 beside`.
    pub taken: String,
    /// Charts in it.
    pub charts: usize,
    /// What readers must know: runs of other builds, damage, what was left out.
    pub notes: Vec<String>,
    /// Other files.
    pub files: Vec<PathBuf>,
}

/// Reads the inputs and writes the report; `progress` is called before each file is written.
pub fn write(request: &Request, mut progress: impl FnMut(&str)) -> Result<Written, ReportError> {
    let report = Report::read(&request.inputs)?;
    progress(&request.output.display().to_string());
    if let Some(parent) = request.output.parent() {
        hadal_files::create_directory(parent)?;
    }
    hadal_files::write_whole(&request.output, report.html())?;
    let files = export::figures(&report, request, progress)?;
    let notes = report.parts.iter().flat_map(|part| part.notes.iter().cloned());
    Ok(Written {
        report: request.output.clone(),
        headline: report.headline(),
        answers: report.parts.iter().map(|part| part.headline.clone()).collect(),
        runs: report.parts.iter().map(Part::runs).sum(),
        charts: report.parts.iter().map(Part::charts).sum(),
        notes: notes.chain(report.left_out.iter().cloned()).collect(),
        taken: report.taken,
        files,
    })
}

/// Everything that a report shows.
struct Report {
    /// Runs that can be compared, each with its own answer.
    parts: Vec<Part>,
    taken: String,
    left_out: Vec<String>,
}

impl Report {
    fn read(inputs: &[PathBuf]) -> Result<Self, ReportError> {
        let Found { parts, taken, left_out } = export::read(inputs)?;
        let parts = parts.into_iter().map(Part::of).collect::<Result<_, _>>()?;
        Ok(Self { parts, taken, left_out })
    }

    fn figures(&self) -> impl Iterator<Item = (&Figure, Shared<'_>)> {
        self.parts.iter().flat_map(Part::figures)
    }

    fn headline(&self) -> String {
        match &self.parts[..] {
            [part] => part.headline.clone(),
            parts => format!(
                "{} answers, since these runs cannot all be compared",
                capital(&crate::words::numeral(parts.len() as u64))
            ),
        }
    }

    fn html(&self) -> String {
        let mut html = Html::default();
        let headline = self.headline();
        sheet::head(&mut html, &headline);
        html.markup("<header>");
        match &self.parts[..] {
            [part] => {
                let kicker = format!("hadal report · {} · {}", part.name, part.count());
                sheet::title(&mut html, &kicker, &headline, &part.line);
                html.markup("</header>\n<main>");
                self.left_out(&mut html);
                part.results(&mut html);
                contents(&mut html, part);
                part.rest(&mut html);
            }
            parts => {
                sheet::title(&mut html, &format!("hadal report · {}", self.taken), &headline, "");
                self.answers(&mut html);
                html.markup("</header>\n<main>");
                self.left_out(&mut html);
                for (i, part) in parts.iter().enumerate() {
                    html.markup("<article class=\"part\" id=\"part-").text((i + 1).to_string());
                    html.markup("\"><p class=\"kicker\">").text(&part.name).markup(" · ");
                    html.text(part.count()).markup("</p><h2 class=\"headline\">");
                    html.text(&part.headline).markup("</h2><p class=\"line\">").text(&part.line);
                    html.markup("</p>");
                    if let Some(why) = self.why_apart(i) {
                        html.markup("<p class=\"line\">").text(why).markup("</p>");
                    }
                    part.results(&mut html);
                    part.rest(&mut html);
                    html.markup("</article>\n");
                }
            }
        }
        html.markup("<section id=\"glossary\"><h2>Glossary</h2><dl>");
        for (word, meaning) in glossary::GLOSSARY {
            html.markup("<dt>").text(word).markup("</dt><dd>").text(meaning).markup("</dd>");
        }
        html.markup("</dl></section></main>\n");
        html.markup("<noscript><p>Charts need JavaScript; tables do not. hadal report --svg DIR draws pictures.</p></noscript>");
        sheet::foot(&mut html);
        html.finish()
    }

    /// Every answer with a way to it.
    fn answers(&self, html: &mut Html) {
        html.markup("<ol class=\"answers\">");
        for (i, part) in self.parts.iter().enumerate() {
            html.markup("<li><a href=\"#part-").text((i + 1).to_string()).markup("\">");
            html.text(&part.headline).markup("</a> <span class=\"soft\">").text(&part.name);
            html.markup("</span></li>");
        }
        html.markup("</ol>");
    }

    /// Why a part is not compared with the first one.
    fn why_apart(&self, i: usize) -> Option<String> {
        let (first, part) = (self.parts.first()?, self.parts.get(i).filter(|_| i > 0)?);
        let why = apart(first.groups[0].first(), part.groups[0].first());
        Some(match why {
            Some(why) => format!("It stands apart from {}: {why}.", first.name),
            None => {
                format!("It stands apart from {}: a suite is compared within itself.", first.name)
            }
        })
    }

    fn left_out(&self, html: &mut Html) {
        if self.left_out.is_empty() {
            return;
        }
        html.markup("<ul class=\"notes\">");
        for note in &self.left_out {
            html.markup("<li>").text(note).markup("</li>");
        }
        html.markup("</ul>");
    }
}

fn contents(html: &mut Html, part: &Part) {
    html.markup("<nav>");
    for section in &part.sections {
        html.markup("<a href=\"#").markup(section.id).markup("\">").markup(section.title);
        html.markup("</a>");
    }
    html.markup("<a href=\"#settings\">Settings</a><a href=\"#glossary\">Glossary</a></nav>");
}

#[cfg(test)]
mod tests;
