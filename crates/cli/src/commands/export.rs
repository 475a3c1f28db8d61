//! `hadal export`: a model for other tools.

use crate::failure::Failure;
use crate::output::{bytes_bar, print_json, show_bytes};
use crate::place::Place;
use crate::standard::{stderr, stdout};
use clap::{Args, ValueEnum};
use hadal_model::{ExportFormat, ExportType, export};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Write a model for transformers or llama.cpp
///
/// MODEL is a directory of hadal or Hugging Face, the folder of a finished run, or a .gguf file. Tokenizer, chat template
/// and the tokens that begin and end a text go along.
///
/// Prenorm and lns models with swiglu become a Llama, Mistral, Qwen2 or Qwen3, depending on their parts. For
/// transformers any other model is written with its own code, modeling_hadal.py (load it with trust_remote_code=True);
/// llama.cpp has nothing like it, so it is refused. Nothing is ever overwritten. docs/export.md has the details.
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal export MODEL --out llama --format hf
  hadal export MODEL --out llama.gguf --format gguf --type q8_0
  hadal export SmolLM2-135M.gguf --out smollm2 --format hf --type bf16
  hadal export Qwen2.5-0.5B --out qwen.gguf --format gguf --type f16
  hadal export runs/mgr --out mgr --format hf --json")]
pub(crate) struct Export {
    /// The model: a directory, a run or a .gguf file
    model: PathBuf,
    /// Where to write: a directory for hf, a file for gguf
    #[arg(short, long, value_name = "DIR|FILE")]
    out: PathBuf,
    /// For transformers (hf) or llama.cpp (gguf)
    #[arg(long, value_enum)]
    format: Format,
    /// How matrices are stored; q8_0 only for gguf
    #[arg(long = "type", value_enum, default_value = "f32")]
    kind: Kind,
    /// Print what was written as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Hf,
    Gguf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    F32,
    F16,
    Bf16,
    #[value(name = "q8_0")]
    Q8_0,
}

impl Export {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let format = match self.format {
            Format::Hf => ExportFormat::HuggingFace,
            Format::Gguf => ExportFormat::Gguf,
        };
        let kind = match self.kind {
            Kind::F32 => ExportType::F32,
            Kind::F16 => ExportType::F16,
            Kind::Bf16 => ExportType::Bf16,
            Kind::Q8_0 => ExportType::Q8_0,
        };
        let place = Place { path: &self.out, option: "-o", example: "other" };
        place.writable()?;
        place.make_folders()?;
        let bar = bytes_bar(format!("writing {}", self.out.display()));
        let mut progress = |done, all| show_bytes(&bar, done, all);
        let exported = export(&self.model, &self.out, format, kind, &mut progress);
        bar.finish_and_clear();
        let exported = exported?;
        if self.json {
            print_json(&json!({
                "architecture": exported.architecture,
                "files": exported.files,
                "notes": exported.notes,
            }))?;
        } else {
            let mut stdout = stdout();
            for file in &exported.files {
                writeln!(stdout, "{}", file.display())?;
            }
            writeln!(stderr(), "written as {}", exported.architecture)?;
            for note in &exported.notes {
                writeln!(stderr(), "note: {note}")?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
