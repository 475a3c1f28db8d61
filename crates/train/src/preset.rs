//! Settings to start from: CPU scales, the papers' scales, and one dial.

use super::config::RunConfigError;

/// Named settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub summary: &'static str,
    /// Its settings.
    pub text: &'static str,
}

macro_rules! presets {
    ($($name:literal: $summary:literal,)*) => {
        [$(Preset {
            name: $name,
            summary: $summary,
            text: include_str!(concat!("../../../configs/", $name, ".toml")),
        },)*]
    };
}

/// Every preset, smallest first.
pub const PRESETS: [Preset; 8] = presets! {
    "nano": "15 seconds on two cores: mgr on a depth task",
    "micro": "a few minutes on two cores",
    "small": "8 blocks of 256, for a few cores",
    "s": "the MGR paper's S: 0.12B parameters, 10.5B tokens",
    "m": "the MGR paper's M: 0.35B parameters, 10.5B tokens",
    "l": "the MGR paper's L: 0.77B parameters, 10.5B tokens",
    "7b": "the shape of Llama 2 7B, to plan with: 6.7B parameters",
    "70b": "the shape of Llama 2 70B, to plan with: 69B parameters",
};

/// A preset by name.
pub(crate) fn preset(name: &str) -> Result<Preset, RunConfigError> {
    PRESETS.into_iter().find(|preset| preset.name == name).ok_or_else(|| {
        let known = PRESETS.iter().map(|preset| preset.name).collect();
        RunConfigError::UnknownPreset { name: name.into(), known }
    })
}

/// One dial: a model of this many blocks whose width, heads, rates and horizon follow.
///
/// Width is 32 per block in steps of 64; heads are 32 wide below 256 and 64 from there on; rates
/// fall with the root of the width, from the papers' at 768; the horizon is 20 tokens for each
/// parameter of the blocks.
pub fn for_depth(blocks: usize) -> String {
    let width = (32 * blocks).next_multiple_of(64).max(64);
    let head = if width < 256 { 32 } else { 64 };
    let slower = (768.0 / width as f64).sqrt();
    let (batch, seq_len) = (16, 128);
    let tokens = 20 * 12 * blocks * width * width;
    let steps = (tokens / (batch * seq_len)).max(100);
    format!(
        "[train]\nsteps = {steps}\nbatch = {batch}\nseq_len = {seq_len}\n\
         [model]\nd_model = {width}\nn_layers = {blocks}\nn_heads = {heads}\n\
         [optimizer.adamw]\nlr = {adamw:.6}\n[optimizer.muon]\nlr = {muon:.6}\n\
         [schedule]\nwarmup_steps = {warmup}\n",
        heads = width / head,
        adamw = 3e-3 * slower,
        muon = 1e-2 * slower,
        warmup = (steps / 50).clamp(10, 200),
    )
}
