//! Puts another residual stream onto a trained prenorm model, so that training can go on with it. The result is built and
//! compared with the source before anything is written, and it is written from what was compared.

use crate::apart::{apart, some_tokens};
use crate::checkpoint::{CONFIG, CheckpointError, WEIGHTS, load};
use crate::companions::companions;
use crate::config::{ConfigError, ModelConfig};
use crate::decoder::Decoder;
use crate::import::WeightSource;
use crate::memory::{Need, check};
use crate::model_files::{GENERATION, ModelFiles, Place};
use crate::pass::{Pass, PassError, Tokens};
use crate::streamed::{Streamed, write_streamed};
use burn::tensor::Device;
use hadal_files::{StagedDirectory, pretty_json, write_manifest, write_whole};
use hadal_kernels::read_back;
use hadal_residual::{Chosen, InvalidPolicy, PreNormModel, ResidualConfig, Weights};
use safetensors::tensor::Dtype;
use serde::Serialize;
use serde_json::json;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

/// How far logits may move, relative to the largest.
pub const SAME_LOGITS: f32 = 1e-5;

/// What to put onto which model.
#[derive(Clone, Copy, Debug)]
pub struct Restream<'a> {
    /// The trained model.
    pub source: &'a Path,
    /// The stream that it gets.
    pub residual: &'a ResidualConfig,
    /// What both are compared on; some tokens of the vocabulary if there are none.
    pub tokens: Option<&'a Tokens>,
    /// How far logits may move, relative to the largest.
    pub tolerance: f32,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestreamStage {
    /// The source is read and run.
    Source,
    /// The result is built and run.
    Result,
    /// So many of so many bytes are written.
    Writing(u64, u64),
}

/// What was found, and written if there was a place for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Restreamed {
    /// The source's stream.
    pub from: String,
    /// The result.
    pub config: ModelConfig,
    /// Parameters of the source.
    pub parameters_before: u64,
    /// Parameters of the result.
    pub parameters_after: u64,
    /// The largest difference of logits, relative to the largest.
    pub difference: f32,
    /// How large it may be.
    pub tolerance: f32,
    /// Tokens that were compared.
    pub tokens: usize,
    /// Bytes of the result's parameters as they are stored.
    pub stored_bytes: u64,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum RestreamError {
    /// The source's stream is another one.
    #[error(
        "the stream of this model is {residual}, but only models whose stream is prenorm, or folds into it, can get \
         another one"
    )]
    NotPreNorm { residual: String },
    /// The policy is never prenorm, or not with these settings.
    #[error(transparent)]
    Policy(#[from] InvalidPolicy),
    /// The policy makes no model of this shape.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Logits move.
    #[error(
        "nothing was written: with {residual} the logits move by {difference:.2e} of their scale, and {tolerance:.0e} is \
         allowed. Streams that are added up or averaged before they are normalised differ by norm_eps, here {eps:e}; \
         take a form that does not (docs/convert.md), or allow more with --tolerance"
    )]
    Differs { residual: String, difference: f32, tolerance: f32, eps: f64 },
    /// A model cannot be read or written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A model cannot be run.
    #[error(transparent)]
    Pass(#[from] PassError),
}

impl RestreamError {
    /// Whether the request makes no sense, rather than something failing on the way.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::NotPreNorm { .. } | Self::Policy(_) | Self::Config(_) => true,
            Self::Checkpoint(error) => matches!(error, CheckpointError::Exists { .. }),
            Self::Differs { .. } | Self::Pass(_) => false,
        }
    }
}

