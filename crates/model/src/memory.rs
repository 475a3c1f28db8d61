//! Whether a model fits into memory, before any of it is read.

mod free;

use crate::config::ModelConfig;
use crate::import::WeightSource;
use std::fmt;
use std::path::Path;

pub use free::free_memory;

/// What a model computes with.
const FLOAT: u64 = 4;
/// Names another size of the free memory, or `any`.
const SETTING: &str = "HADAL_MEMORY";

/// Bytes that a model needs in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Parameters, as f32.
    pub weights: u64,
    /// The largest parameter once more, while it is read.
    pub reading: u64,
    /// Keys and values of a text.
    pub cache: u64,
    /// Tokens of that text.
    pub tokens: usize,
}

impl Need {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.reading).saturating_add(self.cache)
    }

    /// For the parameters that a file holds, by its header alone, and a text of this many tokens.
    pub(crate) fn of(weights: &dyn WeightSource, config: &ModelConfig, tokens: usize) -> Self {
        let sizes = weights.names().into_iter().map(|name| {
            let shape = weights.shape(&name).unwrap_or_default();
            shape.iter().fold(FLOAT, |bytes, &length| bytes.saturating_mul(length as u64))
        });
        let (all, largest) = sizes
            .fold((0u64, 0), |(all, largest), size| (all.saturating_add(size), size.max(largest)));
        let tokens = tokens.min(config.max_seq_len);
        let per_token = 2 * FLOAT * config.n_layers as u64 * config.kv_width() as u64;
        Self { weights: all, reading: largest, cache: per_token * tokens as u64, tokens }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { weights, cache, tokens, .. } = self;
        write!(f, "{} ({} weights in f32", size(self.total()), size(*weights))?;
        if *cache > 0 {
            write!(f, ", {} keys and values of {tokens} tokens", size(*cache))?;
        }
        write!(f, ")")
    }
}

/// Why a model is not loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum MemoryError {
    /// It does not fit.
    #[error(
        "it needs {need} of memory, and {} are free; close other programs, take a smaller model or a shorter text, \
         or try it all the same with {SETTING}=any", size(*free)
    )]
    TooLittle { need: Need, free: u64 },
    /// A setting that is no size.
    #[error("{SETTING} is {value:?}, but it must be a size, such as 16GB, or `any`")]
    Setting { value: String },
}

/// Bytes that may be taken: those that are free, or as many as the environment names. `None` for no limit that is known.
pub fn allowed_memory() -> Result<Option<u64>, MemoryError> {
    match std::env::var(SETTING) {
        Ok(value) => setting(&value),
        Err(_) => Ok(free_memory()),
    }
}

/// Refuses what does not fit.
pub(crate) fn check(need: &Need) -> Result<(), MemoryError> {
    match allowed_memory()? {
        Some(free) if free < need.total() => Err(MemoryError::TooLittle { need: *need, free }),
        _ => Ok(()),
    }
}

/// A size such as `16GB`; `None` for no limit.
fn setting(value: &str) -> Result<Option<u64>, MemoryError> {
    const UNITS: [(&str, f64); 4] = [("KB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12)];
    let text = value.trim().to_ascii_uppercase();
    if matches!(text.as_str(), "ANY" | "") {
        return Ok(None);
    }
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, bytes) = unit.unwrap_or((&text, 1.0));
    match number.trim().parse::<f64>() {
        Ok(number) if number >= 0.0 && number.is_finite() => Ok(Some((number * bytes) as u64)),
        _ => Err(MemoryError::Setting { value: value.into() }),
    }
}

/// `29.3 GB`.
fn size(bytes: u64) -> String {
    let (value, unit) = match bytes {
        0..1_000_000 => (bytes as f64 / 1e3, "kB"),
        1_000_000..1_000_000_000 => (bytes as f64 / 1e6, "MB"),
        _ => (bytes as f64 / 1e9, "GB"),
    };
    format!("{value:.1} {unit}")
}

/// Where memory is that of the machine: on the CPU.
pub(crate) fn is_ours(device: &burn::tensor::Device) -> bool {
    let flex = burn::tensor::Device::flex();
    *device == flex || *device == flex.autodiff()
}

/// What a model at a path needs, by its headers alone, for a text of this many tokens.
pub fn memory_need(path: &Path, tokens: usize) -> Result<Need, crate::CheckpointError> {
    let files = crate::model_files::ModelFiles::open(path)?;
    Ok(Need::of(&*files.weights, &files.config, tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_nonsense_is_refused() {
        for (text, bytes) in [
            ("any", None),
            ("", None),
            ("0", Some(0)),
            ("1000", Some(1000)),
            ("16GB", Some(16_000_000_000)),
            (" 1.5 mb ", Some(1_500_000)),
        ] {
            assert_eq!(setting(text), Ok(bytes), "{text}");
        }
        for text in ["much", "-1", "NaN", "inf", "16 XB", "GB"] {
            let error = setting(text).unwrap_err().to_string();
            assert!(error.contains("HADAL_MEMORY") && error.contains("16GB"), "{error}");
        }
    }

    #[test]
    fn a_refusal_says_what_is_needed_what_is_free_and_what_to_do() {
        let need = Need { weights: 28_960_000_000, reading: 0, cache: 1_070_000_000, tokens: 4096 };
        let said = MemoryError::TooLittle { need, free: 23_000_000_000 }.to_string();
        for part in
            ["30.0 GB", "29.0 GB weights", "1.1 GB keys", "23.0 GB are free", "HADAL_MEMORY=any"]
        {
            assert!(said.contains(part), "no {part} in {said}");
        }
    }

    #[test]
    fn a_model_is_measured_by_its_header() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/stories260K");
        let need = memory_need(&model, 100).unwrap();
        let config = crate::read_config(&model).unwrap();
        let cost = crate::ModelCost::of(&config).unwrap();
        assert_eq!(need.weights, 4 * cost.parameters.total());
        assert_eq!(need.cache, 100 * cost.kv_bytes_per_token);
        assert_eq!(memory_need(&model, usize::MAX).unwrap().tokens, config.max_seq_len);
    }
}
