//! `hadal bench`: how fast policies train and write on this machine.

mod entries;

use crate::device::DeviceOption;
use crate::failure::Failure;
use crate::model_file::read_shape;
use crate::output::{Table, grouped};
use crate::screen::Screen;
use crate::standard::{stderr, stdout};
use crate::word::{PRECISIONS, whole, word};
use clap::Args;
use entries::{Asked, Entry, part, part_text, rate};
use hadal_compare::bench::protocol::{DecodeTimes, Ready, Speeds, StepTimes};
use hadal_compare::bench::{
    Activity, DECODED, DecodeReport, Job, Measured, Shape, SkipRate, SkipReport, TrainingReport,
    WARM_UP, alternate, serve,
};
use hadal_model::{CPU, Device, Precision};
use hadal_residual::Memory;
use hadal_study::skip::Promise;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Measure how fast policies train or write, and how much memory they take
///
/// Every policy runs in a process of its own, and they make their steps in turn, so that any other load on the machine
/// disturbs all of them alike. Weights and tokens are made up, the same for all of them; AdamW moves all parameters.
/// The first 3 steps do not count.
#[derive(Args)]
#[command(after_help = "\
Columns: median and best time of a step; tokens per second at both; median time of its three parts;
  most memory of the process (Linux alone says it); the best f32 matrix product of 1024 x 1024 (the
  gemm crate's) in the same process; the share of it that attention, MLPs and head use (MFU; what a
  policy adds does not count as use); the most multiply-adds that a loop over registers does in the
  SIMD form in use (HADAL_SIMD), and the share of those; and the median over the rounds of the time by
  that of the first policy.
  With --skip: share of skippable FLOPs that was skipped; FLOPs by those of the same policy when nobody
  skips; tokens read per second; and the share of the saved FLOPs that is saved time, (1 - time) / (1 - FLOPs).

Examples:
  hadal bench
  hadal bench --residual prenorm --residual mgr:streams=8 --residual attnres
  hadal bench --model configs/micro.toml --batch 4 --seq 128 --json
  hadal bench --decode --seq 512 --residual prenorm --residual mgr:streams=4
  hadal bench --precision bf16
  hadal bench --residual nag --skip 0,0.25,0.5")]
pub(crate) struct Bench {
    /// Settings of a run, a model's config (.json or .toml) or its directory [default: 8 blocks of
    /// 256, 4 heads, 512 tokens]
    #[arg(long, value_name = "CONFIG|DIR")]
    model: Option<PathBuf>,
    /// A policy, e.g. mgr:streams=8; may be given several times [default: the model's own]
    #[arg(long, value_name = "POLICY")]
    residual: Vec<Asked>,
    /// Sequences of a step
    #[arg(long, default_value = "8", value_parser = whole::<1, MOST>)]
    batch: usize,
    /// Tokens of a sequence, or of the longest prompt
    #[arg(long, default_value = "256", value_parser = whole::<1, MOST>)]
    seq: usize,
    /// Steps of each policy that count
    #[arg(long, default_value = "12", value_parser = whole::<1, MOST>)]
    steps: usize,
    /// Threads of each process
    #[arg(long, default_value = "2", value_parser = whole::<1, MOST_THREADS>)]
    threads: usize,
    /// Measure reading a prompt and writing after it, at a quarter, a half and all of --seq
    #[arg(long)]
    decode: bool,
    /// Also run every policy that can skip at these shares of FLOPs, by thresholds for each sub-layer
    #[arg(long, value_name = "RATE,..", value_delimiter = ',', allow_negative_numbers = true, value_parser = rate)]
    skip: Vec<f64>,
    /// Use only plain tensor operations, as on backends without fused ones
    #[arg(long)]
    plain: bool,
    /// What matrix products round
    #[arg(long, default_value = "f32", value_parser = word::<Precision>(PRECISIONS))]
    precision: Precision,
    #[command(flatten)]
    device: DeviceOption,
    /// Keep MGR's streams for the backward pass instead of computing them backwards
    #[arg(long)]
    exact: bool,
    /// Keep only the input of each sub-layer and run it twice
    #[arg(long)]
    recompute: bool,
    /// Show every column, in several tables where one is too wide
    #[arg(long, conflicts_with = "json")]
    all_columns: bool,
    /// Print JSON, one line for each policy
    #[arg(long)]
    json: bool,
    /// Make steps for another process (hadal_compare::bench::protocol)
    #[arg(long, hide = true)]
    worker: bool,
    /// The worker's part in a comparison of skip rates
    #[arg(long, hide = true, value_parser = part)]
    part: Option<SkipRate>,
}

