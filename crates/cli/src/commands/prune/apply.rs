//! `hadal prune apply`: a model without some of its parts.

use super::typed;
use crate::failure::Failure;
use crate::output::print_json;
use crate::place::Place;
use crate::standard::{stderr, stdout};
use clap::Args;
use hadal_cpu::pool::in_pool;
use hadal_model::Part;
use hadal_study::prune::{Manifest, Plan, apply, apply_structure_only, read_plan};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Write a model without the parts of a plan
///
/// The original is never touched. Blocks get new numbers, and every field of the config that is about layers is
/// corrected. A single attention or MLP cannot be left out of a file: its output projection becomes zero.
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal prune apply plan.json --out smaller
  hadal prune apply MODEL --blocks 17,18 --out smaller
  hadal prune apply model.gguf --blocks 17,18,mlp:7 --out smaller.gguf
  hadal prune apply MODEL --blocks 17,18 --structure-only --out smaller")]
pub(super) struct ApplyCommand {
    /// A plan, or with --blocks a model
    #[arg(value_name = "PLAN|MODEL")]
    source: PathBuf,
    /// What goes: blocks, attn:N and mlp:N
    #[arg(long, value_name = "PART,..", value_delimiter = ',')]
    blocks: Vec<Part>,
    /// Cut a model of a family of which nothing is known, by what its files say of blocks
    #[arg(long, requires = "blocks")]
    structure_only: bool,
    /// What does not exist yet: a directory, or from a .gguf also a .gguf
    #[arg(short, long, value_name = "DIR|FILE")]
    out: PathBuf,
    /// Print the record as JSON
    #[arg(long)]
    json: bool,
}

impl ApplyCommand {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let plan = self.plan()?;
        let (model, remove) = match &plan {
            Some(plan) => (plan.source.path.clone(), plan.remove.clone()),
            None => (self.source.clone(), self.blocks.clone()),
        };
        Place { path: &self.out, option: "-o", example: "other" }.writable()?;
        let spinner = crate::output::spinner(format!("cutting {}", model.display()));
        let done = in_pool(|| match self.structure_only {
            true => apply_structure_only(&model, &remove, &self.out, &typed()),
            false => apply(&model, &remove, plan.as_ref(), &self.out, &typed()),
        });
        spinner.finish_and_clear();
        let manifest = done?;
        match self.json {
            true => print_json(&manifest)?,
            false => show_manifest(&manifest, &self.out)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn plan(&self) -> Result<Option<Plan>, Failure> {
        let is_plan = self.source.extension().is_some_and(|extension| extension == "json");
        match (is_plan, self.blocks.is_empty()) {
            (true, true) => Ok(Some(read_plan(&self.source)?)),
            (false, false) => Ok(None),
            (true, false) => {
                Err(Failure::usage("a plan says itself what goes; leave out --blocks"))
            }
            (false, true) => Err(Failure::usage(format!(
                "nothing says what goes; name a plan, or parts of {} with --blocks 17,18",
                self.source.display()
            ))),
        }
    }
}

fn show_manifest(manifest: &Manifest, out: &Path) -> io::Result<()> {
    writeln!(
        stdout(),
        "{}: {} of {} blocks, without {}",
        out.display(),
        manifest.kept.len(),
        manifest.blocks,
        Part::list(&manifest.removed)
    )?;
    let mut stderr = stderr();
    if !manifest.silenced.is_empty() {
        writeln!(
            stderr,
            "note: {} are still in the file, with zeros for an output projection: no format has a way to leave them out. \
             They save nothing until their reader knows",
            Part::list(&manifest.silenced)
        )?;
    }
    for note in &manifest.notes {
        writeln!(stderr, "note: {note}")?;
    }
    if manifest.structure_only {
        writeln!(
            stderr,
            "note: nothing is known of this family, so compare the cut's logits with those of the whole in whatever runs it"
        )?;
    }
    if !manifest.exact {
        writeln!(
            stderr,
            "note: numbers that depend on depth were folded in; logits agree to rounding, not to the bit"
        )?;
    }
    if !manifest.not_copied.is_empty() {
        writeln!(
            stderr,
            "note: not copied, because they hold the whole model: {}",
            manifest.not_copied.join(", ")
        )?;
    }
    if !manifest.left_out.is_empty() {
        writeln!(
            stderr,
            "note: not copied, because they lead out of the model's directory or are no files: {}",
            manifest.left_out.join(", ")
        )?;
    }
    if !manifest.code.is_empty() {
        writeln!(
            stderr,
            "note: programs that came with the model were copied, look at them before you run or publish them: {}",
            manifest.code.join(", ")
        )?;
    }
    writeln!(stderr, "redo: {}", manifest.redo)?;
    writeln!(stderr, "undo: {}", manifest.undo)?;
    if manifest.structure_only {
        return Ok(());
    }
    writeln!(
        stderr,
        "next: hadal prune check {} --original {}",
        out.display(),
        manifest.source.path.display()
    )
}
