//! A plan as figures and files.

use super::answer::{answer, candidates};
use super::error::PruneError;
use super::plan::Plan;
use super::scores::PartScore;
use crate::diagnose::Files;
use hadal_model::Part;
use hadal_report::figure::{Axis, Bars, Figure, Line, Marks};
use std::path::Path;

/// Figures with a point for each part that goes.
pub(super) const AS_PARTS_GO: [&str; 2] = ["prune-perplexity", "prune-kl"];

/// The figures of a plan: what every part is worth, and what each further cut costs.
pub fn figures(plan: &Plan) -> Vec<Figure> {
    let figure = |name: &str, title: &str, caption: &str, x, y, marks| Figure {
        name: name.into(),
        title: title.into(),
        caption: caption.into(),
        x,
        y,
        marks,
    };
    let cost = |name: &str, get: fn(&super::Cost) -> f64| {
        let all = std::iter::once(&plan.outcome.whole).chain(&plan.curve);
        let y: Vec<Option<f64>> = all.map(|cost| Some(get(cost))).collect();
        let x = (0..y.len()).map(|n| n as f64).collect();
        let line = Line { name: name.into(), x, y, ..Line::default() };
        Marks::Lines { series: vec![line] }
    };
    let kind = |name: &str, is: fn(&Part) -> bool, get: fn(&PartScore) -> Option<f64>| {
        let parts = plan.scores.parts.iter().filter(|score| is(&score.part));
        let (x, y) = parts.map(|score| (score.part.block() as f64, get(score))).unzip();
        Line { name: name.into(), x, y, ..Line::default() }
    };
    let is_block = |part: &Part| matches!(part, Part::Block(_));
    let blocks = || Axis::new("block");
    let gone = || Axis::new("parts gone");
    let (parts, worth) = worth(plan);
    let loss_change = || Axis::new("change of loss").unit("nats");
    vec![
        figure(
            "prune-loss-change",
            "Loss without one part",
            "How much the loss rises when one part is left out of the whole model, the cheapest first: those that go, and \
             those that could have gone. Protected ones are not shown.",
            parts,
            loss_change(),
            worth,
        ),
        figure(
            AS_PARTS_GO[0],
            "Perplexity as parts go",
            "In the order in which the plan chose them, measured on data that the choice was not made on if there was \
             enough of it. The leftmost point is the whole model.",
            gone(),
            Axis::new("perplexity"),
            cost("perplexity", |cost| cost.perplexity),
        ),
        figure(
            AS_PARTS_GO[1],
            "Divergence as parts go",
            "The same for KL(whole || cut) of the predictions.",
            gone(),
            Axis::new("KL").unit("nats"),
            cost("KL", |cost| cost.kl),
        ),
        figure(
            "prune-halves",
            "Loss without a half of a block",
            "The same as above for attention and MLP of every block, protected ones too. Their costs need not add up to \
             the block's.",
            blocks(),
            loss_change(),
            Marks::Lines {
                series: vec![
                    kind("attention", |p| matches!(p, Part::Attention(_)), |s| s.loss_change),
                    kind("MLP", |part| matches!(part, Part::Mlp(_)), |score| score.loss_change),
                ],
            },
        ),
        figure(
            "prune-angles",
            "What angles say",
            "Angular distance between what goes into a block and what comes out (Gromov, last tokens), and 1 - cosine \
             of the same (ShortGPT, all tokens). Compare with the loss: angles alone mislead on some models.",
            blocks(),
            Axis::new("score"),
            Marks::Lines {
                series: vec![
                    kind("distance", is_block, |score| score.distance),
                    kind("influence", is_block, |score| score.influence),
                ],
            },
        ),
    ]
}

/// What each part costs that goes or could have gone, the cheapest first.
fn worth(plan: &Plan) -> (Axis, Marks) {
    let known = candidates(plan).filter_map(|score| Some((score.part, score.loss_change?)));
    let mut known: Vec<(Part, f64)> = known.collect();
    known.sort_by(|a, b| a.1.total_cmp(&b.1));
    let bars = |name: &str, goes: bool| Bars {
        name: name.into(),
        values: known
            .iter()
            .map(|(part, change)| (plan.chosen.contains(part) == goes).then_some(*change))
            .collect(),
        errors: None,
    };
    let axis = Axis::new("part").categories(known.iter().map(|(part, _)| part.to_string()));
    (axis, Marks::Bars { series: vec![bars("goes", true), bars("stays", false)] })
}

/// Writes the figures as JSON, CSV, SVG and PNG, and `plan.html`, which answers first. The plan is in `file`.
pub fn write_plan_figures(directory: &Path, plan: &Plan, file: &Path) -> Result<(), PruneError> {
    let mut files = Files::default();
    files.figures(&figures(plan))?;
    files.add("plan.html", answer(plan, file).html());
    Ok(files.write(directory)?)
}
