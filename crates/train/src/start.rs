//! What a run begins with: its data, and its first parameters, either fresh or those of a model to continue from.

use super::config::RunConfig;
use super::error::TrainError;
use hadal_data::{Feed, FeedError, Preparation, model_tokenizer};
use hadal_model::{CheckpointError, Decoder, Device, ModelConfig, device_named, load, read_config};
use std::collections::HashMap;
use std::path::Path;

impl RunConfig {
    /// Opens what the run learns from.
    pub fn open_feed(&self) -> Result<Feed, FeedError> {
        Feed::open(&self.data, self.train.seq_len, self.seed).map_err(|error| {
            match (error, &self.from) {
                // Text for a model must be in the model's tokens.
                (FeedError::Unprepared { path, setting, preparation }, Some(model)) => {
                    let preparation = preparation.with_tokenizer(model);
                    FeedError::Unprepared { path, setting, preparation }
                }
                (error, _) => error,
            }
        })
    }
}

/// A model whose values do not matter, because a checkpoint will replace them.
pub(super) fn blank(config: &RunConfig, model: &ModelConfig) -> Result<Decoder, TrainError> {
    match config.from {
        None => Ok(Decoder::fresh(model, config.seed, &device(config)?)?),
        // A trained model may have no initial values of its own.
        Some(_) => Ok(Decoder::stored(model, &mut |_, _| None, &device(config)?)?),
    }
}

/// The model that training starts with.
pub(super) fn start(
    config: &RunConfig,
    model: &ModelConfig,
    feed: &Feed,
) -> Result<Decoder, TrainError> {
    let Some(from) = &config.from else { return blank(config, model) };
    check_model(config, model, feed)?;
    let device = device(config)?;
    let values = load(from, &Device::flex())?.decoder.parameters();
    let mut values: HashMap<String, Vec<f32>> = values.into_iter().collect();
    Ok(Decoder::stored(model, &mut |name, _| values.remove(name), &device)?)
}

/// Refuses a model to go on from that is not that of the settings or not that of the data.
pub(super) fn check_model(
    config: &RunConfig,
    model: &ModelConfig,
    feed: &Feed,
) -> Result<(), TrainError> {
    let Some(from) = &config.from else { return Ok(()) };
    check(from, model)?;
    check_tokenizer(from, model, feed)
}

/// Where the model of a run is, with a graph.
pub(super) fn device(config: &RunConfig) -> Result<Device, TrainError> {
    Ok(device_named(&config.train.device)?.autodiff())
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

/// Refuses text whose tokens mean something else to the model.
fn check_tokenizer(from: &Path, model: &ModelConfig, feed: &Feed) -> Result<(), TrainError> {
    // The tokens of a task have no meaning but the task's.
    if feed.tokens().is_none() {
        return Ok(());
    }
    let file = feed.tokenizer_file().map(|file| hadal_files::read(&file)).transpose();
    let (own, file) = (model_tokenizer(from)?, file.map_err(CheckpointError::from)?);
    let tokens = model.vocab_size;
    let (same, tokenizer) = match (&own, &file) {
        (Some(own), Some(file)) => (own == file || same_json(own, file), from),
        (Some(_), None) => (false, from),
        // Exactly the bytes, with or without an end token: it can be nothing else.
        (None, _) if (256..=257).contains(&tokens) => (file.is_none(), Path::new("bytes")),
        // Nothing but the number can be compared.
        (None, _) => (feed.vocab_size() == tokens, Path::new("FILE")),
    };
    if same {
        return Ok(());
    }
    let preparation = Preparation::for_model(tokenizer);
    Err(FeedError::Unfit(format!(
        "the data was prepared with another tokenizer than the model's ({} and {tokens} tokens); prepare it again: \
         `{preparation}`",
        feed.vocab_size()
    ))
    .into())
}

/// Blanks and the order of keys mean nothing.
fn same_json(one: &[u8], other: &[u8]) -> bool {
    let read = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).ok();
    read(one).is_some_and(|one| Some(one) == read(other))
}