/// Beyond any machine, and small enough that products of such numbers fit.
const MOST: usize = 1 << 20;
/// More would only ever be a mistyped number, and the system might well start them all.
const MOST_THREADS: usize = 1024;

impl Bench {
    pub(crate) fn run(mut self) -> Result<ExitCode, Failure> {
        let device = self.device.open()?;
        if self.recompute && self.device.given().is_some_and(|name| name != CPU) {
            return Err(Failure::usage(
                "--recompute is for the CPU: leave out --device, or --recompute",
            ));
        }
        let shape = match &self.model {
            Some(path) => read_shape(path)?,
            None => Shape::standard(),
        };
        if self.residual.is_empty() {
            let residual = shape.residual().clone();
            self.residual.push(Asked { text: residual.to_string(), residual });
        }
        let entries = Entry::all(&self.residual, &self.skip)?;
        let jobs: Vec<Job> = entries
            .iter()
            .map(|entry| self.job(&shape, entry, &device))
            .collect::<Result<_, _>>()?;
        if self.worker {
            let [job] = jobs.as_slice() else {
                return Err(Failure::usage("a worker has one policy; say --residual once"));
            };
            let job = Job { skip: self.part.unwrap_or_default(), ..job.clone() };
            serve(&job, BufReader::new(io::stdin()), stdout())?;
        } else if self.decode {
            self.report_decoding(&entries, &jobs)?;
        } else {
            self.report_training(&entries, &jobs)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn job(&self, shape: &Shape, entry: &Entry, device: &Device) -> Result<Job, Failure> {
        let (activity, longest) = match self.decode {
            false => (Activity::Training, self.seq),
            true => (Activity::Decoding, self.seq + DECODED),
        };
        let model = shape.model(Some(&entry.asked.residual), longest);
        // Weights are made up, so a start that Eq. 14 does not have is no reason to refuse.
        model.check().map_err(|error| match &self.model {
            Some(path) => Failure::usage(format!("{}: {error}", path.display())),
            None => Failure::usage(error),
        })?;
        let kept_share = Memory::default().kept_share.filter(|_| !self.exact);
        Ok(Job {
            model,
            activity,
            batch: self.batch,
            seq: self.seq,
            threads: self.threads,
            plain: self.plain,
            precision: self.precision,
            memory: Memory { kept_share, recompute: self.recompute },
            skip: entry.skip,
            device: device.clone(),
        })
    }

    /// Makes the steps of each entry in a process of its own.
    fn measure<T: DeserializeOwned>(&self, entries: &[Entry]) -> Result<Vec<Measured<T>>, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::failed(format!("cannot find the program itself: {error}")))?;
        let commands: Vec<_> = entries
            .iter()
            .map(|entry| {
                let mut command = Command::new(&program);
                command.args(["bench", "--worker", "--residual", &entry.asked.text]);
                command.args(["--precision", self.precision.name()]);
                if let Some(part) = part_text(entry.skip) {
                    command.args(["--part", &part]);
                }
                if let Some(device) = self.device.given() {
                    command.args(["--device", device]);
                }
                if let Some(path) = &self.model {
                    command.arg("--model").arg(path);
                }
                for (flag, number) in
                    [("--batch", self.batch), ("--seq", self.seq), ("--threads", self.threads)]
                {
                    command.arg(flag).arg(number.to_string());
                }
                for (flag, given) in [
                    ("--decode", self.decode),
                    ("--plain", self.plain),
                    ("--exact", self.exact),
                    ("--recompute", self.recompute),
                ] {
                    command.args(given.then_some(flag));
                }
                (entry.name(), command)
            })
            .collect();
        let bar = progress_bar(commands.len() * (WARM_UP + self.steps));
        let measured = alternate(commands, self.steps, || bar.inc(1));
        bar.finish_and_clear();
        Ok(measured?)
    }

