//! Runs that can be compared with each other, and everything that is shown of them.

use super::comparable::Comparable;
use super::curves::{self, Variants};
use super::group::{Group, groups};
use super::html::Html;
use super::said::Said;
use super::task;
use super::verdict::{Findings, Row, unfair};
use super::{beside, columns, diagnosis, forest, settings, spikes};
use crate::figure::plotly::{self, Shared};
use crate::figure::{Figure, drawable, heat_range};
use crate::palette::{self, Look};
use crate::provenance::{Apart, together};
use crate::run::Run;
use crate::suite::{SideTable, SuiteTable};
use crate::words::count;

/// A section with charts.
pub(super) struct Section {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    about: &'static str,
    pub(super) panels: Vec<Panel>,
    /// Tables of a suite behind its figures.
    tables: Vec<SideTable>,
}

/// Figures that belong together: one, or heat maps side by side.
pub(super) struct Panel {
    /// Variants of a figure each.
    pub(super) figures: Vec<Variants>,
    pub(super) range: Option<(f64, f64)>,
}

/// Runs that can be compared with each other.
pub(super) struct Part {
    /// The suite's name, or the names of the groups.
    pub(super) name: String,
    pub(super) suite: Option<SuiteTable>,
    pub(super) groups: Vec<Group>,
    pub(super) looks: Vec<(String, Look)>,
    findings: Findings,
    /// The answer.
    pub(super) headline: String,
    /// What it holds for.
    pub(super) line: String,
    /// The evidence.
    sentences: Vec<String>,
    /// How often it was looked at, and what could have been seen.
    beside: Vec<String>,
    /// What readers must know before they believe it.
    pub(super) notes: Vec<String>,
    /// Charts.
    pub(super) sections: Vec<Section>,
    /// Figures that are drawn otherwise on the page.
    pub(super) files: Vec<Figure>,
}

impl Part {
    pub(super) fn of(part: Comparable) -> Result<Self, Apart> {
        let Comparable { suite, runs } = part;
        let made: Vec<_> = runs.iter().map(|run| (run.name.as_str(), &run.provenance)).collect();
        let mut notes = together(&made)?;
        notes.extend(runs.iter().flat_map(Run::trouble));
        let (name, suite) = suite.map_or((None, None), |(name, table)| (Some(name), table));
        let mut groups = groups(runs);
        // A suite's runs are in the order of its table.
        let rows = suite.iter().flat_map(|suite| &suite.rows);
        let order: Vec<&String> = rows.filter_map(|row| row.first()).collect();
        groups.sort_by_key(|group| {
            order.iter().position(|name| **name == group.policy).unwrap_or(order.len())
        });
        let looks = looks(&groups);
        let baseline = suite.as_ref().map(|suite| suite.baseline.as_str());
        // Anybody may have written the table.
        let planned = suite.as_ref().and_then(|suite| suite.looks.as_ref());
        let planned = planned.filter(|planned| planned.rule.check().is_ok());
        let findings = Findings::of(&groups, baseline, planned);
        let task = task::task(groups[0].first());
        let said = Said { groups: &groups, findings: &findings, task: &task };
        let (headline, sentences) = (said.headline(), said.sentences());
        let beside = said.beside();
        let mut notes: Vec<String> = said.left_out().into_iter().chain(notes).collect();
        notes.splice(0..0, suite.iter().flat_map(|suite| suite.notes.clone()));
        // A suite varies what it says it varies.
        if suite.is_none() {
            notes.splice(0..0, unfair(&groups));
        }
        let names: Vec<String> = groups.iter().map(|group| group.label.clone()).collect();
        let name = name.unwrap_or_else(|| crate::words::listed(&names));
        let line = task::line(&groups);
        let sections = sections(&groups, suite.as_ref());
        let files = forest::figure(&groups, &findings).into_iter().collect();
        Ok(Self {
            name,
            suite,
            groups,
            looks,
            findings,
            headline,
            line,
            sentences,
            beside,
            notes,
            sections,
            files,
        })
    }

    pub(super) fn runs(&self) -> usize {
        self.groups.iter().map(|group| group.runs.len()).sum()
    }

