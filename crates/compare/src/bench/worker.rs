//! The parent's side of one worker: a process and the two pipes to it.

use super::error::BenchError;
use super::protocol::{Closing, END, Ready, STEP};
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A process that makes steps. It is ended when this is dropped.
pub(super) struct Worker {
    kind: String,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts the process and waits until it is ready.
    pub(super) fn start(kind: &str, command: &mut Command) -> Result<(Self, Ready), BenchError> {
        let not_started = |reason| BenchError::NotStarted { kind: kind.into(), reason };
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(not_started)?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.expect("both were asked for above");
        let mut worker = Self { kind: kind.into(), child, input, output: BufReader::new(output) };
        let ready = worker.hear()?;
        Ok((worker, ready))
    }

    /// One step.
    pub(super) fn step<T: DeserializeOwned>(&mut self) -> Result<T, BenchError> {
        self.ask(STEP)
    }

    /// Asks the process to end.
    pub(super) fn finish(mut self) -> Result<Closing, BenchError> {
        self.ask(END)
    }

    fn ask<T: DeserializeOwned>(&mut self, request: &str) -> Result<T, BenchError> {
        match writeln!(self.input, "{request}").and_then(|()| self.input.flush()) {
            Ok(()) => self.hear(),
            Err(_) => Err(self.obituary()),
        }
    }

    fn hear<T: DeserializeOwned>(&mut self) -> Result<T, BenchError> {
        let mut answer = String::new();
        match self.output.read_line(&mut answer) {
            Ok(length) if length > 0 => {}
            _ => return Err(self.obituary()),
        }
        serde_json::from_str(&answer).map_err(|reason| BenchError::Nonsense {
            kind: self.kind.clone(),
            answer: answer.trim().into(),
            reason,
        })
    }

    /// How it ended and its last message.
    fn obituary(&mut self) -> BenchError {
        // It has closed its output, so it is about to end or has ended; otherwise it is ended.
        let mut said = Vec::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            // Unreadable output counts as none.
            let _ = stderr.read_to_end(&mut said);
        }
        // A backtrace may follow the first line.
        let said = String::from_utf8_lossy(&said);
        let said = said.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        let said = said.strip_prefix("error: ").unwrap_or(said);
        BenchError::Died {
            kind: self.kind.clone(),
            status: self.child.wait().map_or_else(|e| e.to_string(), |status| status.to_string()),
            said: if said.is_empty() { String::new() } else { format!(": {said}") },
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;
    use crate::bench::protocol::StepTimes;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    const READY: &str = r#"echo '{"parameters":1,"simd":"avx2","cpu":"a","gemm_gflops":2.0,"gemm_gflops_thread":1.0,"peak_gflops":4.0,"peak_gflops_thread":2.0}'; read request; "#;

    #[test]
    fn a_worker_that_dies_is_told_of_with_its_last_words() {
        let script = format!("{READY} echo 'error: no memory left' >&2; exit 1");
        let (mut worker, ready) = Worker::start("mgr", &mut shell(&script)).unwrap();
        assert_eq!(ready.parameters, 1);
        let error = worker.step::<StepTimes>().unwrap_err().to_string();
        assert_eq!(error, "the worker of mgr died (exit status: 1): no memory left");
    }

    #[test]
    fn a_worker_that_is_killed_is_told_of_with_the_signal() {
        let (mut worker, _) =
            Worker::start("mgr", &mut shell(&format!("{READY} kill -9 $$"))).unwrap();
        let error = worker.step::<StepTimes>().unwrap_err().to_string();
        assert!(error.starts_with("the worker of mgr died (signal: 9"), "{error}");
    }

    #[test]
    fn nonsense_is_shown() {
        let error = Worker::start("mgr", &mut shell("echo hello")).err().unwrap().to_string();
        assert!(error.starts_with("the worker of mgr answered `hello`"), "{error}");
    }

    #[test]
    fn a_program_that_is_not_there_is_not_started() {
        let error = Worker::start("mgr", &mut Command::new("/nowhere/hadal")).err().unwrap();
        assert!(error.to_string().starts_with("cannot start the worker of mgr"), "{error}");
    }
}
