//! `seeds = "until decided"`: looks that are planned before the first run, and runs until every comparison is decided.
//!
//! Runs go look by look. The first look is taken when all runs of its seeds have ended, and so on; the suite ends at the
//! first look at which no comparison is open, or with the most seeds. Each look is a function of its seeds' runs alone,
//! so a suite that was killed takes the same looks again and ends at the same one.

use super::error::CompareError;
use super::execute::{End, Progress, Task, Watch, Work, execute};
use super::folder::SuiteFolder;
use super::follow::Follow;
use super::plan::PlannedRun;
use super::results::Results;
use super::suite::{Suite, refused};
use hadal_report::statistics::{Rule, Spending, Verdict};
use serde::Deserialize;
use toml::{Table, Value};

/// What `seeds` says instead of a list.
const UNTIL: &str = "until decided";

/// `[looks]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LooksSection {
    /// The first seed.
    seed: i64,
    /// Seeds before the first look.
    first: usize,
    /// Seeds between looks.
    every: usize,
    /// The most seeds.
    most: usize,
    /// The chance of even one false discovery.
    alpha: f64,
    /// How it is spent.
    spending: Spending,
}

impl Default for LooksSection {
    fn default() -> Self {
        Self { seed: 0, first: 4, every: 2, most: 12, alpha: 0.05, spending: Spending::Pocock }
    }
}

/// Whether seeds are added until all is decided. Takes the text away, where a list is read.
pub(super) fn until_decided(head: &mut Table, origin: &str) -> Result<bool, CompareError> {
    match head.get("seeds") {
        Some(Value::String(text)) if text == UNTIL => Ok(head.remove("seeds").is_some()),
        Some(Value::String(other)) => {
            let problem = format!("is \"{other}\"; write a list such as [0, 1, 2], or \"{UNTIL}\"");
            Err(refused(origin, "seeds", problem))
        }
        _ => Ok(false),
    }
}

/// The looks of a suite.
pub(super) fn rule(
    until_decided: bool,
    section: Option<LooksSection>,
    origin: &str,
) -> Result<Option<Rule>, CompareError> {
    let section = match (until_decided, section) {
        (false, None) => return Ok(None),
        (false, Some(_)) => {
            let problem = format!("needs seeds = \"{UNTIL}\"; leave out one of them");
            return Err(refused(origin, "looks", problem));
        }
        (true, section) => section.unwrap_or_default(),
    };
    let refuse = |key: &str, problem: String| refused(origin, &format!("looks.{key}"), problem);
    let LooksSection { seed, first, every, most, alpha, spending } = section;
    let last = i64::try_from(most).ok().and_then(|most| seed.checked_add(most));
    if seed < 0 || last.is_none() {
        return Err(refuse("seed", format!("is {seed}; a seed is zero or positive")));
    }
    if every == 0 {
        return Err(refuse("every", "is 0; write the number of seeds between looks".into()));
    }
    if most < first {
        return Err(refuse(
            "most",
            format!("is {most}, but the first look is after {first} seeds"),
        ));
    }
    // The bounds, before there is a list.
    let ends = if first == most { vec![first] } else { vec![first, most] };
    let ends = Rule { first: seed as u64, looks: ends, alpha, spending };
    ends.check().map_err(|(key, problem)| refuse(key, problem))?;
    let between = (first..most).step_by(every);
    Ok(Some(Rule { looks: between.chain([most]).collect(), ..ends }))
}

/// Runs that are needed at least, if so many are done: those of all seeds, or up to the next look.
pub(super) fn needed(suite: &Suite, plan: &[PlannedRun], done: usize) -> usize {
    let Some(rule) = &suite.rule else { return plan.len() };
    let of_seed = plan.len() / rule.most().max(1);
    let mut looks = rule.looks.iter().map(|seeds| seeds * of_seed);
    looks.find(|&runs| runs >= done).unwrap_or(plan.len())
}

/// Makes the runs of a plan, as many as its looks need. Returns how they ended, and how many looks were taken.
pub(super) fn make(
    suite: &Suite,
    folder: &SuiteFolder,
    plan: &[PlannedRun],
    work: &Work<'_>,
    watch: &mut dyn Watch,
) -> Result<(Vec<End>, usize), CompareError> {
    let Some(rule) = &suite.rule else {
        let tasks = folder.tasks(plan);
        let mut follow = Follow::new(suite, folder, plan, watch);
        return Ok((execute(&tasks, work, &folder.claims, &mut follow)?, 0));
    };
    let of_seed = plan.len() / rule.most().max(1);
    let mut follow = Follow::new(suite, folder, &[], watch);
    let mut ends = Vec::new();
    for (at, &seeds) in rule.looks.iter().enumerate() {
        let (before, all) = (ends.len(), (of_seed * seeds).min(plan.len()));
        follow.extend(&plan[..all]);
        let tasks = folder.tasks(&plan[before..all]);
        let mut stage = Stage { watch: &mut follow, before, all };
        ends.extend(execute(&tasks, work, &folder.claims, &mut stage)?);
        let results = Results::read(suite, folder, &plan[..all], &ends, at + 1);
        // A process that failed is no finding: its run is made again before anybody looks.
        if !results.is_whole() {
            return Ok((ends, at));
        }
        let open = results.open();
        follow.looked(seeds, open, rule.looks.get(at + 1).copied());
        if open == 0 {
            return Ok((ends, at + 1));
        }
    }
    Ok((ends, rule.looks.len()))
}

impl Results {
    /// Comparisons that further seeds may decide. A variant that has diverged with every seed so far has no difference
    /// to wait for.
    fn open(&self) -> usize {
        let against = self.cells.iter().filter_map(|cell| cell.against.as_ref());
        against.filter(|against| against.verdict == Verdict::Undecided).count()
    }
}

/// Runs up to one look, as a part of all that were needed so far.
struct Stage<'a> {
    watch: &'a mut dyn Watch,
    before: usize,
    all: usize,
}

impl Watch for Stage<'_> {
    fn waiting(&mut self, runs: &[(String, String)]) {
        self.watch.waiting(runs);
    }

    fn progress(&mut self, progress: &Progress) {
        // All seeds cost the same.
        let (before, all) = (self.before as f64, self.all.max(1) as f64);
        self.watch.progress(&Progress {
            share: (before + progress.share * (all - before)) / all,
            ended: self.before + progress.ended,
            runs: self.all,
            running: progress.running.clone(),
        });
    }

    fn ended(&mut self, task: &Task, end: &End) {
        self.watch.ended(task, end);
    }
}
