//! All comparisons of a table together: corrected, judged, and what they could have seen.

use super::{Better, LEVEL, Looks, Paired, Power, Rule, Sequential, Verdict, holm, verdict};
use serde::{Deserialize, Serialize};

/// Looks that were planned before the first run, and how many of them were taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Taken {
    /// The plan.
    pub rule: Rule,
    /// Looks so far.
    pub taken: usize,
}

impl Taken {
    /// Seeds up to the last look.
    pub fn seeds(&self) -> usize {
        self.taken.checked_sub(1).and_then(|last| self.rule.looks.get(last)).copied().unwrap_or(0)
    }

    /// The levels of the looks so far, for a comparison among so many of which none is decided yet.
    pub fn levels(&self, comparisons: usize) -> Vec<f64> {
        Looks::new(&self.rule, self.taken, comparisons).levels()
    }
}

/// What a comparison comes to among all others.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The p-value, corrected for all comparisons: of the t test, or of all looks so far.
    pub p: Option<f64>,
    /// In a word.
    pub verdict: Verdict,
    /// The 95 % interval of the mean difference; with several looks one that holds at all of them together.
    pub interval95: Option<(f64, f64)>,
    /// What these pairs could have seen.
    pub power: Option<Power>,
    /// The looks, if they were planned.
    pub sequential: Option<Sequential>,
}

/// Judges comparisons, each with its differences by seed. Lower is better.
///
/// ```
/// use hadal_report::statistics::{Verdict, judge, paired};
///
/// let (mine, baseline) = ([0.60, 0.75, 0.57, 0.70, 0.61], [0.71, 0.84, 0.66, 0.79, 0.73]);
/// let paired = paired(&mine, &baseline, 0);
/// let judged = judge(&[(&paired, &[])], None);
/// assert_eq!(judged[0].verdict, Verdict::Better);
/// assert!(judged[0].power.unwrap().difference < 0.1);
/// ```
pub fn judge(all: &[(&Paired, &[(u64, f64)])], looks: Option<&Taken>) -> Vec<Judged> {
    match looks {
        Some(looks) => at_looks(all, looks),
        None => at_once(all),
    }
}

/// Seeds that were fixed before the first run.
fn at_once(all: &[(&Paired, &[(u64, f64)])]) -> Vec<Judged> {
    let p: Vec<Option<f64>> = all.iter().map(|(paired, _)| paired.p_t).collect();
    let level = LEVEL / p.iter().flatten().count().max(1) as f64;
    let judged = |((paired, _), p): (&(&Paired, _), Option<f64>)| Judged {
        p,
        verdict: verdict(paired, p, Better::Lower),
        interval95: paired.interval95,
        power: Power::of(paired, level),
        sequential: None,
    };
    all.iter().zip(holm(&p)).map(judged).collect()
}

fn at_looks(all: &[(&Paired, &[(u64, f64)])], looks: &Taken) -> Vec<Judged> {
    let tests = Looks::new(&looks.rule, looks.taken, all.len());
    let judged = |((paired, _), (tested, p, verdict)): (&(&Paired, _), Decided)| Judged {
        p,
        verdict,
        interval95: tested.interval(paired),
        power: tested.looks.last().and_then(|last| Power::of(paired, last.level)),
        sequential: Some(tested),
    };
    all.iter().zip(decided(all, &tests, looks.rule.alpha)).map(judged).collect()
}

type Decided = (Sequential, Option<f64>, Verdict);

