//! What a run begins with: its data, and its first parameters, either fresh or those of a model to continue from.

use super::config::RunConfig;
use super::error::TrainError;
use hadal_data::{Feed, FeedError};
use hadal_model::{Decoder, Device, ModelConfig, load, read_config};
use std::collections::HashMap;
use std::fs;
use std::path::Path;

impl RunConfig {
    /// Opens what the run learns from.
    pub fn open_feed(&self) -> Result<Feed, FeedError> {
        Feed::open(&self.data, self.train.seq_len, self.seed)
    }
}

/// A model whose values do not matter, because a checkpoint will replace them.
pub(super) fn blank(config: &RunConfig, model: &ModelConfig) -> Result<Decoder, TrainError> {
    match config.from {
        None => Ok(Decoder::fresh(model, config.seed, &device())?),
        // A trained model may have no initial values of its own.
        Some(_) => Ok(Decoder::stored(model, &mut |_, _| None, &device())?),
    }
}

/// The model that training starts with.
pub(super) fn start(
    config: &RunConfig,
    model: &ModelConfig,
    feed: &Feed,
) -> Result<Decoder, TrainError> {
    let Some(from) = &config.from else { return blank(config, model) };
    check(from, model)?;
    check_tokenizer(from, feed)?;
    let values = load(from, &Device::flex())?.decoder.parameters();
    let mut values: HashMap<String, Vec<f32>> = values.into_iter().collect();
    Ok(Decoder::stored(model, &mut |name, _| values.remove(name), &device())?)
}

fn device() -> Device {
    Device::flex().autodiff()
}

/// Refuses settings that describe another model than the directory's. Sequences may be shorter.
fn check(from: &Path, model: &ModelConfig) -> Result<(), TrainError> {
    let own = read_config(from)?;
    let comparable = ModelConfig { max_seq_len: own.max_seq_len, ..model.clone() };
    if comparable == own {
        return Ok(());
    }
    let fields = |config: &ModelConfig| serde_json::to_value(config).unwrap_or_default();
    let (ours, theirs) = (fields(&comparable), fields(&own));
    let keys = ours.as_object().into_iter().chain(theirs.as_object()).flat_map(|map| map.keys());
    let field =
        keys.into_iter().find(|key| ours.get(key) != theirs.get(key)).cloned().unwrap_or_default();
    Err(TrainError::OtherModel {
        path: from.into(),
        found: format!("{field} {}", theirs[&field]),
        wanted: ours[&field].to_string(),
    })
}

/// Refuses data whose tokens mean something else to the model.
fn check_tokenizer(from: &Path, feed: &Feed) -> Result<(), TrainError> {
    let (own, file) = (from.join("tokenizer.json"), feed.tokenizer_file());
    let (true, Some(file)) = (own.is_file(), file) else { return Ok(()) };
    let same = match (fs::read(&own), fs::read(file)) {
        (Ok(own), Ok(file)) => own == file,
        _ => false,
    };
    match same {
        true => Ok(()),
        false => Err(FeedError::Unfit(format!(
            "the data was prepared with another tokenizer than the model's; prepare it again with `--tokenizer {}`",
            own.display()
        ))
        .into()),
    }
}
