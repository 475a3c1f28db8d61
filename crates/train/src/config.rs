//! The settings of a run: TOML in, the same with every default written out beside the results.

use super::layers::ConfigLayers;
use super::model_section::ModelSection;
use super::ranks_section::RanksConfig;
use super::skip::SkipConfig;
use crate::optim::{OptimizerConfig, ScheduleConfig};
use hadal_data::{DataConfig, Preparation};
use hadal_model::{CPU, ConfigError, DEVICES, Precision};
use hadal_residual::{Memory, ResidualConfig};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Everything that decides a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Decides initial values, data order and samples.
    #[serde(default)]
    pub seed: u64,
    /// The directory of a model to continue from; `model` and `residual` repeat its shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<PathBuf>,
    /// How long and on how much at a time.
    pub train: TrainSection,
    /// The shape of the model.
    pub model: ModelSection,
    /// The residual policy.
    #[serde(default)]
    pub residual: ResidualConfig,
    /// Skipping sub-layers. Left out of files unless it is used, so that older runs can continue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip: Option<SkipConfig>,
    /// What to learn from.
    #[serde(default)]
    pub data: DataConfig,
    /// How parameters move.
    #[serde(default)]
    pub optimizer: OptimizerConfig,
    /// How the learning rate changes.
    #[serde(default)]
    pub schedule: ScheduleConfig,
    /// How progress is measured.
    #[serde(default)]
    pub eval: EvalConfig,
    /// Looking into the model during training. Left out of files unless it is used, so that older runs can continue.
    #[serde(default, skip_serializing_if = "DiagnoseConfig::is_default")]
    pub diagnose: DiagnoseConfig,
    /// Text written during training.
    #[serde(default)]
    pub sample: SampleConfig,
    /// What the backward pass keeps and what it computes again.
    #[serde(default)]
    pub memory: MemoryConfig,
    /// When the state is saved.
    #[serde(default)]
    pub checkpoint: CheckpointConfig,
    /// What to do when numbers stop being numbers.
    #[serde(default)]
    pub failure: FailureConfig,
    /// How several ranks work together. Left out of files unless it is used, so that older runs can continue.
    #[serde(default, skip_serializing_if = "RanksConfig::is_default")]
    pub ranks: RanksConfig,
}

/// How long and on how much at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainSection {
    /// Optimiser steps; leave it out to say `tokens` instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Tokens to learn from, rounded up to whole steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Sequences in one pass.
    pub batch: usize,
    /// Passes added up before a step.
    #[serde(default = "one")]
    pub accumulate: usize,
    /// Length of a sequence; a task brings its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_len: Option<usize>,
    /// Steps over which gains rise from nothing, where the policy has such gains.
    #[serde(default)]
    #[serde(rename = "nag_alpha_warmup")]
    pub gain_warmup: u64,
    /// What matrix products round, in training and its evaluations. Left out of files unless it is used, so that older
    /// runs can continue.
    #[serde(default, skip_serializing_if = "is_f32")]
    pub precision: Precision,
    /// Where the model is: one of [`DEVICES`]. Left out of files unless it is another than the
    /// CPU, so that older runs can continue.
    #[serde(default = "cpu", skip_serializing_if = "is_cpu")]
    pub device: String,
}

fn cpu() -> String {
    CPU.into()
}

fn is_cpu(device: &str) -> bool {
    device == CPU
}

fn is_f32(precision: &Precision) -> bool {
    *precision == Precision::F32
}

fn one() -> usize {
    1
}

/// How progress is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvalConfig {
    /// Steps between evaluations, besides the one at the end; 0 evaluates only at the end.
    pub every_steps: u64,
    /// Batches of held-out data each time, always the same ones.
    pub batches: usize,
}

impl Default for EvalConfig {
    fn default() -> Self {
        Self { every_steps: 100, batches: 8 }
    }
}

/// Looking into the model during training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DiagnoseConfig {
    /// Steps between diagnoses; 0 never.
    pub every_steps: u64,
    /// Batches of held-out data each time, of about 2048 tokens.
    pub batches: usize,
}

impl Default for DiagnoseConfig {
    fn default() -> Self {
        Self { every_steps: 0, batches: 4 }
    }
}

