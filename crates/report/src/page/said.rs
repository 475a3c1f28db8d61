//! What was found, in words: never more than the intervals allow.

use super::group::{Group, accuracy};
use super::task::Task;
use super::verdict::{Against, Findings, Row};
use super::words::{count, listed, numeral, p_value};
use crate::run::Status;
use crate::statistics::{SpeedUp, Verdict};

/// A speed-up below this is no news.
const WORTH_SAYING: f64 = 1.05;

/// Findings with what they are about.
pub(super) struct Said<'a> {
    pub(super) groups: &'a [Group],
    pub(super) findings: &'a Findings,
    pub(super) task: &'a Task,
}

impl Said<'_> {
    fn label(&self, row: &Row) -> &str {
        &self.groups[row.group].label
    }

    fn labels(&self, rows: &[&Row]) -> String {
        listed(&rows.iter().map(|row| self.label(row).to_owned()).collect::<Vec<_>>())
    }

    fn baseline(&self) -> &str {
        &self.groups[self.findings.baseline].label
    }

    /// ` on three-hop lookup`, if there is a name for it.
    fn on_task(&self) -> String {
        if self.task.name.is_empty() { String::new() } else { format!(" on {}", self.task.name) }
    }

    /// The answer in one sentence, without a full stop.
    pub(super) fn headline(&self) -> String {
        let with = |verdict| self.findings.with(verdict);
        let (better, worse) = (with(Verdict::Better), with(Verdict::Worse));
        let (level, single) = (with(Verdict::NotDistinguishable), with(Verdict::OneSeed));
        let base = self.baseline();
        let mut parts = Vec::new();
        match &better[..] {
            _ if self.groups.len() == 1 => return self.alone(),
            [] if !worse.is_empty() || !level.is_empty() => {
                return self.none_better(&worse, &level);
            }
            [] if !single.is_empty() => return self.one_seed(),
            [] => return self.not_yet(),
            [first, rest @ ..] => {
                parts.push(self.wins(first));
                if !rest.is_empty() {
                    let verb = if rest.len() == 1 { "is" } else { "are" };
                    parts.push(format!("{} {verb} better than {base}, too", self.labels(rest)));
                }
            }
        }
        if !worse.is_empty() {
            parts.push(format!("{} worse", self.labels(&worse)));
        }
        match level.len() as u64 {
            0 => {}
            1 => parts.push(format!("{}: no difference seen", self.labels(&level))),
            many => parts.push(format!("{} others: no difference seen", numeral(many))),
        }
        if !single.is_empty() {
            parts.push(format!("{}: one seed cannot tell", self.labels(&single)));
        }
        parts.join("; ")
    }

    /// The best one against the baseline.
    fn wins(&self, row: &Row) -> String {
        let (label, base) = (self.label(row), self.baseline());
        let Some(against) = &row.against else { return String::new() };
        let base = if against.baseline == self.findings.baseline {
            base.to_owned()
        } else {
            self.groups[against.baseline].label.clone()
        };
        let what = match self.task.name.as_str() {
            "" => String::new(),
            name => format!(" {name}"),
        };
        let slower = matches!(against.seconds, SpeedUp::Times(times) if times < 1.0);
        match against.tokens {
            SpeedUp::Times(times) if times >= WORTH_SAYING && !slower => {
                format!("{label} learns{what} about {times:.1}x faster than {base}")
            }
            SpeedUp::Times(times) if times >= WORTH_SAYING => {
                format!(
                    "{label} learns{what} from about {times:.1}x fewer tokens than {base}, but not in less time"
                )
            }
            _ => format!(
                "{label} is better than {base}{}: {:.4} nats less {}",
                self.on_task(),
                -against.paired.mean_difference,
                self.findings.metric
            ),
        }
    }

    fn none_better(&self, worse: &[&Row], level: &[&Row]) -> String {
        let (base, on_task) = (self.baseline(), self.on_task());
        match (worse, level) {
            ([], [one]) => {
                format!("No difference seen between {} and {base}{on_task}", self.label(one))
            }
            ([], _) => format!("No difference from {base} seen{on_task}: {}", self.labels(level)),
            (_, []) => {
                format!("Nothing here is better than {base}{on_task}; {} worse", self.are(worse))
            }
            _ => format!(
                "Nothing here is better than {base}{on_task}; {} worse, {}: no difference seen",
                self.are(worse),
                self.labels(level)
            ),
        }
    }

    fn are(&self, rows: &[&Row]) -> String {
        format!("{} {}", self.labels(rows), if rows.len() == 1 { "is" } else { "are" })
    }

    fn one_seed(&self) -> String {
        const LUCK: &str = "one seed cannot tell whether by luck";
        let first = self.findings.rows.first();
        match first.and_then(|row| Some((row, row.against.as_ref()?))) {
            Some((row, against)) if against.verdict == Verdict::OneSeed => format!(
                "{} ends lowest, {:.4} nats below {}{}; {LUCK}",
                self.label(row),
                -against.paired.mean_difference,
                self.groups[against.baseline].label,
                self.on_task()
            ),
            _ => format!("{} ends lowest{}; {LUCK}", self.baseline(), self.on_task()),
        }
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
            self.on_task()
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

    /// Each comparison in a sentence, the best first.
    pub(super) fn sentences(&self) -> Vec<String> {
        let rows = self.findings.rows.iter();
        rows.filter_map(|row| Some(self.sentence(row, row.against.as_ref()?))).collect()
    }

    fn sentence(&self, row: &Row, against: &Against) -> String {
        let (label, metric) = (self.label(row), self.findings.metric);
        let base = &self.groups[against.baseline].label;
        let paired = &against.paired;
        let side = if paired.mean_difference < 0.0 { "below" } else { "above" };
        let size = format!("{:.4} nats {side} {base}", paired.mean_difference.abs());
        let (Some((low, high)), Some(p)) = (paired.interval95, against.p) else {
            return match against.verdict {
                Verdict::NothingToCompare => {
                    format!(
                        "{label} has no finished run with a seed of {base}'s, so they are not compared."
                    )
                }
                _ => format!("{label} ends {size} in {metric}. One seed: no interval."),
            };
        };
        let words = match against.verdict {
            Verdict::Better => format!("{label} is better than {base}"),
            Verdict::Worse => format!("{label} is worse than {base}"),
            _ => format!("{label}: no difference from {base} seen"),
        };
        let corrected = match self.findings.comparisons {
            0 | 1 => String::new(),
            many => format!(" after Holm's correction for {many} comparisons"),
        };
        let mut said = format!(
            "{words}: {size} in {metric} over {} seeds, 95 % interval {low:+.4} to {high:+.4}, {}{corrected}.",
            paired.n,
            p_value(p)
        );
        // A ratio of means that differ by luck alone says nothing.
        if let (Verdict::Better, SpeedUp::Times(times)) = (against.verdict, against.tokens) {
            said += &format!(" It gets as low as {base} ends with {times:.2}x fewer tokens");
            said += &by_seed(&against.by_seed);
            match against.seconds {
                SpeedUp::Times(times) if times >= 1.0 => {
                    said += &format!(" and in {times:.2}x less time");
                }
                SpeedUp::Times(times) => {
                    said += &format!(", but takes {:.2}x as long", times.recip());
                }
                _ => {}
            }
            said.push('.');
        }
        said
    }
}

/// How much the speed-up depends on the seed.
fn by_seed(all: &[SpeedUp]) -> String {
    let times = all.iter().filter_map(|one| match one {
        SpeedUp::Times(times) => Some(*times),
        _ => None,
    });
    let mut times: Vec<f64> = times.collect();
    times.sort_by(f64::total_cmp);
    let ([low, .., high], reached) = (&times[..], times.len()) else { return String::new() };
    let missed = match all.len() - reached {
        0 => String::new(),
        missed => format!(", and {missed} of {} never", all.len()),
    };
    format!(" (seed by seed {low:.2}x to {high:.2}x{missed})")
}

fn is_or_are(names: &[String]) -> String {
    format!("{} {}", listed(names), if names.len() == 1 { "is" } else { "are" })
}