/// Every comparison counts at every look, also one that has no pair yet: how many there are was planned.
fn decided(all: &[(&Paired, &[(u64, f64)])], tests: &Looks, alpha: f64) -> Vec<Decided> {
    let tested: Vec<Sequential> = all.iter().map(|(_, by_seed)| tests.test(by_seed)).collect();
    let p: Vec<Option<f64>> = tested.iter().map(|tested| Some(tested.p.unwrap_or(1.0))).collect();
    let each = tested.into_iter().zip(holm(&p)).zip(all);
    each.map(|((tested, p), (paired, _))| {
        let p = p.filter(|_| tested.p.is_some());
        let verdict = tested.verdict(paired, p, Better::Lower, alpha);
        (tested, p, verdict)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::Normal;
    use super::super::{Spending, paired};
    use super::*;

    fn rule() -> Rule {
        Rule { first: 0, looks: vec![4, 8, 12], alpha: 0.05, spending: Spending::Pocock }
    }

    fn by_seed(differences: &[f64]) -> (Paired, Vec<(u64, f64)>) {
        let zeros = vec![0.0; differences.len()];
        (paired(differences, &zeros, 0), (0..).zip(differences.iter().copied()).collect())
    }

    #[test]
    fn a_fixed_number_of_seeds_is_judged_once_at_five_percent_after_holm() {
        let clear = by_seed(&[-0.1, -0.11, -0.09, -0.1]);
        // On its own it would be a discovery: p = 0.03.
        let close = by_seed(&[0.10, 0.02, 0.09, 0.06]);
        let alone = judge(&[(&close.0, &close.1)], None);
        assert_eq!(alone[0].verdict, Verdict::Worse);
        let level = by_seed(&[0.1, -0.1, 0.05, -0.02]);
        let all = [&level, &close, &clear].map(|(paired, by_seed)| (paired, &by_seed[..]));
        let judged = judge(&all, None);
        let verdicts: Vec<Verdict> = judged.iter().map(|judged| judged.verdict).collect();
        let none = Verdict::NotDistinguishable;
        assert_eq!(verdicts, [none, none, Verdict::Better]);
        let power = |judged: &Judged| judged.power.unwrap();
        assert_eq!(power(&judged[1]).level, 0.05 / 3.0);
        assert!(power(&judged[1]).difference > power(&alone[0]).difference);
    }

    #[test]
    fn a_look_is_held_to_its_own_level_and_its_interval_to_all_looks() {
        let (paired, by_seed) = by_seed(&[0.10, 0.02, 0.09, 0.06]);
        assert!(paired.p_t.unwrap() < 0.05);
        let looks = Taken { rule: rule(), taken: 1 };
        let judged = judge(&[(&paired, &by_seed)], Some(&looks)).remove(0);
        assert_eq!(judged.verdict, Verdict::Undecided, "a third of the seeds may spend less");
        let (low, high) = judged.interval95.unwrap();
        let (naive_low, naive_high) = paired.interval95.unwrap();
        assert!(low < naive_low && high > naive_high);
        let level = looks.levels(1)[0];
        assert!(level < 0.025, "{level}");
        assert_eq!(judged.power.unwrap().level, level);
        assert_eq!(looks.seeds(), 4);
    }

    #[test]
    fn a_comparison_without_pairs_still_counts_as_one() {
        let lost = by_seed(&[]);
        let other = by_seed(&[-0.1, -0.105, -0.095, -0.1]);
        let looks = Taken { rule: rule(), taken: 1 };
        let alone = judge(&[(&other.0, &other.1)], Some(&looks));
        let both = judge(&[(&lost.0, &lost.1), (&other.0, &other.1)], Some(&looks));
        assert_eq!((both[0].verdict, both[0].p), (Verdict::NothingToCompare, None));
        assert!((both[1].p.unwrap() / alone[0].p.unwrap() - 2.0).abs() < 1e-9);
    }

    /// Whole tables, as a suite makes them: seeds are added until all three comparisons are decided or there are no more.
    #[test]
    fn equals_are_called_different_in_at_most_one_table_of_twenty() {
        const TABLES: usize = 1500;
        let mut normal = Normal::new(20);
        let rule = rule();
        // Levels are computed once for all tables.
        let tests: Vec<Looks> = (1..=3).map(|taken| Looks::new(&rule, taken, 3)).collect();
        let mut false_alarms = 0;
        for _ in 0..TABLES {
            let variants: Vec<Vec<f64>> =
                (0..3).map(|_| (0..12).map(|_| normal.next()).collect()).collect();
            let wrong = rule.looks.iter().zip(&tests).any(|(&n, tests)| {
                let seen: Vec<_> = variants.iter().map(|all| differences(&all[..n])).collect();
                let all: Vec<(&Paired, &[(u64, f64)])> =
                    seen.iter().map(|(paired, by_seed)| (paired, &by_seed[..])).collect();
                decided(&all, tests, rule.alpha).iter().any(|decided| !decided.2.is_level())
            });
            false_alarms += usize::from(wrong);
        }
        let share = false_alarms as f64 / TABLES as f64;
        let error = 3.0 * (0.05 * 0.95 / TABLES as f64).sqrt();
        assert!(share <= 0.05 + error && share > 0.02, "{share}");
    }

    /// Without resampling, which takes long.
    fn differences(values: &[f64]) -> (Paired, Vec<(u64, f64)>) {
        (
            super::super::paired_without_bootstrap(values),
            (0..).zip(values.iter().copied()).collect(),
        )
    }
}
