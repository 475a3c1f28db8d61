//! `hadal chat`: questions line by line. Answers go to stdout, everything else to stderr.

mod lines;

use super::generate::{ChatOptions, Loaded, ModelOptions, SamplingOptions, print_now};
use crate::failure::Failure;
use crate::standard::{stderr, stdout, stdout_is_lost, tell, visible};
use clap::Args;
use hadal_cpu::pool::in_pool;
use hadal_model::{
    Answer, ChatTemplate, Conversation, ConversationError, GenerateError, Sampler, StopReason,
    Variant,
};
use lines::{Heard, Lines};
use serde_json::json;
use std::io::Write;
use std::ops::ControlFlow;
use std::process::ExitCode;

/// Talk to a model
///
/// Each line is a question; the model remembers what was said. Its own chat template is used, and whatever you type
/// stays text: nobody can forge a turn. Lines that begin with / are commands, // begins a question with /.
/// Ctrl-C stops an answer, Ctrl-D ends the chat.
#[derive(Args)]
#[command(after_help = "\
Commands:
  /help           what can be typed
  /reset          forget what was said
  /system TEXT    tell the model something for the whole chat; without TEXT, nothing
  /exit           end (so does Ctrl-D)

Examples:
  hadal chat model-Q4_1.gguf
  hadal chat DIR --system 'Answer in one sentence.' --temperature 0.7 --min-p 0.05
  printf 'Hello!\\nWhat did I say?\\n' | hadal chat DIR --json")]
