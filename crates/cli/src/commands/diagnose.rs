//! `hadal diagnose`: what the layers of a model really do.

mod show;

use crate::device::DeviceOption;
use crate::failure::Failure;
use crate::output::{bytes, duration, line, print_json};
use crate::place::Place;
use crate::standard::{stderr, stdout, tell};
use clap::Args;
use hadal_cpu::pool::{in_pool, start_pool};
use hadal_model::{Device, Part, allowed_memory};
use hadal_report::page::Next;
use hadal_study::diagnose::{
    Context, DiagnoseError, Diagnosis, Journal, Kind, Observer, Options, PAGE, Plan, Summary,
    diagnose, next as commands, overlay, page, plan, write,
};
use hadal_study::{Samples, Subject};
use indicatif::ProgressBar;
use serde_json::json;
use show::show;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Look into a model: what each block does, and which could go
///
/// RUN is a folder of `hadal train` (its finished model, or else its newest checkpoint, on its own held-out
/// data), a directory with a model of hadal or of the Hugging Face families that `hadal import` knows, or a GGUF file;
/// models need --data. A page and its figures (JSON, CSV, SVG and PNG) are written, by default to RUN/diagnosis. What was
/// interrupted goes on when it is started again.
#[derive(Args)]
#[command(after_help = "\
Diagnostics for --only:
  output       size of the stream behind each block, and its growth
  gradients    how strongly the loss depends on each block
  writes       relative size and angle of each sub-layer's output (dilution)
  distance     angular distance between the inputs of any two blocks
  removal      loss and perplexity without each block and sub-layer
  activations  massive activations
  gates        how wide gates are open
  pools        what readings are pooled from
  lanes        NAG's gains, rotations, norm and temperature
  sink         attention on the first token
  skips        who skips what: by depth, by kind, by position and by token
  streams      how many streams count, how alike they are, and what their mixers do over depth
  connectivity weight of every earlier output in what each sub-layer reads, c[l,s]
  collapse     how many directions the tokens of a sequence span
  surgery      loss with mixers at the identity or their mean, and with the largest weights alone
  rescue       predictions without a stream, and with another one put back
  causal       how much of what a block does hangs on each earlier block
  spikes       sudden rises of the loss in a run's training, and the size of its gradients
Only if they are named, or with --only all:
  permutation  loss when two blocks change places
  usefulness   loss with an affine map in the place of a block

Examples:
  hadal diagnose runs/nano-mgr-0
  hadal diagnose tests/models/stories260K --data story.txt --out story-diagnosis
  hadal diagnose runs/a --only removal,distance --batches 4
  hadal diagnose runs/a --only causal,permutation,usefulness
  hadal diagnose runs/prenorm runs/mgr runs/nag --out compared
  hadal diagnose runs/a --without 3,attn:5 --out without
  hadal diagnose model.gguf --data book.txt --dry-run
  hadal diagnose runs/a --json")]
