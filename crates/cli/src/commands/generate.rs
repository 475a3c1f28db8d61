//! `hadal generate`: text from a model. The text goes to stdout, everything else to stderr.

use crate::failure::Failure;
use crate::output::{print_json, spinner};
use crate::standard::{stderr, stdout, stdout_is_lost};
use clap::Args;
use hadal_cpu::pool::{in_pool, start_pool};
use hadal_model::{
    Checkpoint, DEVICES, Generated, Limits, Part, Sampler, Sampling, Session, StopReason,
    TextStream, Tokenizer, Variant, device_named, generate, load,
};
use hadal_residual::{Skipping, Thresholds};
use serde_json::json;
use std::io::{self, IsTerminal, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Write text with a model
///
/// MODEL is a GGUF file, or a directory with config.json and model.safetensors, of hadal or of the Hugging Face
/// families that `hadal import` knows, and tokenizer.json unless the model reads bytes.
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal generate DIR --prompt 'Once upon a time' --max-tokens 200
  echo 'Once upon a time' | hadal generate DIR --temperature 0.8 --top-p 0.95 --seed 7
  hadal generate model-Q4_1.gguf --prompt 'The deep sea' --without 17,18,attn:20
  hadal generate DIR --prompt '' --json
  hadal generate DIR --prompt 'Once upon a time' --skip-threshold 0.1")]
pub(crate) struct Generate {
    /// Directory with the model, or a GGUF file
    #[arg(value_name = "MODEL")]
    directory: PathBuf,
    /// What to continue; read from stdin if not given; empty to start from the begin token
    #[arg(long, short)]
    prompt: Option<String>,
    /// Longest continuation in tokens
    #[arg(long, short = 'n', default_value_t = 256)]
    max_tokens: usize,
    /// 0 always takes the likeliest token
    #[arg(long, short, default_value_t = 0.0, allow_negative_numbers = true)]
    temperature: f64,
    /// Draw from this many likeliest tokens
    #[arg(long)]
    top_k: Option<usize>,
    /// Draw from the likeliest tokens that reach this probability
    #[arg(long, allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// Makes a draw repeatable
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// `bytes`, or a tokenizer.json other than MODEL's
    #[arg(long, value_name = "bytes|FILE")]
    tokenizer: Option<PathBuf>,
    /// Leave these blocks, attentions and MLPs out, e.g. 17,18,attn:20
    #[arg(long, alias = "skip-blocks", value_name = "PART,..", value_delimiter = ',')]
    without: Vec<Part>,
    /// Where to run; all but flex, the CPU, are cargo features
    #[arg(long, default_value = "flex", value_parser = DEVICES)]
    device: String,
    /// Let tokens skip sub-layers whose gate is smaller than this; with 0 no token skips [default: the model's own]
    #[arg(long, value_name = "GATE", allow_negative_numbers = true)]
    skip_threshold: Option<f64>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl Generate {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let sampling = Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            seed: self.seed,
        };
        let mut sampler = Sampler::new(sampling).map_err(Failure::usage)?;
        let device = device_named(&self.device).map_err(Failure::usage)?;
        let prompt = self.prompt_text()?;
        let spinner = spinner(format!("loading {}", self.directory.display()));
        let mut checkpoint = load(&self.directory, &device).map_err(Failure::failed)?;
        spinner.finish_and_clear();
        self.set_skipping(&mut checkpoint)?;
        let skipped = Part::all_sites(&self.without);
        checkpoint.decoder.check_absent(&skipped).map_err(Failure::usage)?;
        let tokenizer = tokenizer_of(&self.directory, self.tokenizer.as_deref(), &checkpoint)?;
        let ids = prompt_ids(&prompt, &tokenizer)?;

        let mut printer = Printer::after(&ids, &tokenizer, !self.json)?;
        let limits = Limits {
            max_tokens: self.max_tokens,
            ends: &tokenizer.ends(),
            vocabulary: tokenizer.vocab_size(),
        };
        let listen = |token| printer.token(token);
        let decoder = &checkpoint.decoder;
        // On a thread of the pool: one outside would hand over and wait at every product.
        let _ = start_pool(None);
        let variant = Variant::without(&skipped);
        let generated = in_pool(|| {
            let mut session = Session::new(decoder, variant)?;
            generate(&mut session, &ids, &limits, &mut sampler, listen)
        })
        .map_err(Failure::failed)?;
        let text = printer.finish()?;
        if self.json {
            print_json(&summary(&prompt, &ids, &text, &generated))?;
        } else if !stdout_is_lost() {
            report(&generated)?;
        }
        Ok(ExitCode::SUCCESS)
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

    fn prompt_text(&self) -> Result<String, Failure> {
        if let Some(prompt) = &self.prompt {
            return Ok(prompt.clone());
        }
        if io::stdin().is_terminal() {
            writeln!(stderr(), "reading the prompt from the terminal, end it with Ctrl-D")?;
        }
        let mut bytes = Vec::new();
        io::stdin()
            .read_to_end(&mut bytes)
            .map_err(|error| Failure::failed(format!("cannot read the prompt: {error}")))?;
        let text = String::from_utf8(bytes).map_err(|error| {
            Failure::usage(format!("the prompt on stdin is not UTF-8: {error}"))
        })?;
        // The line break that `echo` adds is not part of what the user meant.
        Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
    }
}

/// The tokenizer that was named, or else the model's own, with the ends that the model's files state.
pub(super) fn tokenizer_of(
    model: &Path,
    named: Option<&Path>,
    checkpoint: &Checkpoint,
) -> Result<Tokenizer, Failure> {
    let vocab_size = checkpoint.decoder.config().vocab_size;
    let own = || Tokenizer::of_model(model).map_err(Failure::failed);
    let tokenizer = match named {
        Some(name) if name == Path::new("bytes") => Tokenizer::bytes(),
        Some(file) => Tokenizer::from_file(file).map_err(Failure::failed)?,
        None => match own()? {
            Some(tokenizer) => tokenizer,
            // Exactly the bytes, with or without an end token: it can be nothing else.
            None if (256..=257).contains(&vocab_size) => Tokenizer::bytes(),
            None => {
                return Err(Failure::failed(format!(
                    "{} is missing; copy the model's tokenizer there, or name one with --tokenizer \
                     FILE, or --tokenizer bytes for a byte model",
                    model.join("tokenizer.json").display()
                )));
            }
        },
    };
    // A byte model may have no room for the end token that would also begin a text.
    let begin = checkpoint.begin.or(tokenizer.begin());
    let tokenizer = tokenizer.with_begin(begin.filter(|&id| (id as usize) < vocab_size));
    Ok(if checkpoint.ends.is_empty() {
        tokenizer
    } else {
        tokenizer.with_ends(checkpoint.ends.clone())
    })
}

fn prompt_ids(prompt: &str, tokenizer: &Tokenizer) -> Result<Vec<u32>, Failure> {
    if !prompt.is_empty() {
        return tokenizer.encode(prompt).map_err(Failure::failed);
    }
    tokenizer.begin().map(|begin| vec![begin]).ok_or_else(|| {
        Failure::usage("the prompt is empty and the tokenizer has no begin token; give a prompt")
    })
}

/// Collects the text and, if it is visible, prints it as soon as it is whole.
struct Printer<'a> {
    stream: TextStream<'a>,
    /// The end of the prompt, if the stream still holds it back.
    prompt_end: String,
    text: String,
    failure: Option<Failure>,
    visible: bool,
}

