//! Training: a config and data in, a model out, and no work lost in between.

mod config;
mod error;
pub mod estimate;
mod evaluate;
mod failure;
mod fingerprint;
mod folder;
pub mod gradient;
mod healing;
mod layers;
mod lines;
mod memory;
mod metrics;
mod model_section;
mod observer;
pub mod optim;
mod outcome;
pub mod plan;
mod preset;
pub mod provenance;
pub mod quality;
mod ranks_section;
mod saved;
mod signals;
mod skip;
mod start;
mod state;
mod team;
mod tensorboard;
mod trainer;

pub use config::{
    CheckpointConfig, DiagnoseConfig, EvalConfig, FailureConfig, MemoryConfig, OnFailure,
    RunConfig, RunConfigError, SampleConfig, TrainSection,
};
pub use error::TrainError;
pub use evaluate::{EvaluateError, Evaluation};
pub use folder::RunFolderError;
pub use folder::checkpoint_steps;
pub use layers::ConfigLayers;
pub use memory::peak_rss_mb;
pub use model_section::ModelSection;
pub use observer::{Finished, Midway, Observer, StepReport};
pub use preset::{PRESETS, Preset, for_depth};
pub use ranks_section::RanksConfig;
pub use saved::saved_model;
pub use signals::{StopSignal, stop_on_signals};
pub use skip::{SkipConfig, SkipGate, SkipPer, SkipReport, SkipState};
pub use state::StateError;
pub use team::Elsewhere;
pub use trainer::{Course, Trainer, model_config};
