//! `hadal import`: a model of another maker as one of our directories.

use crate::failure::Failure;
use crate::output::{bytes_bar, print_json, show_bytes};
use crate::sheet::{Sheet, with_fields};
use crate::standard::{stderr, stdout};
use clap::Args;
use hadal_data::hub::{ModelName, fetch_model};
use hadal_model::{ModelCost, convert};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Turn a model of Hugging Face or llama.cpp into a directory of hadal
///
/// SOURCE is a directory with a Llama, Mistral, Qwen2 or Qwen3 (config.json, safetensors), a GGUF file of these, or the
/// name of a model on the hub. The other commands read such directories and GGUF files directly; import a model to
/// keep, change or train it. Weights go from file to file one at a time, and what would not be computed exactly is
/// refused.
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal import HuggingFaceTB/SmolLM2-135M --out models/smollm2
  hadal import Qwen/Qwen3-0.6B@main
  hadal import bartowski/SmolLM2-135M-Instruct-GGUF:SmolLM2-135M-Instruct-Q8_0.gguf
  hadal import ~/models/model-Q4_K_M.gguf --out models/mine
  hadal import tests/golden-hf/qwen2 --out qwen2 --json

What is fetched stays in the hub's cache (HF_HOME) and is used without a network; HF_TOKEN opens private models.")]
pub(crate) struct Import {
    /// Directory, GGUF file, or `owner/name[@revision][:file.gguf]` on the hub
    source: String,
    /// New directory [default: the last part of SOURCE's name]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Import {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let local = Path::new(&self.source);
        let (source, short) = if local.exists() {
            (local.to_owned(), short_name(local))
        } else {
            let name = ModelName::parse(&self.source).ok_or_else(|| {
                Failure::usage(format!(
                    "{} is no file or directory, and no name of a model, such as Qwen/Qwen3-0.6B",
                    self.source
                ))
            })?;
            // Checked before anything is fetched.
            self.check_out(name.short())?;
            let bar = bytes_bar(format!("fetching {name}"));
            let shown = bar.clone();
            let fetched = fetch_model(&name, move |done, all| show_bytes(&shown, done, all));
            bar.finish_and_clear();
            (fetched.map_err(Failure::failed)?, name.short().to_owned())
        };
        let out = self.check_out(&short)?;
        let bar = bytes_bar(format!("writing {}", out.display()));
        let converted = convert(&source, &out, &mut |done, all| show_bytes(&bar, done, all));
        bar.finish_and_clear();
        let converted = converted.map_err(Failure::failed)?;
        let cost = ModelCost::of(&converted.config).map_err(Failure::failed)?;
        let sheet = Sheet::of(&converted.config, &cost, Some(&out));
        if self.json {
            let json = json!({
                "source": self.source,
                "out": out,
                "config": converted.config,
                "parameters": cost.parameters.total(),
                "stored_bytes": converted.stored_bytes,
                "tokenizer": converted.tokenizer,
            });
            print_json(&with_fields(json, sheet.json()))?;
        } else {
            sheet.print(&mut stdout())?;
            let (out, chat) = (out.display(), converted.chat_template);
            let next = if chat { "chat" } else { "generate" };
            writeln!(stderr(), "the model is in {out}; try `hadal {next} {out}`")?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Where the model goes; it must be free.
    fn check_out(&self, short: &str) -> Result<PathBuf, Failure> {
        let out = self.out.clone().unwrap_or_else(|| short.into());
        if out.exists() {
            let message = format!("{} exists already; name another with --out DIR", out.display());
            return Err(Failure::usage(message));
        }
        Ok(out)
    }
}

/// `model-Q4_1` of `models/model-Q4_1.gguf`, `smollm2` of `models/smollm2/`.
fn short_name(path: &Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let name = if path.is_file() { absolute.file_stem() } else { absolute.file_name() };
    name.map_or_else(|| "imported".into(), |name| name.to_string_lossy().into_owned())
}
