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
use std::io::{self, IsTerminal, Write};
use std::panic::PanicHookInfo;
use std::process::ExitCode;

/// A command that did not do its job.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// The command line makes no sense, or names what cannot be used: exit code 2.
    pub(crate) fn usage(message: impl ToString) -> Self {
        Self { code: 2, message: message.to_string() }
    }

    /// The job failed: exit code 1.
    pub(crate) fn failed(message: impl ToString) -> Self {
        Self { code: 1, message: message.to_string() }
    }

    /// A panic: ours to mend, not the user's. `None` if it will become an ordinary error, as panics of libraries that
    /// read broken files do.
    pub(crate) fn bug(panic: &PanicHookInfo) -> Option<Self> {
        if hadal_model::is_guarded() {
            return None;
        }
        let text = panic.payload_as_str().unwrap_or("unknown");
        let place = panic.location().map(|place| format!(" ({place})")).unwrap_or_default();
        Some(Self::failed(format!("this is a bug in hadal, please report it: {text}{place}")))
    }

    /// Prints the message and returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let (red, plain) = if colour { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
        // There is nowhere to report to if stderr is gone.
        let _ = writeln!(io::stderr(), "{red}error{plain}: {}", self.message);
        ExitCode::from(self.code)
    }
}

/// An error that knows whether the user or we must mend it.
pub(crate) trait Blame: ToString {
    /// Whether the command line makes no sense or names what cannot be used, rather than something failing on the way.
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

/// A closed pipe means that `| head` has seen enough; any other trouble is a failure.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => std::process::exit(0),
            _ => Self::failed(format!("cannot write the output: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic;
    use std::sync::Mutex;
    use std::thread::{self, ThreadId};

    static REPORTS: Mutex<Vec<(ThreadId, Option<String>)>> = Mutex::new(Vec::new());

    #[test]
    fn a_panic_is_reported_with_its_place_unless_it_becomes_an_error() {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            let message = Failure::bug(panic).map(|failure| failure.message);
            REPORTS.lock().unwrap().push((thread::current().id(), message));
            usual(panic);
        }));
        let line = line!() + 1;
        let _ = panic::catch_unwind(|| panic!("the {} is {}", "sky", "falling"));
        let guarded = hadal_model::guarded(|| -> Result<(), String> { panic!("a broken file") });
        assert!(guarded.is_err());
        // A copy: a panic below would wait for the lock in the hook.
        let reports = REPORTS.lock().unwrap().clone();
        let ours = reports.iter().filter(|(thread, _)| *thread == thread::current().id());
        let messages: Vec<_> = ours.map(|(_, message)| message.as_deref()).collect();
        let [Some(bug), None] = messages[..] else { panic!("{messages:?}") };
        assert!(bug.contains("please report it: the sky is falling ("), "{bug}");
        assert!(bug.contains(&format!("failure.rs:{line}:")), "{bug}");
    }
}
