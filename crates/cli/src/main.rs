//! The `hadal` command line: parse, make one library call, show the result.

mod commands;
mod failure;
mod memory;
mod model_file;
mod output;
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
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    memory::keep_pages();
    std::panic::set_hook(Box::new(|panic| {
        if let Some(failure) = Failure::bug(panic) {
            failure.report();
        }
    }));
    if let Some(cache) = hadal_files::cache_directory() {
        hadal_files::remember_hashes(cache, output::warn);
    }
    let outcome = std::panic::catch_unwind(|| Cli::parse().command.run());
    match outcome {
        Ok(Ok(code)) => code,
        Ok(Err(failure)) => failure.report(),
        // The hook has reported it.
        Err(_) => ExitCode::FAILURE,
    }
}
