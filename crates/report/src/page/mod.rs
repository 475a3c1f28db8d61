//! Reports: runs and suites as one HTML file that needs nothing else, with its figures as files if wanted.

mod curves;
mod export;
mod glossary;
mod group;
mod html;
mod settings;
mod sheet;
mod verdict;

pub use export::ReportError;
pub use sheet::figures;

use crate::figure::plotly::{self, Shared};
use crate::figure::{Figure, Marks, heat_range, overlay};
use crate::provenance::together;
use crate::run::Run;
use crate::suite::SuiteTable;
use curves::Variants;
use export::Found;
use group::{Group, groups};
use html::{Cell, Html};
use std::path::PathBuf;
use verdict::findings;

/// What to report on, and where to.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Runs, suites, or folders that hold runs.
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
    /// Runs in it.
    pub runs: usize,
    /// Charts in it.
    pub charts: usize,
    /// What readers must know: runs of other builds, damage.
    pub notes: Vec<String>,
    /// Other files.
    pub files: Vec<PathBuf>,
}

/// Reads the inputs and writes the report; `progress` is called before each file is written.
pub fn write(request: &Request, mut progress: impl FnMut(&str)) -> Result<Written, ReportError> {
    let report = Report::read(&request.inputs)?;
    let runs = report.groups.iter().map(|group| group.runs.len()).sum();
    progress(&request.output.display().to_string());
    hadal_files::write_whole(&request.output, report.html())?;
    let files = export::figures(&report, request, progress)?;
    let charts = report.charts();
    let Report { headline, notes, .. } = report;
    Ok(Written { report: request.output.clone(), headline, runs, charts, notes, files })
}

/// A section with charts.
struct Section {
    id: &'static str,
    title: &'static str,
    about: &'static str,
    panels: Vec<Panel>,
}

/// Figures that belong together: one, or heat maps side by side.
struct Panel {
    /// Variants of a figure each.
    figures: Vec<Variants>,
    range: Option<(f64, f64)>,
}

/// Everything that a report shows.
struct Report {
    headline: String,
    sentences: Vec<String>,
    notes: Vec<String>,
    suites: Vec<SuiteTable>,
    groups: Vec<Group>,
    labels: Vec<String>,
    head: Vec<String>,
    rows: Vec<Vec<Cell>>,
    sections: Vec<Section>,
}

impl Report {
    fn read(inputs: &[PathBuf]) -> Result<Self, ReportError> {
        let Found { runs, suites, left_out } = export::read(inputs)?;
        let made: Vec<_> = runs.iter().map(|run| (run.name.as_str(), &run.provenance)).collect();
        let mut notes = together(&made)?;
        notes.extend(runs.iter().flat_map(Run::trouble).chain(left_out));
        let mut groups = groups(runs);
        // A suite's runs are in the order of its table.
        let order: Vec<&String> = suites
            .iter()
            .flat_map(|suite| suite.rows.iter().filter_map(|row| row.first()))
            .collect();
        groups.sort_by_key(|group| {
            order.iter().position(|name| **name == group.label).unwrap_or(order.len())
        });
        let labels: Vec<String> = groups.iter().map(|group| group.label.clone()).collect();
        let findings = findings(&groups);
        let mut verdict = suites.iter().flat_map(|suite| suite.verdict.iter().cloned());
        // A suite's own verdict knows its budget and its metric.
        let (headline, mut sentences): (_, Vec<String>) = match verdict.next() {
            Some(first) => (first, verdict.collect()),
            None => (findings.headline, findings.sentences),
        };
        // A suite's verdict may have said it.
        sentences.extend(
            notes.iter().filter(|note| !sentences.contains(note)).cloned().collect::<Vec<_>>(),
        );
        let suite = suites.iter().flat_map(|suite| suite.figures.iter().cloned()).map(Panel::of);
        let sections = vec![
            Section { id: "suite", title: "The comparison", about: "", panels: suite.collect() },
            Section {
                id: "training",
                title: "How training went",
                about: "Click a name to hide its curve, drag to zoom, double-click to zoom out.",
                panels: curves::curves(&groups).into_iter().map(Panel::variants).collect(),
            },
            Section {
                id: "diagnosis",
                title: "What the layers do",
                about: "From hadal diagnose: what each layer reads, writes and is good for.",
                panels: diagnosis(&groups),
            },
        ];
        let (head, rows) = (findings.head, findings.rows);
        let mut report =
            Self { headline, sentences, notes, suites, groups, labels, head, rows, sections };
        report.sections.iter_mut().for_each(|section| section.panels.retain(Panel::has_values));
        report.sections.retain(|section| !section.panels.is_empty());
        Ok(report)
    }