    fn report_training(&self, entries: &[Entry], jobs: &[Job]) -> Result<(), Failure> {
        let measured = self.measure::<StepTimes>(entries)?;
        let reports = entries.iter().zip(jobs).zip(&measured).map(|((entry, job), this)| {
            let (first, dense) = (&measured[0], &measured[entry.dense]);
            TrainingReport::of(&entry.name(), job, this, first, dense).map_err(Failure::usage)
        });
        let reports = reports.collect::<Result<Vec<_>, _>>()?;
        if self.json {
            return print_lines(&reports);
        }
        let mut head = vec![
            "policy",
            ">step ms",
            ">best",
            ">tokens/s",
            ">best",
            ">forward",
            ">backward",
            ">optimiser",
            ">MB",
            ">sgemm GFLOP/s",
            ">MFU",
            ">peak GFLOP/s",
            ">of peak",
            ">time",
        ];
        if !self.skip.is_empty() {
            let more =
                [">skipped", ">FLOPs", ">kept", ">prefill tokens/s", ">time", ">FLOPs", ">kept"];
            head.extend(more);
        }
        let order =
            ["policy", "time", "tokens/s", "MB", "of peak", "MFU", "step ms", "skipped", "FLOPs"];
        let mut table = self.table(&head, &order);
        let colours = Screen::stdout().policies(reports.iter().map(|report| report.kind.as_str()));
        for (report, colour) in reports.iter().zip(colours) {
            let mut row = vec![
                report.kind.clone(),
                milliseconds(report.step_ms_median),
                milliseconds(report.step_ms_best),
                rounded(report.tokens_per_second),
                rounded(report.best_tokens_per_second),
                milliseconds(report.forward_ms),
                milliseconds(report.backward_ms),
                milliseconds(report.optimizer_ms),
                megabytes(report.peak_rss_mb),
                format!("{:.1}", report.speeds.gemm_gflops),
                format!("{:.1} %", 100.0 * report.mfu),
                format!("{:.1}", report.speeds.peak_gflops),
                format!("{:.1} %", 100.0 * report.mfu_of_peak),
                format!("{:.3}x", report.ratio),
            ];
            if let Some(prefill) = report.prefill_tokens_per_second {
                let skip = report.skip.as_ref();
                let [_, flops, kept] = cells(skip.and_then(|skip| skip.training));
                row.extend([skipped(skip), flops, kept, rounded(prefill)]);
                row.extend(cells(skip.and_then(|skip| skip.prefill)));
            }
            table.row(row);
            table.paint(0, colour);
        }
        let data = format!("{} sequences of {}", self.batch, self.seq);
        self.print(jobs, &measured, &table, &data)
    }

    fn report_decoding(&self, entries: &[Entry], jobs: &[Job]) -> Result<(), Failure> {
        let measured = self.measure::<DecodeTimes>(entries)?;
        let reports = entries.iter().zip(jobs).zip(&measured).map(|((entry, job), this)| {
            DecodeReport::of(&entry.name(), job, this, &measured[entry.dense])
        });
        let reports: Vec<_> = reports.collect();
        if self.json {
            return print_lines(&reports);
        }
        let lengths = reports.first().map_or(&[][..], |report| &report.contexts);
        let behind: Vec<_> =
            lengths.iter().map(|length| format!(">ms at {}", length.context)).collect();
        let mut head = vec!["policy", ">prefill tokens/s", ">decode tokens/s"];
        head.extend(behind.iter().map(String::as_str));
        head.push(">MB");
        if !self.skip.is_empty() {
            let more = [">skipped", ">time", ">FLOPs", ">kept", ">decode time", ">FLOPs", ">kept"];
            head.extend(more);
        }
        let order = ["policy", "decode tokens/s", "prefill tokens/s", "MB", "skipped"];
        let mut table = self.table(&head, &order);
        let colours = Screen::stdout().policies(reports.iter().map(|report| report.kind.as_str()));
        for (report, colour) in reports.iter().zip(colours) {
            let mut row = vec![
                report.kind.clone(),
                rounded(report.prefill_tokens_per_second),
                format!("{:.1}", report.decode_tokens_per_second),
            ];
            row.extend(report.contexts.iter().map(|context| milliseconds(context.ms)));
            row.push(megabytes(report.peak_rss_mb));
            if !self.skip.is_empty() {
                let skip = report.skip.as_ref();
                row.push(skipped(skip));
                row.extend(cells(skip.and_then(|skip| skip.prefill)));
                row.extend(cells(skip.and_then(|skip| skip.decode)));
            }
            table.row(row);
            table.paint(0, colour);
        }
        self.print(jobs, &measured, &table, &format!("a prompt of {}", self.seq))
    }

