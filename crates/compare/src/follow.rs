//! Results while a suite goes on, from the runs that have ended.

use super::earlier::Earlier;
use super::execute::{End, Progress, Task, Watch};
use super::folder::SuiteFolder;
use super::plan::PlannedRun;
use super::results::{Results, RunResult};
use super::suite::Suite;

/// Hands on all reports, and the results so far with each run that has ended.
pub(crate) struct Follow<'a> {
    suite: &'a Suite,
    folder: &'a SuiteFolder,
    plan: &'a [PlannedRun],
    runs: Vec<RunResult>,
    watch: &'a mut dyn Watch,
}

impl<'a> Follow<'a> {
    pub(crate) fn new(
        suite: &'a Suite,
        folder: &'a SuiteFolder,
        plan: &'a [PlannedRun],
        watch: &'a mut dyn Watch,
    ) -> Self {
        let runs = plan.iter().map(RunResult::unknown).collect();
        Self { suite, folder, plan, runs, watch }
    }

    /// Goes on with a plan that begins with the one so far.
    pub(crate) fn extend(&mut self, plan: &'a [PlannedRun]) {
        self.runs.extend(plan.iter().skip(self.plan.len()).map(RunResult::unknown));
        self.plan = plan;
    }
}

impl Watch for Follow<'_> {
    fn earlier(&mut self, earlier: &Earlier) {
        self.watch.earlier(earlier);
    }

    fn waiting(&mut self, runs: &[(String, String)]) {
        self.watch.waiting(runs);
    }

    fn looked(&mut self, seeds: usize, open: usize, next: Option<usize>) {
        self.watch.looked(seeds, open, next);
    }

    fn progress(&mut self, progress: &Progress) {
        self.watch.progress(progress);
    }

    fn ended(&mut self, task: &Task, end: &End) {
        self.watch.ended(task, end);
        if let Some(at) = self.plan.iter().position(|planned| planned.name == task.name) {
            self.runs[at] = RunResult::read(self.folder, &self.plan[at], end);
            self.watch.so_far(&Results::of(self.suite, self.plan, self.runs.clone(), 0));
        }
    }
}
