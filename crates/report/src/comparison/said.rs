//! What was found, in words: never more than the intervals allow.

use super::{Comparison, Found};
use crate::statistics::{SpeedUp, Verdict};
use crate::words::{count, listed, numeral, p_value};

/// A speed-up below this is no news.
const WORTH_SAYING: f64 = 1.05;

impl Comparison {
    /// The answer in one sentence, without a full stop; `None` if nothing could be compared.
    pub fn headline(&self) -> Option<String> {
        let answer = self.answer()?;
        let all = self.found.iter();
        let left: Vec<&Found> =
            all.filter(|found| found.verdict == Verdict::NothingToCompare).collect();
        match &left[..] {
            [] => Some(answer),
            left => Some(format!("{answer}; {} not compared", are(left))),
        }
    }

    /// The same without those that could not be compared.
    fn answer(&self) -> Option<String> {
        let all = self.best_first();
        let with = |verdict| -> Vec<&Found> {
            all.iter().copied().filter(|found| found.verdict == verdict).collect()
        };
        let (better, mut worse) = (with(Verdict::Better), with(Verdict::Worse));
        // The worst is named first.
        worse.reverse();
        let level =
            all.iter().copied().filter(|found| found.verdict.is_level()).collect::<Vec<_>>();
        let single = with(Verdict::OneSeed);
        let mut parts = Vec::new();
        match &better[..] {
            [] if !worse.is_empty() || !level.is_empty() => {
                return Some(self.none_better(&worse, &level));
            }
            [] => return single.first().map(|first| self.one_seed(first)),
            [first, rest @ ..] => {
                parts.push(self.wins(first));
                if !rest.is_empty() {
                    let same = rest.iter().all(|found| found.baseline == first.baseline);
                    let base = if same { &first.baseline } else { "their baselines" };
                    parts.push(format!("{} better than {base}, too", are(rest)));
                }
            }
        }
        if !worse.is_empty() {
            parts.push(format!("{} worse", are(&worse)));
        }
        match level.len() as u64 {
            0 => {}
            1 => parts.push(format!("{}: no difference seen", names(&level))),
            many => parts.push(format!("{} others: no difference seen", numeral(many))),
        }
        if !single.is_empty() {
            parts.push(format!("{}: one seed cannot tell", names(&single)));
        }
        Some(parts.join("; "))
    }

    /// Each comparison in a sentence, the best first and those without numbers last.
    pub fn sentences(&self) -> Vec<String> {
        self.best_first().into_iter().map(|found| self.sentence(found)).collect()
    }

    /// The lowest difference first; what has none comes last.
    fn best_first(&self) -> Vec<&Found> {
        let mut all: Vec<&Found> = self.found.iter().collect();
        all.sort_by(|a, b| {
            let key = |found: &Found| (found.paired.n == 0, found.paired.mean_difference);
            let ((a_last, a), (b_last, b)) = (key(a), key(b));
            a_last.cmp(&b_last).then(a.total_cmp(&b))
        });
        all
    }

    /// ` on three-hop lookup`, if there is a name for it.
    fn on_task(&self) -> String {
        if self.task.is_empty() { String::new() } else { format!(" on {}", self.task) }
    }

    /// The best one against the baseline.
    fn wins(&self, found: &Found) -> String {
        let (name, base) = (found.name(), &found.baseline);
        let what = if self.task.is_empty() { String::new() } else { format!(" {}", self.task) };
        let slower = matches!(found.seconds, SpeedUp::Times(times) if times < 1.0);
        match found.tokens {
            SpeedUp::Times(times) if times >= WORTH_SAYING && !slower => {
                format!("{name} learns{what} about {times:.1}x faster than {base}")
            }
            SpeedUp::Times(times) if times >= WORTH_SAYING => {
                format!(
                    "{name} learns{what} from about {times:.1}x fewer tokens than {base}, but not in less time"
                )
            }
            _ => format!(
                "{name} is better than {base}{}: {:.4} nats less {}",
                self.on_task(),
                -found.paired.mean_difference,
                self.metric
            ),
        }
    }

