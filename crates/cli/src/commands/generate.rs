//! `hadal generate`: text from a model. The text goes to stdout, everything else to stderr.

mod options;
mod printer;
mod tokenizer;

pub(super) use options::{ChatOptions, Loaded, ModelOptions, SamplingOptions};
pub(super) use printer::print_now;
pub(super) use tokenizer::tokenizer_of;

use crate::failure::Failure;
use crate::output::print_json;
use crate::standard::{stderr, stdout_is_lost, stdout_is_terminal, tell};
use clap::Args;
use hadal_cpu::pool::in_pool;
use hadal_model::{
    ChatTemplate, Conversation, Generated, Limits, Session, StopReason, Tokenizer, Variant,
    generate,
};
use printer::Printer;
use serde_json::json;
use std::io::{self, IsTerminal, Read, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;

/// Write text with a model
///
/// MODEL is a GGUF file, or a directory with config.json and model.safetensors, of hadal or of the Hugging Face
/// families that `hadal import` knows, and tokenizer.json unless the model reads bytes. A model that was trained to
/// chat wants --chat.
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal generate DIR --prompt 'Once upon a time' --max-tokens 200
  hadal generate model-Q4_1.gguf --chat --prompt 'What is the capital of France?'
  echo 'Once upon a time' | hadal generate DIR --temperature 0.8 --top-p 0.95 --seed 7
  hadal generate DIR --prompt 'Q: What is a whale? A:' --stop 'Q:' --repeat-penalty 1.1
  hadal generate model-Q4_1.gguf --prompt 'The deep sea' --without 17,18,attn:20
  hadal generate DIR --prompt '' --json
  hadal generate DIR --prompt 'Once upon a time' --skip-threshold 0.1")]
pub(crate) struct Generate {
    #[command(flatten)]
    model: ModelOptions,
    /// What to continue; read from stdin if not given; empty to start from the begin token
    #[arg(long, short)]
    prompt: Option<String>,
    /// Longest continuation in tokens
    #[arg(long, short = 'n', default_value_t = 256)]
    max_tokens: usize,
    /// The prompt is a question: put it into the model's chat template
    #[arg(long)]
    chat: bool,
    #[command(flatten)]
    chat_options: ChatOptions,
    #[command(flatten)]
    sampling: SamplingOptions,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl Generate {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        self.sampling.sampler()?;
        let prompt = self.prompt_text()?;
        // Found missing before anything large is read.
        let chat = self.chat || self.chat_options.given();
        let template = chat.then(|| self.chat_options.template(&self.model.model)).transpose()?;
        // A token has at least one byte, but for those that a template adds.
        let loaded = self.model.load(prompt.len().saturating_add(self.max_tokens))?;
        let done = match &template {
            Some(template) => self.answer(&prompt, template, &loaded)?,
            None => self.go_on(&prompt, &loaded)?,
        };
        if self.json {
            print_json(&done.summary(&prompt))?;
        } else if !stdout_is_lost() {
            done.report()?;
            if template.is_none() && has_template(&self.model.model) {
                tell("this model has a chat template: to ask it something, try --chat");
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Continues the prompt.
    fn go_on(&self, prompt: &str, loaded: &Loaded) -> Result<Done, Failure> {
        let Loaded { checkpoint, tokenizer, absent } = loaded;
        let ids = prompt_ids(prompt, tokenizer)?;
        let typed = self.prompt.is_none() && io::stdin().is_terminal();
        if stdout_is_terminal() && !self.json && !typed {
            // So that the text can be read from its beginning; what reads a pipe knows the prompt.
            print_now(prompt)?;
        }
        let mut sampler = self.sampling.sampler()?;
        let mut printer = Printer::after(&ids, tokenizer, self.sampling.stops(), !self.json)?;
        let limits = Limits {
            max_tokens: self.max_tokens,
            ends: &tokenizer.ends(),
            vocabulary: tokenizer.vocab_size(),
        };
        let listen = |token| printer.token(token);
        // On a thread of the pool: one outside would hand over and wait at every product.
        let generated = in_pool(|| {
            let mut session = Session::new(&checkpoint.decoder, Variant::without(absent))?;
            generate(&mut session, &ids, &limits, &mut sampler, listen)
        })
        .map_err(Failure::failed)?;
        let (text, stop_string) = printer.finish()?;
        Ok(Done { ids, text, stop_string, generated })
    }

    /// Answers the prompt.
    fn answer(
        &self,
        prompt: &str,
        template: &ChatTemplate,
        loaded: &Loaded,
    ) -> Result<Done, Failure> {
        let Loaded { checkpoint, tokenizer, absent } = loaded;
        let mut sampler = self.sampling.sampler()?;
        let listen = |piece: &str| match self.json {
            true => ControlFlow::Continue(()),
            false => {
                // Writing to standard output never fails.
                let _ = print_now(piece);
                if stdout_is_lost() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            }
        };
        let answer = in_pool(|| -> Result<_, Failure> {
            let variant = Variant::without(absent);
            let mut chat = Conversation::new(&checkpoint.decoder, variant, tokenizer, template)
                .map_err(Failure::failed)?;
            chat.set_system(self.chat_options.system.clone());
            let ids = chat.prompt(prompt).map_err(Failure::failed)?;
            let answer =
                chat.ask(prompt, self.max_tokens, self.sampling.stops(), &mut sampler, listen);
            Ok((ids, answer.map_err(Failure::failed)?))
        })?;
        if !self.json {
            print_now("\n")?;
        }
        let (ids, answer) = answer;
        let (text, stop_string) = (answer.text, answer.stop_string);
        Ok(Done { ids, text, stop_string, generated: answer.generated })
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

/// Whether a model was trained to chat, as far as its files say so.
fn has_template(model: &std::path::Path) -> bool {
    matches!(ChatTemplate::of_model(model), Ok(Some(_)))
}

fn prompt_ids(prompt: &str, tokenizer: &Tokenizer) -> Result<Vec<u32>, Failure> {
    if !prompt.is_empty() {
        return tokenizer.encode(prompt).map_err(Failure::failed);
    }
    tokenizer.begin().map(|begin| vec![begin]).ok_or_else(|| {
        Failure::usage("the prompt is empty and the tokenizer has no begin token; give a prompt")
    })
}

/// A text that was written.
struct Done {
    ids: Vec<u32>,
    text: String,
    stop_string: bool,
    generated: Generated,
}

impl Done {
    fn tokens_per_second(&self) -> f64 {
        let seconds = self.generated.decode.as_secs_f64();
        self.generated.tokens.len() as f64 / seconds.max(f64::MIN_POSITIVE)
    }

    fn summary(&self, prompt: &str) -> serde_json::Value {
        let stop = if self.stop_string { json!("stop_string") } else { json!(self.generated.stop) };
        json!({
            "prompt": prompt,
            "prompt_ids": self.ids,
            "text": self.text,
            "ids": self.generated.tokens,
            "stop": stop,
            "prefill_seconds": self.generated.prefill.as_secs_f64(),
            "decode_seconds": self.generated.decode.as_secs_f64(),
            "tokens_per_second": self.tokens_per_second(),
        })
    }

    fn report(&self) -> io::Result<()> {
        let why = match self.generated.stop {
            _ if self.stop_string => "a --stop string is reached",
            StopReason::End => "the model ended the text",
            StopReason::MaxTokens => "--max-tokens reached",
            StopReason::ContextFull => "the model's max_seq_len is reached",
            StopReason::Stopped => "stopped",
        };
        let (count, speed) = (self.generated.tokens.len(), self.tokens_per_second());
        writeln!(stderr(), "{count} tokens, {speed:.1} tokens/s, {why}")
    }
}