    /// Every figure with how it is drawn.
    pub(super) fn figures(&self) -> impl Iterator<Item = (&Figure, Shared<'_>)> {
        let alone = self.files.iter().map(|figure| (figure, None));
        let panels = self.sections.iter().flat_map(|section| &section.panels);
        let drawn = panels.flat_map(|panel| {
            panel.figures.iter().flatten().map(move |(_, figure)| (figure, panel.range))
        });
        drawn.chain(alone).map(|(figure, range)| (figure, Shared { looks: &self.looks, range }))
    }

    pub(super) fn charts(&self) -> usize {
        let panels = self.sections.iter().flat_map(|section| &section.panels);
        panels.map(|panel| panel.figures.len()).sum()
    }

    /// `30 runs of 5 kinds`.
    pub(super) fn count(&self) -> String {
        match (self.runs(), self.groups.len()) {
            (1, _) => "one run".into(),
            (runs, groups) if runs == groups => count(runs, "run"),
            (runs, groups) => format!("{runs} runs of {}", count(groups, "kind")),
        }
    }

    /// The picture, the table, the evidence.
    pub(super) fn results(&self, html: &mut Html) {
        html.markup("<section class=\"answer\">");
        let forest = forest::forest(&self.groups, &self.looks, &self.findings);
        html.chart(&forest.html());
        if let Some((first, rest)) = self.sentences.split_first() {
            html.markup(if self.findings.rows.iter().any(Row::is_better) {
                "<p class=\"lead found\">"
            } else {
                "<p class=\"lead\">"
            });
            html.text(first).markup("</p>");
            folded(html, "The other comparisons in words", rest);
        }
        for said in &self.beside {
            html.markup("<p class=\"soft\">").text(said).markup("</p>");
        }
        if !self.notes.is_empty() {
            html.markup("<ul class=\"notes\">");
            for note in &self.notes {
                html.markup("<li>").text(note).markup("</li>");
            }
            html.markup("</ul>");
        }
        columns::write(html, &self.groups, &self.looks, &self.findings, self.suite.as_ref());
        // It says the same with the same words, as long as the runs are the same.
        let said = self.suite.iter().flat_map(|suite| &suite.verdict);
        let is_new = |said: &&String| {
            **said != self.headline
                && !self.sentences.contains(said)
                && !self.beside.contains(said)
                && !self.notes.contains(said)
        };
        let said: Vec<String> = said.filter(is_new).cloned().collect();
        folded(html, "What hadal compare said besides", &said);
        html.markup("</section>\n");
    }

    /// Charts, samples and settings.
    pub(super) fn rest(&self, html: &mut Html) {
        for section in &self.sections {
            self.section(html, section);
        }
        self.samples(html);
        self.settings(html);
    }

    fn section(&self, html: &mut Html, section: &Section) {
        html.markup("<section id=\"").markup(section.id).markup("\"><h2>").markup(section.title);
        html.markup("</h2>");
        if !section.about.is_empty() {
            html.markup("<p class=\"soft\">").markup(section.about).markup("</p>");
        }
        html.markup("<div class=\"charts two\">");
        for panel in &section.panels {
            let shared = Shared { looks: &self.looks, range: panel.range };
            for chart in panel.figures.iter().filter_map(|variants| plotly::html(variants, shared))
            {
                html.chart(&chart);
            }
        }
        html.markup("</div>");
        if section.id == "training" {
            spikes::write(html, &self.groups, &self.looks);
        }
        section.tables.iter().for_each(|table| beside::write(html, table, &self.looks));
        html.markup("</section>\n");
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
        let labels: Vec<String> = self.groups.iter().map(|group| group.label.clone()).collect();
        html.markup("<section id=\"settings\"><h2>Settings</h2>");
        let column = |group: &Group| {
            let mut settings = group.first().settings.clone();
            settings.remove("seed");
            settings::flat("", &serde_json::to_value(settings).unwrap_or_default())
        };
        let columns: Vec<_> = self.groups.iter().map(column).collect();
        settings::write(html, "Settings", &labels, &columns);
        html.markup("<h2>Machine and versions</h2>");
        let column = |group: &Group| settings::flat("", &group.first().about);
        let columns: Vec<_> = self.groups.iter().map(column).collect();
        settings::write(html, "Machine and versions", &labels, &columns);
        html.markup("</section>\n");
    }
}

