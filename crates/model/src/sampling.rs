//! Choosing the next token from a model's logits.
//!
//! In this order: penalty of repetition, temperature, top-k, top-p, min-p, as in `transformers`. llama.cpp's default
//! applies the temperature last, so the same numbers may leave other tokens there unless the temperature is 1.
//!
//! Everything random comes from one seeded generator whose output is the same on every platform,
//! and ties go to the lower id, so that a generated text can be reproduced from its settings.

use std::cmp::Ordering;
use std::collections::VecDeque;

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
    /// Keep only tokens that are at least this likely, as a share of the likeliest.
    pub min_p: Option<f64>,
    /// Makes tokens that occurred less likely: positive logits are divided by this, negative ones multiplied.
    pub repeat_penalty: Option<f64>,
    /// How many tokens back an occurrence counts; [`Sampling::REPEAT_WINDOW`] if not said.
    pub repeat_window: Option<usize>,
    /// Where the random numbers start.
    pub seed: u64,
}

impl Sampling {
    /// llama.cpp's window for the penalty of repetition.
    pub const REPEAT_WINDOW: usize = 64;
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
    /// A `min_p` that is no share.
    #[error("min_p {min_p} is not usable; give a number from 0 to 1, or leave it out")]
    MinP { min_p: f64 },
    /// A penalty that is not positive.
    #[error(
        "repeat_penalty {penalty} is not usable; give a number above 0, such as 1.1, where 1 changes nothing"
    )]
    RepeatPenalty { penalty: f64 },
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
    /// The last tokens, if they are penalised.
    recent: VecDeque<u32>,
    /// Penalised logits.
    changed: Vec<f32>,
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
        if let Some(min_p) = settings.min_p
            && !(0.0..=1.0).contains(&min_p)
        {
            return Err(SamplingError::MinP { min_p });
        }
        if let Some(penalty) = settings.repeat_penalty
            && !(penalty.is_finite() && penalty > 0.0)
        {
            return Err(SamplingError::RepeatPenalty { penalty });
        }
        Ok(Self {
            settings,
            generator: ChaCha8Rng::seed_from_u64(settings.seed),
            recent: VecDeque::new(),
            changed: Vec::new(),
        })
    }

    /// Tells which tokens the text has, so that they can be penalised.
    pub fn saw(&mut self, tokens: impl IntoIterator<Item = u32>) {
        if self.penalty().is_none() {
            return;
        }
        let window = self.settings.repeat_window.unwrap_or(Sampling::REPEAT_WINDOW);
        for token in tokens {
            self.recent.push_back(token);
            if self.recent.len() > window {
                self.recent.pop_front();
            }
        }
    }

    /// Forgets what it [saw](Self::saw).
    pub fn forget(&mut self) {
        self.recent.clear();
    }

    /// A penalty that changes something.
    fn penalty(&self) -> Option<f64> {
        self.settings.repeat_penalty.filter(|&penalty| penalty != 1.0)
    }

    /// The logits of tokens that occurred, changed; a token that occurred twice is penalised once.
    fn penalise(&mut self, logits: &[f32], penalty: f64) {
        self.changed.clear();
        self.changed.extend_from_slice(logits);
        for &token in &self.recent {
            let place = token as usize;
            let (Some(&logit), Some(changed)) = (logits.get(place), self.changed.get_mut(place))
            else {
                continue;
            };
            // What is ruled out stays so, and nothing else becomes infinite.
            if logit.is_finite() {
                let logit = f64::from(logit);
                let less = if logit > 0.0 { logit / penalty } else { logit * penalty };
                *changed = less.clamp(f32::MIN.into(), f32::MAX.into()) as f32;
            }
        }
    }

    /// The id of the next token, where `logits[id]` is the logit of token `id`.
    ///
    /// A logit of negative infinity rules its token out.
    pub fn pick(&mut self, logits: &[f32]) -> Result<u32, SamplingError> {
        let Some(penalty) = self.penalty().filter(|_| !self.recent.is_empty()) else {
            return self.draw(logits);
        };
        // What is not usable is reported as it is.
        most_likely(logits)?;
        self.penalise(logits, penalty);
        let changed = std::mem::take(&mut self.changed);
        let picked = self.draw(&changed);
        self.changed = changed;
        picked
    }

    fn draw(&mut self, logits: &[f32]) -> Result<u32, SamplingError> {
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
        if let Some(min_p) = self.settings.min_p {
            // The likeliest has weight 1 and stays, whatever the limit. What goes has no weight.
            weights.iter_mut().filter(|weight| **weight < min_p).for_each(|weight| *weight = 0.0);
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
mod tests;
