//! `hadal prune`: which blocks do nothing, a model without them, and whether that is what was promised.

mod apply;
mod check;
mod mixers;
mod plan;

use self::apply::ApplyCommand;
use self::check::CheckCommand;
use self::mixers::MixersCommand;
use self::plan::PlanCommand;
use crate::failure::Failure;
use clap::{Args, Subcommand};
use hadal_cpu::pool::start_pool;
use indicatif::ProgressBar;
use std::process::ExitCode;

/// Cut blocks that do little out of a model, with evidence
///
/// MODEL is a model directory of hadal or Hugging Face, the folder of a finished run, or a .gguf file. Plan first, look
/// at the cost, then apply and check.
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal prune plan MODEL --data text.txt --blocks 4 --out plan.json
  hadal prune apply plan.json --out smaller
  hadal prune check smaller --original MODEL --data other.txt
  hadal prune mixers MODEL --data text.txt --replace identity     # of models with mixed streams
  hadal generate MODEL --without 17,18,attn:20 --prompt 'Once'    # without writing anything")]
pub(crate) struct Prune {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Plan(Box<PlanCommand>),
    Apply(ApplyCommand),
    Check(CheckCommand),
    Mixers(MixersCommand),
}

impl Prune {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        // If the pool cannot be made here, rayon makes one when it is first needed.
        let _ = start_pool(None);
        match self.action {
            Action::Plan(command) => command.run(),
            Action::Apply(command) => command.run(),
            Action::Check(command) => command.run(),
            Action::Mixers(command) => command.run(),
        }
    }
}

/// What was typed, for the record.
fn typed() -> String {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    std::iter::once("hadal".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

fn bar(unit: &str) -> ProgressBar {
    crate::output::bar(&format!("{{bar:24}} {{pos}}/{{len}} {unit}, {{eta}} left"))
}