    fn table(&self, head: &[&str], order: &[&str]) -> Table {
        let table = Table::new(head);
        match self.all_columns {
            true => table.in_parts(1),
            false => table.dropping(order, "--all-columns or --json for the rest"),
        }
    }

    fn print<T>(
        &self,
        jobs: &[Job],
        measured: &[Measured<T>],
        table: &Table,
        data: &str,
    ) -> Result<(), Failure> {
        let mut out = stdout();
        if let Some(Job { model, .. }) = jobs.first() {
            let what = format!(
                "{} blocks of {}, {} tokens of vocabulary; {data}, {} threads, {}; {} rounds after {WARM_UP}",
                model.n_layers,
                model.d_model,
                grouped(model.vocab_size as i128),
                self.threads,
                self.precision,
                self.steps,
            );
            writeln!(out, "{}", Screen::stdout().wrapped(&what, 2))?;
        }
        let all = measured.iter().map(Measured::speeds).reduce(Speeds::better);
        if let Some((all, Measured { ready, .. })) = all.zip(measured.first()) {
            let what = machine(ready, all, self.threads);
            writeln!(out, "{}", Screen::stdout().wrapped(&what, 2))?;
        }
        table.show(&mut out);
        Ok(())
    }
}

/// The CPU, the form of the kernels, and the best that any worker found there.
fn machine(ready: &Ready, all: Speeds, threads: usize) -> String {
    let cpu = ready.cpu.as_deref().unwrap_or("a CPU without a name");
    let of = |all: f64, one: f64| match threads {
        1 => format!("{one:.1}"),
        _ => format!("{all:.1} ({one:.1} on one thread)"),
    };
    format!(
        "{cpu}, {}; GFLOP/s: multiply-adds {}, sgemm {}",
        ready.simd,
        of(all.peak_gflops, all.peak_gflops_thread),
        of(all.gemm_gflops, all.gemm_gflops_thread),
    )
}

/// A bar on stderr; invisible off a terminal.
fn progress_bar(steps: usize) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(steps as u64);
    let style =
        ProgressStyle::with_template("{bar:24} {pos}/{len} steps, {elapsed} elapsed, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn print_lines(reports: &[impl Serialize]) -> Result<(), Failure> {
    let mut out = stdout();
    for report in reports {
        let line = serde_json::to_string(report).map_err(Failure::failed)?;
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn skipped(skip: Option<&SkipReport>) -> String {
    skip.map_or(String::new(), |skip| format!("{:.1} %", 100.0 * skip.skipped_share))
}

/// Time and FLOPs relative to those when no token skips, and how much of the promise is kept.
fn cells(promise: Option<Promise>) -> [String; 3] {
    let Some(Promise { flop_ratio, time_ratio, kept }) = promise else { return Default::default() };
    let kept = kept.map_or(String::new(), |kept| format!("{kept:.2}"));
    [format!("{time_ratio:.3}x"), format!("{flop_ratio:.3}x"), kept]
}

fn milliseconds(ms: f64) -> String {
    if ms < 10.0 { format!("{ms:.3}") } else { format!("{ms:.1}") }
}

fn rounded(number: f64) -> String {
    grouped(number.round() as i128)
}

fn megabytes(mb: Option<f64>) -> String {
    mb.map_or("?".into(), |mb| grouped(mb.round() as i128))
}
