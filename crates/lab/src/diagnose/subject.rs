//! What is diagnosed: a run, a model of ours, one of Hugging Face's, or a GGUF file.

use super::error::{DiagnoseError, io_error};
use crate::train::skip::Skipper;
use crate::train::{RunConfig, checkpoint_path, checkpoint_steps, read_state, warmth};
use hadal_model::{
    Decoder, Device, ModelConfig, Part, TensorFile, Tokenizer, TokenizerError, Variant, load,
    model_at,
};
use hadal_residual::{Site, StepMode};
use std::fs;
use std::path::{Path, PathBuf};

/// A model and where it comes from.
#[derive(Debug)]
pub struct Subject {
    /// The last part of its folder's path.
    pub name: String,
    /// Its folder.
    pub path: PathBuf,
    /// Steps of training, if it is a run's.
    pub step: Option<u64>,
    pub(crate) decoder: Decoder,
    pub(crate) config: Option<RunConfig>,
    /// How far a run's gains have warmed up.
    pub(crate) mode: StepMode,
    pub(crate) absent: Vec<Site>,
}

impl Subject {
    /// Opens a run folder, at its finished model or else its newest checkpoint, a model directory, or a GGUF file.
    pub fn open(path: &Path) -> Result<Self, DiagnoseError> {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
        let name = absolute.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|| path.display().to_string());
        let settings = path.join("config.toml");
        if settings.is_file() {
            let text = fs::read_to_string(&settings).map_err(io_error("read", &settings))?;
            let config = RunConfig::parse(&text, &settings.display().to_string())?;
            let (decoder, mode, step) = of_run(path, &config)?;
            let (path, config) = (path.into(), Some(config));
            return Ok(Self { name, path, step, decoder, config, mode, absent: Vec::new() });
        }
        let model = model_at(path);
        if !model.is_file() && !model.join("config.json").is_file() {
            return Err(DiagnoseError::NoModel { path: path.into() });
        }
        let decoder = load(path, &device())?.decoder;
        Ok(Self {
            name,
            path: path.into(),
            step: None,
            decoder,
            config: None,
            mode: StepMode::default(),
            absent: Vec::new(),
        })
    }

    /// Looks at the model without these parts.
    pub fn leave_out(&mut self, parts: &[Part]) -> Result<(), DiagnoseError> {
        let absent = Part::all_sites(parts);
        self.decoder.check_absent(&absent)?;
        self.absent = absent;
        Ok(())
    }

    /// What is looked at.
    pub(crate) fn variant(&self) -> Variant<'_> {
        Variant { absent: &self.absent, mode: &self.mode }
    }

    /// The model's shape.
    pub fn model(&self) -> &ModelConfig {
        self.decoder.config()
    }

    /// Where its model is, if it has more than checkpoints.
    pub(crate) fn model_directory(&self) -> Option<PathBuf> {
        let place = match &self.config {
            Some(_) => self.path.join("model"),
            None => self.path.clone(),
        };
        place.join("config.json").is_file().then_some(place)
    }

    /// The model's tokenizer, if it stands beside the model or in its file.
    pub(crate) fn tokenizer(&self) -> Result<Option<Tokenizer>, TokenizerError> {
        match self.tokenizer_file() {
            Some(file) => Tokenizer::from_file(&file).map(Some),
            None => Tokenizer::of_model(&self.path),
        }
    }

    /// The file of the model's tokenizer, if it stands beside the model.
    pub(crate) fn tokenizer_file(&self) -> Option<PathBuf> {
        let places = [self.path.join("model"), self.path.clone()];
        places.iter().map(|place| place.join("tokenizer.json")).find(|file| file.is_file())
    }
}

/// Gradients are asked for, so the graph must be kept.
fn device() -> Device {
    Device::flex().autodiff()
}

fn of_run(
    path: &Path,
    config: &RunConfig,
) -> Result<(Decoder, StepMode, Option<u64>), DiagnoseError> {
    let steps = checkpoint_steps(path).unwrap_or_default();
    let finished = path.join("model");
    if finished.join("config.json").is_file() {
        let decoder = load(&finished, &device())?.decoder;
        return Ok((decoder, StepMode::default(), steps.last().copied()));
    }
    let Some(&step) = steps.last() else {
        return Err(DiagnoseError::NoCheckpoint { path: path.into() });
    };
    let directory = checkpoint_path(path, step);
    let state = read_state(&directory)?;
    let file = TensorFile::open(&directory.join("state.safetensors"))?;
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
    let mut decoder = Decoder::stored(&model, &mut stored, &device())?;
    if let Some(problem) = problem {
        return Err(problem.into());
    }
    let warmth = warmth(config, step);
    if let (Some(skipper), Some(state)) = (Skipper::new(config, &model, length)?, &state.skip) {
        decoder.set_skipping(skipper.skipping(state, step, warmth))?;
    }
    Ok((decoder, StepMode { warmth, ..StepMode::default() }, Some(step)))
}
