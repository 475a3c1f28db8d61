//! Training: a config and data in, a model out, and no work lost in between.

mod config;
mod error;
pub mod estimate;
mod evaluate;
mod failure;
mod feed;
mod folder;
pub(crate) mod gradient;
mod layers;
mod metrics;
mod model_section;
mod observer;
mod order;
mod outcome;
mod preset;
mod signals;
pub(crate) mod skip;
mod start;
mod state;
pub mod tensorboard;
mod trainer;

pub use config::{
    CheckpointConfig, DataConfig, DiagnoseConfig, EvalConfig, FailureConfig, MemoryConfig,
    OnFailure, RunConfig, RunConfigError, SampleConfig, TrainSection,
};
pub use error::TrainError;
pub use evaluate::{EvaluateError, Evaluation};
pub use feed::{Batch, Feed, FeedError};
pub use folder::{RunFolder, RunFolderError};
pub(crate) use folder::{checkpoint_path, checkpoint_steps};
pub use layers::Layers;
pub use model_section::ModelSection;
pub use observer::{Finished, Observer, StepReport};
pub use order::shuffled;
pub use preset::{DEFAULT_DATA, PRESETS, Preset, for_depth, preset};
pub use signals::stop_on_signals;
pub use skip::{SkipConfig, SkipGate, SkipPer, SkipReport, SkipState};
pub(crate) use state::read as read_state;
pub use state::{State, StateError};
pub use trainer::Trainer;
pub(crate) use trainer::{model_config, warmth};
