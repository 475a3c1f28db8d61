//! What is diagnosed: a run, one of our models, one of Hugging Face's, or a GGUF file.

use crate::diagnose::DiagnoseError;
use hadal_cpu::Form;
use hadal_files::read_text;
use hadal_model::{
    Decoder, Device, ModelConfig, Part, Tokenizer, TokenizerError, Variant, load, model_at,
};
use hadal_residual::{Site, StepMode};
use hadal_train::{RunConfig, checkpoint_steps, saved_model};
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
    /// Opens a run folder, at its finished model or else its newest checkpoint, a model directory, or a GGUF file, on the
    /// CPU.
    pub fn open(path: &Path) -> Result<Self, DiagnoseError> {
        Self::open_on(path, &Device::flex())
    }

    /// The same on any device.
    pub fn open_on(path: &Path, device: &Device) -> Result<Self, DiagnoseError> {
        // Gradients are needed, so the graph must be kept.
        let device = &device.clone().autodiff();
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
        let name = absolute.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|| path.display().to_string());
        let settings = path.join("config.toml");
        if settings.is_file() {
            let text = read_text(&settings)?;
            let config = RunConfig::parse(&text, &settings.display().to_string())?;
            let (decoder, mode, step) = of_run(path, &config, device)?;
            let (path, config) = (path.into(), Some(config));
            return Ok(Self { name, path, step, decoder, config, mode, absent: Vec::new() });
        }
        let model = model_at(path);
        if !model.is_file() && !model.join("config.json").is_file() {
            return Err(DiagnoseError::NoModel { path: path.into() });
        }
        let decoder = load(path, device)?.decoder;
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

    /// The variant that is looked at.
    pub(crate) fn variant(&self) -> Variant<'_> {
        Variant { absent: &self.absent, mode: &self.mode, ..Variant::default() }
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

    /// The model's tokenizer, if it is beside the model or in its file.
    pub(crate) fn tokenizer(&self) -> Result<Option<Tokenizer>, TokenizerError> {
        match self.tokenizer_file() {
            Some(file) => Tokenizer::from_file(&file).map(Some),
            None => Tokenizer::of_model(&self.path),
        }
    }

    /// The file of the model's tokenizer, if it is beside the model.
    pub(crate) fn tokenizer_file(&self) -> Option<PathBuf> {
        let places = [self.path.join("model"), self.path.clone()];
        places.iter().map(|place| place.join("tokenizer.json")).find(|file| file.is_file())
    }
}

/// Form of the kernels on a device: numbers differ in the last bits between any two.
pub(crate) fn form(device: &Device) -> String {
    let device = device.clone().without_autodiff();
    if device == Device::flex() { Form::best().to_string() } else { format!("{device:?}") }
}

fn of_run(
    path: &Path,
    config: &RunConfig,
    device: &Device,
) -> Result<(Decoder, StepMode, Option<u64>), DiagnoseError> {
    let steps = checkpoint_steps(path).unwrap_or_default();
    let finished = path.join("model");
    if finished.join("config.json").is_file() {
        let decoder = load(&finished, device)?.decoder;
        return Ok((decoder, StepMode::default(), steps.last().copied()));
    }
    let Some(&step) = steps.last() else {
        return Err(DiagnoseError::NoCheckpoint { path: path.into() });
    };
    let (decoder, mode) = saved_model(path, config, step, device)?;
    Ok((decoder, mode, Some(step)))
}
