//! Laws of sampling.

use super::*;
use proptest::test_runner::{Config, TestRunner};

fn sampler(settings: Sampling) -> Sampler {
    Sampler::new(settings).unwrap()
}

fn warm() -> Sampling {
    Sampling { temperature: 1.0, ..Sampling::default() }
}

fn logits_of(probabilities: [f32; 3]) -> [f32; 3] {
    probabilities.map(f32::ln)
}

fn frequencies(settings: Sampling, logits: &[f32; 3]) -> [f64; 3] {
    let draws = 20_000_u32;
    let mut sampler = sampler(settings);
    let mut counts = [0_u32; 3];
    for _ in 0..draws {
        counts[sampler.pick(logits).unwrap() as usize] += 1;
    }
    counts.map(|count| f64::from(count) / f64::from(draws))
}

fn assert_close(actual: [f64; 3], expected: [f64; 3]) {
    for (left, right) in actual.iter().zip(expected) {
        assert!((left - right).abs() < 0.02, "{actual:?} is not {expected:?}");
    }
}

#[test]
fn greedy_picks_the_largest_logit() {
    let mut sampler = sampler(Sampling::default());
    assert_eq!(sampler.pick(&[0.5, -1.0, 3.0, 2.0]), Ok(2));
    assert_eq!(sampler.pick(&[f32::NEG_INFINITY, -5.0]), Ok(1));
}

#[test]
fn greedy_picks_the_first_of_equals() {
    let mut sampler = sampler(Sampling::default());
    assert_eq!(sampler.pick(&[1.0, 7.0, 7.0]), Ok(1));
    assert_eq!(sampler.pick(&[-0.0, 0.0]), Ok(0));
}

#[test]
fn the_same_seed_draws_the_same_tokens() {
    let draw = |seed| -> Vec<u32> {
        let mut sampler = sampler(Sampling { seed, ..warm() });
        (0..64).map(|_| sampler.pick(&[0.0; 50]).unwrap()).collect()
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
}

#[test]
fn one_token_or_little_mass_is_greedy() {
    let logits = [0.1, 0.4, 0.4, 0.3];
    let settings = [
        Sampling { top_k: Some(1), ..warm() },
        Sampling { top_p: Some(1e-9), ..warm() },
        Sampling { temperature: 1e-300, top_k: Some(1), ..warm() },
    ];
    for settings in settings {
        let mut sampler = sampler(settings);
        for _ in 0..100 {
            assert_eq!(sampler.pick(&logits), Ok(1), "{settings:?}");
        }
    }
}

#[test]
fn a_tiny_temperature_draws_among_the_largest_only() {
    let mut sampler = sampler(Sampling { temperature: f64::MIN_POSITIVE, ..warm() });
    for _ in 0..100 {
        assert_eq!(sampler.pick(&[f32::MIN, 1.0, f32::MAX]), Ok(2));
    }
}

#[test]
fn tokens_are_drawn_as_often_as_their_probability_says() {
    let logits = logits_of([0.5, 0.2, 0.3]);
    assert_close(frequencies(warm(), &logits), [0.5, 0.2, 0.3]);
}

#[test]
fn a_high_temperature_evens_the_odds() {
    let settings = Sampling { temperature: 2.0, ..warm() };
    // The square roots of 0.64, 0.32 and 0.04, normalised.
    let roots: [f64; 3] = [0.8, 0.565_685_4, 0.2];
    let total: f64 = roots.iter().sum();
    assert_close(
        frequencies(settings, &logits_of([0.64, 0.32, 0.04])),
        roots.map(|root| root / total),
    );
}

#[test]
fn top_k_leaves_the_likeliest_tokens() {
    let settings = Sampling { top_k: Some(2), ..warm() };
    let logits = logits_of([0.5, 0.2, 0.3]);
    let actual = frequencies(settings, &logits);
    assert_close(actual, [0.625, 0.0, 0.375]);
    assert_eq!(actual[1], 0.0);
}

#[test]
fn top_k_prefers_lower_ids_among_equals() {
    let settings = Sampling { top_k: Some(2), ..warm() };
    let actual = frequencies(settings, &[0.0, -0.0, 0.0]);
    assert_close(actual, [0.5, 0.5, 0.0]);
    assert_eq!(actual[2], 0.0);
}

#[test]
fn top_p_keeps_the_token_that_crosses_the_line() {
    let settings = Sampling { top_p: Some(0.6), ..warm() };
    let actual = frequencies(settings, &logits_of([0.2, 0.5, 0.3]));
    assert_close(actual, [0.0, 0.625, 0.375]);
    assert_eq!(actual[0], 0.0);
}

#[test]
fn limits_beyond_the_vocabulary_keep_every_token() {
    let settings = Sampling { top_k: Some(usize::MAX), top_p: Some(1.0), ..warm() };
    let logits = logits_of([0.5, 0.2, 0.3]);
    assert_close(frequencies(settings, &logits), [0.5, 0.2, 0.3]);
}

#[test]
fn unusable_logits_are_refused() {
    let hostile: [&[f32]; 5] = [
        &[],
        &[1.0, f32::NAN, 2.0],
        &[1.0, f32::INFINITY],
        &[f32::NEG_INFINITY],
        &[f32::NEG_INFINITY, f32::NEG_INFINITY],
    ];
    for settings in [Sampling::default(), warm()] {
        let mut sampler = sampler(settings);
        for logits in hostile {
            let error = sampler.pick(logits).unwrap_err();
            assert!(matches!(error, SamplingError::UnusableLogits { .. }), "{error}");
            assert!(error.to_string().contains("no usable logits"), "{error}");
        }
    }
}

#[test]
fn senseless_settings_are_refused() {
    for temperature in [-0.1, f64::NAN, f64::INFINITY] {
        let settings = Sampling { temperature, ..Sampling::default() };
        let error = Sampler::new(settings).unwrap_err();
        assert!(matches!(error, SamplingError::Temperature { .. }), "{error}");
    }
    for top_p in [0.0, -1.0, 1.1, f64::NAN] {
        let settings = Sampling { top_p: Some(top_p), ..warm() };
        let error = Sampler::new(settings).unwrap_err();
        assert!(matches!(error, SamplingError::TopP { .. }), "{error}");
    }
    for min_p in [-0.1, 1.1, f64::NAN] {
        let error = Sampler::new(Sampling { min_p: Some(min_p), ..warm() }).unwrap_err();
        assert!(matches!(error, SamplingError::MinP { .. }), "{error}");
    }
    for penalty in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = Sampler::new(Sampling { repeat_penalty: Some(penalty), ..warm() }).unwrap_err();
        assert!(matches!(error, SamplingError::RepeatPenalty { .. }), "{error}");
    }
    let settings = Sampling { top_k: Some(0), ..warm() };
    assert_eq!(Sampler::new(settings).unwrap_err(), SamplingError::TopK);
}

