//! Figures of a whole suite.

use super::results::{Cell, Point, Results, RunResult, mean_curve};
use super::suite::{Budget, Suite};
use hadal_report::figure::{Axis, Bars, Figure, Line, Marks};

/// Every figure that has anything to show.
pub(super) fn figures(results: &Results, suite: &Suite) -> Vec<Figure> {
    let mut figures = Vec::new();
    for depth in suite.each_depth() {
        let cells: Vec<&Cell> = results.cells.iter().filter(|cell| cell.depth == depth).collect();
        let (suffix, title) = match depth {
            Some(depth) => (format!("-d{depth}"), format!(" at {depth} blocks")),
            None => Default::default(),
        };
        figures.push(Figure {
            name: format!("validation-loss{suffix}"),
            title: format!("Held-out loss while learning{title}"),
            caption: "Lower is better. Lines are means over seeds, bands reach from the best to the worst seed; where bands overlap, seeds differ as much as policies do.".into(),
            x: Axis::new("tokens learnt from"),
            y: Axis::new("held-out loss").unit("nats"),
            marks: Marks::Lines { series: curves(results, &cells, |p| p.tokens, |p| Some(p.loss)) },
        });
        figures.push(Figure {
            name: format!("accuracy{suffix}"),
            title: format!("Right answers while learning{title}"),
            caption: "Share of held-out questions answered correctly; higher is better. Lines are means over seeds, bands reach from the worst to the best seed.".into(),
            x: Axis::new("tokens learnt from"),
            y: Axis::new("right answers"),
            marks: Marks::Lines { series: curves(results, &cells, |p| p.tokens, |p| p.accuracy) },
        });
    }
    figures.push(differences(results, suite));
    if suite.depths.len() > 1 {
        figures.push(by_depth(results, suite));
    }
    if matches!(suite.budget, Budget::BaselineFlops | Budget::Flops(_)) {
        figures.push(by_flops(results));
    }
    figures.extend(results.tuning.iter().flat_map(|tuning| tuning.figures(suite)));
    figures.retain(|figure| !is_empty(figure));
    figures
}

fn is_empty(figure: &Figure) -> bool {
    match &figure.marks {
        Marks::Lines { series } => series.iter().all(|line| line.x.is_empty()),
        Marks::Bars { series } => series.iter().all(|bars| bars.values.iter().all(Option::is_none)),
        _ => false,
    }
}

fn curves(
    results: &Results,
    cells: &[&Cell],
    x: fn(&Point) -> f64,
    y: fn(&Point) -> Option<f64>,
) -> Vec<Line> {
    let lines = cells.iter().map(|cell| curve(results, cell, cell.variant.clone(), x, y));
    lines.filter(|line| !line.x.is_empty()).collect()
}

/// The mean over a cell's runs that count, with the range of its seeds.
fn curve(
    results: &Results,
    cell: &Cell,
    name: String,
    x: fn(&Point) -> f64,
    y: fn(&Point) -> Option<f64>,
) -> Line {
    let runs: Vec<&RunResult> =
        results.of_cell(cell).into_iter().filter(|run| run.counts()).collect();
    let mut line = Line { name, ..Line::default() };
    let (mut low, mut high) = (Vec::new(), Vec::new());
    for (at, point) in mean_curve(&runs).iter().enumerate() {
        let Some(mean) = y(point) else { continue };
        let values = || runs.iter().filter_map(|run| y(&run.curve[at]));
        line.x.push(x(point));
        line.y.push(Some(mean));
        low.push(values().fold(f64::INFINITY, f64::min));
        high.push(values().fold(f64::NEG_INFINITY, f64::max));
    }
    line.band = (runs.len() > 1 && !low.is_empty()).then_some((low, high));
    line
}