    fn figures(&self) -> impl Iterator<Item = (&Figure, Shared<'_>)> {
        let panels = self.sections.iter().flat_map(|section| &section.panels);
        panels.flat_map(|panel| {
            let shared = Shared { labels: &self.labels, range: panel.range };
            panel.figures.iter().flatten().map(move |(_, figure)| (figure, shared))
        })
    }

    fn charts(&self) -> usize {
        let panels = self.sections.iter().flat_map(|section| &section.panels);
        panels.map(|panel| panel.figures.len()).sum()
    }

    fn html(&self) -> String {
        let mut html = Html::default();
        sheet::head(&mut html, &self.headline);
        html.markup("<header><p class=\"kicker\">hadal report · ")
            .text(self.kicker())
            .markup("</p>");
        sheet::title(&mut html, &self.headline);
        self.contents(&mut html);
        html.markup("</header>\n<main>");
        self.results(&mut html);
        for section in &self.sections {
            self.section(&mut html, section);
        }
        self.samples(&mut html);
        self.settings(&mut html);
        html.markup("<section id=\"words\"><h2>Words</h2><dl>");
        for (word, meaning) in glossary::GLOSSARY {
            html.markup("<dt>").text(word).markup("</dt><dd>").text(meaning).markup("</dd>");
        }
        html.markup("</dl></section></main>\n");
        sheet::foot(&mut html);
        html.finish()
    }

    fn kicker(&self) -> String {
        let runs: usize = self.groups.iter().map(|group| group.runs.len()).sum();
        match (runs, self.groups.len()) {
            (1, _) => "one run".into(),
            (runs, groups) if runs == groups => format!("{runs} runs"),
            (runs, groups) => format!("{runs} runs of {groups} kinds"),
        }
    }

    fn contents(&self, html: &mut Html) {
        html.markup("<nav><a href=\"#results\">Results</a>");
        for section in &self.sections {
            html.markup("<a href=\"#").markup(section.id).markup("\">").markup(section.title);
            html.markup("</a>");
        }
        html.markup("<a href=\"#settings\">Settings</a><a href=\"#words\">Words</a></nav>");
    }

    fn results(&self, html: &mut Html) {
        html.markup("<section id=\"results\"><h2>Results</h2>");
        if !self.sentences.is_empty() {
            html.markup("<ul class=\"verdict\">");
            for sentence in &self.sentences {
                html.markup("<li>").text(sentence).markup("</li>");
            }
            html.markup("</ul>");
        }
        html.markup("<noscript><p>Charts need JavaScript; tables do not. hadal report --svg DIR draws pictures.</p></noscript>");
        for suite in &self.suites {
            html.markup("<p class=\"soft\">Compared with ").text(&suite.baseline);
            html.markup(" by ").text(&suite.metric).markup(".</p>");
            let row = |row: &Vec<String>| {
                row.iter().enumerate().map(|(i, text)| self.suite_cell(i, text)).collect()
            };
            html.table(&suite.columns, &suite.rows.iter().map(row).collect::<Vec<_>>());
        }
        if self.suites.is_empty() {
            html.table(&self.head, &self.rows);
        } else {
            html.markup("<details><summary>Runs of the suite</summary>");
            html.table(&self.head, &self.rows).markup("</details>");
        }
        html.markup("</section>\n");
    }

    fn suite_cell(&self, column: usize, text: &str) -> Cell {
        let colour = self.labels.iter().position(|label| label == text);
        match column {
            0 => Cell::Name { text: text.into(), colour },
            _ if text == "better" => Cell::Good(text.into()),
            _ if text == "worse" || text.starts_with("failed") => Cell::Bad(text.into()),
            _ if text.starts_with(|c: char| c.is_ascii_digit() || "+-−<".contains(c)) => {
                Cell::Number(text.into())
            }
            _ => Cell::Text(text.into()),
        }
    }

