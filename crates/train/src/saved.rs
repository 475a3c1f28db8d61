//! The model of a checkpoint, without the rest of its run.

use super::config::RunConfig;
use super::error::TrainError;
use super::folder::checkpoint_path;
use super::skip::Skipper;
use super::state::{self, StateError};
use super::trainer::warmth;
use hadal_model::{Decoder, Device, TensorFile};
use hadal_residual::StepMode;
use std::path::Path;

/// The model that a run had after this step, as it would be used at that point.
pub fn saved_model(
    run: &Path,
    config: &RunConfig,
    step: u64,
    device: &Device,
) -> Result<(Decoder, StepMode), TrainError> {
    let directory = checkpoint_path(run, step);
    let state = state::read(&directory)?;
    let file = TensorFile::open(&directory.join(state::TENSORS)).map_err(StateError::from)?;
    // The data decides the vocabulary and the length, but it may be gone by now.
    let vocabulary = file.shape("w.embed.weight").map_or(0, |shape| shape[0]);
    let task = config.data.generated.as_ref();
    let length = config.train.seq_len.or(task.map(|task| task.seq_len())).unwrap_or(1);
    let model = config.model.resolve(&config.residual, vocabulary, length);
    let mut problem = None;
    let mut stored = |name: &str, _: &[usize]| match file.floats(&format!("w.{name}")) {
        Ok(values) => Some(values),
        Err(error) => {
            problem.get_or_insert(error);
            None
        }
    };
    let mut decoder = Decoder::stored(&model, &mut stored, device)?;
    if let Some(problem) = problem {
        return Err(StateError::from(problem).into());
    }
    let warmth = warmth(config, step);
    if let (Some(skipper), Some(state)) = (Skipper::new(config, &model, length)?, &state.skip) {
        decoder.set_skipping(skipper.skipping(state, step, warmth))?;
    }
    Ok((decoder, StepMode { warmth, ..StepMode::default() }))
}
