//! A plan as figures and files.

use super::error::PruneError;
use super::plan::Plan;
use super::scores::PartScore;
use crate::diagnose::Files;
use hadal_model::Part;
use hadal_report::figure::{Axis, Figure, Line, Marks};
use hadal_report::page;
use std::path::Path;

/// The figures of a plan: what every part is worth, and what each further cut costs.
pub fn figures(plan: &Plan) -> Vec<Figure> {
    let figure = |name: &str, title: &str, caption: &str, x, y, series| Figure {
        name: name.into(),
        title: title.into(),
        caption: caption.into(),
        x,
        y,
        marks: Marks::Lines { series },
    };
    let cost = |name: &str, get: fn(&super::Cost) -> f64| {
        let all = std::iter::once(&plan.outcome.whole).chain(&plan.curve);
        let y: Vec<Option<f64>> = all.map(|cost| Some(get(cost))).collect();
        let x = (0..y.len()).map(|n| n as f64).collect();
        Line { name: name.into(), x, y, band: None, dashed: false }
    };
    let kind = |name: &str, is: fn(&Part) -> bool, get: fn(&PartScore) -> Option<f64>| {
        let parts = plan.scores.parts.iter().filter(|score| is(&score.part));
        let (x, y) = parts.map(|score| (score.part.block() as f64, get(score))).unzip();
        Line { name: name.into(), x, y, band: None, dashed: false }
    };
    let by_kind = |get: fn(&PartScore) -> Option<f64>| {
        vec![
            kind("block", |part| matches!(part, Part::Block(_)), get),
            kind("attention", |part| matches!(part, Part::Attention(_)), get),
            kind("MLP", |part| matches!(part, Part::Mlp(_)), get),
        ]
    };
    let blocks = || Axis::new("block");
    let gone = || Axis::new("parts gone");
    vec![
        figure(
            "prune-perplexity",
            "Perplexity as parts go",
            "In the order in which the plan chose them, measured on data that the choice was not made on if there was \
             enough of it. The leftmost point is the whole model.",
            gone(),
            Axis::new("perplexity"),
            vec![cost("perplexity", |cost| cost.perplexity)],
        ),
        figure(
            "prune-kl",
            "Divergence as parts go",
            "The same for KL(whole || cut) of the predictions.",
            gone(),
            Axis::new("KL").unit("nats"),
            vec![cost("KL", |cost| cost.kl)],
        ),
        figure(
            "prune-loss-change",
            "Loss without one part",
            "How much the loss rises when one block, or one of its halves, is left out of the whole model.",
            blocks(),
            Axis::new("change of loss").unit("nats"),
            by_kind(|score| score.loss_change),
        ),
        figure(
            "prune-angles",
            "What angles say",
            "Angular distance between what goes into a block and what comes out (Gromov, last tokens), and 1 - cosine \
             of the same (ShortGPT, all tokens). Compare with the loss: angles alone mislead on some models.",
            blocks(),
            Axis::new("score"),
            vec![
                kind("distance", |part| matches!(part, Part::Block(_)), |score| score.distance),
                kind("influence", |part| matches!(part, Part::Block(_)), |score| score.influence),
            ],
        ),
    ]
}

/// Writes the figures as JSON, CSV, SVG and PNG, and all of them as `plan.html`.
pub fn write_plan_figures(directory: &Path, plan: &Plan) -> Result<(), PruneError> {
    let figures = figures(plan);
    let mut files = Files::default();
    files.figures(&figures)?;
    let name = plan.source.path.file_name().unwrap_or(plan.source.path.as_os_str());
    let title = format!("Cutting {}", name.to_string_lossy());
    files.add("plan.html", page::figures(&title, &figures));
    Ok(files.write(directory)?)
}
