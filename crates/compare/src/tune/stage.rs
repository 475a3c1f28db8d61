//! Tuning at work: round after round in the same pool as the suite's own runs.

use super::choice::ranked;
use super::grid::GridPoint;
use super::plan::Search;
use super::results::{TunedPoint, TunedVariant, Tuning, spent};
use super::section::Tune;
use super::{FILE, FOLDER};
use crate::earlier::{self, Earlier};
use crate::error::CompareError;
use crate::execute::{End, Progress, Task, Watch, Work, execute};
use crate::folder::{SuiteFolder, check, write_json};
use crate::halt::Halt;
use crate::plan::{Pace, PlannedRun};
use crate::results::{Results, RunResult};
use crate::suite::Suite;
use hadal_files::create_directory;
use hadal_report::suite::SuiteTable;

/// A suite whose variants have found their settings.
pub(crate) struct Tuned {
    pub(crate) suite: Suite,
    pub(crate) tuning: Option<Tuning>,
    /// What is left of the work.
    pub(crate) rest: Part,
}

/// Tunes every variant. A suite without `[tune]` stays as it is.
pub(crate) fn tuned(
    suite: &Suite,
    folder: &SuiteFolder,
    work: &Work<'_>,
    watch: &mut dyn Watch,
) -> Result<Tuned, Halt> {
    let Some(tune) = &suite.tune else {
        return Ok(Tuned { suite: suite.clone(), tuning: None, rest: Part::ALL });
    };
    let pace = folder.pace_of(suite, work, watch)?;
    for part in ["", "settings", "logs"].into_iter().filter(|_| !folder.only_looks()) {
        create_directory(&folder.path().join(part).join(FOLDER))?;
    }
    let flops = suite.budget_flops()?;
    let mut part = Part::of(suite, &pace)?;
    let mut searches: Vec<(Search, Vec<usize>, Vec<TunedPoint>)> = suite
        .searches()
        .into_iter()
        .map(|search| {
            let all = (0..search.points.len()).collect();
            (search, all, Vec::new())
        })
        .collect();
    let mut planned_flops = 0.0;
    let mut before = Earlier::default();
    for round in 1..=tune.rounds {
        let mut runs: Vec<(usize, usize, PlannedRun)> = Vec::new();
        for (at, (search, left, _)) in searches.iter().enumerate() {
            let cell = (&suite.variants[search.variant], search.depth);
            for &point in left {
                let of = suite.tuning_runs(cell, &search.points[point], round, flops, &pace)?;
                runs.extend(of.into_iter().map(|run| (at, point, run)));
            }
        }
        if runs.is_empty() {
            break;
        }
        runs.sort_by_key(|(.., run)| tune.seeds.iter().position(|seed| *seed == run.seed));
        let plan: Vec<PlannedRun> = runs.iter().map(|(.., run)| run.clone()).collect();
        plan.iter().try_for_each(|run| check(&place(folder, run), &run.config))?;
        let now = earlier::now(suite, &plan)?;
        let beside = folder.path().join(FOLDER);
        let there = if beside.is_dir() { SuiteTable::runs_in(&beside)? } else { Vec::new() };
        let found = earlier::earlier(there, &plan, &now)?;
        watch.said(&opening(tune, round, &plan, &found));
        found.warnings.iter().for_each(|warning| watch.said(&format!("warning: {warning}")));
        add(&mut before, found);
        let tasks: Vec<Task> = plan.iter().map(|run| folder.task(run, FOLDER, FOLDER)).collect();
        let own: f64 = tasks.iter().map(|task| task.work).sum();
        part.own = own;
        let ends = execute(&tasks, work, &folder.claims, &mut Whole { watch: &mut *watch, part })?;
        if work.is_stopped() {
            return Err(Halt::Stopped);
        }
        // A choice needs the ends of all.
        let elsewhere = ends.iter().any(|end| matches!(end, End::Elsewhere(_)));
        if elsewhere || folder.only_looks() && ends.contains(&End::Stopped) {
            return Err(Halt::Missing(Halt::left(&plan, &ends)));
        }
        if let Some(at) = ends.iter().position(|end| *end == End::Stopped) {
            return Err(CompareError::TuningStopped { run: plan[at].name.clone() }.into());
        }
        part.before += own;
        part.ended += plan.len();
        planned_flops += plan.iter().map(PlannedRun::flops).sum::<f64>();
        let results: Vec<RunResult> = plan
            .iter()
            .zip(&ends)
            .map(|(run, end)| RunResult::read_at(&place(folder, run), run, end))
            .collect();
        for (at, (search, left, points)) in searches.iter_mut().enumerate() {
            let measured: Vec<TunedPoint> = left
                .iter()
                .map(|&point| {
                    let mine =
                        runs.iter().zip(&results).filter(|((s, p, _), _)| (*s, *p) == (at, point));
                    let mine = mine.map(|((.., run), result)| {
                        (run, result.clone(), spent(&place(folder, run), run, result))
                    });
                    TunedPoint::of(&search.points[point], round, mine.collect())
                })
                .collect();
            let losses: Vec<Option<f64>> = measured.iter().map(|point| point.loss).collect();
            let best = ranked(&losses);
            let mut on: Vec<usize> =
                best.into_iter().take(tune.survivors(left.len())).map(|at| left[at]).collect();
            on.sort_unstable();
            *left = on;
            points.extend(measured);
        }
    }
    let mut variants: Vec<TunedVariant> = searches
        .into_iter()
        .map(|(search, _, points)| TunedVariant::of(suite, &search, points))
        .collect();
    let place_of = |name: &str| suite.variants.iter().position(|variant| variant.name == name);
    variants.sort_by_key(|tuned| (tuned.depth, place_of(&tuned.variant)));
    let tuning = gathered(suite, tune, variants, planned_flops, before);
    if !folder.only_looks() {
        folder.write_alone(work, watch, |_| {
            Ok::<_, Halt>(write_json(&folder.path().join(FILE), &tuning)?)
        })?;
    }
    tuning.choices().iter().for_each(|sentence| watch.said(sentence));
    let mut chosen = suite.clone();
    for tuned in &tuning.variants {
        if let Some(point) = &tuned.chosen {
            let point: GridPoint = point.clone();
            chosen = chosen.with_choice(&tuned.variant, tuned.depth, point);
        }
    }
    part.own = part.total - part.before;
    Ok(Tuned { suite: chosen, tuning: Some(tuning), rest: part })
}

