//! All differences with their intervals in one picture, the best first. It is made of boxes, so it needs no script,
//! fits any width and follows the page's colours, on paper too.

use super::group::Group;
use super::html::Html;
use super::verdict::{Against, Findings, Row};
use super::words::signed;
use crate::figure::{Axis, Bars, Figure, Marks};
use crate::palette::Look;
use crate::statistics::Verdict;

/// What is drawn of a comparison.
struct Drawn<'a> {
    label: &'a str,
    look: Look,
    against: &'a Against,
    is_best: bool,
}

impl Drawn<'_> {
    fn mean(&self) -> f64 {
        self.against.paired.mean_difference
    }

    fn ends(&self) -> (f64, f64) {
        self.against.paired.interval95.unwrap_or((self.mean(), self.mean()))
    }
}

fn drawn<'a>(
    groups: &'a [Group],
    looks: &[(String, Look)],
    findings: &'a Findings,
) -> Vec<Drawn<'a>> {
    let best = findings.best();
    let one = |row: &'a Row| {
        let against = row.against.as_ref().filter(|against| against.paired.n > 0)?;
        let look = looks.get(row.group).map(|(_, look)| *look).unwrap_or_default();
        let label = groups[row.group].label.as_str();
        Some(Drawn { label, look, against, is_best: best == Some(row.group) })
    };
    let mut drawn: Vec<Drawn<'_>> = findings.rows.iter().filter_map(one).collect();
    drawn.sort_by(|a, b| a.mean().total_cmp(&b.mean()));
    drawn
}

/// Writes the picture, if there is anything to compare.
pub(super) fn write(html: &mut Html, groups: &[Group], looks: &[(String, Look)], found: &Findings) {
    let drawn = drawn(groups, looks, found);
    if drawn.is_empty() {
        return;
    }
    let baselines = drawn.iter().any(|one| one.against.baseline != found.baseline);
    let base = match baselines {
        true => "the baseline of the same depth",
        false => groups[found.baseline].label.as_str(),
    };
    let scale = Scale::of(&drawn);
    html.markup("<figure class=\"forest\"><figcaption><h2>Difference in ").text(found.metric);
    html.markup(" to ")
        .text(base)
        .markup("</h2><p>Nats; left is better. Dots are means over seeds, ");
    html.markup("lines 95 % intervals: one that crosses the line of ").text(base);
    html.markup(" may be luck.</p></figcaption><div class=\"rows\" style=\"--zero:");
    html.text(scale.percent(0.0)).markup("\"><div class=\"row zero\"><span class=\"track\"><b>");
    html.text(if baselines { "baseline" } else { base }).markup("</b></span></div>");
    for one in &drawn {
        row(html, one, &scale);
    }
    html.markup("<div class=\"row ticks\"><span class=\"track\">");
    for tick in scale.ticks() {
        html.markup("<i style=\"left:").text(scale.percent(tick)).markup("\">");
        html.text(if tick == 0.0 { "0".into() } else { signed(tick, scale.digits) }).markup("</i>");
    }
    html.markup("</span></div></div></figure>");
}

fn row(html: &mut Html, one: &Drawn<'_>, scale: &Scale) {
    let told = matches!(one.against.verdict, Verdict::Better | Verdict::Worse);
    html.markup(match (one.is_best, told) {
        (true, _) => "<div class=\"row best\" style=\"--own:var(--series-",
        (_, true) => "<div class=\"row told\" style=\"--own:var(--series-",
        _ => "<div class=\"row\" style=\"--own:var(--series-",
    });
    html.text(one.look.colour.to_string()).markup(")\"><span class=\"name\"><i class=\"swatch");
    html.markup(if one.look.variant > 0 { " variant\"></i>" } else { "\"></i>" }).text(one.label);
    if one.is_best {
        html.markup(" <b class=\"badge\">best</b>");
    }
    let (low, high) = one.ends();
    html.markup("</span><span class=\"track\"><span class=\"interval\" style=\"left:");
    html.text(scale.percent(low)).markup(";right:calc(100% - ").text(scale.percent(high));
    html.markup(")\"></span><span class=\"dot\" style=\"left:").text(scale.percent(one.mean()));
    html.markup("\"></span></span><span class=\"value\"><b>")
        .text(signed(one.mean(), 3))
        .markup("</b> ");
    match one.against.paired.interval95 {
        Some((low, high)) => html.text(format!("{} to {}", signed(low, 3), signed(high, 3))),
        None => html.markup("one seed"),
    };
    html.markup("</span></div>");
}

/// The horizontal axis.
struct Scale {
    low: f64,
    high: f64,
    step: f64,
    digits: usize,
}

impl Scale {
    fn of(drawn: &[Drawn<'_>]) -> Self {
        let ends = drawn.iter().map(Drawn::ends);
        let (low, high) =
            ends.fold((0.0_f64, 0.0_f64), |(low, high), (from, to)| (low.min(from), high.max(to)));
        let span = if high > low { high - low } else { 1e-6 };
        let power = 10.0_f64.powf((span / 4.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
        let step = step.into_iter().find(|step| span / step <= 5.0).unwrap_or(span);
        let digits = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
        Self { low: low - 0.04 * span, high: high + 0.04 * span, step, digits }
    }

    fn percent(&self, value: f64) -> String {
        format!("{:.2}%", 100.0 * (value - self.low) / (self.high - self.low))
    }

    fn ticks(&self) -> Vec<f64> {
        let (first, last) = ((self.low / self.step).ceil(), (self.high / self.step).floor());
        (0..=(last - first).clamp(0.0, 20.0) as u32)
            .map(|i| (first + f64::from(i)) * self.step)
            .collect()
    }
}

/// The same as a figure, for files.
pub(super) fn figure(
    groups: &[Group],
    looks: &[(String, Look)],
    found: &Findings,
) -> Option<Figure> {
    let drawn = drawn(groups, looks, found);
    let base = &groups[found.baseline].label;
    let half = |one: &Drawn<'_>| (one.ends().1 - one.ends().0) / 2.0;
    let bars = Bars {
        name: "difference".into(),
        values: drawn.iter().map(|one| Some(one.mean())).collect(),
        errors: Some(drawn.iter().map(half).collect()),
    };
    (!drawn.is_empty()).then(|| Figure {
        name: "differences".into(),
        title: format!("Difference in {} to {base}", found.metric),
        caption: "Below zero is better. Lines are 95 % intervals of the mean over seeds.".into(),
        x: Axis::new("policy").categories(drawn.iter().map(|one| one.label)),
        y: Axis::new("difference").unit("nats"),
        marks: Marks::Bars { series: vec![bars] },
    })
}