impl DiagnoseConfig {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Text written during training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SampleConfig {
    /// Steps between samples; 0 never.
    pub every_steps: u64,
    /// Longest text.
    pub tokens: usize,
    /// What to continue.
    pub prompt: String,
    /// 0 always takes the likeliest token.
    pub temperature: f64,
}

impl Default for SampleConfig {
    fn default() -> Self {
        Self { every_steps: 0, tokens: 64, prompt: String::new(), temperature: 0.8 }
    }
}

/// When the state is saved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointConfig {
    /// Steps between checkpoints; 0 never.
    pub every_steps: u64,
    /// Minutes between checkpoints; 0 never.
    pub every_minutes: f64,
    /// How many to keep, besides the best.
    pub keep: usize,
}

/// What the backward pass keeps and what it computes again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MemoryConfig {
    /// Whether MGR's streams are computed backwards instead of being kept.
    pub inversion: bool,
    /// Share of stream rows, those with the widest gates, that are kept anyway.
    pub fallback: f64,
    /// Whether sub-layers keep their input alone and run a second time.
    pub recompute: bool,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self { inversion: true, fallback: 0.01, recompute: false }
    }
}

impl MemoryConfig {
    /// The settings in the form that the model takes.
    pub fn memory(&self) -> Memory {
        let kept_share = self.inversion.then_some(self.fallback);
        Memory { kept_share, recompute: self.recompute }
    }
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self { every_steps: 500, every_minutes: 10.0, keep: 2 }
    }
}

/// What to do when the loss or the gradient is not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// Stop before the parameters are touched.
    #[default]
    Stop,
    /// Leave the step out and continue with the next data.
    Skip,
    /// Go back to the last checkpoint and continue after the data that failed.
    Rollback,
}

/// What to do when numbers stop being numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FailureConfig {
    /// What to do.
    pub on_failure: OnFailure,
    /// How often in one run before it stops anyway.
    pub limit: u64,
}

impl Default for FailureConfig {
    fn default() -> Self {
        Self { on_failure: OnFailure::default(), limit: 5 }
    }
}

/// Why settings make no run.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum RunConfigError {
    /// The text is not TOML, or holds unknown or wrong keys.
    #[error("{origin}: {reason}")]
    Malformed { origin: String, reason: String },
    /// A setting on the command line is not `a.b=value`.
    #[error("`{setting}` is not a setting; write a.b=value, such as train.steps=100")]
    NotASetting { setting: String },
    /// There is no such preset.
    #[error("{}", hadal_residual::unknown("preset", name, known))]
    UnknownPreset { name: String, known: Vec<&'static str> },
    /// A field has an impossible value.
    #[error("{field} is {value}: {reason}")]
    Field {
        field: &'static str,
        value: String,
        /// Why that is impossible, and what is possible.
        reason: String,
    },
    /// Nothing says what to learn from.
    #[error(
        "nothing says what to learn from; prepare a text with `{}`, then set data.train=DIR (or data.text=yankee, a text \
         that ships with hadal, or a task such as data.generated.task=khop)",
        preparation(from.as_deref())
    )]
    NoData { from: Option<PathBuf> },
    /// The model cannot be built.
    #[error(transparent)]
    Model(#[from] ConfigError),
    /// The settings of a file make no run.
    #[error("{origin}: {reason}")]
    In { origin: String, reason: Box<RunConfigError> },
}

/// The command that makes a text ready for a fresh model, or for one to go on from.
fn preparation(from: Option<&Path>) -> String {
    match from {
        Some(model) => Preparation::for_model(model).to_string(),
        None => "hadal data prepare TEXT --out DIR".into(),
    }
}

impl RunConfig {
    /// Reads resolved settings back.
    pub fn parse(text: &str, origin: &str) -> Result<Self, RunConfigError> {
        let layers = ConfigLayers::default().with_toml(text, origin)?;
        layers
            .finish()
            .map_err(|error| RunConfigError::In { origin: origin.into(), reason: Box::new(error) })
    }

    /// Tokens of one optimiser step.
    pub fn tokens_per_step(&self, seq_len: usize) -> u64 {
        (self.train.batch * self.train.accumulate * seq_len) as u64
    }