pub(crate) struct Diagnose {
    /// Run folders, model directories or GGUF files
    #[arg(required = true, value_name = "RUN|DIR")]
    subjects: Vec<PathBuf>,
    /// What to measure with: a text, or a directory of `hadal data prepare`
    #[arg(long, value_name = "DIR|FILE")]
    data: Option<PathBuf>,
    /// Batches of about 2048 tokens [default: 512 sequences or 65,536 tokens]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    batches: Option<u64>,
    /// Only these diagnostics
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    only: Vec<String>,
    /// Leave these blocks, attentions and MLPs out, e.g. 17,18,attn:20
    #[arg(long, alias = "skip-blocks", value_name = "PART,..", value_delimiter = ',')]
    without: Vec<Part>,
    /// Where figures go [default: RUN/diagnosis]; several models are laid over each other there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    device: DeviceOption,
    /// Print what would be measured, on how many tokens, and a guess of time and memory, and stop
    #[arg(long)]
    dry_run: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

impl Diagnose {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let options = Options {
            batches: self.batches.map(|batches| usize::try_from(batches).unwrap_or(usize::MAX)),
            only: Kind::named(&self.only)?,
        };
        if self.subjects.len() > 1 && self.out.is_none() {
            return Err(Failure::usage(
                "several models are laid over each other; say where with --out DIR",
            ));
        }
        let device = self.device.open()?;
        if self.dry_run {
            let _ = start_pool(None);
            return self.show_plans(&options, &device);
        }
        let out = self.out();
        // Nothing is made for a model that is not there.
        if self.subjects.iter().all(|subject| subject.exists()) {
            Place { path: &out.join(PAGE), option: "--out", example: "DIR" }.writable()?;
        }
        let mut journal = Journal::open(&out);
        for place in journal.only(&self.subjects) {
            tell(&format!("an earlier diagnosis of {} is forgotten", place.display()));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let signal = hadal_train::stop_on_signals(&stop)
            .map_err(|error| Failure::failed(format!("cannot listen to signals: {error}")))?;
        let _ = start_pool(None);
        let (mut found, mut next) = (Vec::new(), Vec::new());
        for path in &self.subjects {
            let diagnosis =
                in_pool(|| self.look((path, &device), &options, &mut journal, &stop, &mut next))?;
            let Some(diagnosis) = diagnosis else {
                tell(&saved(&journal));
                tell(&format!("go on with: {}", self.again()));
                return Ok(ExitCode::from(signal.exit_code()));
            };
            if diagnosis.figures.is_empty() {
                let refused = diagnosis.summary.refused.iter();
                let why: Vec<String> = refused
                    .map(|refusal| format!("{}: {}", refusal.diagnostic.name(), refusal.reason))
                    .collect();
                return Err(Failure::usage(format!(
                    "{} has nothing to show for --only {}: its policy is {} ({})",
                    path.display(),
                    self.only.join(","),
                    diagnosis.summary.residual,
                    why.join("; ")
                )));
            }
            found.push(diagnosis);
        }
        self.name_apart(&mut found);
        let summaries: Vec<Summary> = found.iter().map(|d| d.summary.clone()).collect();
        let figures = match found.len() {
            1 => found.remove(0).figures,
            _ => {
                overlay(&found.into_iter().map(|d| (d.summary.name, d.figures)).collect::<Vec<_>>())
            }
        };
        let context = Context {
            models: words(&self.subjects).join(" "),
            data: self.data.as_deref().map(|path| path.display().to_string()),
            next,
        };
        let page = page(&summaries, &figures, &context);
        write(&out, &figures, &summaries, Some(page))?;
        journal.finish(&options.kinds())?;
        if self.json {
            let names: Vec<&str> = figures.iter().map(|figure| figure.name.as_str()).collect();
            print_json(&json!({ "out": out, "figures": names, "models": summaries }))?;
        } else {
            let mut stdout = stdout();
            for summary in &summaries {
                show(summary, &mut stdout)?;
            }
            tell(&format!(
                "{} figures are in {} (JSON, CSV, SVG and PNG)\npage: {} (open it in a browser)",
                figures.len(),
                out.display(),
                out.join(PAGE).display()
            ));
        }
        Ok(ExitCode::SUCCESS)
    }

    fn out(&self) -> PathBuf {
        match &self.out {
            Some(out) => out.clone(),
            // A file cannot hold figures, so a model in one gets a folder beside it.
            None if self.subjects[0].is_file() => self.subjects[0].with_extension("diagnosis"),
            None => self.subjects[0].join("diagnosis"),
        }
    }

