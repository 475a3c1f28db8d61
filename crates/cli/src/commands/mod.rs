//! One file for each command.

mod bench;
mod chat;
mod compare;
mod completions;
mod convert;
mod data;
mod diagnose;
mod export;
mod generate;
mod import;
mod inspect;
mod man;
mod new;
mod parity;
mod perplexity;
mod plan;
mod policies;
mod prune;
mod report;
mod runs;
mod serve;
mod skip;
mod template;
mod train;
mod verify;

pub(crate) use template::compute_apart;

use crate::failure::Failure;
use clap::Subcommand;
use std::process::ExitCode;

/// Everything that hadal does.
#[derive(Subcommand)]
pub(crate) enum Command {
    Compare(compare::Compare),
    New(new::New),
    Train(train::Train),
    Diagnose(diagnose::Diagnose),
    Skip(skip::Skip),
    Report(report::Report),
    Runs(runs::Runs),
    Serve(serve::Serve),
    Data(data::Data),
    Policies(policies::Policies),
    Parity(parity::Parity),
    Inspect(inspect::Inspect),
    Plan(plan::Plan),
    Generate(generate::Generate),
    Chat(chat::Chat),
    Perplexity(perplexity::PerplexityCommand),
    Bench(bench::Bench),
    Prune(prune::Prune),
    Convert(convert::Convert),
    Export(export::Export),
    Completions(completions::Completions),
    Man(man::Manual),
    Import(import::Import),
    Verify(verify::Verify),
    Template(template::Template),
}

impl Command {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        match self {
            Self::Compare(command) => command.run(),
            Self::New(command) => command.run(),
            Self::Train(command) => command.run(),
            Self::Diagnose(command) => command.run(),
            Self::Skip(command) => command.run(),
            Self::Report(command) => command.run(),
            Self::Runs(command) => command.run(),
            Self::Serve(command) => command.run(),
            Self::Data(command) => command.run(),
            Self::Policies(command) => command.run(),
            Self::Parity(command) => command.run(),
            Self::Inspect(command) => command.run(),
            Self::Plan(command) => command.run(),
            Self::Generate(command) => command.run(),
            Self::Chat(command) => command.run(),
            Self::Perplexity(command) => command.run(),
            Self::Bench(command) => command.run(),
            Self::Prune(command) => command.run(),
            Self::Convert(command) => command.run(),
            Self::Export(command) => command.run(),
            Self::Completions(command) => command.run(),
            Self::Man(command) => command.run(),
            Self::Import(command) => command.run(),
            Self::Verify(command) => command.run(),
            Self::Template(command) => command.run(),
        }
    }

    /// Whether several processes work on it together.
    pub(crate) fn knows_ranks(&self) -> bool {
        // A template is computed by a child of such a process.
        matches!(self, Self::Train(_) | Self::Template(_))
    }
}
