//! Generated tasks that need depth: data without a download, whose answers are known exactly.
//!
//! | task | what is asked | why depth matters |
//! |---|---|---|
//! | [`khop`](TaskConfig::Khop) | an induction head applied k times | each layer at most doubles the hops |
//! | [`depo`](TaskConfig::Depo) | the node k steps along a cycle | the same, over pairs listed in any order |
//! | [`mano`](TaskConfig::Mano) | the value of a nested expression | inner results are needed by outer ones |
//! | [`mqar`](TaskConfig::Mqar) | the value of a key seen before | a control: two layers suffice |
//!
//! An example is a pure function of the settings, a seed, a split and an index, so the position in
//! the data is a number and resuming needs no state. Whether an instance is held out follows from
//! its content alone ([`Split::of`]): no seed, index or other setting of the same task can bring a
//! held-out instance into training.

mod depo;
mod draw;
mod khop;
mod mano;
mod mqar;

pub use depo::DepoConfig;
pub use khop::KhopConfig;
pub use mano::ManoConfig;
pub use mqar::MqarConfig;

use draw::{Draw, fnv1a, mix};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Which generator made the data. A run records it; any change of the generated bits must raise it.
pub const GENERATOR_VERSION: u32 = 1;

/// The token that pads sequences shorter than `seq_len`, in every task. It is never an answer.
pub const PADDING: u32 = 0;

/// One in this many instances is held out.
const HELD_OUT_SHARE: u64 = 16;

/// How often an instance is drawn again. By chance alone all tries miss the rarer split once in
/// 10^115 examples.
const TRIES: usize = 4096;

/// The base-two logarithm of the fewest instances for which neither split can be empty: with 1024,
/// nothing is held out with probability 10^-29.
const LEAST_INSTANCES: f64 = 10.0;

/// One sequence with its questions. All three have the length [`TaskConfig::seq_len`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// What the model reads.
    pub input: Vec<u32>,
    /// The right output at each position: the next token, but for `khop` the answer itself.
    pub target: Vec<u32>,
    /// Where the target is an answer. Loss and accuracy are computed there alone.
    pub scored: Vec<bool>,
}

impl Example {
    /// Next-token prediction over a sequence with answers at these positions, padded.
    fn next_token(sequence: &[u32], answers: &[usize], length: usize) -> Self {
        let mut input = vec![PADDING; length];
        let mut target = vec![PADDING; length];
        let mut scored = vec![false; length];
        for (position, pair) in sequence.windows(2).enumerate() {
            input[position] = pair[0];
            target[position] = pair[1];
        }
        for answer in answers {
            scored[answer - 1] = true;
        }
        Self { input, target, scored }
    }
}

/// Which instances an example is drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Fifteen of sixteen instances.
    Train,
    /// One of sixteen instances.
    HeldOut,
}

impl Split {
    /// Where the instance with this input belongs. Padding at its end does not count, so that the
    /// same question falls on the same side whatever the longest one may be.
    pub fn of(input: &[u32]) -> Self {
        let content = input.iter().rposition(|token| *token != PADDING).map_or(0, |last| last + 1);
        let hash = mix(fnv1a(input[..content].iter().flat_map(|token| token.to_le_bytes())));
        if hash.is_multiple_of(HELD_OUT_SHARE) { Self::HeldOut } else { Self::Train }
    }
}

/// Why a task cannot be generated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the message says what a field is")]
pub enum TaskError {
    /// A setting for which the task does not exist.
    #[error("{task}: `{setting}` is {value}; choose {least} to {most}, because {reason}")]
    OutOfRange {
        task: &'static str,
        setting: &'static str,
        value: usize,
        least: usize,
        most: usize,
        reason: &'static str,
    },
    /// So few instances that a split could be empty, or a model could learn them by heart.
    #[error(
        "{task}: these settings allow only {instances} different instances, too few to hold some \
         out; raise {remedy}"
    )]
    TooFewInstances { task: &'static str, instances: u64, remedy: &'static str },
}

