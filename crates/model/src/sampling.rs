//! Choosing the next token from a model's logits.
//!
//! Everything random comes from one seeded generator whose output is the same on every platform,
//! and ties go to the lower id, so that a generated text can be reproduced from its settings.

use std::cmp::Ordering;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How to choose the next token. The default is greedy.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sampling {
    /// Divides the logits: below 1 the likely tokens gain, above 1 the unlikely ones do, and 0
    /// always takes the most likely token.
    pub temperature: f64,
    /// Keep only this many of the most likely tokens.
    pub top_k: Option<usize>,
    /// Keep only the most likely tokens that together reach this probability, measured among those
    /// that `top_k` has left.
    pub top_p: Option<f64>,
    /// Where the random numbers start.
    pub seed: u64,
}

/// Why no token could be chosen.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum SamplingError {
    /// A temperature that is negative or not finite.
    #[error(
        "temperature {temperature} is not usable; give a finite number of at least 0, where 0 is greedy"
    )]
    Temperature { temperature: f64 },
    /// A `top_k` that keeps no token.
    #[error("top_k 0 keeps no token; give at least 1, or leave it out to keep all")]
    TopK,
    /// A `top_p` that is no probability.
    #[error("top_p {top_p} is not usable; give a number above 0 and up to 1, or leave it out")]
    TopP { top_p: f64 },
    /// Logits that do not describe a distribution.
    #[error(
        "the model produced no usable logits: {problem}; check its weights for values that are not finite"
    )]
    UnusableLogits { problem: String },
}

/// Chooses one token after another.
///
/// ```
/// use hadal_model::{Sampler, Sampling};
///
/// let logits = [0.1, 2.0, 1.9];
/// assert_eq!(Sampler::new(Sampling::default())?.pick(&logits)?, 1); // greedy
///
/// let settings = Sampling { temperature: 1.0, top_k: Some(2), seed: 7, ..Sampling::default() };
/// let draw = || -> Result<Vec<u32>, _> {
///     let mut sampler = Sampler::new(settings)?;
///     (0..20).map(|_| sampler.pick(&logits)).collect()
/// };
/// assert_eq!(draw()?, draw()?, "the same seed, the same draws");
/// assert!(draw()?.iter().all(|&id| id != 0), "the two likeliest only");
/// # Ok::<(), hadal_model::SamplingError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Sampler {
    settings: Sampling,
    generator: ChaCha8Rng,
}

impl Sampler {
    /// A sampler at the start of its random numbers, or an error if the settings make no sense.
    pub fn new(settings: Sampling) -> Result<Self, SamplingError> {
        let temperature = settings.temperature;
        if !temperature.is_finite() || temperature < 0.0 {
            return Err(SamplingError::Temperature { temperature });
        }
        if settings.top_k == Some(0) {
            return Err(SamplingError::TopK);
        }
        if let Some(top_p) = settings.top_p {
            let is_probability = top_p > 0.0 && top_p <= 1.0;
            if !is_probability {
                return Err(SamplingError::TopP { top_p });
            }
        }
        Ok(Self { settings, generator: ChaCha8Rng::seed_from_u64(settings.seed) })
    }

    /// The id of the next token, where `logits[id]` is the logit of token `id`.
    ///
    /// A logit of negative infinity rules its token out.
    pub fn pick(&mut self, logits: &[f32]) -> Result<u32, SamplingError> {
        let best = most_likely(logits)?;
        if self.settings.temperature == 0.0 {
            return Ok(best.id);
        }

        let candidates = self.candidates(logits);
        let mut weights: Vec<f64> = candidates
            .iter()
            .map(|candidate| {
                let distance = f64::from(candidate.logit) - f64::from(best.logit);
                (distance / self.settings.temperature).exp()
            })
            .collect();
        if let Some(top_p) = self.settings.top_p.filter(|&top_p| top_p < 1.0) {
            let mass = top_p * weights.iter().sum::<f64>();
            weights.truncate(nucleus(&weights, mass));
        }

        let total: f64 = weights.iter().sum();
        let point = self.generator.random::<f64>() * total;
        let mut reached = 0.0_f64;
        for (candidate, weight) in candidates.iter().zip(&weights) {
            reached += weight;
            if point < reached {
                return Ok(candidate.id);
            }
        }
        // Only rounding could lead here.
        Ok(best.id)
    }

    /// The tokens that may be drawn, the likelier first if the settings depend on that order:
    /// sorting a large vocabulary costs more than all the rest.
    fn candidates(&self, logits: &[f32]) -> Vec<Candidate> {
        let mut candidates: Vec<Candidate> =
            enumerate(logits).filter(|candidate| candidate.logit > f32::NEG_INFINITY).collect();
        // Settings that leave nothing out must not change the draw either.
        let top_k = self.settings.top_k.filter(|&top_k| top_k < candidates.len());
        if let Some(top_k) = top_k {
            candidates.select_nth_unstable_by(top_k - 1, likelier_first);
            candidates.truncate(top_k);
        }
        if top_k.is_some() || self.settings.top_p.is_some_and(|top_p| top_p < 1.0) {
            candidates.sort_unstable_by(likelier_first);
        }
        candidates
    }
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    id: u32,
    logit: f32,
}

fn enumerate(logits: &[f32]) -> impl Iterator<Item = Candidate> {
    (0..).zip(logits).map(|(id, &logit)| Candidate { id, logit })
}

/// Puts the larger logit first and the lower id first among equals.
fn likelier_first(left: &Candidate, right: &Candidate) -> Ordering {
    // Not `total_cmp`, which tells -0 from 0 although they are equally likely.
    right.logit.partial_cmp(&left.logit).unwrap_or(Ordering::Equal).then(left.id.cmp(&right.id))
}

/// The first of the largest logits, after checking that all of them are usable.
fn most_likely(logits: &[f32]) -> Result<Candidate, SamplingError> {
    let mut best: Option<Candidate> = None;
    for candidate in enumerate(logits) {
        let Candidate { id, logit } = candidate;
        if logit.is_nan() || logit == f32::INFINITY {
            return Err(SamplingError::UnusableLogits {
                problem: format!("the logit of token {id} is {logit}"),
            });
        }
        if logit > best.map_or(f32::NEG_INFINITY, |best| best.logit) {
            best = Some(candidate);
        }
    }
    best.ok_or_else(|| SamplingError::UnusableLogits {
        problem: match logits.len() {
            0 => "there are none".to_owned(),
            count => format!("all {count} are negative infinity"),
        },
    })
}

/// How many of the leading weights it takes to reach `mass`.
fn nucleus(weights: &[f64], mass: f64) -> usize {
    let mut reached = 0.0_f64;
    for (index, weight) in weights.iter().enumerate() {
        reached += weight;
        if reached >= mass {
            return index + 1;
        }
    }
    weights.len()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let settings = Sampling { top_k: Some(0), ..warm() };
        assert_eq!(Sampler::new(settings).unwrap_err(), SamplingError::TopK);
    }
}