fn differences(results: &Results, suite: &Suite) -> Figure {
    let names: Vec<&String> = suite
        .variants
        .iter()
        .map(|variant| &variant.name)
        .filter(|name| **name != suite.baseline)
        .collect();
    let bars = |depth: Option<usize>| {
        let of = |name: &&String| {
            let mine = |cell: &&Cell| cell.variant == **name && cell.depth == depth;
            let paired = results.cells.iter().find(mine)?.against.as_ref()?.paired;
            (paired.n > 0).then_some(paired)
        };
        let half = |name: &&String| {
            let (low, high) = of(name)?.interval95?;
            Some((high - low) / 2.0)
        };
        Bars {
            name: depth.map_or_else(|| "difference".to_owned(), |depth| format!("{depth} blocks")),
            values: names.iter().map(|name| Some(of(name)?.mean_difference)).collect(),
            errors: (results.seeds.len() > 1)
                .then(|| names.iter().map(|name| half(name).unwrap_or(0.0)).collect()),
        }
    };
    Figure {
        name: "differences".into(),
        title: format!("Difference in held-out loss to {}", suite.baseline),
        caption: format!(
            "Below zero is better than {}. Each seed is compared with the same seed of {}; the lines are 95 % intervals of the mean: where one crosses zero, the difference may be luck.",
            suite.baseline, suite.baseline
        ),
        x: Axis::new("policy").categories(names.iter().map(|name| name.as_str())),
        y: Axis::new("difference in held-out loss").unit("nats"),
        marks: Marks::Bars { series: suite.each_depth().into_iter().map(bars).collect() },
    }
}

fn by_depth(results: &Results, suite: &Suite) -> Figure {
    let line = |name: &String| {
        let mut cells: Vec<&Cell> =
            results.cells.iter().filter(|cell| cell.variant == *name).collect();
        cells.sort_by_key(|cell| cell.depth);
        cells.retain(|cell| cell.validation_loss.n > 0);
        let ends = |pick: fn(f64, f64) -> f64| {
            let end = |cell: &&Cell| {
                let runs = results.of_cell(cell);
                let losses = runs.iter().filter(|run| run.counts());
                losses.filter_map(|run| run.validation_loss).reduce(pick).unwrap_or(f64::NAN)
            };
            cells.iter().map(end).collect::<Vec<f64>>()
        };
        Line {
            name: name.clone(),
            x: cells.iter().map(|cell| cell.depth.unwrap_or(0) as f64).collect(),
            y: cells.iter().map(|cell| Some(cell.validation_loss.mean)).collect(),
            band: (results.seeds.len() > 1).then(|| (ends(f64::min), ends(f64::max))),
            ..Line::default()
        }
    };
    let equal = match suite.budget {
        Budget::Steps => "every model saw the same tokens",
        Budget::BaselineFlops | Budget::Flops(_) => "every model spent the same FLOPs",
        Budget::Minutes(_) => "every model had the same time",
    };
    Figure {
        name: "loss-by-depth".into(),
        title: "Held-out loss by depth".into(),
        caption: format!(
            "Lower is better, and {equal}. A line that stops falling has no more use for further blocks. Bands reach from the best to the worst seed."
        ),
        x: Axis::new("blocks"),
        y: Axis::new("held-out loss").unit("nats"),
        marks: Marks::Lines { series: suite.variants.iter().map(|v| line(&v.name)).collect() },
    }
}

fn by_flops(results: &Results) -> Figure {
    let series = results
        .cells
        .iter()
        .map(|cell| curve(results, cell, cell.name(), |p| p.flops, |p| Some(p.loss)));
    Figure {
        name: "loss-by-flops".into(),
        title: "Held-out loss by compute".into(),
        caption: "Lower is better. All models end at the same compute, each with as many steps as its blocks and its policy leave room for.".into(),
        x: Axis::new("compute").unit("FLOPs").log(),
        y: Axis::new("held-out loss").unit("nats"),
        marks: Marks::Lines { series: series.filter(|line| !line.x.is_empty()).collect() },
    }
}
