//! The worker's side: one model, and a step for each request.

use super::decode::Decoding;
use super::error::BenchError;
use super::job::{Activity, Job};
use super::peak::speeds;
use super::protocol::{Closing, END, Ready, STEP};
use super::step::Training;
use hadal_cpu::machine::cpu_model;
use hadal_cpu::pool::{in_pool, start_pool};
use hadal_kernels::plainly;
use hadal_model::{Device, ModelCost};
use hadal_train::peak_rss_mb;
use hadal_train::provenance::simd;
use serde::Serialize;
use std::io::{BufRead, Write};

/// Does the job, a step for each request, until the input ends.
///
/// It makes the program's thread pool and runs inside it, so that no work is left to a thread that was not counted.
pub fn serve(
    job: &Job,
    input: impl BufRead + Send,
    output: impl Write + Send,
) -> Result<(), BenchError> {
    let threads = job.threads;
    start_pool(Some(threads))
        .map_err(|reason| BenchError::Threads { threads, reason: reason.to_string() })?;
    in_pool(|| match job.plain {
        true => plainly(|| answer(job, input, output)),
        false => answer(job, input, output),
    })
}

fn answer(job: &Job, input: impl BufRead, mut output: impl Write) -> Result<(), BenchError> {
    let parameters = ModelCost::of(&job.model)?.parameters.total();
    let ready = Ready {
        parameters,
        simd: match job.device == Device::flex() {
            true => simd(job.precision),
            false => format!("plain on {:?}", job.device),
        },
        cpu: cpu_model(),
        speeds: speeds(job.threads),
    };
    match job.activity {
        Activity::Training => {
            let mut training = Training::new(job)?;
            say(&mut output, &ready)?;
            converse(input, &mut output, || training.step())?;
        }
        Activity::Decoding => {
            let decoding = Decoding::new(job)?;
            say(&mut output, &ready)?;
            converse(input, &mut output, || decoding.step())?;
        }
    }
    let peak_rss_mb = peak_rss_mb();
    say(&mut output, &Closing { peak_rss_mb, speeds: speeds(job.threads) })
}

fn converse<T: Serialize>(
    input: impl BufRead,
    output: &mut impl Write,
    mut step: impl FnMut() -> Result<T, BenchError>,
) -> Result<(), BenchError> {
    for request in input.lines() {
        match request?.trim() {
            STEP => say(output, &step()?)?,
            END => break,
            other => return Err(BenchError::UnknownRequest { request: other.into() }),
        }
    }
    Ok(())
}

fn say(output: &mut impl Write, answer: &impl Serialize) -> Result<(), BenchError> {
    serde_json::to_writer(&mut *output, answer).map_err(std::io::Error::from)?;
    writeln!(output)?;
    output.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::protocol::{DecodeTimes, Speeds, StepTimes};
    use crate::bench::testing::job;

    #[test]
    fn a_conversation_starts_steps_and_ends() {
        let mut said = Vec::new();
        answer(&job("prenorm"), &b"step\nstep\nend\nstep\n"[..], &mut said).unwrap();
        let said = String::from_utf8(said).unwrap();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 4, "{said}");
        let ready: Ready = serde_json::from_str(lines[0]).unwrap();
        let Speeds { gemm_gflops, gemm_gflops_thread, peak_gflops, peak_gflops_thread } =
            ready.speeds;
        for gflops in [gemm_gflops, gemm_gflops_thread, peak_gflops, peak_gflops_thread] {
            assert!(gflops > 0.1, "{ready:?}");
        }
        assert_eq!(ready.simd, hadal_cpu::Form::best().to_string());
        assert!(serde_json::from_str::<StepTimes>(lines[1]).is_ok());
        assert!(serde_json::from_str::<Closing>(lines[3]).is_ok());
    }

    #[test]
    fn a_closed_input_ends_the_conversation_too() {
        let mut job = job("prenorm");
        job.activity = Activity::Decoding;
        job.model.max_seq_len = 64;
        let mut said = Vec::new();
        answer(&job, &b"step\n"[..], &mut said).unwrap();
        let said = String::from_utf8(said).unwrap();
        assert!(serde_json::from_str::<DecodeTimes>(said.lines().nth(1).unwrap()).is_ok());
        assert!(serde_json::from_str::<Closing>(said.lines().nth(2).unwrap()).is_ok());
    }

    #[test]
    fn other_requests_are_refused() {
        let error = answer(&job("prenorm"), &b"sing\n"[..], &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("`sing` is no request"), "{error}");
    }
}
