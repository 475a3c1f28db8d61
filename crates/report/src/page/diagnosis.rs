//! Figures of `hadal diagnose`, several runs in one.

use super::group::Group;
use super::part::Panel;
use crate::figure::{Figure, Marks, heat_range, overlay};
use crate::run::Run;

/// Figures of diagnosis laid over each other, from the first run of each group that has any.
pub(super) fn panels(groups: &[Group]) -> Vec<Panel> {
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
