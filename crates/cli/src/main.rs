//! The `hadal` command line: parse, make one library call, show the result.

mod commands;
mod crash;
#[cfg(unix)]
mod descriptors;
mod failure;
mod memory;
mod model_file;
mod output;
mod standard;
mod word;

use clap::Parser;
use commands::Command;
use failure::Failure;
use std::process::ExitCode;

/// A workbench for very deep language models.
///
/// hadal builds, proves, inspects and runs Transformers whose residual stream is a policy: prenorm,
/// hyper-connections, Attention Residuals, Multi-Gate Residuals, NAG and more.
#[derive(Parser)]
#[command(name = "hadal", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "\
Exit codes: 0 done; 1 something failed or differs; 2 the request makes no sense or cannot
  be started; 3 a training run diverged; 101 a bug; 128 + n stopped by signal n, and saved.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
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
    end(std::panic::catch_unwind(|| Cli::parse().command.run()))
}

/// The exit code of a command; its last words are on stderr.
fn end(outcome: std::thread::Result<Result<ExitCode, Failure>>) -> ExitCode {
    match outcome {
        Ok(Ok(code)) => match standard::finish() {
            Ok(()) => code,
            Err(error) => Failure::from(error).report(),
        },
        Ok(Err(failure)) => failure.report(),
        // The hook has reported it.
        Err(_) => ExitCode::from(failure::BUG),
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