/// Puts a stream onto a model and compares both; writes the result if it has a place and computes the same.
pub fn restream(
    request: &Restream,
    out: Option<&Path>,
    progress: &mut dyn FnMut(RestreamStage),
) -> Result<Restreamed, RestreamError> {
    if let Some(out) = out.filter(|out| out.exists()) {
        return Err(CheckpointError::Exists { path: out.into() }.into());
    }
    let source = Source::open(request.source)?;
    let config = source.config_with(request.residual)?;
    // Everything that can be refused is refused before parameters are read, which takes long.
    let dimensions = source.files.config.dimensions();
    let none = |_: &str| None;
    request.residual.as_prenorm(&PreNormModel { dimensions, elements: &none }).map(drop)?;
    let target = Decoder::declare(&config, Weights::fresh(0, &Device::flex()));
    let parameters_after = parameters(&target);
    let need = Need { weights: parameters_after * size_of::<f32>() as u64, ..Need::default() };
    let path = || request.source.to_path_buf();
    check(&need).map_err(|reason| CheckpointError::Memory { path: path(), reason })?;

    let drawn;
    let tokens = match request.tokens {
        Some(tokens) => tokens,
        None => {
            drawn = some_tokens(&config)?;
            &drawn
        }
    };
    progress(RestreamStage::Source);
    // It is gone before the result is read: two large models may not fit.
    let (before, parameters_before) = {
        let decoder = load(request.source, &Device::flex())?.decoder;
        (logits(&decoder, tokens)?, parameters(&decoder))
    };
    progress(RestreamStage::Result);
    let Built { config, decoder, dtypes, difference } =
        best(&source, &config, &before, request, tokens)?;
    if difference > request.tolerance {
        return Err(RestreamError::Differs {
            residual: config.residual.to_string(),
            difference,
            tolerance: request.tolerance,
            eps: source.files.config.norm_eps,
        });
    }
    let streamed = |declared: &hadal_residual::Declared| Streamed {
        name: declared.name.clone(),
        dtype: dtypes.get(&declared.name).copied().unwrap_or(Dtype::F32),
        shape: declared.shape.clone(),
    };
    let tensors: Vec<Streamed> = decoder.declared().iter().map(streamed).collect();
    if let Some(out) = out {
        let mut told = |done, all| progress(RestreamStage::Writing(done, all));
        write(&source, request.source, &decoder, &tensors, out, &mut told)?;
    }
    Ok(Restreamed {
        from: source.files.config.residual.to_string(),
        parameters_before,
        parameters_after,
        difference,
        tolerance: request.tolerance,
        tokens: tokens.ids().len(),
        stored_bytes: tensors.iter().map(|tensor| tensor.bytes() as u64).sum(),
        config,
    })
}

/// A result, and how far its logits are from the source's.
struct Built {
    config: ModelConfig,
    decoder: Decoder,
    /// The types in which its parameters can be stored without loss, as far as the source has them.
    dtypes: HashMap<String, Dtype>,
    difference: f32,
}

/// The result whose epsilon moves logits least, of those that the policy proposes. Most propose one.
fn best(
    source: &Source,
    config: &ModelConfig,
    before: &[f32],
    request: &Restream,
    tokens: &Tokens,
) -> Result<Built, RestreamError> {
    let build = |factor: f64| -> Result<Built, RestreamError> {
        let config = ModelConfig { norm_eps: config.norm_eps * factor, ..config.clone() };
        let (decoder, dtypes) = source.with(&config)?;
        let difference = apart(before, &logits(&decoder, tokens)?);
        Ok(Built { config, decoder, dtypes, difference })
    };
    let mut factors = config.residual.prenorm_epsilons(&config.dimensions()).into_iter();
    let first = factors.next().unwrap_or(1.0);
    let mut built = build(first)?;
    if built.difference <= request.tolerance {
        return Ok(built);
    }
    let (mut least, mut chosen, mut last) = (built.difference, first, first);
    for factor in factors {
        // One at a time is in memory.
        drop(built);
        built = build(factor)?;
        last = factor;
        if built.difference < least {
            (least, chosen) = (built.difference, factor);
        }
    }
    if last == chosen { Ok(built) } else { build(chosen) }
}

fn parameters(decoder: &Decoder) -> u64 {
    decoder.declared().iter().map(|d| d.shape.iter().map(|&n| n as u64).product::<u64>()).sum()
}

fn logits(decoder: &Decoder, tokens: &Tokens) -> Result<Vec<f32>, PassError> {
    Ok(read_back(decoder.logits(tokens, Pass::default())?)?)
}

/// A trained model as a prenorm one.
struct Source {
    files: ModelFiles,
    /// By our names.
    places: HashMap<String, Place>,
}