/// The folder of a tuning run.
fn place(folder: &SuiteFolder, run: &PlannedRun) -> std::path::PathBuf {
    folder.path().join(FOLDER).join(&run.name)
}

fn add(all: &mut Earlier, more: Earlier) {
    all.done += more.done;
    all.runs += more.runs;
    for (by, count) in more.by {
        match all.by.iter_mut().find(|(other, _)| *other == by) {
            Some((_, known)) => *known += count,
            None => all.by.push((by, count)),
        }
    }
    for warning in more.warnings {
        if !all.warnings.contains(&warning) {
            all.warnings.push(warning);
        }
    }
}

fn opening(tune: &Tune, round: usize, plan: &[PlannedRun], found: &Earlier) -> String {
    let round = match tune.rounds {
        1 => "tuning".to_owned(),
        rounds => format!("tuning, round {round} of {rounds}"),
    };
    let steps = plan.iter().map(|run| run.steps).min().unwrap_or(0);
    let most = plan.iter().map(|run| run.steps).max().unwrap_or(0);
    let steps = if steps == most { steps.to_string() } else { format!("{steps} to {most}") };
    format!("{round}: {} runs of {steps} steps; {}", plan.len(), found.sentence())
}

fn gathered(
    suite: &Suite,
    tune: &Tune,
    variants: Vec<TunedVariant>,
    planned_flops: f64,
    earlier: Earlier,
) -> Tuning {
    let mut all = super::results::Spent::default();
    variants.iter().for_each(|tuned| all += tuned.spent);
    let is_untuned = |name: &&String| variants.iter().all(|tuned| tuned.variant != **name);
    let names = suite.variants.iter().map(|variant| &variant.name);
    Tuning {
        seeds: tune.seeds.clone(),
        per: tune.per,
        depth: tune.depth,
        share: tune.share,
        rounds: tune.rounds,
        keep: tune.keep,
        runs: variants.iter().map(|tuned| tuned.runs().count()).sum(),
        planned_flops,
        spent: all,
        untuned: names.filter(is_untuned).cloned().collect(),
        variants,
        earlier,
    }
}

/// A part of all work: tuning's rounds, then the table's runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Part {
    /// Work that was done before this part.
    before: f64,
    /// Work of this part.
    own: f64,
    total: f64,
    /// Runs that ended before this part.
    ended: usize,
    /// All runs; none if this part is all there is.
    runs: Option<usize>,
}

impl Part {
    /// There is nothing before and nothing behind.
    pub(crate) const ALL: Self = Self { before: 0.0, own: 1.0, total: 1.0, ended: 0, runs: None };

    fn of(suite: &Suite, pace: &Pace) -> Result<Self, CompareError> {
        let tuning = suite.tuning(pace)?;
        let last = suite.plan(pace)?;
        let runs = tuning.iter().flat_map(|round| &round.runs).chain(&last);
        let total = runs.clone().map(PlannedRun::flops).sum();
        Ok(Self { before: 0.0, own: 0.0, total, ended: 0, runs: Some(runs.count()) })
    }

    /// The progress of this part as that of all work.
    fn whole(&self, progress: &Progress) -> Progress {
        let Some(runs) = self.runs else { return progress.clone() };
        let share = (self.before + self.own * progress.share) / self.total;
        Progress {
            share: if share.is_finite() { share.clamp(0.0, 1.0) } else { 1.0 },
            ended: self.ended + progress.ended,
            // Points that failed do not go on, so that there may be fewer.
            runs: runs.max(self.ended + progress.runs),
            running: progress.running.clone(),
        }
    }
}

/// Hands on all reports of a part, with the progress of all work.
pub(crate) struct Whole<'a> {
    pub(crate) watch: &'a mut dyn Watch,
    pub(crate) part: Part,
}

impl Watch for Whole<'_> {
    fn earlier(&mut self, earlier: &Earlier) {
        self.watch.earlier(earlier);
    }

    fn said(&mut self, sentence: &str) {
        self.watch.said(sentence);
    }

    fn waiting(&mut self, runs: &[(String, String)]) {
        self.watch.waiting(runs);
    }

    fn progress(&mut self, progress: &Progress) {
        self.watch.progress(&self.part.whole(progress));
    }

    fn ended(&mut self, task: &Task, end: &End) {
        self.watch.ended(task, end);
    }

    fn looked(&mut self, seeds: usize, open: usize, next: Option<usize>) {
        self.watch.looked(seeds, open, next);
    }

    fn so_far(&mut self, results: &Results) {
        self.watch.so_far(results);
    }
}