/// Looks of policies, and of policies at each depth, which share the colour of theirs.
fn looks(groups: &[Group]) -> Vec<(String, Look)> {
    let mut policies: Vec<(&str, &str)> = Vec::new();
    for group in groups {
        let policy = (group.policy.as_str(), group.first().residual());
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
    let depths = groups.iter().filter(|group| group.depth.is_some());
    let depths = depths.map(|group| (group.label.as_str(), group.first().residual()));
    palette::named(policies).into_iter().chain(palette::named(depths)).collect()
}

/// Sentences for those who want all of them.
fn folded(html: &mut Html, title: &'static str, sentences: &[String]) {
    if sentences.is_empty() {
        return;
    }
    html.markup("<details><summary>").markup(title).markup("</summary><ul>");
    for said in sentences {
        html.markup("<li>").text(said).markup("</li>");
    }
    html.markup("</ul></details>");
}

/// Charts that have anything to show, each once.
fn sections(groups: &[Group], suite: Option<&SuiteTable>) -> Vec<Section> {
    let mut of_suite: Vec<Figure> = suite.map_or_else(Vec::new, |suite| suite.figures.clone());
    // The differences stand at the top. A suite that goes through depths draws one chart for each; else the curves of
    // training are the same charts.
    let by_depth = of_suite.iter().any(|figure| figure.name.starts_with("validation-loss-d"));
    of_suite.retain(|figure| {
        let name = figure.name.as_str();
        name != "differences" && (by_depth || !["validation-loss", "accuracy"].contains(&name))
    });
    let (beside, of_suite) = beside::parted(suite, of_suite);
    let mut training = training(groups);
    if by_depth {
        let twice =
            |name: &str| ["held-out-loss-", "accuracy-"].iter().any(|t| name.starts_with(t));
        training.retain(|variants| variants.iter().all(|(_, figure)| !twice(&figure.name)));
    }
    let mut sections = vec![
        Section {
            id: "suite",
            title: "The comparison",
            about: "",
            panels: of_suite.into_iter().map(Panel::of).collect(),
            tables: Vec::new(),
        },
        Section {
            id: "tuning",
            title: "How settings were chosen",
            about: beside.about(),
            panels: beside.figures.into_iter().map(Panel::of).collect(),
            tables: beside.tables,
        },
        Section {
            id: "training",
            title: "How training went",
            about: "Point at a name to see its seeds, click it to hide its curve. Drag to zoom, double-click to zoom out.",
            panels: training.into_iter().map(Panel::variants).collect(),
            tables: Vec::new(),
        },
        Section {
            id: "diagnosis",
            title: "What the layers do",
            about: "From hadal diagnose: what each layer reads, writes and is good for.",
            panels: diagnosis::panels(groups),
            tables: Vec::new(),
        },
    ];
    sections.iter_mut().for_each(|section| section.panels.retain(Panel::has_values));
    sections.retain(|section| !section.panels.is_empty() || !section.tables.is_empty());
    sections
}

/// The course of training. Curves of all depths in one chart cannot be told apart: then there is a choice of depths,
/// the deepest first.
fn training(groups: &[Group]) -> Vec<Variants> {
    let mut depths: Vec<usize> = groups.iter().filter_map(|group| group.depth).collect();
    depths.sort_unstable();
    depths.dedup();
    if depths.is_empty() {
        return curves::curves(groups);
    }
    let mut charts: Vec<Variants> = Vec::new();
    for depth in depths.into_iter().rev() {
        let mine = groups.iter().filter(|group| group.depth == Some(depth)).cloned();
        let mine: Vec<Group> =
            mine.map(|group| Group { label: group.policy.clone(), ..group }).collect();
        let by_steps = curves::curves(&mine).into_iter().filter_map(|all| all.into_iter().next());
        for (at, (_, mut figure)) in by_steps.enumerate() {
            figure.name += &format!("-d{depth}");
            if charts.len() <= at {
                charts.push(Vec::new());
            }
            charts[at].push((format!("{depth} blocks"), figure));
        }
    }
    charts
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
        self.figures.iter().flatten().any(|(_, figure)| drawable(figure).is_some())
    }
}
