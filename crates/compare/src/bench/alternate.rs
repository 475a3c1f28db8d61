//! Several workers in turn, so that any other load on the machine disturbs all of them alike.

use super::error::BenchError;
use super::protocol::{Closing, Ready, Speeds};
use super::worker::Worker;
use hadal_study::timing::in_turn;
use serde::de::DeserializeOwned;
use std::process::Command;

/// Rounds that are not counted: memory is still being mapped, and the clock still rising.
pub const WARM_UP: usize = 3;

/// A worker's answers.
#[derive(Clone, Debug)]
pub struct Measured<T> {
    /// The first line.
    pub ready: Ready,
    /// The answers to the requests that count, one for each round.
    pub times: Vec<T>,
    /// The last line.
    pub closing: Closing,
}

impl<T> Measured<T> {
    /// What the machine can do, the better of before and after.
    pub fn speeds(&self) -> Speeds {
        self.ready.speeds.better(self.closing.speeds)
    }
}

/// Starts a worker for each named command and asks them for `rounds` steps in turn, after [`WARM_UP`]. Only one of them
/// works at any time; `progress` is called for each step.
pub fn alternate<T: DeserializeOwned>(
    commands: Vec<(String, Command)>,
    rounds: usize,
    mut progress: impl FnMut(),
) -> Result<Vec<Measured<T>>, BenchError> {
    let started =
        commands.into_iter().map(|(kind, mut command)| Worker::start(&kind, &mut command));
    let (mut workers, ready): (Vec<Worker>, Vec<Ready>) =
        started.collect::<Result<Vec<_>, BenchError>>()?.into_iter().unzip();
    let times = in_turn(&mut workers, WARM_UP, rounds, |worker, _| {
        let answer = worker.step()?;
        progress();
        Ok::<T, BenchError>(answer)
    })?;
    let measured =
        workers.into_iter().zip(ready).zip(times).map(|((worker, ready), times)| {
            Ok(Measured { ready, times, closing: worker.finish()? })
        });
    measured.collect()
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    /// A worker that answers with the number of the request.
    fn counter() -> Command {
        let mut command = Command::new("sh");
        let script = r#"
            echo '{"parameters":1,"simd":"avx2","cpu":null,"gemm_gflops":2.0,"gemm_gflops_thread":1.0,"peak_gflops":4.0,"peak_gflops_thread":2.5}'
            n=0
            while read request && [ "$request" = step ]; do n=$((n + 1)); echo $n; done
            echo '{"peak_rss_mb":null,"gemm_gflops":3.0,"gemm_gflops_thread":0.5,"peak_gflops":3.5,"peak_gflops_thread":3.5}'"#;
        command.args(["-c", script]);
        command
    }

    #[test]
    fn warm_up_does_not_count_and_everybody_has_all_rounds() {
        let commands = vec![("a".into(), counter()), ("b".into(), counter())];
        let mut steps = 0;
        let measured = alternate::<u32>(commands, 2, || steps += 1).unwrap();
        assert_eq!(steps, 2 * (WARM_UP + 2));
        for worker in &measured {
            assert_eq!(worker.times, [4, 5]);
            let Speeds { gemm_gflops, gemm_gflops_thread, peak_gflops, peak_gflops_thread } =
                worker.speeds();
            assert_eq!((gemm_gflops, gemm_gflops_thread), (3.0, 1.0));
            assert_eq!((peak_gflops, peak_gflops_thread), (4.0, 3.5));
        }
    }
}
