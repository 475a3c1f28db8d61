//! The model that is exported, as it is on disk.

use super::ExportError;
use super::vocabulary::byte_tokenizer;
use crate::config::ModelConfig;
use crate::import::WeightSource;
use crate::model_files::{ModelFiles, Place, TOKENIZER, chat_template, is_gguf, model_at};
use hadal_files::Verification;
use hadal_tokenizer::{Tokenizer, TokenizerError, read_tokenizer, tokenizer_of_gguf};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// An open model and what goes with it. Its parameters are read one by one.
pub(super) struct Source {
    /// A model directory or a GGUF file.
    pub(super) path: PathBuf,
    pub(super) config: ModelConfig,
    pub(super) begin: Option<u32>,
    pub(super) ends: Vec<u32>,
    pub(super) vocabulary: Option<Vocabulary>,
    /// Turns text into tokens, if there is one.
    pub(super) tokenizer: Option<Tokenizer>,
    pub(super) chat_template: Option<String>,
    pub(super) places: Vec<Place>,
    weights: Box<dyn WeightSource>,
}

/// A tokenizer.
pub(super) struct Vocabulary {
    /// The `tokenizer.json`, or the GGUF file that amounts to it.
    pub(super) path: PathBuf,
    /// What is, or would be, in `tokenizer.json`.
    pub(super) json: Value,
}

impl Source {
    pub(super) fn open(path: &Path) -> Result<Self, ExportError> {
        let place = model_at(path);
        let files = ModelFiles::open(&place)?;
        let places = files.places()?;
        let ModelFiles { config, begin, ends, weights } = files;
        // A file that only names bytes says nothing new.
        let vocabulary =
            Vocabulary::of(&[&place, path])?.filter(|found| found.json != byte_tokenizer());
        let tokenizer = match &vocabulary {
            Some(Vocabulary { path, json }) => {
                Some(Tokenizer::from_bytes(path, json.to_string().as_bytes())?)
            }
            None => (256..=257).contains(&config.vocab_size).then(Tokenizer::bytes),
        };
        let in_vocabulary = |id: &u32| (*id as usize) < config.vocab_size;
        let begin = begin.or(tokenizer.as_ref().and_then(Tokenizer::begin)).filter(in_vocabulary);
        let mut ends = match (ends.is_empty(), &tokenizer) {
            (true, Some(tokenizer)) => tokenizer.ends(),
            _ => ends,
        };
        ends.retain(in_vocabulary);
        let chat_template = chat_template(&place)?;
        let path = place;
        Ok(Self {
            path,
            config,
            begin,
            ends,
            vocabulary,
            tokenizer,
            chat_template,
            places,
            weights,
        })
    }

    pub(super) fn is_gguf(&self) -> bool {
        is_gguf(&self.path)
    }

    /// The model's common name.
    pub(super) fn name(&self) -> Option<String> {
        let absolute = std::path::absolute(&self.path).ok()?;
        let name = if self.is_gguf() { absolute.file_stem() } else { absolute.file_name() };
        Some(name?.to_string_lossy().into_owned())
    }

    /// Begins to compare the files that hold the parameters with their hashes.
    pub(super) fn verification(&self) -> Verification {
        Verification::start(self.weights.files())
    }

    /// The elements of a parameter.
    pub(super) fn floats(&self, place: &Place) -> Result<Vec<f32>, ExportError> {
        self.weights
            .floats(&place.stored)
            .map_err(|reason| ExportError::Weights { path: self.weights.path().into(), reason })
    }

    /// The same for prenorm models elsewhere: gains include the policy's factor on normalised inputs, and what ends a
    /// sub-layer its factor on writes.
    pub(super) fn folded(&self, place: &Place) -> Result<Vec<f32>, ExportError> {
        let mut values = self.floats(place)?;
        let Self { config, .. } = self;
        let scale = config.residual.prenorm_factor(&place.ours, &config.dimensions());
        if let Some(scale) = scale.filter(|scale| *scale != 1.0) {
            for value in &mut values {
                *value = (f64::from(*value) * scale) as f32;
            }
        }
        Ok(values)
    }
}

impl Vocabulary {
    /// The first tokenizer found at these places.
    fn of(places: &[&Path]) -> Result<Option<Self>, TokenizerError> {
        for place in places {
            if is_gguf(place) {
                let path = place.to_path_buf();
                return Ok(tokenizer_of_gguf(place)?.map(|json| Self { path, json }));
            }
            let path = place.join(TOKENIZER);
            if path.is_file() {
                let json = serde_json::from_slice(&read_tokenizer(&path)?).map_err(|error| {
                    TokenizerError::Malformed { path: path.clone(), reason: error.to_string() }
                })?;
                return Ok(Some(Self { path, json }));
            }
        }
        Ok(None)
    }
}
