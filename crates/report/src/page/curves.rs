//! Figures of the course of training.

use super::group::{Group, losses, seconds, window};
use crate::figure::{Axis, Figure, Line, Marks};
use crate::run::Run;
use crate::statistics::smoothed;

/// Variants of a figure, each under the name of its horizontal axis.
pub(super) type Variants = Vec<(String, Figure)>;

/// The quantity on the horizontal axis.
#[derive(Clone, Copy)]
struct Progress {
    name: &'static str,
    unit: Option<&'static str>,
    /// The place of each step of a run.
    places: fn(&Run) -> Vec<f64>,
}

const PROGRESS: [Progress; 3] = [
    Progress {
        name: "steps",
        unit: None,
        places: |run| run.steps.iter().map(|step| step.step as f64).collect(),
    },
    Progress {
        name: "tokens",
        unit: None,
        places: |run| run.steps.iter().map(|step| step.tokens as f64).collect(),
    },
    Progress { name: "seconds", unit: Some("s"), places: seconds },
];

/// A curve of one run: step, place and height of each point.
type Points = Vec<(u64, f64, Option<f64>)>;

/// The figures of training, the most important first.
pub(super) fn curves(groups: &[Group]) -> Vec<Variants> {
    // Bands of more groups than this hide each other; `assets/charts.js` then draws that of the name pointed at.
    const BANDS: usize = 3;
    let several = groups.iter().any(|group| group.runs.len() > 1);
    let seeds = match (several, groups.len() <= BANDS) {
        (false, _) => "",
        (_, true) => " Lines are means over seeds, bands their lowest and highest.",
        (_, false) => " Lines are means over seeds.",
    };
    let steps = groups.iter().map(|group| window(group.first())).max().unwrap_or(1);
    let smooth =
        if steps > 1 { format!(", each the mean of up to {steps} steps") } else { String::new() };
    let make =
        |name: &str, title: &str, caption: String, y: Axis, of: fn(&Run, Progress) -> Points| {
            let variant = |progress: Progress| {
                let lines = groups.iter().map(|group| line(group, progress, of)).collect();
                let (word, unit) = match progress.unit {
                    Some(unit) => ("training time", Some(unit)),
                    None => (progress.name, None),
                };
                let mut x = Axis::new(word);
                x.unit = unit.map(str::to_owned);
                let figure = Figure {
                    name: format!("{name}-by-{}", progress.name),
                    title: title.into(),
                    caption: format!("{caption}{seeds}"),
                    x,
                    y: y.clone(),
                    marks: Marks::Lines { series: lines },
                };
                (progress.name.to_owned(), figure)
            };
            PROGRESS.map(variant).to_vec()
        };
    vec![
        make(
            "held-out-loss",
            "Loss on held-out data",
            "How badly the model predicts what it has never seen: lower is better.".into(),
            Axis::new("loss").unit("nats"),
            |run, progress| evaluated(run, progress, |evaluation| evaluation.loss),
        ),
        make(
            "train-loss",
            "Loss while training",
            format!("The same on what it is learning from{smooth}: lower is better."),
            Axis::new("loss").unit("nats"),
            |run, progress| stepped(run, progress, &smoothed(&losses(run), window(run))),
        ),
        make(
            "accuracy",
            "Right answers on held-out data",
            "Share of answers that are right: higher is better.".into(),
            Axis::new("accuracy").unit("share"),
            |run, progress| evaluated(run, progress, |evaluation| evaluation.accuracy),
        ),
        make(
            "gradient-norm",
            "Size of the gradient",
            format!(
                "How hard each step pulls at the parameters, before clipping{smooth}. Spikes are trouble."
            ),
            Axis::new("gradient norm").log(),
            |run, progress| {
                let norms = run.steps.iter().map(|step| step.gradient_norm.unwrap_or(f64::NAN));
                stepped(run, progress, &smoothed(&norms.collect::<Vec<_>>(), window(run)))
            },
        ),
        make(
            "speed",
            "Speed of training",
            format!("Tokens learnt from in a second{smooth}: higher is quicker."),
            Axis::new("speed").unit("tokens/s"),
            |run, progress| {
                let speeds =
                    run.steps.iter().map(|step| step.tokens_per_second.unwrap_or(f64::NAN));
                stepped(run, progress, &smoothed(&speeds.collect::<Vec<_>>(), window(run)))
            },
        ),
    ]
}

fn stepped(run: &Run, progress: Progress, heights: &[f64]) -> Points {
    let places = (progress.places)(run);
    let heights = heights.iter().map(|height| Some(*height).filter(|height| height.is_finite()));
    let points = run.steps.iter().zip(places).zip(heights);
    points.map(|((step, place), height)| (step.step, place, height)).collect()
}

fn evaluated(
    run: &Run,
    progress: Progress,
    get: fn(&crate::run::EvaluationPoint) -> Option<f64>,
) -> Points {
    let places = (progress.places)(run);
    let place = |step: u64| match run.steps.binary_search_by_key(&step, |point| point.step) {
        Ok(at) => Some(places[at]),
        Err(_) if step == 0 => Some(0.0),
        Err(_) => None,
    };
    let points = run.evaluations.iter();
    points.filter_map(|point| Some((point.step, place(point.step)?, get(point)))).collect()
}

/// The mean held-out loss of runs by `tokens` or `seconds`, where all of them have it.
pub(super) fn held_out(runs: &[&Run], by: &str) -> (Vec<f64>, Vec<f64>) {
    let Some(progress) = PROGRESS.into_iter().find(|progress| progress.name == by) else {
        return Default::default();
    };
    let of = |run: &&Run| evaluated(run, progress, |evaluation| evaluation.loss);
    let line = mean(String::new(), runs.iter().map(of).collect());
    line.x.into_iter().zip(line.y).filter_map(|(x, y)| Some((x, y?))).unzip()
}

/// The curve of a group: its run's, or the mean of several between their lowest and highest.
fn line(group: &Group, progress: Progress, of: fn(&Run, Progress) -> Points) -> Line {
    mean(group.label.clone(), group.runs.iter().map(|run| of(run, progress)).collect())
}

fn mean(name: String, mut curves: Vec<Points>) -> Line {
    curves.retain(|curve| curve.iter().any(|(.., height)| height.is_some()));
    if let [curve] = &curves[..] {
        let (x, y) = curve.iter().map(|(_, place, height)| (*place, *height)).unzip();
        return Line { name, x, y, ..Line::default() };
    }
    let mut line = Line { name, ..Line::default() };
    let (mut low, mut high) = (Vec::new(), Vec::new());
    for &(step, ..) in curves.first().into_iter().flatten() {
        let at = |curve: &Points| {
            let at = curve.binary_search_by_key(&step, |(step, ..)| *step).ok()?;
            Some((curve[at].1, curve[at].2?))
        };
        let points: Vec<(f64, f64)> = curves.iter().filter_map(at).collect();
        // Where a seed is missing, the mean would jump.
        if points.len() < curves.len() {
            continue;
        }
        let mean =
            |get: fn(&(f64, f64)) -> f64| points.iter().map(get).sum::<f64>() / points.len() as f64;
        line.x.push(mean(|point| point.0));
        line.y.push(Some(mean(|point| point.1)));
        low.push(points.iter().map(|point| point.1).fold(f64::INFINITY, f64::min));
        high.push(points.iter().map(|point| point.1).fold(f64::NEG_INFINITY, f64::max));
    }
    line.band = Some((low, high));
    line
}
