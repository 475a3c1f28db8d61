//! Groups against their baseline, in numbers.

use super::comparable::section;
use super::curves;
use super::group::{Group, held_out_loss, train_loss};
use super::settings::differing;
use super::task::Task;
use crate::comparison::{Comparison, Found};
use crate::run::Run;
use crate::statistics::{
    Curve, Paired, Power, SpeedUp, Summary, Taken, Verdict, equal_loss_speedup, judge, paired,
    summary,
};

/// What was compared, the best first.
pub(super) struct Findings {
    /// `held-out loss` or `training loss`.
    pub(super) metric: &'static str,
    /// The group that others are compared with; a suite that goes through depths has one for each.
    pub(super) baseline: usize,
    /// One for each group.
    pub(super) rows: Vec<Row>,
    /// The looks, if a suite planned several.
    looks: Option<Taken>,
}

/// A group beside its baseline.
pub(super) struct Row {
    /// Its place among the groups.
    pub(super) group: usize,
    /// Blocks, if there are several depths.
    pub(super) depth: Option<usize>,
    /// The metric over seeds that count, or over whatever there is if none does.
    pub(super) summary: Summary,
    /// `None` for a baseline.
    pub(super) against: Option<Against>,
}

/// A group against its baseline, over the seeds that both have.
pub(super) struct Against {
    /// The baseline's place among the groups.
    pub(super) baseline: usize,
    pub(super) paired: Paired,
    /// The differences of each seed.
    differences: Vec<(u64, f64)>,
    /// Corrected for all comparisons.
    pub(super) p: Option<f64>,
    pub(super) verdict: Verdict,
    power: Option<Power>,
    /// How many times fewer tokens lead to the baseline's last loss, and how many times less time.
    pub(super) tokens: SpeedUp,
    pub(super) seconds: SpeedUp,
    /// The same in tokens for each seed.
    pub(super) by_seed: Vec<SpeedUp>,
}

impl Row {
    pub(super) fn verdict(&self) -> Option<Verdict> {
        self.against.as_ref().map(|against| against.verdict)
    }

    /// Whether it is better than its baseline by more than luck.
    pub(super) fn is_better(&self) -> bool {
        self.verdict() == Some(Verdict::Better)
    }
}

impl Findings {
    /// Compares groups; `baseline` is the label of a suite's, and `looks` are those that it planned.
    pub(super) fn of(groups: &[Group], baseline: Option<&str>, looks: Option<&Taken>) -> Self {
        let evaluated =
            groups.iter().all(|group| group.runs.iter().any(|run| held_out_loss(run).is_some()));
        let (metric, get): (_, fn(&Run) -> Option<f64>) = match evaluated {
            true => ("held-out loss", held_out_loss),
            false => ("training loss", train_loss),
        };
        let baseline = chosen(groups, baseline);
        let mut rows: Vec<Row> = (0..groups.len())
            .map(|i| Row {
                group: i,
                depth: groups[i].depth,
                summary: at_the_end(&groups[i], get),
                against: opponent(groups, baseline, i)
                    .map(|base| Against::of(&groups[i], base, &groups[base], get)),
            })
            .collect();
        let mut against: Vec<&mut Against> =
            rows.iter_mut().filter_map(|row| row.against.as_mut()).collect();
        let all: Vec<_> =
            against.iter().map(|against| (&against.paired, &against.differences[..])).collect();
        let judged = judge(&all, looks);
        for (against, judged) in against.iter_mut().zip(judged) {
            (against.p, against.verdict, against.power) = (judged.p, judged.verdict, judged.power);
            against.paired.interval95 = judged.interval95;
        }
        // Depth by depth. What cannot be compared comes last. Of those that end level the baseline is first: none has
        // beaten it.
        let counts = |row: &Row| groups[row.group].runs.iter().any(Run::is_comparable);
        rows.sort_by(|a, b| {
            let rank = |row: &Row| (!counts(row) || row.summary.n == 0, row.against.is_some());
            let ((a_last, a_other), (b_last, b_other)) = (rank(a), rank(b));
            let means = a.summary.mean.total_cmp(&b.summary.mean);
            a.depth.cmp(&b.depth).then(a_last.cmp(&b_last)).then(means).then(a_other.cmp(&b_other))
        });
        Self { metric, baseline, rows, looks: looks.cloned() }
    }

    /// Whether it is the best of those at its depth that are better than their baseline.
    pub(super) fn is_best(&self, row: &Row) -> bool {
        let mut better =
            self.rows.iter().filter(|other| other.depth == row.depth && other.is_better());
        better.next().is_some_and(|best| best.group == row.group)
    }

