//! A sweep as figures and files.

use super::answer::policy;
use super::error::SkipError;
use super::sweep::{Point, Sweep};
use crate::diagnose::Files;
use hadal_report::figure::{Axis, Figure, Line, Marks};
use hadal_report::page::Answer;
use std::path::Path;

/// The figures of a sweep: loss and accuracy against FLOPs, speed against what was promised, and which tokens skip.
pub fn figures(sweep: &Sweep) -> Vec<Figure> {
    let points = &sweep.points;
    let flops = |point: &Point| point.flops_per_token / 1e6;
    let at = |x: &dyn Fn(&Point) -> f64, name: &str, y: &dyn Fn(&Point) -> f64| Line {
        name: name.into(),
        x: points.iter().map(x).collect(),
        y: points.iter().map(|point| Some(y(point)).filter(|y| y.is_finite())).collect(),
        ..Line::default()
    };
    let by_flops = || Axis::new("forward FLOPs per token").unit("millions");
    let rate = |point: &Point| point.skipped.skippable_flops;
    let by_rate = || Axis::new("share of skippable FLOPs skipped");
    let promised = Line {
        dashed: true,
        ..at(&rate, "promised by FLOPs", &|point| 1.0 / point.prefill.flop_ratio)
    };
    let figure = |name: &str, title: &str, caption: &str, x, y, series| Figure {
        name: name.into(),
        title: title.into(),
        caption: caption.into(),
        x,
        y,
        marks: Marks::Lines { series },
    };
    vec![
        figure(
            "skip-loss",
            "Loss against compute",
            "Each point is a skip rate: forward FLOPs of a token on average, and the loss on data that thresholds were \
             not calibrated on. The rightmost point is the model when nobody skips.",
            by_flops(),
            Axis::new("loss").unit("nats"),
            vec![at(&flops, policy(sweep), &|point| point.quality.loss)],
        ),
        figure(
            "skip-accuracy",
            "Accuracy against compute",
            "The same for the share of positions whose likeliest token is the right one.",
            by_flops(),
            Axis::new("accuracy"),
            vec![at(&flops, policy(sweep), &|point| point.quality.accuracy)],
        ),
        figure(
            "skip-speed",
            "Speed of reading against what FLOPs promise",
            "How many times as fast prompts are read as when nobody skips, measured in turn, and how many times it \
             would be if time followed FLOPs (dashed).",
            by_rate(),
            Axis::new("times as fast"),
            vec![at(&rate, policy(sweep), &|point| 1.0 / point.prefill.time_ratio), promised],
        ),
        figure(
            "skip-kinds",
            "What is skipped, by kind",
            "Share of all runs of attention and of MLPs that tokens skip, at each rate.",
            by_rate(),
            Axis::new("share of runs skipped"),
            vec![
                at(&rate, "attention", &|point| point.skipped.attention_runs),
                at(&rate, "MLP", &|point| point.skipped.mlp_runs),
            ],
        ),
    ]
}

/// Writes the figures as JSON, CSV, SVG and PNG, `sweep.html`, which answers first, and the numbers as
/// `about/sweep.json`.
pub fn write(directory: &Path, sweep: &Sweep, answer: &Answer) -> Result<(), SkipError> {
    let mut files = Files::default();
    files.figures(&answer.figures)?;
    files.add("sweep.html", answer.html());
    // Apart from the figures: readers of a figure directory take every JSON file for one.
    files.json("about/sweep.json", sweep)?;
    Ok(files.write(directory)?)
}
