//! `hadal export`: a model for other tools.

use crate::failure::Failure;
use crate::output::{print_json, spinner};
use clap::{Args, ValueEnum};
use hadal_model::{ExportError, ExportFormat, ExportType, export};
use serde_json::json;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Write a model for transformers or llama.cpp
///
/// A model can be exported if another tool computes the same: prenorm, and lns with its scales folded into the
/// gains, with the MLP swiglu. It becomes a Llama, or with qk_norm a Qwen3. Existing files are never overwritten.
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal export runs/llama/model --out llama --format hf
  hadal export runs/llama/model --out llama-bf16 --format hf --type bf16
  hadal export runs/llama/model --out llama.gguf --format gguf --type q8_0
  hadal export runs/llama/model --out llama.gguf --format gguf --json")]
pub(crate) struct Export {
    /// Directory with the model
    directory: PathBuf,
    /// Where to write: a directory for hf, a file for gguf
    #[arg(long, value_name = "DIR|FILE")]
    out: PathBuf,
    /// For transformers (hf) or llama.cpp (gguf)
    #[arg(long, value_enum)]
    format: Format,
    /// How matrices are stored; q8_0 for gguf alone
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
        let spinner = spinner(format!("exporting {}", self.directory.display()));
        let exported = export(&self.directory, &self.out, format, kind);
        spinner.finish_and_clear();
        let exported = exported.map_err(failed)?;
        if self.json {
            print_json(&json!({
                "architecture": exported.architecture,
                "files": exported.files,
                "notes": exported.notes,
            }))?;
        } else {
            let mut stdout = io::stdout().lock();
            for file in &exported.files {
                writeln!(stdout, "{}", file.display())?;
            }
            writeln!(io::stderr(), "written as {}", exported.architecture)?;
            for note in &exported.notes {
                writeln!(io::stderr(), "note: {note}")?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn failed(error: ExportError) -> Failure {
    if error.is_usage() { Failure::usage(error) } else { Failure::failed(error) }
}