impl<'a> Printer<'a> {
    /// Continues after a prompt, which is not printed again: whether a word begins with a space depends on what comes
    /// before it.
    fn after(prompt: &[u32], tokenizer: &'a Tokenizer, visible: bool) -> Result<Self, Failure> {
        let mut stream = tokenizer.stream();
        for &id in prompt {
            stream.push(id).map_err(Failure::failed)?;
        }
        let prompt_end = stream.held().into_owned();
        Ok(Self { stream, prompt_end, text: String::new(), failure: None, visible })
    }

    /// What is new in a piece of text.
    fn fresh(&mut self, piece: String) -> String {
        let prompt_end = std::mem::take(&mut self.prompt_end);
        if piece.is_empty() {
            self.prompt_end = prompt_end;
            return piece;
        }
        piece.strip_prefix(&prompt_end).map(str::to_owned).unwrap_or(piece)
    }

    fn token(&mut self, token: u32) -> ControlFlow<()> {
        let piece = self.stream.push(token).map_err(Failure::failed);
        match piece.and_then(|piece| self.show(piece.unwrap_or_default())) {
            // Nobody reads on, or nobody can.
            Ok(()) if stdout_is_lost() => ControlFlow::Break(()),
            Ok(()) => ControlFlow::Continue(()),
            Err(failure) => {
                self.failure = Some(failure);
                ControlFlow::Break(())
            }
        }
    }

    fn show(&mut self, piece: String) -> Result<(), Failure> {
        let piece = self.fresh(piece);
        self.text += &piece;
        if self.visible {
            print_now(&piece)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<String, Failure> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let held = self.stream.held().into_owned();
        self.show(held)?;
        if self.visible {
            print_now("\n")?;
        }
        Ok(self.text)
    }
}

fn print_now(text: &str) -> io::Result<()> {
    let mut out = stdout();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn tokens_per_second(generated: &Generated) -> f64 {
    generated.tokens.len() as f64 / generated.decode.as_secs_f64().max(f64::MIN_POSITIVE)
}

fn summary(prompt: &str, ids: &[u32], text: &str, generated: &Generated) -> serde_json::Value {
    json!({
        "prompt": prompt,
        "prompt_ids": ids,
        "text": text,
        "ids": generated.tokens,
        "stop": generated.stop,
        "prefill_seconds": generated.prefill.as_secs_f64(),
        "decode_seconds": generated.decode.as_secs_f64(),
        "tokens_per_second": tokens_per_second(generated),
    })
}

fn report(generated: &Generated) -> io::Result<()> {
    let why = match generated.stop {
        StopReason::End => "the model ended the text",
        StopReason::MaxTokens => "--max-tokens reached",
        StopReason::ContextFull => "the model's max_seq_len is reached",
        StopReason::Stopped => "stopped",
    };
    writeln!(
        stderr(),
        "{} tokens, {:.1} tokens/s, {why}",
        generated.tokens.len(),
        tokens_per_second(generated)
    )
}