/// What a task's file provides; everything common to all tasks is above it.
trait Task {
    /// The name in config files, runs and reports.
    fn name(&self) -> &'static str;
    /// One line for a report.
    fn describe(&self) -> String;
    /// How many tokens there are.
    fn vocab_size(&self) -> usize;
    /// The length of an input.
    fn seq_len(&self) -> usize;
    /// Refuses settings for which the task does not exist.
    fn check_ranges(&self) -> Result<(), TaskError>;
    /// The base-two logarithm of (at most) the number of instances, and what makes more of them.
    fn instances(&self) -> (f64, &'static str);
    /// Every setting as a number: other numbers, another stream of examples.
    fn numbers(&self) -> Vec<u64>;
    /// An instance of either split.
    fn draw(&self, draw: &mut Draw) -> Example;
}

/// A task with its settings: `{"task": "khop", "k": 4}` in files, where what is left out has its
/// default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case")]
pub enum TaskConfig {
    /// k-hop induction.
    Khop(KhopConfig),
    /// A walk of k steps along a cycle.
    Depo(DepoConfig),
    /// Nested modular arithmetic.
    Mano(ManoConfig),
    /// Multi-query associative recall.
    Mqar(MqarConfig),
}

impl TaskConfig {
    /// Every task with its default settings.
    pub fn all() -> Vec<Self> {
        vec![
            Self::Khop(KhopConfig::default()),
            Self::Depo(DepoConfig::default()),
            Self::Mano(ManoConfig::default()),
            Self::Mqar(MqarConfig::default()),
        ]
    }

    fn task(&self) -> &dyn Task {
        match self {
            Self::Khop(config) => config,
            Self::Depo(config) => config,
            Self::Mano(config) => config,
            Self::Mqar(config) => config,
        }
    }

    /// The name in config files, runs and reports.
    pub fn name(&self) -> &'static str {
        self.task().name()
    }

    /// One line that says what is asked and how hard it is.
    pub fn describe(&self) -> String {
        self.task().describe()
    }

    /// How many tokens there are, padding included.
    pub fn vocab_size(&self) -> usize {
        self.task().vocab_size()
    }

    /// The length of every example.
    pub fn seq_len(&self) -> usize {
        self.task().seq_len()
    }

    /// Refuses settings for which the task does not exist, or has too few instances to hold some out.
    pub fn check(&self) -> Result<(), TaskError> {
        let task = self.task();
        task.check_ranges()?;
        let (logarithm, remedy) = task.instances();
        if logarithm < LEAST_INSTANCES {
            let instances = logarithm.exp2().round() as u64;
            return Err(TaskError::TooFewInstances { task: task.name(), instances, remedy });
        }
        Ok(())
    }

    /// The example at an index of a split: the same arguments always give the same example.
    ///
    /// An instance that belongs to the other split, or asks nothing, is drawn again. Should no try
    /// succeed, the example has nothing scored: a question of the wrong split is never asked.
    ///
    /// # Panics
    /// Possibly, for settings that [`check`](Self::check) refuses.
    pub fn example(&self, split: Split, seed: u64, index: u64) -> Example {
        let task = self.task();
        let side = match split {
            Split::Train => 0,
            Split::HeldOut => 1,
        };
        let mut draw = Draw::new([seed, index, self.identity(), side]);
        let mut example = task.draw(&mut draw);
        for _ in 1..TRIES {
            if example.scored.contains(&true) && Split::of(&example.input) == split {
                return example;
            }
            example = task.draw(&mut draw);
        }
        example.scored.fill(false);
        example
    }

    fn identity(&self) -> u64 {
        let task = self.task();
        let version = GENERATOR_VERSION.to_le_bytes();
        let numbers = task.numbers().into_iter().flat_map(u64::to_le_bytes);
        fnv1a(version.into_iter().chain(task.name().bytes()).chain(numbers))
    }
}

fn within(
    task: &'static str,
    setting: &'static str,
    value: usize,
    allowed: RangeInclusive<usize>,
    reason: &'static str,
) -> Result<(), TaskError> {
    if allowed.contains(&value) {
        return Ok(());
    }
    let (least, most) = (*allowed.start(), *allowed.end());
    Err(TaskError::OutOfRange { task, setting, value, least, most, reason })
}

/// The base-two logarithm of the number of ways to pick `count` of `from` in order.
fn orderings(count: usize, from: usize) -> f64 {
    (from - count + 1..=from).map(|choices| (choices as f64).log2()).sum()
}

#[cfg(test)]
mod tests;
