//! The `hadal` command line: parse, make one library call, show the result.

mod commands;
mod crash;
#[cfg(unix)]
mod descriptors;
mod device;
#[cfg(test)]
mod documented;
mod estimate;
mod failure;
mod job;
mod memory;
mod model_file;
mod output;
mod place;
mod quantity;
mod screen;
mod sheet;
mod standard;
mod start;
mod table;
mod word;

use clap::{CommandFactory, FromArgMatches, Parser};
use commands::Command;
use failure::Failure;
use screen::Screen;
use std::process::ExitCode;

/// A workbench for very deep language models.
///
/// hadal builds, proves, inspects and runs Transformers whose residual stream is a policy: prenorm,
/// hyper-connections, Attention Residuals, Multi-Gate Residuals, NAG and more.
#[derive(Parser)]
#[command(name = "hadal", version = start::version(), max_term_width = 100)]
#[command(after_help = "\
Exit codes: 0 done; 1 something failed or differs; 2 the request makes no sense or cannot be started; 3 a training run \
diverged; 101 a bug; 128 + n stopped by signal n, and saved.")]
struct Cli {
    /// Colours: on a terminal (NO_COLOR and CLICOLOR are respected), always, or never
    #[arg(long, value_name = "WHEN", value_enum, default_value = "auto", global = true)]
    #[arg(hide_possible_values = true, hide_short_help = true)]
    color: screen::When,
    #[command(subcommand)]
    command: Option<Command>,
}

fn main() -> ExitCode {
    memory::keep_pages();
    // Known where the build found a repository.
    if let Some(commit) = option_env!("HADAL_COMMIT") {
        hadal_train::provenance::set_commit(commit);
    }
    crash::report_panics();
    #[cfg(unix)]
    {
        crash::report_bus_errors();
        descriptors::allow_many();
    }
    if let Some(cache) = hadal_files::cache_directory() {
        hadal_files::remember_hashes(cache, output::warn);
    }
    commands::compute_apart();
    end(std::panic::catch_unwind(|| {
        // Before anything computes, or says with what.
        hadal_cpu::Form::asked_for().map_err(Failure::usage)?;
        let asked = start::grouped(Cli::command()).try_get_matches();
        let asked = asked.and_then(|asked| Cli::from_arg_matches(&asked));
        let Cli { color, command } = asked.unwrap_or_else(|e| job::say_once(&e));
        screen::ask(color);
        job::check(command.as_ref())?;
        match command {
            Some(command) => command.run(),
            None => {
                standard::stdout().send(&start::first_steps(&Screen::stdout()));
                Ok(ExitCode::SUCCESS)
            }
        }
    }))
}

/// The exit code of a command; its last words are on stderr.
fn end(outcome: std::thread::Result<Result<ExitCode, Failure>>) -> ExitCode {
    match outcome {
        Ok(Ok(code)) => match standard::finish() {
            Ok(()) => job::end(code),
            Err(error) => job::fail(&Failure::from(error)),
        },
        Ok(Err(failure)) => job::fail(&failure),
        // The hook has reported it.
        Err(_) => job::give_up(failure::BUG),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bug_is_not_a_difference() {
        assert_eq!(end(Ok(Ok(ExitCode::from(1)))), ExitCode::from(1));
        assert_eq!(end(Ok(Err(Failure::usage("x")))), ExitCode::from(2));
        assert_eq!(end(std::panic::catch_unwind(|| panic!("x"))), ExitCode::from(101));
    }
}
