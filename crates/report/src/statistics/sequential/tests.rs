use super::*;
use crate::statistics::tests::Normal;
use crate::statistics::{holm, normal};

fn rule(looks: &[usize], spending: Spending) -> Rule {
    Rule { first: 0, looks: looks.to_vec(), alpha: 0.05, spending }
}

/// The p-values at all looks of experiments without a difference.
fn without_difference(looks: &[usize], experiments: usize) -> Vec<Vec<f64>> {
    let mut normal = Normal::new(77);
    let most = looks.last().copied().unwrap();
    let experiment = |_| {
        let values: Vec<f64> = (0..most).map(|_| normal.next()).collect();
        looks.iter().map(|&n| p_value(&values[..n])).collect()
    };
    (0..experiments).map(experiment).collect()
}

#[test]
fn spending_ends_with_everything_and_begins_with_nothing() {
    for spending in [Spending::Pocock, Spending::ObrienFleming] {
        assert_eq!(spending.spent(0.05, 0.0), 0.0);
        assert!((spending.spent(0.05, 1.0) - 0.05).abs() < 1e-12);
        let parts: Vec<f64> = (0..=10).map(|i| spending.spent(0.05, f64::from(i) / 10.0)).collect();
        assert!(parts.is_sorted(), "{parts:?}");
    }
    assert!((Spending::Pocock.spent(0.05, 0.2) - 0.014_770).abs() < 1e-6);
}

/// With many pairs t is nearly normal. Bounds for five looks at 5 %, two-sided: Jennison and Turnbull (2000), and the
/// programs ldbounds, gsDesign and rpact.
#[test]
fn levels_of_many_pairs_are_the_published_bounds() {
    let pairs = [20, 40, 60, 80, 100];
    for (spending, bounds) in [
        (Spending::Pocock, [2.438, 2.427, 2.410, 2.397, 2.386]),
        (Spending::ObrienFleming, [4.877, 3.357, 2.680, 2.290, 2.031]),
    ] {
        let boundary = Boundary::new(&pairs, 100, spending);
        for (at, expected) in bounds.into_iter().enumerate() {
            let ours = normal::distance(boundary.level(at, 0.05));
            assert!((ours - expected).abs() < 0.02, "{spending:?} {at}: {ours} {expected}");
        }
    }
}

/// 40,000 experiments without a difference: the standard error of a share of 5 % is 0.1 %.
#[test]
fn equals_are_called_different_as_seldom_as_was_said() {
    const EXPERIMENTS: usize = 40_000;
    for looks in [&[4, 8, 12, 16][..], &[2, 3, 4, 5], &[3, 4, 5, 6, 7, 8]] {
        let experiments = without_difference(looks, EXPERIMENTS);
        for spending in [Spending::Pocock, Spending::ObrienFleming] {
            let boundary = Boundary::new(looks, *looks.last().unwrap(), spending);
            for alpha in [0.05, 0.05 / 4.0] {
                let levels: Vec<f64> =
                    (0..looks.len()).map(|at| boundary.level(at, alpha)).collect();
                let alarm = |seen: &&Vec<f64>| seen.iter().zip(&levels).any(|(p, level)| p < level);
                let share = experiments.iter().filter(alarm).count() as f64 / EXPERIMENTS as f64;
                let error = 3.0 * (alpha * (1.0 - alpha) / EXPERIMENTS as f64).sqrt();
                assert!(
                    (share - alpha).abs() < error + 0.01 * alpha,
                    "{looks:?} {spending:?}: {share} of {alpha}"
                );
            }
        }
    }
}

/// The whole way, as a suite goes it: 2,000 suites of three equals, until one is called different or seeds end.
#[test]
fn whole_suites_of_equals_find_something_in_one_of_twenty_and_repeated_tests_in_far_more() {
    const SUITES: usize = 2000;
    let rule = rule(&[4, 8, 12, 16], Spending::Pocock);
    let looks: Vec<Looks> = (1..=4).map(|taken| Looks::new(&rule, taken, 3)).collect();
    let mut normal = Normal::new(2);
    let (mut false_alarms, mut naive) = (0, 0);
    for _ in 0..SUITES {
        let variants: Vec<Vec<(u64, f64)>> = (0..3)
            .map(|_| rule.seeds().into_iter().map(|seed| (seed, normal.next())).collect())
            .collect();
        let alarm = looks.iter().any(|looks| {
            let p: Vec<_> = variants.iter().map(|variant| looks.test(variant).p).collect();
            holm(&p).into_iter().flatten().any(|p| p < rule.alpha)
        });
        false_alarms += usize::from(alarm);
        // The same without a rule: Holm's correction at each look, and a stop at the first success.
        let alarm = rule.looks.iter().any(|&n| {
            let p: Vec<_> = variants
                .iter()
                .map(|variant| {
                    Some(p_value(&variant[..n].iter().map(|(_, d)| *d).collect::<Vec<_>>()))
                })
                .collect();
            holm(&p).into_iter().flatten().any(|p| p < rule.alpha)
        });
        naive += usize::from(alarm);
    }
    let bound = 0.05 + 3.0 * (0.05 * 0.95 / SUITES as f64).sqrt();
    let share = |count: usize| count as f64 / SUITES as f64;
    assert!(share(false_alarms) <= bound, "{}", share(false_alarms));
    assert!(share(false_alarms) >= 0.025, "{} is far too careful", share(false_alarms));
    assert!(share(naive) > bound, "repeated tests at 5 %: {}", share(naive));
}