    fn none_better(&self, worse: &[&Found], level: &[&Found]) -> String {
        let (base, on_task) = (&self.baseline, self.on_task());
        match (worse, level) {
            ([], [one]) => {
                format!("No difference seen between {} and {base}{on_task}", one.name())
            }
            ([], _) => format!("No difference from {base} seen{on_task}: {}", names(level)),
            (_, []) => {
                format!("Nothing here is better than {base}{on_task}; {} worse", are(worse))
            }
            _ => format!(
                "Nothing here is better than {base}{on_task}; {} worse, {}: no difference seen",
                are(worse),
                names(level)
            ),
        }
    }

    /// All have one seed; `first` ends lowest of those that are compared.
    fn one_seed(&self, first: &Found) -> String {
        const LUCK: &str = "one seed cannot tell whether by luck";
        let (base, on_task) = (&first.baseline, self.on_task());
        match -first.paired.mean_difference {
            gain if gain > 0.0 => {
                format!(
                    "{} ends lowest, {gain:.4} nats below {base}{on_task}; {LUCK}",
                    first.name()
                )
            }
            _ => format!("{base} ends lowest{on_task}; {LUCK}"),
        }
    }

    fn sentence(&self, found: &Found) -> String {
        let (name, base, metric) = (found.name(), &found.baseline, &self.metric);
        let paired = &found.paired;
        let side = if paired.mean_difference < 0.0 { "below" } else { "above" };
        let size = format!("{:.4} nats {side} {base}", paired.mean_difference.abs());
        let (Some((low, high)), Some(p)) = (paired.interval95, found.p) else {
            return match found.verdict {
                Verdict::NothingToCompare => {
                    format!(
                        "{name} has no finished run with a seed of {base}'s, so they are not compared."
                    )
                }
                _ => format!("{name} ends {size} in {metric}. One seed: no interval."),
            };
        };
        let words = match found.verdict {
            Verdict::Better => format!("{name} is better than {base}"),
            Verdict::Worse => format!("{name} is worse than {base}"),
            Verdict::Undecided => format!("{name} is undecided against {base}"),
            _ => format!("{name}: no difference from {base} seen"),
        };
        let corrected = match self.found.iter().filter(|found| found.p.is_some()).count() {
            0 | 1 => String::new(),
            many => format!(" after Holm's correction for {many} comparisons"),
        };
        let mut said = format!(
            "{words}: {size} in {metric} over {}, 95 % interval {low:+.4} to {high:+.4}, {}{corrected}.",
            count(paired.n, "seed"),
            p_value(p)
        );
        // What was not seen may be there.
        if let (true, Some(power)) = (found.verdict.is_level(), found.power) {
            said += &format!(
                " A difference of {:.4} nats would have been seen with a chance of {:.0} %, by this spread.",
                power.difference,
                100.0 * power.power
            );
        }
        // A ratio of means that differ by luck alone says nothing.
        if let (Verdict::Better, SpeedUp::Times(times)) = (found.verdict, found.tokens) {
            said += &format!(" It gets as low as {base} ends with {times:.2}x fewer tokens");
            said += &by_seed(&found.by_seed);
            match found.seconds {
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

fn names(found: &[&Found]) -> String {
    listed(&found.iter().map(|found| found.name()).collect::<Vec<_>>())
}

fn are(found: &[&Found]) -> String {
    format!("{} {}", names(found), if found.len() == 1 { "is" } else { "are" })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::{Better, paired, verdict};

    /// Seeds that end this far from the baseline.
    fn found(policy: &str, differences: &[f64]) -> Found {
        let paired = paired(differences, &vec![0.0; differences.len()], 0);
        Found {
            policy: policy.into(),
            depth: None,
            baseline: "prenorm".into(),
            p: paired.p_t,
            verdict: verdict(&paired, paired.p_t, Better::Lower),
            power: None,
            paired,
            tokens: SpeedUp::NoCurve,
            seconds: SpeedUp::NoCurve,
            by_seed: Vec::new(),
        }
    }

    fn of(found: Vec<Found>) -> Comparison {
        Comparison {
            metric: "held-out loss".into(),
            task: "three-hop lookup".into(),
            baseline: "prenorm".into(),
            found,
            looks: None,
        }
    }

    #[test]
    fn the_winner_is_first_whatever_the_order() {
        let mut low = found("low", &[-0.2, -0.21, -0.19]);
        (low.tokens, low.seconds) = (SpeedUp::Times(1.52), SpeedUp::Times(1.2));
        low.by_seed = vec![SpeedUp::Times(1.4), SpeedUp::Times(1.6), SpeedUp::NotReached];
        let level = |name| found(name, &[-0.5, 0.5, 0.01]);
        let mut all = of(vec![
            found("high", &[0.1, 0.11, 0.09]),
            level("same"),
            found("mid", &[-0.1, -0.11, -0.09]),
            low,
        ]);
        assert_eq!(
            all.headline().unwrap(),
            "low learns three-hop lookup about 1.5x faster than prenorm; mid is better than prenorm, too; \
             high is worse; same: no difference seen"
        );
        assert!(all.sentences()[0].ends_with(
            "after Holm's correction for 4 comparisons. It gets as low as prenorm ends with 1.52x fewer tokens \
             (seed by seed 1.40x to 1.60x, and 1 of 3 never) and in 1.20x less time."
        ));
        all.found[3].seconds = SpeedUp::Times(0.5);
        assert!(
            all.headline().unwrap().contains("1.5x fewer tokens than prenorm, but not in less")
        );
        assert!(all.sentences()[0].ends_with(", but takes 2.00x as long."));
    }

    #[test]
    fn a_depth_is_named_and_compared_within_itself() {
        let mut deep = found("nag", &[-0.2, -0.21, -0.19]);
        deep.depth = Some(6);
        let mut flat = found("nag", &[-0.1, -0.11, -0.09]);
        flat.depth = Some(4);
        assert_eq!(
            of(vec![flat, deep]).headline().unwrap(),
            "nag at 6 blocks is better than prenorm on three-hop lookup: 0.2000 nats less held-out loss; \
             nag at 4 blocks is better than prenorm, too"
        );
    }

    #[test]
    fn what_was_not_seen_comes_with_what_could_have_been_seen() {
        let mut same = found("same", &[-0.5, 0.5, 0.01]);
        same.power = crate::statistics::Power::of(&same.paired, 0.05);
        let told = " nats would have been seen with a chance of 80 %, by this spread.";
        let mut all = of(vec![same]);
        assert!(all.sentences()[0].ends_with(told), "{:?}", all.sentences());
        all.found[0].verdict = Verdict::Undecided;
        let said = &all.sentences()[0];
        assert!(said.starts_with("same is undecided against prenorm: 0.0033"), "{said}");
        assert!(said.ends_with(told));
        assert!(all.headline().unwrap().starts_with("No difference seen between same and prenorm"));
        all.found[0].verdict = Verdict::Worse;
        assert!(!all.sentences()[0].contains("would have been seen"));
    }

    #[test]
    fn luck_is_called_luck() {
        let level = |name| found(name, &[-0.5, 0.5, 0.01]);
        let said = |found| of(found).headline().unwrap();
        assert_eq!(
            said(vec![level("a")]),
            "No difference seen between a and prenorm on three-hop lookup"
        );
        assert_eq!(
            said(vec![level("a"), level("b")]),
            "No difference from prenorm seen on three-hop lookup: a and b"
        );
        assert_eq!(
            said(vec![found("a", &[0.1, 0.11, 0.09]), found("b", &[0.3, 0.31, 0.29])]),
            "Nothing here is better than prenorm on three-hop lookup; b and a are worse"
        );
        let single = said(vec![found("a", &[-0.1])]);
        assert!(single.starts_with("a ends lowest, 0.1000 nats below prenorm"), "{single}");
        assert!(said(vec![found("a", &[0.1])]).starts_with("prenorm ends lowest"));
        assert_eq!(
            said(vec![level("a"), found("lost", &[])]),
            "No difference seen between a and prenorm on three-hop lookup; lost is not compared"
        );
        assert_eq!(of(vec![found("a", &[])]).headline(), None);
        assert_eq!(
            of(vec![found("a", &[])]).sentences(),
            ["a has no finished run with a seed of prenorm's, so they are not compared."]
        );
    }
}
