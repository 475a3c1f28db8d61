//! What is said of runs beside their comparison: nothing to compare, a single group, what is left out.

use super::group::{Group, accuracy};
use super::task::Task;
use super::verdict::Findings;
use crate::run::Status;
use crate::words::{count, listed};

/// Findings with what they are about.
pub(super) struct Said<'a> {
    pub(super) groups: &'a [Group],
    pub(super) findings: &'a Findings,
    pub(super) task: &'a Task,
}

impl Said<'_> {
    /// The answer in one sentence, without a full stop.
    pub(super) fn headline(&self) -> String {
        if self.groups.len() == 1 {
            return self.alone();
        }
        let compared = self.findings.comparison(self.groups, self.task).headline();
        compared.unwrap_or_else(|| self.not_yet())
    }

    /// Each comparison in a sentence, the best first.
    pub(super) fn sentences(&self) -> Vec<String> {
        self.findings.comparison(self.groups, self.task).sentences()
    }

    /// What these comparisons are worth.
    pub(super) fn beside(&self) -> Vec<String> {
        self.findings.comparison(self.groups, self.task).beside()
    }

    /// Nothing is compared, and why.
    fn not_yet(&self) -> String {
        let runs = || self.groups.iter().flat_map(|group| &group.runs);
        let (done, all) = (runs().filter(|run| run.is_comparable()).count(), runs().count());
        let running = runs().filter(|run| run.status == Status::Running).count();
        match (done, running) {
            (done, 0) if done == all => "No two runs here share a seed, so none is compared".into(),
            (done, 0) => {
                format!("No comparison: {done} of {} are done and whole", count(all, "run"))
            }
            (done, _) => format!("No comparison yet: {done} of {} are done", count(all, "run")),
        }
    }

    /// A single group.
    fn alone(&self) -> String {
        let group = &self.groups[0];
        let (label, run) = (&group.label, group.first());
        let Some(row) = self.findings.rows.first().filter(|row| row.summary.n > 0) else {
            return match run.status {
                Status::Running => format!("{label} has begun; nothing is measured yet"),
                _ => format!("{label} has no loss that can be read"),
            };
        };
        let mut said = format!(
            "{label}: {} of {:.4} nats{}",
            self.findings.metric,
            row.summary.mean,
            if self.task.name.is_empty() {
                String::new()
            } else {
                format!(" on {}", self.task.name)
            }
        );
        if let Some(share) = group.runs.iter().map(accuracy).collect::<Option<Vec<f64>>>() {
            let mean = share.iter().sum::<f64>() / share.len() as f64;
            said += &format!(", {:.0} % right", 100.0 * mean);
        }
        let step = run.steps.last().map_or(0, |step| step.step);
        match run.status {
            _ if group.runs.len() > 1 => {
                said += &format!(" (mean of {})", count(row.summary.n, "seed"))
            }
            Status::Running => said += &format!(" at step {step}; it is still running"),
            Status::Stopped => said += &format!(" at step {step}, where it stopped"),
            Status::Failed => said += &format!("; it failed at step {step}"),
            Status::Done if !run.is_whole => said += ", as far as its files can be read",
            Status::Done => {}
        }
        said
    }

    /// What takes no part in the verdict, and why.
    pub(super) fn left_out(&self) -> Vec<String> {
        let of = |status: Status| -> Vec<String> {
            let runs = self.groups.iter().flat_map(|group| &group.runs);
            runs.filter(|run| run.status == status).map(|run| run.name.clone()).collect()
        };
        if self.groups.len() == 1 {
            return Vec::new();
        }
        let words = [
            (Status::Running, "still running, so not compared yet"),
            (Status::Stopped, "stopped early, so not compared"),
            (Status::Failed, "failed: not finite, so not compared"),
        ];
        let said = words.into_iter().map(|(status, words)| (of(status), words));
        said.filter(|(names, _)| !names.is_empty())
            .map(|(names, words)| format!("{} {words}.", is_or_are(&names)))
            .collect()
    }
}

fn is_or_are(names: &[String]) -> String {
    format!("{} {}", listed(names), if names.len() == 1 { "is" } else { "are" })
}