#[test]
fn a_sequential_p_value_is_the_error_at_which_a_look_succeeds_and_never_rises() {
    let rule = rule(&[4, 8, 12], Spending::Pocock);
    let mut normal = Normal::new(9);
    let values: Vec<(u64, f64)> = (0..12).map(|seed| (seed, 0.8 + normal.next())).collect();
    let mut before = 1.0;
    for taken in 1..=3 {
        let tested = Looks::new(&rule, taken, 2).test(&values);
        assert_eq!(tested.looks.len(), taken);
        let p = tested.p.unwrap();
        assert!(p <= before, "{p} {before}");
        before = p;
        // At an error just above it some look is below its level, and just below it none is.
        let boundary = Boundary::new(&rule.looks[..taken], 12, rule.spending);
        let succeeds = |error: f64| {
            let mut all = tested.looks.iter().enumerate();
            all.any(|(at, look)| look.p < boundary.level(at, error))
        };
        assert!(succeeds(p * 1.001) && !succeeds(p * 0.999), "{tested:?}");
    }
}

#[test]
fn looks_that_decide_nothing_are_refused() {
    let wrong = |looks: &[usize], alpha| {
        let rule = Rule { alpha, ..rule(looks, Spending::Pocock) };
        rule.check().err().map(|(key, _)| key)
    };
    assert_eq!(wrong(&[2, 3, 100], 0.05), None);
    for looks in [&[][..], &[1, 4], &[0]] {
        assert_eq!(wrong(looks, 0.05), Some("first"));
    }
    assert_eq!(wrong(&[4, 4], 0.05), Some("every"));
    assert_eq!(wrong(&[4, 101], 0.05), Some("most"));
    for alpha in [0.0, -1.0, 0.6, f64::NAN, f64::INFINITY, 1e-9] {
        assert_eq!(wrong(&[4, 8], alpha), Some("alpha"));
    }
}

#[test]
fn seeds_behind_the_last_look_and_lost_pairs_do_not_count() {
    let rule = Rule { first: 100, ..rule(&[3, 6], Spending::Pocock) };
    assert_eq!(rule.seeds(), [100, 101, 102, 103, 104, 105]);
    let all: Vec<(u64, f64)> = [0.3, 0.1, 0.2, 0.4, 0.35, 0.15]
        .into_iter()
        .zip(100..)
        .map(|(d, seed)| (seed, d))
        .collect();
    let one = Looks::new(&rule, 1, 1);
    assert_eq!(one.test(&all), one.test(&all[..3]));
    assert_eq!(one.test(&[]).p, None);
    assert_eq!(one.test(&all[..1]).p, None);
    // Seeds of an earlier list beside those of the rule.
    assert_eq!(one.test(&[(0, 9.0), (1, 9.0)]).p, None);
    let both = Looks::new(&rule, 2, 1);
    let lost: Vec<(u64, f64)> = all.iter().copied().filter(|(seed, _)| *seed != 101).collect();
    let tested = both.test(&lost);
    let pairs: Vec<(usize, usize)> =
        tested.looks.iter().map(|look| (look.seeds, look.pairs)).collect();
    assert_eq!(pairs, [(3, 2), (6, 5)]);
    // A second look that brings no pair is none.
    assert_eq!(both.test(&all[..3]).looks.len(), 1);
}

#[test]
fn intervals_hold_at_all_looks_together() {
    const EXPERIMENTS: usize = 4000;
    let rule = rule(&[3, 6, 9], Spending::Pocock);
    let looks: Vec<Looks> = (1..=3).map(|taken| Looks::new(&rule, taken, 1)).collect();
    let mut normal = Normal::new(31);
    let missed = (0..EXPERIMENTS).filter(|_| {
        let values: Vec<(u64, f64)> = (0..9).map(|seed| (seed, 1.0 + normal.next())).collect();
        looks.iter().zip([3, 6, 9]).any(|(looks, n)| {
            let seen: Vec<f64> = values[..n].iter().map(|(_, value)| *value).collect();
            let paired = super::super::paired_without_bootstrap(&seen);
            let (low, high) = looks.test(&values).interval(&paired).unwrap();
            !(low..=high).contains(&1.0)
        })
    });
    let share = missed.count() as f64 / EXPERIMENTS as f64;
    assert!((share - 0.05).abs() < 3.0 * (0.05 * 0.95 / EXPERIMENTS as f64).sqrt(), "{share}");
}
