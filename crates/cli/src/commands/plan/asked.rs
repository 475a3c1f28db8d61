//! What is planned: a model or the settings of a run, and policies for it.

use super::Plan;
use crate::failure::Failure;
use crate::model_file::{Described, describe, describe_settings};
use hadal_model::ModelConfig;
use hadal_residual::{Memory, ResidualConfig};
use hadal_train::plan::Job;
use hadal_train::{ConfigLayers, MemoryConfig, PRESETS, optim::OptimizerConfig};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// A model or settings, and the policies to plan them with.
pub(super) struct Asked {
    source: Source,
    origin: PathBuf,
    settings: Settings,
    pub(super) policies: Vec<ResidualConfig>,
    pub(super) notes: Vec<String>,
}

enum Source {
    /// Settings, from which the model follows for each policy.
    Run(Box<ConfigLayers>),
    /// A model that is fully described.
    Model(Box<Described>),
}

/// The part of a run's settings that matters besides the model.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Settings {
    train: Sizes,
    optimizer: OptimizerConfig,
    memory: MemoryConfig,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Sizes {
    batch: Option<usize>,
    accumulate: Option<usize>,
    seq_len: Option<usize>,
}

impl Asked {
    pub(super) fn read(plan: &Plan) -> Result<Self, Failure> {
        let (origin, layers) = match (&plan.preset, &plan.path) {
            (Some(name), _) => {
                let layers = ConfigLayers::from_preset(name).map_err(Failure::usage)?;
                (PathBuf::from(format!("preset {name}")), Some(layers))
            }
            (None, Some(path)) => (path.clone(), of_run(path)?),
            (None, None) => return Err(Failure::usage("name settings, or a --preset")),
        };
        let Some(mut layers) = layers else {
            if let Some(setting) = plan.settings.first() {
                let origin = origin.display();
                return Err(Failure::usage(format!(
                    "{origin} is a model without a run, so --set {setting} changes nothing; say --batch, --seq, \
                     --recompute or --exact"
                )));
            }
            let described = describe(&origin)?;
            let policies = plan.policies(&described.config.residual);
            let notes = described.notes.clone();
            let source = Source::Model(Box::new(described));
            return Ok(Self { source, origin, settings: Settings::default(), policies, notes });
        };
        for setting in &plan.settings {
            layers = layers.with_setting(setting).map_err(Failure::usage)?;
        }
        let text = toml::to_string(layers.table()).map_err(Failure::usage)?;
        let settings: Settings = toml::from_str(&text).map_err(|error| {
            Failure::usage(format!("{}: {}", origin.display(), error.message()))
        })?;
        let described = describe_settings(&origin, &text)?;
        let policies = plan.policies(&described.config.residual);
        let notes = described.notes;
        Ok(Self { source: Source::Run(Box::new(layers)), origin, settings, policies, notes })
    }

    /// The job with one policy.
    pub(super) fn job(&self, policy: &ResidualConfig, plan: &Plan) -> Result<Job, Failure> {
        let (model, trained) = self.model(policy)?;
        let train = &self.settings.train;
        let batch = plan.batch.or(train.batch).unwrap_or(1);
        let accumulate = train.accumulate.unwrap_or(1);
        let seq_len = plan.seq.or(train.seq_len).unwrap_or(model.max_seq_len);
        if [batch, accumulate, seq_len].contains(&0) {
            let origin = self.origin.display();
            return Err(Failure::usage(format!(
                "{origin}: train.batch, train.accumulate and train.seq_len are at least 1"
            )));
        }
        let model = ModelConfig { max_seq_len: model.max_seq_len.max(seq_len), ..model };
        let checked = if trained { model.check() } else { model.check_fresh() };
        checked.map_err(|error| Failure::usage(format!("{}: {error}", self.origin.display())))?;
        let Memory { kept_share, recompute } = self.settings.memory.memory();
        // A batch that was named is that of a pass; a step is what the settings say, or one pass.
        let of_settings = train.batch.map(|batch| batch.saturating_mul(accumulate));
        Ok(Job {
            model,
            hidden: self.settings.optimizer.hidden,
            muon_steps: self.settings.optimizer.muon.steps,
            memory: Memory {
                kept_share: if plan.exact { None } else { kept_share },
                recompute: recompute || plan.recompute,
            },
            batch,
            sequences: of_settings.unwrap_or(batch.saturating_mul(plan.devices)).max(1),
            seq_len,
        })
    }

    /// The model with a policy, and whether it has weights already.
    fn model(&self, policy: &ResidualConfig) -> Result<(ModelConfig, bool), Failure> {
        match &self.source {
            Source::Model(described) => {
                let own = described.config.residual == *policy;
                let config = ModelConfig { residual: policy.clone(), ..described.config.clone() };
                Ok((config, described.trained && own))
            }
            Source::Run(layers) => {
                let layers =
                    layers.as_ref().clone().with_residual(policy).map_err(Failure::usage)?;
                let text = toml::to_string(layers.table()).map_err(Failure::usage)?;
                Ok((describe_settings(&self.origin, &text)?.config, false))
            }
        }
    }
}

impl Plan {
    fn policies(&self, own: &ResidualConfig) -> Vec<ResidualConfig> {
        match (self.all, self.residual.is_empty()) {
            (true, _) => ResidualConfig::all(),
            (false, true) => vec![own.clone()],
            (false, false) => self.residual.clone(),
        }
    }
}

/// The settings of a run at a path, if it has any; a preset's name is met with advice.
fn of_run(path: &Path) -> Result<Option<ConfigLayers>, Failure> {
    let preset = |preset: &hadal_train::Preset| Path::new(preset.name) == path;
    if !path.exists() && PRESETS.iter().any(preset) {
        let name = path.display();
        return Err(Failure::usage(format!("{name} is a preset: say --preset {name}")));
    }
    let within = path.join("config.toml");
    let file = if path.is_dir() { &within } else { path };
    if !file.is_file() || file.extension().is_none_or(|extension| extension != "toml") {
        return Ok(None);
    }
    let layers = ConfigLayers::default().with_file(file).map_err(Failure::usage)?;
    // A model's own config has its shape at the top.
    Ok(layers.table().get("model").is_some_and(toml::Value::is_table).then_some(layers))
}