pub(crate) struct Chat {
    #[command(flatten)]
    model: ModelOptions,
    /// Longest answer in tokens
    #[arg(long, short = 'n', default_value_t = 1024)]
    max_tokens: usize,
    #[command(flatten)]
    chat: ChatOptions,
    #[command(flatten)]
    sampling: SamplingOptions,
    /// Print one JSON object in a line for each answer
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
/reset forgets what was said, /system TEXT tells the model something for the whole chat, /exit ends;
// begins a question with a slash. Ctrl-C stops an answer, Ctrl-D ends the chat";

/// What is said where Ctrl-C came before an answer.
const UNREAD: &str = "\n(stopped; the question is forgotten)";

/// What a line asks for.
enum Wish<'a> {
    Nothing,
    Help,
    Reset,
    System(&'a str),
    Exit,
    Unknown(&'a str),
    Question(&'a str),
}

impl<'a> Wish<'a> {
    fn of(line: &'a str) -> Self {
        let line = line.trim_end_matches(['\n', '\r']);
        let Some(command) = line.strip_prefix('/') else {
            return if line.trim().is_empty() { Self::Nothing } else { Self::Question(line) };
        };
        if command.starts_with('/') {
            return Self::Question(command);
        }
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        match name {
            "help" | "?" => Self::Help,
            "reset" | "clear" => Self::Reset,
            "system" => Self::System(rest.trim()),
            "exit" | "quit" | "bye" => Self::Exit,
            _ => Self::Unknown(name),
        }
    }
}

impl Chat {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let sampler = self.sampling.sampler()?;
        let template = self.chat.template(&self.model.model)?;
        let loaded = self.model.load(self.max_tokens)?;
        // On a thread of the pool: one outside would hand over and wait at every product.
        in_pool(|| self.talk(&loaded, &template, sampler))?;
        Ok(ExitCode::SUCCESS)
    }

    fn talk(
        &self,
        loaded: &Loaded,
        template: &ChatTemplate,
        mut sampler: Sampler,
    ) -> Result<(), Failure> {
        let Loaded { checkpoint, tokenizer, absent } = loaded;
        let lines = Lines::listen()?;
        let variant = Variant { stop: Some(lines.interrupt()), ..Variant::without(absent) };
        let mut chat = Conversation::new(&checkpoint.decoder, variant, tokenizer, template)
            .map_err(Failure::failed)?;
        chat.set_system(self.chat.system.clone());
        if lines.typed {
            tell("type a question; /help shows what else");
        }
        while !stdout_is_lost() {
            if lines.typed {
                stderr().send("> ");
            }
            let line = match lines.next()? {
                Heard::Line(line) => line,
                Heard::Interrupt => {
                    tell("\n(Ctrl-D or /exit ends)");
                    continue;
                }
                Heard::End => break,
            };
            match Wish::of(&line) {
                Wish::Nothing => {}
                Wish::Help => tell(HELP),
                Wish::Exit => break,
                Wish::Reset => {
                    chat.reset();
                    sampler.forget();
                    tell("(forgotten)");
                }
                Wish::System(text) => {
                    chat.set_system((!text.is_empty()).then(|| text.to_owned()));
                    tell("(from the next question on; /reset forgets what was said before)");
                }
                Wish::Unknown(name) => {
                    tell(&format!("there is no /{name}; /help shows what there is"));
                }
                Wish::Question(question) => {
                    let asked = self.ask(question, &mut chat, &mut sampler, &lines);
                    match asked {
                        // Whoever is there can ask again.
                        Err(failure) if lines.typed => drop(failure.report()),
                        outcome => outcome?,
                    }
                }
            }
        }
        Ok(())
    }

    fn ask(
        &self,
        question: &str,
        chat: &mut Conversation,
        sampler: &mut Sampler,
        lines: &Lines,
    ) -> Result<(), Failure> {
        // What came before the question does not stop its answer.
        lines.interrupted();
        let mut listen = |piece: &str| {
            if !self.json {
                // Writing to standard output never fails.
                let _ = print_now(piece);
            }
            let enough = stdout_is_lost() || lines.interrupted();
            if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let answer =
            chat.ask(question, self.max_tokens, self.sampling.stops(), sampler, &mut listen);
        if matches!(answer, Err(ConversationError::Generate(GenerateError::Stopped))) {
            tell(UNREAD);
            return Ok(());
        }
        let answer = answer.map_err(|error| match error {
            ConversationError::Generate(GenerateError::TooLong(reason)) => Failure::failed(format!(
                "the chat has become too long: {reason}; /reset begins anew, or ask something shorter"
            )),
            other => Failure::failed(other),
        })?;
        if self.json {
            writeln!(stdout(), "{}", in_json(question, &answer))?;
            return Ok(());
        }
        print_now("\n")?;
        if let Some(note) = note(&answer) {
            stderr().send(&format!("{}\n", visible(note)));
        }
        Ok(())
    }
}

fn in_json(question: &str, answer: &Answer) -> serde_json::Value {
    json!({
        "question": question,
        "answer": answer.text,
        "stop": answer.stop(),
        "tokens": answer.generated.tokens.len(),
        "prompt_tokens": answer.prompt,
        "reused_tokens": answer.reused,
        "prefill_seconds": answer.generated.prefill.as_secs_f64(),
        "decode_seconds": answer.generated.decode.as_secs_f64(),
    })
}

/// Why an answer ended, if the model did not end it.
fn note(answer: &Answer) -> Option<&'static str> {
    match answer.generated.stop {
        _ if answer.stop_string => None,
        StopReason::End => None,
        StopReason::MaxTokens => Some("(--max-tokens reached)"),
        StopReason::ContextFull => Some("(the model's max_seq_len is reached; /reset begins anew)"),
        StopReason::Stopped => Some("(stopped)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_begins_a_command_and_two_a_question() {
        assert!(matches!(Wish::of("  \n"), Wish::Nothing));
        assert!(matches!(Wish::of("/help\n"), Wish::Help));
        assert!(matches!(Wish::of("/reset"), Wish::Reset));
        assert!(matches!(Wish::of("/exit\r\n"), Wish::Exit));
        assert!(matches!(Wish::of("/system  Be brief. \n"), Wish::System("Be brief.")));
        assert!(matches!(Wish::of("/system"), Wish::System("")));
        assert!(matches!(Wish::of("/etc/passwd"), Wish::Unknown("etc/passwd")));
        assert!(matches!(Wish::of("//etc\n"), Wish::Question("/etc")));
        assert!(matches!(Wish::of(" Hi / \n"), Wish::Question(" Hi / ")));
    }
}
