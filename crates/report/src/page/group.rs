//! Runs that differ only in their seed, and their results.

use super::comparable::section;
use crate::run::{Run, Status};
use crate::statistics::smoothed;

/// Runs that differ only in their seed.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) label: String,
    /// The label without the depth.
    pub(super) policy: String,
    /// Blocks, if the groups are policies at several depths.
    pub(super) depth: Option<usize>,
    pub(super) runs: Vec<Run>,
}

impl Group {
    pub(super) fn first(&self) -> &Run {
        &self.runs[0]
    }

    /// A number for each seed; runs without one are left out.
    pub(super) fn by_seed(&self, get: impl Fn(&Run) -> Option<f64>) -> Vec<(i64, f64)> {
        self.runs.iter().filter_map(|run| Some((run.seed(), get(run)?))).collect()
    }

    pub(super) fn status(&self) -> String {
        let count = |status| self.runs.iter().filter(|run| run.status == status).count();
        let words = [
            (Status::Failed, "failed: not finite"),
            (Status::Running, "running"),
            (Status::Stopped, "stopped early"),
            (Status::Done, "done"),
        ];
        let present: Vec<String> = words
            .into_iter()
            .filter_map(|(status, word)| match count(status) {
                0 => None,
                n if n == self.runs.len() => Some(word.to_owned()),
                n => Some(format!("{n} {word}")),
            })
            .collect();
        present.join(", ")
    }

    pub(super) fn has_failed(&self) -> bool {
        self.runs.iter().any(|run| run.status == Status::Failed)
    }
}

/// Groups in the order of their first runs, under names that tell them apart.
pub(super) fn groups(runs: Vec<Run>) -> Vec<Group> {
    let mut keyed: Vec<(String, Vec<Run>)> = Vec::new();
    for run in runs {
        let mut settings = run.settings.clone();
        settings.remove("seed");
        let key = settings.to_string();
        // A second run of the same seed is not another seed.
        let fits = |(other, runs): &&mut (String, Vec<Run>)| {
            *other == key && runs.iter().all(|known| known.seed() != run.seed())
        };
        match keyed.iter_mut().find(fits) {
            Some((_, runs)) => runs.push(run),
            None => keyed.push((key, vec![run])),
        }
    }
    let mut groups: Vec<Group> = Vec::new();
    for (_, mut runs) in keyed {
        runs.sort_by_key(Run::seed);
        let label = label(&runs);
        let same = groups.iter().filter(|group| base(&group.label) == label).count();
        let label = if same == 0 { label } else { format!("{label} ({})", same + 1) };
        groups.push(Group { policy: label.clone(), label, depth: None, runs });
    }
    name_depths(&mut groups);
    groups
}

/// A suite that goes through depths calls its runs `nag-d6-s0`: these are nag at 6 blocks.
fn name_depths(groups: &mut [Group]) {
    let at_depth = |group: &Group| {
        let blocks = section(group.first(), "model").get("n_layers")?.as_u64()?;
        let policy = group.label.strip_suffix(&format!("-d{blocks}"))?;
        Some((policy.to_owned(), usize::try_from(blocks).ok()?))
    };
    let Some(all) = groups.iter().map(at_depth).collect::<Option<Vec<_>>>() else { return };
    if all.iter().all(|(_, blocks)| *blocks == all[0].1) {
        return;
    }
    for (group, (policy, blocks)) in groups.iter_mut().zip(all) {
        group.label = crate::comparison::at_depth(&policy, Some(blocks));
        (group.policy, group.depth) = (policy, Some(blocks));
    }
}

fn base(label: &str) -> &str {
    label.split(" (").next().unwrap_or(label)
}

/// A run's name, or what the names of several have in common.
fn label(runs: &[Run]) -> String {
    let [first, rest @ ..] = runs else { return String::new() };
    // Overlays separate a run's name from its series' name by this sign.
    let clean = |name: &str| name.replace('·', "-");
    let bare = without_seed(first);
    if rest.iter().all(|run| without_seed(run) == bare) {
        return clean(bare);
    }
    let common = rest.iter().fold(first.name.as_str(), |common, run| {
        let equal = common.chars().zip(run.name.chars()).take_while(|(a, b)| a == b);
        &common[..equal.map(|(a, _)| a.len_utf8()).sum()]
    });
    let separators = ['-', '_', '.', ' '];
    let common = common.trim_end_matches(separators);
    let common = common.strip_suffix("seed").unwrap_or(common).trim_end_matches(separators);
    let common = common.strip_suffix("-s").unwrap_or(common);
    clean(if common.is_empty() { first.residual() } else { common })
}

/// A run's name without the end that only says its seed.
fn without_seed(run: &Run) -> &str {
    let seeds = [format!("-s{}", run.seed()), format!("-seed{}", run.seed())];
    let bare = seeds.iter().find_map(|seed| run.name.strip_suffix(seed.as_str()));
    bare.filter(|bare| !bare.is_empty()).unwrap_or(&run.name)
}

/// The last evaluation's loss.
pub(super) fn held_out_loss(run: &Run) -> Option<f64> {
    run.evaluations.last()?.loss
}

/// The last evaluation's accuracy.
pub(super) fn accuracy(run: &Run) -> Option<f64> {
    run.evaluations.last()?.accuracy
}

/// How many steps a curve is smoothed over.
pub(super) fn window(run: &Run) -> usize {
    (run.steps.len() / 50).max(1)
}

/// The training loss at the end, smoothed; `None` once it is not finite.
pub(super) fn train_loss(run: &Run) -> Option<f64> {
    run.steps.last()?.loss?;
    smoothed(&losses(run), window(run)).last().copied().filter(|loss| loss.is_finite())
}

pub(super) fn losses(run: &Run) -> Vec<f64> {
    run.steps.iter().map(|step| step.loss.unwrap_or(f64::NAN)).collect()
}

/// Time spent in training after each step, in seconds.
pub(super) fn seconds(run: &Run) -> Vec<f64> {
    let (mut tokens, mut seconds) = (0, 0.0);
    let after = |step: &crate::run::StepPoint| {
        let new = step.tokens.saturating_sub(tokens);
        tokens = step.tokens;
        if let Some(speed) = step.tokens_per_second.filter(|speed| *speed > 0.0) {
            seconds += new as f64 / speed;
        }
        seconds
    };
    run.steps.iter().map(after).collect()
}

/// The median of the steps' speeds.
pub(super) fn speed(run: &Run) -> Option<f64> {
    let mut speeds: Vec<f64> = run.steps.iter().filter_map(|step| step.tokens_per_second).collect();
    speeds.sort_by(f64::total_cmp);
    speeds.get(speeds.len() / 2).copied()
}
