//! Writing text: prefill the prompt, then one token at a time.

use crate::pass::PassError;
use crate::sampling::{Sampler, SamplingError};
use crate::session::Session;
use serde::Serialize;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model chose an end token.
    End,
    /// As many tokens as requested.
    MaxTokens,
    /// The model's `max_seq_len` is reached.
    ContextFull,
    /// The listener asked to stop.
    Stopped,
}

/// A text as tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// What the model wrote, without the prompt and without an end token.
    pub tokens: Vec<u32>,
    /// Why it stopped.
    pub stop: StopReason,
    /// Time to read the prompt.
    pub prefill: Duration,
    /// Time to write.
    pub decode: Duration,
}

/// Why no text was written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GenerateError {
    /// The prompt cannot be read.
    #[error("the prompt: {0}; shorten it")]
    TooLong(PassError),
    /// Somebody asked to stop before it was read.
    #[error("stopped before the prompt was read")]
    Stopped,
    /// The model cannot be run.
    #[error(transparent)]
    Pass(PassError),
    /// No token can be chosen.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
}

impl From<PassError> for GenerateError {
    fn from(error: PassError) -> Self {
        match error {
            PassError::TooLong { .. } => Self::TooLong(error),
            PassError::Stopped => Self::Stopped,
            _ => Self::Pass(error),
        }
    }
}

/// How far a text may go.
#[derive(Clone, Debug)]
pub struct Limits<'a> {
    /// Longest continuation.
    pub max_tokens: usize,
    /// Tokens that end the text.
    pub ends: &'a [u32],
    /// Only tokens below this are drawn. Vocabularies are often padded for speed, and the padding
    /// stands for no text.
    pub vocabulary: usize,
}

/// Feeds `prompt` to a session and continues it within limits, passing each token to `listen` as it is chosen. Tokens
/// that end a text are never penalised for having occurred, or no text would end.
pub fn generate(
    session: &mut Session,
    prompt: &[u32],
    limits: &Limits,
    sampler: &mut Sampler,
    mut listen: impl FnMut(u32) -> ControlFlow<()>,
) -> Result<Generated, GenerateError> {
    let max_tokens = limits.max_tokens;
    session.reserve((session.len() + prompt.len()).saturating_add(max_tokens));
    sampler.saw(prompt.iter().copied().filter(|token| !limits.ends.contains(token)));
    let started = Instant::now();
    let mut logits = session.feed(prompt, None)?;
    let prefill = started.elapsed();

    let started = Instant::now();
    let mut tokens = Vec::new();
    let stop = loop {
        if tokens.len() == max_tokens {
            break StopReason::MaxTokens;
        }
        let token = sampler.pick(&logits[..logits.len().min(limits.vocabulary)])?;
        if limits.ends.contains(&token) {
            break StopReason::End;
        }
        tokens.push(token);
        sampler.saw([token]);
        if listen(token).is_break() {
            break StopReason::Stopped;
        }
        if tokens.len() < max_tokens {
            if session.is_full() {
                break StopReason::ContextFull;
            }
            logits = session.feed(&[token], None)?;
        }
    };
    Ok(Generated { tokens, stop, prefill, decode: started.elapsed() })
}
