//! Weights to measure with.

use hadal_model::{ConfigError, Decoder, Device, ModelConfig};

/// A model with the initial values of seed 0. Unlike a model that is to be trained, it need not have a good
/// start: MGR with many streams and few blocks is worth timing, too.
pub(super) fn made_up(model: &ModelConfig, device: &Device) -> Result<Decoder, ConfigError> {
    Decoder::stored(model, &mut |_, _| None, device)
}
