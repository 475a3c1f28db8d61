//! `hadal template`: computes a chat template for the process that started it, which is hadal itself.

use crate::failure::Failure;
use crate::standard::stdout;
use clap::Args;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Its name on the command line.
const NAME: &str = "template";

/// Compute a chat template; hadal starts this itself
#[derive(Args)]
#[command(hide = true)]
pub(crate) struct Template;

impl Template {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        hadal_model::compute_template(std::io::stdin(), stdout()).map_err(Failure::failed)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Lets this program compute templates in processes of their own.
pub(crate) fn compute_apart() {
    // Found now: a program that is replaced while it runs is found no more. If it has no path, starting it fails.
    let program: PathBuf = std::env::current_exe().unwrap_or_default();
    hadal_model::compute_templates_with(move || {
        let mut command = Command::new(&program);
        // The allocator would reserve more address space than a template may take.
        command.arg(NAME).env("MIMALLOC_ARENA_RESERVE", "0");
        command
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_is_there_and_nobody_sees_it() {
        let command = crate::Cli::command();
        assert!(command.find_subcommand(NAME).is_some_and(clap::Command::is_hide_set));
    }
}
