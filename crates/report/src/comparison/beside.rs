//! What is said beside a comparison, for those who want to know what it is worth: how often it was looked at, and what
//! its seeds could have seen.

use super::{Comparison, Found};
use crate::statistics::{Power, Spending, Taken};
use crate::words::{capital, count, numeral};

impl Comparison {
    /// Sentences on the looks and on the power of the tests.
    pub fn beside(&self) -> Vec<String> {
        self.looks.iter().map(|looks| self.looked(looks)).chain(self.seen()).collect()
    }

    fn looked(&self, looks: &Taken) -> String {
        let Taken { rule, taken } = looks;
        let planned: Vec<String> = rule.looks.iter().map(ToString::to_string).collect();
        let planned = match &planned[..] {
            [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
            planned => planned.concat(),
        };
        let spending = match rule.spending {
            Spending::Pocock => "Pocock's",
            Spending::ObrienFleming => "O'Brien and Fleming's",
        };
        let comparisons = self.found.len();
        let corrected = match comparisons {
            0 | 1 => String::new(),
            many => format!(", with Holm's correction for {many} comparisons"),
        };
        let mut said = format!(
            "Seeds were added by a plan that was made before the first run: {} after {planned} seeds share an error of \
             {} % ({spending} spending{corrected}).",
            if rule.looks.len() == 1 { "one look" } else { "looks" },
            shortest(100.0 * rule.alpha),
        );
        let levels: Vec<String> = looks.levels(comparisons).into_iter().map(level_of).collect();
        said += &match (*taken, levels.is_empty()) {
            (0, _) | (_, true) => " None was taken yet.".to_owned(),
            (taken, _) => format!(
                " {} of {} taken, at {} of {} for a comparison that is alone against all others; p-values and intervals \
                 hold at all looks together.",
                capital(&numeral(taken as u64)),
                count(rule.looks.len(), "look") + if taken == 1 { " was" } else { " were" },
                if taken == 1 { "a level" } else { "levels" },
                levels.join(", "),
            ),
        };
        let open = self.found.iter().filter(|found| found.verdict.is_level()).count();
        match open {
            0 => said,
            open if *taken == rule.looks.len() => format!(
                "{said} {} undecided with the most seeds, which is no proof of equality.",
                capital(&is_or_are(open))
            ),
            open => format!("{said} {} not decided yet.", capital(&is_or_are(open))),
        }
    }

    /// The smallest differences that would have been seen.
    fn seen(&self) -> Option<String> {
        let known = |found: &Found| Some((found.name(), found.paired.n, found.power?));
        let all: Vec<(String, usize, Power)> = self.found.iter().filter_map(known).collect();
        let by = |a: &&(String, usize, Power), b: &&(String, usize, Power)| {
            a.2.difference.total_cmp(&b.2.difference)
        };
        let (low, high) = (all.iter().min_by(by)?, all.iter().max_by(by)?);
        let (fewest, most) =
            (all.iter().map(|one| one.1).min()?, all.iter().map(|one| one.1).max()?);
        let seeds = match (fewest, most) {
            (fewest, most) if fewest == most => count(most, "seed"),
            (fewest, most) => format!("{fewest} to {most} seeds"),
        };
        // Its own sentence has said it.
        if self.found.len() == 1 && self.found[0].verdict.is_level() {
            return None;
        }
        let size = match all.len() {
            1 => format!("of {:.4} nats", low.2.difference),
            _ => format!(
                "of {:.4} nats ({}) to {:.4} nats ({})",
                low.2.difference, low.0, high.2.difference, high.0
            ),
        };
        Some(format!(
            "With {seeds} a difference {size} would have been seen with a chance of {:.0} %, as far as the spread of so \
             few differences tells.",
            100.0 * low.2.power
        ))
    }
}

fn is_or_are(number: usize) -> String {
    match number {
        1 => "one comparison is".into(),
        many => format!("{} comparisons are", numeral(many as u64)),
    }
}

/// Without zeros behind it: `5`, `2.5`.
fn shortest(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A level in few digits.
fn level_of(level: f64) -> String {
    if level < 1e-3 { format!("{level:.1e}") } else { format!("{level:.4}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::{Rule, SpeedUp, Verdict, judge, paired};

    fn of(all: &[(&str, &[f64])], looks: Option<Taken>) -> Comparison {
        let pairs: Vec<_> = all
            .iter()
            .map(|(_, values)| {
                let by_seed: Vec<(u64, f64)> = (0..).zip(values.iter().copied()).collect();
                (paired(values, &vec![0.0; values.len()], 0), by_seed)
            })
            .collect();
        let given: Vec<_> = pairs.iter().map(|(paired, by_seed)| (paired, &by_seed[..])).collect();
        let found = all.iter().zip(&pairs).zip(judge(&given, looks.as_ref()));
        let found = found.map(|(((policy, _), (paired, _)), judged)| Found {
            policy: (*policy).into(),
            depth: None,
            baseline: "prenorm".into(),
            paired: *paired,
            p: judged.p,
            verdict: judged.verdict,
            power: judged.power,
            tokens: SpeedUp::NoCurve,
            seconds: SpeedUp::NoCurve,
            by_seed: Vec::new(),
        });
        Comparison { found: found.collect(), looks, ..Comparison::default() }
    }

    const LOW: (&str, &[f64]) = ("low", &[-0.2, -0.201, -0.199, -0.2]);
    const SAME: (&str, &[f64]) = ("same", &[0.1, -0.12, 0.05, 0.01]);

    #[test]
    fn what_seeds_could_have_seen_is_said_once_for_all_comparisons() {
        let said = of(&[LOW, SAME], None).beside();
        let [said] = &said[..] else { panic!("{said:?}") };
        assert!(said.starts_with("With 4 seeds a difference of 0.00"), "{said}");
        assert!(
            said.contains(" nats (low) to 0.") && said.contains(" nats (same) would"),
            "{said}"
        );
        let alone = &of(&[LOW], None).beside()[0];
        assert!(alone.contains(" nats would have been seen with a chance of 80 %"), "{alone}");
        assert!(of(&[SAME], None).beside().is_empty(), "its sentence says it");
        assert!(of(&[("one", &[0.1])], None).beside().is_empty(), "one seed has no spread");
    }

    #[test]
    fn looks_are_told_with_their_levels_and_what_is_left_open() {
        let rule = Rule { first: 0, looks: vec![4, 8], alpha: 0.05, spending: Spending::Pocock };
        let looks = |taken| Some(Taken { rule: rule.clone(), taken });
        let said = &of(&[LOW, SAME], looks(1)).beside()[0];
        assert!(
            said.starts_with(
                "Seeds were added by a plan that was made before the first run: looks after 4 and 8 seeds share an error \
                 of 5 % (Pocock's spending, with Holm's correction for 2 comparisons). One of 2 looks was taken, at a \
                 level of 0.01"
            ),
            "{said}"
        );
        assert!(said.ends_with(" One comparison is not decided yet."), "{said}");
        let said = &of(&[LOW, SAME], looks(2)).beside()[0];
        // No pair is new at the second look.
        assert!(said.contains("Two of 2 looks were taken, at levels of 0.01"), "{said}");
        assert!(said.ends_with(
            "One comparison is undecided with the most seeds, which is no proof of equality."
        ));
        assert!(of(&[LOW], looks(0)).beside()[0].contains(" None was taken yet."));
        assert_eq!(of(&[LOW], looks(1)).found[0].verdict, Verdict::Better);
    }
}