    fn show_plans(&self, options: &Options, device: &Device) -> Result<ExitCode, Failure> {
        let mut plans = Vec::new();
        for path in &self.subjects {
            plans.push(in_pool(|| -> Result<Plan, DiagnoseError> {
                let mut subject = Subject::open_on(path, device)?;
                subject.leave_out(&self.without)?;
                let samples = Samples::of(&subject, self.data.as_deref())?;
                plan(&subject, &samples, options)
            })?);
        }
        if self.json {
            print_json(&plans)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut out = stdout();
        for plan in &plans {
            let names: Vec<&str> = plan.diagnostics.iter().map(|kind| kind.name()).collect();
            writeln!(out, "{}: {}", plan.name, names.join(", "))?;
            writeln!(
                out,
                "  {} passes over {} sequences, {} tokens; about {}, {} of memory",
                plan.passes,
                plan.sequences,
                plan.tokens,
                duration(plan.seconds),
                bytes(plan.memory)
            )?;
            if let Some(warning) = short(plan.memory) {
                writeln!(out, "  warning: {warning}")?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The same command.
    fn again(&self) -> String {
        let mut words = vec!["hadal diagnose".to_owned()];
        words.extend(self::words(&self.subjects));
        words.extend(self.data.as_deref().map(|path| format!("--data {}", path.display())));
        words.extend(self.batches.map(|batches| format!("--batches {batches}")));
        if !self.only.is_empty() {
            words.push(format!("--only {}", self.only.join(",")));
        }
        if !self.without.is_empty() {
            let parts: Vec<String> = self.without.iter().map(ToString::to_string).collect();
            words.push(format!("--without {}", parts.join(",")));
        }
        words.extend(self.out.as_deref().map(|path| format!("--out {}", path.display())));
        words.extend(self.device.words());
        words.extend(self.json.then(|| "--json".to_owned()));
        words.join(" ")
    }

    fn look(
        &self,
        (path, device): (&Path, &Device),
        options: &Options,
        journal: &mut Journal,
        stop: &AtomicBool,
        next: &mut Vec<Next>,
    ) -> Result<Option<Diagnosis>, DiagnoseError> {
        let mut subject = Subject::open_on(path, device)?;
        subject.leave_out(&self.without)?;
        let samples = Samples::of(&subject, self.data.as_deref())?;
        if let Some(warning) = short(samples.memory(&subject, options)?) {
            tell(&format!("warning: {}: {warning}", subject.name));
        }
        let bar = bar(&subject.name);
        let logs = !self.json && !stderr().is_terminal();
        let mut view = View { bar, name: subject.name.clone(), logs, left: true, stop };
        let diagnosis = diagnose(&subject, &samples, options, journal, &mut view);
        view.bar.finish_and_clear();
        let diagnosis = diagnosis?;
        if let (Some(diagnosis), [path]) = (&diagnosis, self.subjects.as_slice()) {
            let can_skip = subject.model().residual.can_skip();
            *next = commands(&diagnosis.summary, path, self.data.as_deref(), can_skip);
        }
        Ok(diagnosis)
    }

    /// Runs of the same name in different folders are told apart by their paths.
    fn name_apart(&self, found: &mut [Diagnosis]) {
        let names: Vec<String> = found.iter().map(|d| d.summary.name.clone()).collect();
        for (i, path) in self.subjects.iter().enumerate() {
            if names.iter().filter(|name| **name == names[i]).count() > 1 {
                found[i].summary.name = path.display().to_string();
            }
        }
    }
}

/// What to say if this machine has less memory than that.
fn short(needed: f64) -> Option<String> {
    // A wrong setting has been refused when the model was read.
    let free = allowed_memory().ok()??;
    short_of(needed, free as f64)
}

fn short_of(needed: f64, free: f64) -> Option<String> {
    let gigabytes = |bytes: f64| format!("{:.1}", bytes / 1e9);
    (needed > free).then(|| {
        format!(
            "needs about {} GB of memory, {} are free; --only removal takes least, and a shorter text makes shorter \
             sequences",
            gigabytes(needed),
            gigabytes(free)
        )
    })
}

fn words(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.display().to_string()).collect()
}

/// What an interrupted diagnosis keeps.
fn saved(journal: &Journal) -> String {
    match journal.words().as_slice() {
        [] => "stopped before anything was found".to_owned(),
        words => {
            format!("stopped; saved in {}: {}", journal.path().display(), words.join(", "))
        }
    }
}

/// A bar on a terminal, a line for each diagnostic in a log.
struct View<'a> {
    bar: ProgressBar,
    name: String,
    logs: bool,
    /// Whether there is more to come: what is done last is shown at once.
    left: bool,
    stop: &'a AtomicBool,
}

impl Observer for View<'_> {
    fn passed(&mut self, done: usize, all: usize) {
        self.bar.set_length(all as u64);
        self.bar.set_position(done as u64);
        self.left = done < all;
    }

    fn finished(&mut self, kinds: &[Kind]) {
        if self.logs && self.left {
            let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
            line(&self.bar, &format!("{}: {} done", self.name, names.join(", ")));
        }
    }

    fn note(&mut self, text: &str) {
        line(&self.bar, &format!("{}: {text}", self.name));
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

fn bar(name: &str) -> ProgressBar {
    crate::output::bar("{msg} {bar:24} {pos}/{len} passes, {eta} left")
        .with_message(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_missed_before_it_runs_out() {
        assert_eq!(short_of(4e9, 4.1e9), None);
        let said = short_of(6.04e9, 4e9).unwrap();
        assert!(said.starts_with("needs about 6.0 GB of memory, 4.0 are free"), "{said}");
    }
}
