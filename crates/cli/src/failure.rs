//! How things go wrong on a command line: one message on stderr and an exit code.

use hadal_compare::CompareError;
use hadal_compare::bench::BenchError;
use hadal_data::DataError;
use hadal_model::ExportError;
use hadal_report::page::ReportError;
use hadal_serve::ServeError;
use hadal_study::diagnose::DiagnoseError;
use hadal_study::prune::PruneError;
use hadal_study::skip::SkipError;
use hadal_train::TrainError;
use std::any::Any;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

/// A command that did not do its job.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// What was typed makes no sense, or names what cannot be used: exit code 2.
    pub(crate) fn usage(message: impl ToString) -> Self {
        Self { code: 2, message: message.to_string() }
    }

    /// The job failed: exit code 1.
    pub(crate) fn failed(message: impl ToString) -> Self {
        Self { code: 1, message: message.to_string() }
    }

    /// A panic: ours to mend, not the user's.
    pub(crate) fn bug(panic: &(dyn Any + Send)) -> Self {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("unknown");
        Self::failed(format!("this is a bug in hadal, please report it: {text}"))
    }

    /// Prints the message and says how to exit.
    pub(crate) fn report(&self) -> ExitCode {
        let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let (red, plain) = if colour { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
        // Nobody is left to tell if stderr is gone.
        let _ = writeln!(io::stderr(), "{red}error{plain}: {}", self.message);
        ExitCode::from(self.code)
    }
}

/// An error that knows whose it is to mend.
pub(crate) trait Blame: ToString {
    /// Whether what was typed makes no sense or names what cannot be used, rather than having gone wrong on the way.
    fn is_usage(&self) -> bool;
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
    ReportError,
    ServeError,
    SkipError,
    TrainError,
}

/// The one place that turns errors into exit codes.
impl<E: Blame> From<E> for Failure {
    fn from(error: E) -> Self {
        if error.is_usage() { Self::usage(error) } else { Self::failed(error) }
    }
}

/// A closed pipe is how `| head` says that it has seen enough; any other trouble is a failure.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => std::process::exit(0),
            _ => Self::failed(format!("cannot write the output: {error}")),
        }
    }
}
