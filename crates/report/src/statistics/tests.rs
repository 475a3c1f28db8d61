use super::bootstrap::Draw;
use super::*;
use serde_json::Value;

/// Recorded by `tests/scipy.py`.
fn scipy() -> Value {
    serde_json::from_str(include_str!("../../tests/scipy.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

#[track_caller]
fn close(ours: f64, theirs: f64, relative: f64) {
    let bound = relative * theirs.abs().max(1e-12);
    assert!((ours - theirs).abs() <= bound, "{ours} is not {theirs}");
}

/// Normal numbers by Box and Muller.
pub(super) struct Normal(Draw);

impl Normal {
    pub(super) fn new(state: u64) -> Self {
        Self(Draw { state })
    }

    pub(super) fn next(&mut self) -> f64 {
        let mut uniform = || (self.0.next() >> 11) as f64 / (1u64 << 53) as f64;
        let (radius, angle) = (1.0 - uniform(), uniform());
        (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }

    fn pairs(&mut self, n: usize, shift: f64, spread: f64) -> (Vec<f64>, Vec<f64>) {
        let mut pair = || {
            // A seed's effect on both policies is larger than its effect on each.
            let seed = 1.0 + 5.0 * spread * self.next();
            (seed + shift + spread * self.next(), seed + spread * self.next())
        };
        (0..n).map(|_| pair()).unzip()
    }
}

/// The largest distance between the share of values below a place and the place.
fn kolmogorov(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len() as f64;
    let distance = |(i, value): (usize, &f64)| {
        (value - i as f64 / n).abs().max((value - (i + 1) as f64 / n).abs())
    };
    values.iter().enumerate().map(distance).fold(0.0, f64::max)
}

#[test]
fn student_is_scipys() {
    let recorded = scipy();
    for row in recorded["cdf"].as_array().unwrap() {
        let [t, degrees, expected] = numbers(row)[..] else { panic!("three numbers") };
        // Logarithms of large gammas cancel: ten digits are left at 100,000 degrees of freedom.
        close(student::cdf(t, degrees), expected, 1e-10);
    }
    for row in recorded["quantiles"].as_array().unwrap() {
        let [p, degrees, expected] = numbers(row)[..] else { panic!("three numbers") };
        close(student::quantile(p, degrees), expected, 1e-9);
    }
}

#[test]
fn summaries_and_paired_tests_are_scipys() {
    for row in scipy()["pairs"].as_array().unwrap() {
        let (a, b) = (numbers(&row["a"]), numbers(&row["b"]));
        let one = summary(&a);
        close(one.mean, row["mean"].as_f64().unwrap(), 1e-12);
        close(one.sd.unwrap(), row["sd"].as_f64().unwrap(), 1e-12);
        let interval = numbers(&row["interval"]);
        close(one.interval95.unwrap().0, interval[0], 1e-11);
        close(one.interval95.unwrap().1, interval[1], 1e-11);

        let both = paired(&a, &b, 0);
        close(both.mean_difference, row["difference"].as_f64().unwrap(), 1e-12);
        close(both.p_t.unwrap(), row["p"].as_f64().unwrap(), 1e-9);
        let interval = numbers(&row["difference_interval"]);
        close(both.interval95.unwrap().0, interval[0], 1e-11);
        close(both.interval95.unwrap().1, interval[1], 1e-11);

        // Two bootstraps agree as well as 10,000 resamples can.
        let (low, high) = both.bootstrap_interval95.unwrap();
        let expected = numbers(&row["bootstrap_interval"]);
        let width = expected[1] - expected[0];
        assert!((low - expected[0]).abs() < 0.05 * width, "{}: {low} {expected:?}", row["name"]);
        assert!((high - expected[1]).abs() < 0.05 * width, "{}: {high} {expected:?}", row["name"]);
        let difference = both.p_bootstrap.unwrap() - row["bootstrap_p"].as_f64().unwrap();
        assert!(difference.abs() < 0.02, "{}: {difference}", row["name"]);
    }
}

#[test]
fn holms_correction_is_its_definition() {
    let recorded = scipy();
    let p: Vec<_> = numbers(&recorded["holm"]["p"]).into_iter().map(Some).collect();
    let corrected = numbers(&recorded["holm"]["corrected"]);
    for (ours, theirs) in holm(&p).into_iter().zip(corrected) {
        close(ours.unwrap(), theirs, 1e-14);
    }
    assert_eq!(holm(&[Some(0.02), None, Some(f64::NAN), Some(0.04)])[..2], [Some(0.04), None]);
    assert!(holm(&[]).is_empty());
}

#[test]
fn p_values_of_identical_policies_are_uniform() {
    // Kolmogorov's bound at 0.1 %: right code fails it for one seed in a thousand, and this seed is fixed.
    const TRIALS: usize = 2000;
    let bound = 1.95 / (TRIALS as f64).sqrt();
    let mut normal = Normal(Draw { state: 11 });
    for n in [2, 3, 5, 10] {
        let p = (0..TRIALS).map(|_| {
            let (a, b) = normal.pairs(n, 0.0, 0.01);
            let differences: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
            let one = summary(&differences);
            student::two_sided(one.mean / (one.sd.unwrap() / (n as f64).sqrt()), (n - 1) as f64)
        });
        let distance = kolmogorov(p.collect());
        assert!(distance < bound, "{n} seeds: {distance} from uniform");
    }
    let p = (0..200).map(|trial| {
        let (a, b) = normal.pairs(30, 0.0, 0.01);
        let both = paired(&a, &b, trial);
        (both.p_t.unwrap(), both.p_bootstrap.unwrap())
    });
    let (t, bootstrap): (Vec<f64>, Vec<f64>) = p.unzip();
    let bound = 1.95 / (200.0_f64).sqrt();
    assert!(kolmogorov(t) < bound);
    assert!(kolmogorov(bootstrap) < bound);
}

#[test]
fn a_planted_difference_of_one_percent_is_found() {
    // Five seeds, a spread of 1.5 % between seeds and of 0.3 % between policies on one seed.
    let mut normal = Normal(Draw { state: 3 });
    let found = (0..100).filter(|&trial| {
        let (a, b) = normal.pairs(5, -0.01, 0.003);
        let both = paired(&a, &b, trial);
        verdict(&both, both.p_t, Better::Lower) == Verdict::Better
    });
    let found = found.count();
    assert!(found >= 85, "found {found} times of 100");
}

#[test]
fn the_same_seed_gives_the_same_resamples() {
    let (a, b) = Normal(Draw { state: 1 }).pairs(6, 0.0, 1.0);
    assert_eq!(paired(&a, &b, 7), paired(&a, &b, 7));
    assert_ne!(paired(&a, &b, 7).p_bootstrap, paired(&a, &b, 8).p_bootstrap);
}

#[test]
fn one_value_has_no_interval_and_none_no_mean() {
    let one = summary(&[2.0]);
    assert_eq!((one.n, one.mean, one.sd, one.interval95), (1, 2.0, None, None));
    let none = summary(&[]);
    assert!(none.n == 0 && none.mean.is_nan());
    let single = paired(&[1.0], &[2.0], 0);
    assert_eq!((single.mean_difference, single.p_t, single.p_bootstrap), (-1.0, None, None));
    assert_eq!(verdict(&single, single.p_t, Better::Lower), Verdict::OneSeed);
    let none = paired(&[], &[], 0);
    assert_eq!(verdict(&none, none.p_t, Better::Lower), Verdict::NothingToCompare);
    assert_eq!(Verdict::OneSeed.to_string(), "one seed: no interval");
}

#[test]
fn what_is_not_finite_is_left_out_and_counted() {
    let both = paired(&[1.0, f64::NAN, 3.0, f64::INFINITY], &[1.5, 2.0, 3.25], 0);
    assert_eq!((both.n, both.left_out, both.mean_difference), (2, 2, -0.375));
    assert_eq!(summary(&[f64::NAN, 1.0]).left_out, 1);
}

#[test]
fn equal_differences_are_certain_and_no_difference_is_none() {
    let same = paired(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0], 0);
    assert_eq!((same.p_t, same.p_bootstrap), (Some(1.0), Some(1.0)));
    assert_eq!(verdict(&same, same.p_t, Better::Lower), Verdict::NotDistinguishable);
    let shifted = paired(&[1.5, 2.5, 3.5], &[1.0, 2.0, 3.0], 0);
    assert_eq!((shifted.p_t, shifted.interval95), (Some(0.0), Some((0.5, 0.5))));
    assert!(shifted.p_bootstrap.unwrap() < 0.001);
    assert_eq!(verdict(&shifted, shifted.p_t, Better::Lower), Verdict::Worse);
    assert_eq!(verdict(&shifted, shifted.p_t, Better::Higher), Verdict::Better);
}