#[test]
fn min_p_keeps_what_is_likely_enough_and_always_the_best() {
    let logits = logits_of([0.2, 0.5, 0.3]);
    let kept = |min_p| frequencies(Sampling { min_p: Some(min_p), ..warm() }, &logits);
    assert_close(kept(0.5), [0.0, 0.625, 0.375]);
    assert_eq!(kept(0.5)[0], 0.0);
    assert_eq!(kept(1.0), [0.0, 1.0, 0.0]);
    assert_eq!(kept(0.0), frequencies(warm(), &logits));
    // It is measured after the temperature: square roots are closer to each other.
    let settings = Sampling { min_p: Some(0.6), temperature: 2.0, ..warm() };
    assert!(frequencies(settings, &logits).iter().all(|&share| share > 0.0));
    // After top-k, which leaves two.
    let settings = Sampling { min_p: Some(0.1), top_k: Some(2), ..warm() };
    assert_close(frequencies(settings, &logits), [0.0, 0.625, 0.375]);
}

#[test]
fn the_best_of_any_logits_survives_every_filter() {
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    let numbers = proptest::collection::vec(-30.0f32..30.0, 1..40);
    runner
        .run(
            &(numbers, 0.0..=1.0f64, 0.01..3.0f64, 0u64..9),
            |(logits, min_p, temperature, seed)| {
                let settings =
                    Sampling { temperature, min_p: Some(min_p), seed, ..Sampling::default() };
                let picked = sampler(settings).pick(&logits).unwrap() as usize;
                let best = logits.iter().copied().fold(f32::MIN, f32::max);
                let share = (f64::from(logits[picked] - best) / temperature).exp();
                proptest::prop_assert!(share >= min_p * 0.999, "{share} is below {min_p}");
                Ok(())
            },
        )
        .unwrap();
}

#[test]
fn a_penalty_of_one_changes_nothing() {
    let draw = |repeat_penalty| -> Vec<u32> {
        let mut sampler = sampler(Sampling { repeat_penalty, ..warm() });
        sampler.saw([1, 2, 3]);
        let pick = |_| {
            let token = sampler.pick(&[0.3, 0.2, -0.1, 0.0, 1.0]).unwrap();
            sampler.saw([token]);
            token
        };
        (0..64).map(pick).collect()
    };
    assert_eq!(draw(Some(1.0)), draw(None));
    assert_ne!(draw(Some(1.5)), draw(None));
}

#[test]
fn what_occurred_is_less_likely_as_long_as_it_is_in_the_window() {
    let settings =
        Sampling { repeat_penalty: Some(2.0), repeat_window: Some(2), ..Sampling::default() };
    let mut sampler = sampler(settings);
    let logits = [1.0, 1.9, -1.0, f32::NEG_INFINITY];
    assert_eq!(sampler.pick(&logits), Ok(1));
    sampler.saw([1, 1]);
    // Once, however often it occurred: 1.9 / 2 is below 1.
    assert_eq!(sampler.pick(&logits), Ok(0));
    sampler.saw([0]);
    assert_eq!(sampler.pick(&logits), Ok(1), "0.95 against 0.5");
    // Token 1 has left the window.
    sampler.saw([0]);
    assert_eq!(sampler.pick(&logits), Ok(1));
    // Negative logits fall, too, and an id that has no logit does not matter.
    sampler.saw([2, 900]);
    assert_eq!(sampler.pick(&[f32::NEG_INFINITY, -1.1, -1.0, -1.5]), Ok(1));
    sampler.forget();
    assert_eq!(sampler.pick(&[f32::NEG_INFINITY, -1.1, -1.0, -1.5]), Ok(2));
}

#[test]
fn a_huge_penalty_rules_out_and_breaks_nothing() {
    let mut sampler = sampler(Sampling { repeat_penalty: Some(1e300), ..Sampling::default() });
    sampler.saw([0, 1]);
    assert_eq!(sampler.pick(&[-3.0, 5.0, -2.0]), Ok(1));
    assert_eq!(sampler.pick(&[-3.0, -5.0]), Ok(0));
    assert!(sampler.pick(&[f32::NAN, 1.0]).is_err());
}