impl Source {
    fn open(path: &Path) -> Result<Self, RestreamError> {
        let files = ModelFiles::open(path)?;
        let dimensions = files.config.dimensions();
        let residual = &files.config.residual;
        if !dimensions.each_site().all(|site| residual.prenorm_gain(site, &dimensions).is_some()) {
            return Err(RestreamError::NotPreNorm { residual: residual.to_string() });
        }
        let places = files.places()?.into_iter().map(|place| (place.ours.clone(), place)).collect();
        Ok(Self { files, places })
    }

    /// The same model with another stream.
    fn config_with(&self, residual: &ResidualConfig) -> Result<ModelConfig, ConfigError> {
        let mut config = ModelConfig { residual: residual.clone(), ..self.files.config.clone() };
        if !residual.depends_on_depth() {
            config.removed_blocks.clear();
        }
        config.check()?;
        Ok(config)
    }

    fn weights(&self) -> &dyn WeightSource {
        &*self.files.weights
    }

    /// What a parameter's elements are multiplied by in the prenorm model.
    fn factor(&self, name: &str) -> f64 {
        let config = &self.files.config;
        config.residual.prenorm_factor(name, &config.dimensions()).unwrap_or(1.0)
    }

    /// The result, and the types in which its parameters can be stored without loss, as far as the source has them.
    fn with(
        &self,
        config: &ModelConfig,
    ) -> Result<(Decoder, HashMap<String, Dtype>), RestreamError> {
        let problem = RefCell::new(None);
        let elements = |name: &str| {
            let place = self.places.get(name)?;
            let factor = self.factor(name);
            let mut values = self.weights().floats(&place.stored).unwrap_or_else(|reason| {
                problem.borrow_mut().get_or_insert(reason);
                vec![0.0; place.shape.iter().product()]
            });
            if factor != 1.0 {
                values.iter_mut().for_each(|gain| *gain = (f64::from(*gain) * factor) as f32);
            }
            Some(values)
        };
        let prenorm =
            PreNormModel { dimensions: self.files.config.dimensions(), elements: &elements };
        let chosen: Chosen = config.residual.as_prenorm(&prenorm)?;
        let mut dtypes = HashMap::new();
        let mut stored = |name: &str, shape: &[usize]| {
            if let Some(values) = chosen(name, shape) {
                return Some(values);
            }
            let place = self.places.get(name).filter(|place| place.shape == shape)?;
            if self.factor(name) == 1.0 {
                dtypes.insert(name.to_owned(), self.weights().dtype(&place.stored));
            }
            elements(name)
        };
        let decoder = Decoder::stored(config, &mut stored, &Device::flex())?;
        drop(chosen);
        match problem.take() {
            None => Ok((decoder, dtypes)),
            Some(problem) => {
                let path = self.weights().path().into();
                Err(CheckpointError::Mismatch { path, problems: vec![problem] }.into())
            }
        }
    }
}

/// Writes the model that was compared, with what goes along: all of it or nothing.
fn write(
    source: &Source,
    path: &Path,
    decoder: &Decoder,
    tensors: &[Streamed],
    out: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), CheckpointError> {
    let staged = StagedDirectory::create(out)?;
    let at = |name: &str| staged.path().join(name);
    let along = companions(path)?;
    for (name, content) in &along {
        write_whole(&at(name), content)?;
    }
    let ModelFiles { begin, ends, .. } = &source.files;
    let said = along.iter().any(|(name, _)| *name == GENERATION);
    if !said && (begin.is_some() || !ends.is_empty()) {
        let tokens = json!({"bos_token_id": begin, "eos_token_id": ends});
        write_whole(&at(GENERATION), format!("{tokens:#}\n"))?;
    }
    write_whole(&at(CONFIG), pretty_json(&at(CONFIG), decoder.config())?)?;
    let readers: HashMap<_, _> = decoder.parameter_readers().into_iter().collect();
    let weights = at(WEIGHTS);
    let mut read = |place: usize| match readers.get(&tensors[place].name) {
        Some(read) => Ok(read()),
        None => Err(format!("missing: {}", tensors[place].name)),
    };
    write_streamed(&weights, tensors, None, &mut read, progress)
        .map_err(|error| error.into_error(&weights, &weights))?;
    write_manifest(staged.path())?;
    Ok(staged.finish()?)
}

#[cfg(test)]
mod tests;
