//! Policies against their baseline: what is said of them, and the picture of their differences. Reports, pages and
//! terminals use the same words and the same picture.

mod beside;
pub mod forest;
mod said;

use crate::statistics::{Paired, Power, SpeedUp, Taken, Verdict};

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// What is compared: `held-out loss`, in nats; lower is better.
    pub metric: String,
    /// The task's name as a headline says it ([`crate::page::Task::name`]); empty if it has none.
    pub task: String,
    /// The policy that the others are compared with.
    pub baseline: String,
    /// All others, in any order.
    pub found: Vec<Found>,
    /// The looks, if seeds were added by a plan.
    pub looks: Option<Taken>,
}

/// A policy against the baseline of its depth, seed by seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The policy.
    pub policy: String,
    /// Blocks, if several numbers of them are compared.
    pub depth: Option<usize>,
    /// What it is compared with: the baseline of its depth.
    pub baseline: String,
    /// Differences over the seeds that both have.
    pub paired: Paired,
    /// The p-value, corrected for all comparisons.
    pub p: Option<f64>,
    /// In a word.
    pub verdict: Verdict,
    /// What these pairs could have seen.
    pub power: Option<Power>,
    /// How many times fewer tokens lead to the baseline's last loss.
    pub tokens: SpeedUp,
    /// How many times less time does.
    pub seconds: SpeedUp,
    /// How many times fewer tokens, for each seed.
    pub by_seed: Vec<SpeedUp>,
}

impl Found {
    /// The policy, at its depth if there are several: `nag at 6 blocks`.
    pub fn name(&self) -> String {
        at_depth(&self.policy, self.depth)
    }
}

/// A policy's name at a depth, if there are several: `nag at 6 blocks`.
pub fn at_depth(policy: &str, depth: Option<usize>) -> String {
    match depth {
        Some(depth) => format!("{policy} at {depth} blocks"),
        None => policy.to_owned(),
    }
}