    /// The same for words.
    pub(super) fn comparison(&self, groups: &[Group], task: &Task) -> Comparison {
        let found = |row: &Row| {
            let against = row.against.as_ref()?;
            let group = &groups[row.group];
            Some(Found {
                policy: group.policy.clone(),
                depth: group.depth,
                baseline: groups[against.baseline].policy.clone(),
                paired: against.paired,
                p: against.p,
                verdict: against.verdict,
                power: against.power,
                tokens: against.tokens,
                seconds: against.seconds,
                by_seed: against.by_seed.clone(),
            })
        };
        Comparison {
            metric: self.metric.into(),
            task: task.name.clone(),
            baseline: groups[self.baseline].policy.clone(),
            found: self.rows.iter().filter_map(found).collect(),
            looks: self.looks.clone(),
        }
    }
}

impl Against {
    fn of(group: &Group, baseline: usize, base: &Group, get: fn(&Run) -> Option<f64>) -> Self {
        // A run that is not done has not had the same budget, and damaged numbers are none.
        let counts = |run: &&Run| run.is_comparable() && get(run).is_some_and(f64::is_finite);
        // The same seed has the same data and the same start.
        let pairs: Vec<(&Run, &Run)> = group
            .runs
            .iter()
            .filter(counts)
            .filter_map(|run| {
                let mut others = base.runs.iter().filter(counts);
                Some((run, others.find(|other| other.seed() == run.seed())?))
            })
            .collect();
        let (mine, theirs): (Vec<f64>, Vec<f64>) =
            pairs.iter().filter_map(|(run, other)| Some((get(run)?, get(other)?))).unzip();
        let speed_up = |pairs: &[(&Run, &Run)], by: &str| {
            let (mine, theirs): (Vec<&Run>, Vec<&Run>) = pairs.iter().copied().unzip();
            let (x, loss) = curves::held_out(&mine, by);
            let (base_x, base_loss) = curves::held_out(&theirs, by);
            let base = Curve { x: &base_x, loss: &base_loss };
            equal_loss_speedup(base, Curve { x: &x, loss: &loss }, 1)
        };
        let seeds = pairs.iter().filter_map(|(run, _)| u64::try_from(run.seed()).ok());
        let by_seed = mine.iter().zip(&theirs).map(|(mine, theirs)| mine - theirs);
        Self {
            baseline,
            paired: paired(&mine, &theirs, 0),
            differences: seeds.zip(by_seed).collect(),
            power: None,
            p: None,
            verdict: Verdict::NothingToCompare,
            tokens: speed_up(&pairs, "tokens"),
            seconds: speed_up(&pairs, "seconds"),
            by_seed: pairs.iter().map(|pair| speed_up(&[*pair], "tokens")).collect(),
        }
    }
}

/// The group that others are compared with: the suite's, else the usual stream, else the first.
fn chosen(groups: &[Group], baseline: Option<&str>) -> usize {
    let named = baseline.and_then(|name| groups.iter().position(|group| group.policy == name));
    let usual = || groups.iter().position(|group| group.first().residual() == "prenorm");
    named.or_else(usual).unwrap_or(0)
}

/// What a group is compared with: the baseline of its depth. A baseline has none.
fn opponent(groups: &[Group], baseline: usize, i: usize) -> Option<usize> {
    let depth = |group: &Group| section(group.first(), "model").get("n_layers").cloned();
    let kind = |group: &Group| {
        let of = |table: &str, key: &str| section(group.first(), table).get(key).cloned();
        let memory = ["depth_kv", "value_residual"].map(|key| of("model", key));
        (section(group.first(), "residual"), of("train", "precision"), memory)
    };
    let of_depth = |group: &Group| depth(group) == depth(&groups[i]);
    let is_like = |group: &Group| kind(group) == kind(&groups[baseline]) && of_depth(group);
    // Variants of one policy may differ in more than their stream, but not in their name.
    let is_named = |group: &Group| group.policy == groups[baseline].policy && of_depth(group);
    let mine = match of_depth(&groups[baseline]) {
        true => Some(baseline),
        false => groups.iter().position(is_named).or_else(|| groups.iter().position(is_like)),
    };
    let base = mine.unwrap_or(baseline);
    (base != i && i != baseline).then_some(base)
}

/// Over runs that count, else over all that have numbers.
fn at_the_end(group: &Group, get: fn(&Run) -> Option<f64>) -> Summary {
    let of = |counts: fn(&Run) -> bool| -> Vec<f64> {
        group.runs.iter().filter(|run| counts(run)).filter_map(get).collect()
    };
    let done = of(Run::is_comparable);
    if done.is_empty() { summary(&of(|_| true)) } else { summary(&done) }
}

/// A warning if runs differ in more than what is compared.
pub(super) fn unfair(groups: &[Group]) -> Option<String> {
    let settings: Vec<_> = groups.iter().map(|group| group.first().settings.clone()).collect();
    let fair = |key: &String| {
        let kept = ["seed", "train.nag_alpha_warmup", "optimizer.nag_gate_slowdown"];
        kept.contains(&key.as_str()) || key.starts_with("residual.")
    };
    let other: Vec<String> = differing(&settings).into_iter().filter(|key| !fair(key)).collect();
    let words = other.join(", ");
    (!other.is_empty()).then(|| {
        format!("Take care: these runs differ in more than their residual stream ({words}), so a difference may come from there.")
    })
}