    /// Optimiser steps of the whole run.
    pub fn steps(&self, seq_len: usize) -> u64 {
        match (self.train.steps, self.train.tokens) {
            (Some(steps), _) => steps,
            (None, Some(tokens)) => tokens.div_ceil(self.tokens_per_step(seq_len)),
            (None, None) => 0,
        }
    }

    pub(super) fn check(&self) -> Result<(), RunConfigError> {
        let refuse = |field, value: String, reason: &str| {
            Err(RunConfigError::Field { field, value, reason: reason.into() })
        };
        let t = &self.train;
        match (t.steps, t.tokens) {
            (Some(_), Some(_)) => {
                return refuse(
                    "train.tokens",
                    "set".into(),
                    "say either steps or tokens, not both",
                );
            }
            (None, None) => {
                return refuse("train.steps", "missing".into(), "say steps or tokens");
            }
            (Some(0), _) | (_, Some(0)) => {
                return refuse("train.steps", "0".into(), "a run needs at least one step");
            }
            _ => {}
        }
        if t.batch == 0 || t.accumulate == 0 {
            return refuse(
                "train.batch",
                t.batch.to_string(),
                "batch and accumulate are at least 1",
            );
        }
        if t.seq_len == Some(0) {
            return refuse("train.seq_len", "0".into(), "a sequence has at least one token");
        }
        if !DEVICES.contains(&t.device.as_str()) {
            let known = format!("there are {}", DEVICES.join(", "));
            return refuse("train.device", t.device.clone(), &known);
        }
        if self.memory.recompute && !is_cpu(&t.device) {
            let reason = format!(
                "sub-layers run a second time on the CPU alone; leave it out, or leave out train.device = {}",
                t.device
            );
            return refuse("memory.recompute", "true".into(), &reason);
        }
        let o = &self.optimizer;
        for (field, value) in [
            ("optimizer.adamw.lr", o.adamw.lr),
            ("optimizer.muon.lr", o.muon.lr),
            ("optimizer.adamw.weight_decay", o.adamw.weight_decay),
            ("optimizer.muon.weight_decay", o.muon.weight_decay),
            ("optimizer.clip", o.clip),
            ("schedule.final_share", self.schedule.final_share),
            ("checkpoint.every_minutes", self.checkpoint.every_minutes),
            ("sample.temperature", self.sample.temperature),
        ] {
            if !(value >= 0.0 && value.is_finite()) {
                return refuse(field, value.to_string(), "it must be zero or a positive number");
            }
        }
        if !(0.0..=1.0).contains(&self.memory.fallback) {
            let value = self.memory.fallback.to_string();
            return refuse("memory.fallback", value, "it is a share between 0 and 1");
        }
        if !(o.adamw.eps > 0.0 && o.adamw.eps.is_finite()) {
            let value = o.adamw.eps.to_string();
            return refuse("optimizer.adamw.eps", value, "it must be a small positive number");
        }
        if !(o.gate_slowdown > 0.0 && o.gate_slowdown.is_finite()) {
            let value = o.gate_slowdown.to_string();
            return refuse("optimizer.nag_gate_slowdown", value, "it must be positive");
        }
        let shares = o.adamw.betas.into_iter().chain([o.muon.momentum]);
        if let Some(share) = shares.into_iter().find(|share| !(0.0..1.0).contains(share)) {
            return refuse("optimizer momentum", share.to_string(), "it must lie in [0, 1)");
        }
        self.ranks.check(self)?;
        let data = &self.data;
        let named = [data.train.is_some(), data.text.is_some(), data.generated.is_some()];
        let sources = named.into_iter().filter(|named| *named).count();
        if sources == 0 {
            return Err(RunConfigError::NoData { from: self.from.clone() });
        }
        if sources != 1 {
            return refuse(
                "data",
                "more than one".into(),
                "say one of data.train (a directory made by `hadal data prepare`), data.text (a built-in text) and \
                 [data.generated] (a task)",
            );
        }
        if data.text.is_some() && data.validation.is_some() {
            let reason = "a built-in text keeps its last tenth for that; leave it out";
            return refuse("data.validation", "set".into(), reason);
        }
        self.skip.as_ref().map_or(Ok(()), |skip| skip.check(&self.residual))
    }
}
