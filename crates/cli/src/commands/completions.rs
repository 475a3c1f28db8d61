//! `hadal completions`: shell completions on stdout.

use crate::Cli;
use crate::failure::Failure;
use crate::standard::stdout;
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use std::io::Write;
use std::process::ExitCode;

/// Print completions for your shell
///
/// For example: hadal completions bash > ~/.local/share/bash-completion/completions/hadal
#[derive(Args)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "hadal", &mut script);
        stdout().write_all(&script)?;
        Ok(ExitCode::SUCCESS)
    }
}