    fn section(&self, html: &mut Html, section: &Section) {
        html.markup("<section id=\"").markup(section.id).markup("\"><h2>").markup(section.title);
        html.markup("</h2>");
        if !section.about.is_empty() {
            html.markup("<p class=\"soft\">").markup(section.about).markup("</p>");
        }
        html.markup("<div class=\"charts two\">");
        for panel in &section.panels {
            let shared = Shared { labels: &self.labels, range: panel.range };
            for chart in panel.figures.iter().filter_map(|variants| plotly::html(variants, shared))
            {
                html.chart(&chart);
            }
        }
        html.markup("</div></section>\n");
    }

    /// The last texts that each group's first run wrote.
    fn samples(&self, html: &mut Html) {
        let written: Vec<(&Group, &Run)> =
            self.groups.iter().map(|group| (group, group.first())).collect();
        if written.iter().all(|(_, run)| run.samples.is_empty()) {
            return;
        }
        html.markup("<section id=\"samples\"><h2>What the models write</h2>");
        for (group, run) in written {
            let Some((last, earlier)) = run.samples.split_last() else { continue };
            html.markup("<h3>").text(&group.label).markup("</h3><p class=\"soft\">After step ");
            html.text(last.step.to_string()).markup(":</p><pre>").text(&last.text).markup("</pre>");
            for sample in earlier.iter().rev().take(4) {
                html.markup("<details><summary>After step ").text(sample.step.to_string());
                html.markup("</summary><pre>").text(&sample.text).markup("</pre></details>");
            }
        }
        html.markup("</section>\n");
    }

    fn settings(&self, html: &mut Html) {
        html.markup("<section id=\"settings\"><h2>Settings</h2>");
        let column = |group: &Group| {
            let mut settings = group.first().settings.clone();
            settings.remove("seed");
            settings::flat("", &serde_json::to_value(settings).unwrap_or_default())
        };
        let columns: Vec<_> = self.groups.iter().map(column).collect();
        settings::write(html, &self.labels, &columns);
        html.markup("</section>\n<section id=\"machine\"><h2>Machine and versions</h2>");
        let column = |group: &Group| settings::flat("", &group.first().about);
        let columns: Vec<_> = self.groups.iter().map(column).collect();
        settings::write(html, &self.labels, &columns);
        html.markup("</section>\n");
    }
}

impl Panel {
    fn of(figure: Figure) -> Self {
        let range = heat_range([&figure]);
        Self { figures: vec![vec![(String::new(), figure)]], range }
    }

    fn variants(variants: Variants) -> Self {
        Self { figures: vec![variants], range: None }
    }

    fn has_values(&self) -> bool {
        self.figures.iter().flatten().any(|(_, figure)| crate::figure::drawable(figure).is_some())
    }
}

/// Figures of diagnosis laid over each other, from the first run of each group that has any.
fn diagnosis(groups: &[Group]) -> Vec<Panel> {
    let diagnosed: Vec<(&Group, &Run)> = groups
        .iter()
        .filter_map(|group| Some((group, group.runs.iter().find(|run| !run.figures.is_empty())?)))
        .collect();
    let mut names: Vec<&str> = Vec::new();
    for figure in diagnosed.iter().flat_map(|(_, run)| &run.figures) {
        if !names.contains(&figure.name.as_str()) {
            names.push(&figure.name);
        }
    }
    let panel = |name: &&str| {
        let labelled: Vec<(String, Figure)> = diagnosed
            .iter()
            .filter_map(|(group, run)| {
                let figure = run.figures.iter().find(|figure| figure.name == **name)?;
                Some((group.label.clone(), figure.clone()))
            })
            .collect();
        let figures = if diagnosed.len() > 1 { named(&labelled) } else { overlay(&labelled) };
        let heat = figures.iter().filter(|figure| matches!(figure.marks, Marks::Heat { .. }));
        let range = heat_range(heat);
        Panel { figures: figures.into_iter().map(|f| vec![(String::new(), f)]).collect(), range }
    };
    names.iter().map(panel).collect()
}

/// Figures laid over each other; a figure that only one run has names the run.
fn named(labelled: &[(String, Figure)]) -> Vec<Figure> {
    match labelled {
        [(label, figure)] => {
            vec![Figure { title: format!("{}: {label}", figure.title), ..figure.clone() }]
        }
        several => overlay(several),
    }
}

#[cfg(test)]
mod tests;
