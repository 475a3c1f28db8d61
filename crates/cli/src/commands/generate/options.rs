//! Options of the commands that write: the model, how tokens are chosen, how a chat is formatted.

use super::tokenizer::{refuse_task, tokenizer_of};
use crate::device::DeviceOption;
use crate::failure::Failure;
use crate::output::spinner;
use clap::Args;
use hadal_cpu::pool::start_pool;
use hadal_model::{
    ChatTemplate, Checkpoint, NAMED_TEMPLATES, Part, Sampler, Sampling, StopStrings, Stored,
    Tokenizer, load_for, read_config,
};
use hadal_residual::{Site, Skipping, Thresholds};
use std::path::{Path, PathBuf};

/// Which model, and how it runs.
#[derive(Args)]
pub(crate) struct ModelOptions {
    /// Directory with the model, or a GGUF file
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// `bytes`, or a tokenizer.json other than MODEL's
    #[arg(long, value_name = "bytes|FILE")]
    tokenizer: Option<PathBuf>,
    /// Leave these blocks, attentions and MLPs out, e.g. 17,18,attn:20
    #[arg(long, alias = "skip-blocks", value_name = "PART,..", value_delimiter = ',')]
    without: Vec<Part>,
    #[command(flatten)]
    device: DeviceOption,
    /// Threads that compute [default: one for each core]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Let tokens skip sub-layers whose gate is smaller than this; with 0 no token skips [default: the model's own]
    #[arg(long, value_name = "GATE", allow_negative_numbers = true)]
    skip_threshold: Option<f64>,
}

/// A model that is ready to write.
pub(crate) struct Loaded {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) absent: Vec<Site>,
}

impl ModelOptions {
    /// Loads the model for a text of about this many tokens.
    pub(crate) fn load(&self, tokens: usize) -> Result<Loaded, Failure> {
        // Before anything computes: the first to do so would make another pool.
        let _ = start_pool(self.threads.map(usize::from));
        let device = self.device.open()?;
        let spinner = spinner(format!("loading {}", self.model.display()));
        let checkpoint = load_for(&self.model, &device, tokens);
        spinner.finish_and_clear();
        let mut checkpoint = checkpoint.map_err(Failure::failed)?;
        self.set_skipping(&mut checkpoint)?;
        let absent = Part::all_sites(&self.without);
        checkpoint.decoder.check_absent(&absent).map_err(Failure::usage)?;
        let tokenizer = tokenizer_of(&self.model, self.tokenizer.as_deref(), &checkpoint)?;
        Ok(Loaded { checkpoint, tokenizer, absent })
    }

    /// Replaces the model's thresholds by one, if one was given.
    fn set_skipping(&self, checkpoint: &mut Checkpoint) -> Result<(), Failure> {
        let Some(threshold) = self.skip_threshold else { return Ok(()) };
        let own = checkpoint.decoder.config().residual.skipping();
        let thresholds = Thresholds::One(threshold);
        let skipping = match own {
            Some(own) => Skipping { thresholds, ..own },
            None => Skipping::below(threshold),
        };
        let skipping = (threshold != 0.0).then_some(skipping);
        checkpoint.decoder.set_skipping(skipping).map_err(Failure::usage)
    }
}

/// How the next token is chosen. The order is that of the options: penalty, temperature, top-k, top-p, min-p.
#[derive(Args)]
pub(crate) struct SamplingOptions {
    /// Divide the logits of tokens that occurred by this; 1.1 is usual, 1 changes nothing
    #[arg(long, value_name = "PENALTY", allow_negative_numbers = true)]
    repeat_penalty: Option<f64>,
    /// How many tokens back an occurrence counts
    #[arg(long, alias = "repeat-last-n", value_name = "TOKENS")]
    #[arg(default_value_t = Sampling::REPEAT_WINDOW)]
    repeat_window: usize,
    /// 0 always takes the likeliest token
    #[arg(long, short, default_value_t = 0.0, allow_negative_numbers = true)]
    temperature: f64,
    /// Draw from this many likeliest tokens
    #[arg(long)]
    top_k: Option<usize>,
    /// Draw from the likeliest tokens that reach this probability
    #[arg(long, allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// Draw from tokens at least this likely, as a share of the likeliest
    #[arg(long, allow_negative_numbers = true)]
    min_p: Option<f64>,
    /// Makes a draw repeatable
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// End the text before this string; may be given several times
    #[arg(long, value_name = "STRING")]
    stop: Vec<String>,
}

impl SamplingOptions {
    pub(crate) fn sampler(&self) -> Result<Sampler, Failure> {
        Sampler::new(Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            repeat_window: Some(self.repeat_window),
            seed: self.seed,
        })
        .map_err(Failure::usage)
    }

    pub(crate) fn stops(&self) -> StopStrings {
        StopStrings::new(self.stop.clone())
    }
}

/// How turns become a prompt.
#[derive(Args)]
pub(crate) struct ChatOptions {
    /// What the model is told before the chat begins
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// A template in Jinja, or `chatml` [default: the model's own]
    #[arg(long, value_name = "FILE|chatml")]
    template: Option<PathBuf>,
}

impl ChatOptions {
    /// Whether one of them was given.
    pub(crate) fn given(&self) -> bool {
        self.system.is_some() || self.template.is_some()
    }

    /// The template that was named, or else the model's own.
    pub(crate) fn template(&self, model: &Path) -> Result<ChatTemplate, Failure> {
        let Some(named) = &self.template else {
            if let Some(own) = ChatTemplate::of_model(model).map_err(Failure::failed)? {
                return Ok(own);
            }
            // Nothing has a template that is no model, or has no text.
            let config = Stored::of(model).and_then(|_| read_config(model));
            let config = config.map_err(Failure::failed)?;
            refuse_task(model, config.vocab_size)?;
            return Err(Failure::usage(format!(
                "{} has no chat template; it may be a base model, which continues text: try `hadal generate` without \
                 --chat. If it was trained to chat, name its template with --template FILE, or --template chatml",
                model.display()
            )));
        };
        let by_name = named.to_str().and_then(ChatTemplate::named);
        match by_name {
            Some(template) => Ok(template),
            None if !named.exists() => Err(Failure::usage(format!(
                "--template {}: there is no such file, and known by name is {}",
                named.display(),
                NAMED_TEMPLATES.join(", ")
            ))),
            None => ChatTemplate::from_file(named, model).map_err(Failure::failed),
        }
    }
}
