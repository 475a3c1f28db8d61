//! How things go wrong on a command line: one message on stderr and an exit code.

use crate::job::rank_name;
use crate::screen::{Colours, Screen};
use crate::standard::{stderr, visible};
use hadal_compare::CompareError;
use hadal_compare::bench::BenchError;
use hadal_data::DataError;
use hadal_model::{ExportError, RestreamError};
use hadal_ranks::RankError;
use hadal_report::page::ReportError;
use hadal_serve::ServeError;
use hadal_study::diagnose::DiagnoseError;
use hadal_study::prune::PruneError;
use hadal_study::skip::SkipError;
use hadal_train::TrainError;
use std::io;
use std::process::ExitCode;

/// Something failed on the way, or differs.
pub(crate) const FAILED: u8 = 1;
/// The request makes no sense or cannot be started.
pub(crate) const USAGE: u8 = 2;
/// A run's numbers are no longer finite.
pub(crate) const DIVERGED: u8 = 3;
/// A bug of hadal, as Rust's own panics end.
pub(crate) const BUG: u8 = 101;

/// A command that did not do its job.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// The command line makes no sense, or names what cannot be used: exit code 2.
    pub(crate) fn usage(message: impl ToString) -> Self {
        Self { code: USAGE, message: message.to_string() }
    }

    /// The job failed: exit code 1.
    pub(crate) fn failed(message: impl ToString) -> Self {
        Self { code: FAILED, message: message.to_string() }
    }

    /// Ours to mend, not the user's: exit code 101.
    pub(crate) fn bug(message: impl ToString) -> Self {
        Self { code: BUG, message: message.to_string() }
    }

    /// What is said.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// Prints the message and returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        // The terminal's own red.
        let (red, plain) = match Screen::stderr().colours {
            Colours::None => ("", ""),
            Colours::Few | Colours::All => ("\x1b[1;31m", "\x1b[0m"),
        };
        // What begins with the name of a rank is not about this one.
        let about_another = self.message.starts_with("rank ");
        let name = if about_another { String::new() } else { rank_name() };
        stderr().send(&format!("{red}error{plain}: {name}{}\n", visible(&self.message)));
        ExitCode::from(self.code)
    }
}

/// An error that knows its exit code.
pub(crate) trait Blame: ToString {
    /// Whether the command line makes no sense or names what cannot be used, rather than something failing on the way.
    fn is_usage(&self) -> bool;

    /// Whether the numbers of a run are no longer finite: a result of that run, and no failure of the program.
    fn is_divergence(&self) -> bool {
        false
    }

    /// What the process ends with.
    fn exit_code(&self) -> u8 {
        match (self.is_usage(), self.is_divergence()) {
            (true, _) => USAGE,
            (_, true) => DIVERGED,
            _ => FAILED,
        }
    }
}

macro_rules! blame {
    ($($error:ty),* $(,)?) => {
        $(impl Blame for $error {
            fn is_usage(&self) -> bool {
                <$error>::is_usage(self)
            }
        })*
    };
}

blame! {
    BenchError,
    CompareError,
    DataError,
    DiagnoseError,
    ExportError,
    PruneError,
    RankError,
    ReportError,
    RestreamError,
    ServeError,
    SkipError,
}

impl Blame for TrainError {
    fn is_usage(&self) -> bool {
        Self::is_usage(self)
    }

    fn is_divergence(&self) -> bool {
        Self::is_divergence(self)
    }
}

/// The one place that turns errors into exit codes.
impl<E: Blame> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { code: error.exit_code(), message: error.to_string() }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::failed(format!("cannot write the output: {error}"))
    }
}
