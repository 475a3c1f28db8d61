//! The picture of all differences: on the page, and as a figure for files.

use super::group::Group;
use super::verdict::{Findings, Row};
use crate::comparison::forest::{self, Forest};
use crate::figure::{Axis, Bars, Figure, Marks};
use crate::palette::Look;

/// What is drawn of a comparison; `looks` are those of policies.
pub(super) fn forest(groups: &[Group], looks: &[(String, Look)], found: &Findings) -> Forest {
    let row = |row: &Row| {
        let against = row.against.as_ref().filter(|against| against.paired.n > 0)?;
        let group = &groups[row.group];
        let known = looks.iter().find(|(name, _)| *name == group.policy);
        Some(forest::Row {
            name: group.policy.clone(),
            depth: group.depth,
            look: known.map(|(_, look)| *look).unwrap_or_default(),
            mean: against.paired.mean_difference,
            interval95: against.paired.interval95,
            verdict: against.verdict,
        })
    };
    Forest {
        metric: found.metric.into(),
        baseline: groups[found.baseline].policy.clone(),
        rows: found.rows.iter().filter_map(row).collect(),
    }
}

/// The same as a figure, the best first.
pub(super) fn figure(groups: &[Group], found: &Findings) -> Option<Figure> {
    let compared = |row: &&Row| row.against.as_ref().is_some_and(|against| against.paired.n > 0);
    let drawn: Vec<&Row> = found.rows.iter().filter(compared).collect();
    let mean = |row: &&Row| row.against.as_ref().map(|against| against.paired.mean_difference);
    let half = |row: &&Row| {
        let interval = row.against.as_ref().and_then(|against| against.paired.interval95);
        interval.map_or(0.0, |(low, high)| (high - low) / 2.0)
    };
    let bars = Bars {
        name: "difference".into(),
        values: drawn.iter().map(mean).collect(),
        errors: Some(drawn.iter().map(half).collect()),
    };
    (!drawn.is_empty()).then(|| Figure {
        name: "differences".into(),
        title: format!("Difference in {} to {}", found.metric, groups[found.baseline].policy),
        caption: "Below zero is better. Lines are 95 % intervals of the mean over seeds.".into(),
        x: Axis::new("policy").categories(drawn.iter().map(|row| groups[row.group].label.as_str())),
        y: Axis::new("difference").unit("nats"),
        marks: Marks::Bars { series: vec![bars] },
    })
}
