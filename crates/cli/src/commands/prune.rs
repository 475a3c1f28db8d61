//! `hadal prune`: which blocks do nothing, a model without them, and whether that is what was promised.

use crate::failure::Failure;
use crate::output::{Table, grouped, print_json, scaled};
use clap::{Args, Subcommand, ValueEnum};
use hadal_lab::pool::{in_pool, start_pool};
use hadal_lab::prune::{
    Budget, Check, Manifest, Method, Options, Plan, PruneError, Score, apply, check, plan,
    read_plan,
};
use hadal_model::Part;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Cut blocks that do little out of a model, with evidence
///
/// MODEL is a model directory of hadal or Hugging Face, the folder of a finished run, or a .gguf file (which is cut but
/// not measured unless hadal can load it). Plan first, look at what it would cost, then apply and check.
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal prune plan MODEL --data text.txt --blocks 4 --out plan.json
  hadal prune apply plan.json --out smaller
  hadal prune check smaller --original MODEL --data other.txt
  hadal generate MODEL --skip-blocks 17,18,attn:20 --prompt 'Once'    # without writing anything")]
pub(crate) struct Prune {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Plan(Box<PlanCommand>),
    Apply(ApplyCommand),
    Check(CheckCommand),
}

impl Prune {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        // A pool that cannot be made is made by rayon itself when it is first needed.
        let _ = start_pool(None);
        match self.action {
            Action::Plan(command) => command.run(),
            Action::Apply(command) => command.run(),
            Action::Check(command) => command.run(),
        }
    }
}

fn failed(error: PruneError) -> Failure {
    if error.is_usage() { Failure::usage(error) } else { Failure::failed(error) }
}

/// What was typed, for the record.
fn typed() -> String {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    std::iter::once("hadal".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

fn bar(unit: &str) -> ProgressBar {
    let bar = if io::stderr().is_terminal() { ProgressBar::new(1) } else { ProgressBar::hidden() };
    let style =
        ProgressStyle::with_template(&format!("{{bar:24}} {{pos}}/{{len}} {unit}, {{eta}} left"));
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// Measure every block and sub-layer, and choose what goes
///
/// Every score is measured on one half of the data; the cost of the choice on the other half. Nothing is written but
/// the plan.
#[derive(Args)]
#[command(after_help = "\
Scores:
  loss       the loss without the part
  kl         KL divergence of the predictions from the whole model's
  distance   angular distance between what goes in and out (Gromov), last token of each sequence
  influence  1 - cosine of what goes in and out (ShortGPT), all tokens

Examples:
  hadal prune plan MODEL --data text.txt --blocks 4
  hadal prune plan MODEL --data text.txt --percent 25 --score distance --method one-shot --contiguous
  hadal prune plan MODEL --data text.txt --max-ppl-rise 5 --sub-layers --out plan.json
  hadal prune plan MODEL --data text.txt --max-kl 0.05 --protect 0,1,2,-2,-1 --json")]
struct PlanCommand {
    /// Model directory, finished run, or .gguf
    model: PathBuf,
    /// What to measure with: a text, or a directory of `hadal data prepare` [default: the run's held-out data]
    #[arg(long, value_name = "DIR|FILE")]
    data: Option<PathBuf>,
    /// So many blocks go, or sub-layers with --sub-layers
    #[arg(long, value_name = "N")]
    blocks: Option<usize>,
    /// This share of them goes
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true)]
    percent: Option<f64>,
    /// As many as raise perplexity by no more than this
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true)]
    max_ppl_rise: Option<f64>,
    /// As many as keep KL(whole || cut) below this, in nats
    #[arg(long, value_name = "NATS", allow_negative_numbers = true)]
    max_kl: Option<f64>,
    /// What parts are ranked by: loss, kl, distance or influence
    #[arg(long, default_value = "loss")]
    score: Score,
    /// greedy measures again after each cut, one-shot takes the lowest scores at once
    #[arg(long, value_enum, default_value = "greedy")]
    method: MethodName,
    /// Only blocks that follow each other
    #[arg(long)]
    contiguous: bool,
    /// Cut attention and MLPs separately
    #[arg(long)]
    sub_layers: bool,
    /// Blocks that stay, negative ones counted from the end; `none` protects nothing
    #[arg(long, value_name = "BLOCK,..", default_value = "0,1,-1", allow_hyphen_values = true)]
    protect: String,
    /// Batches of about 2048 tokens [default: 512 sequences or 65,536 tokens]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    batches: Option<u64>,
    /// Where the plan goes
    #[arg(long, value_name = "FILE", default_value = "plan.json")]
    out: PathBuf,
    /// Print the plan as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum MethodName {
    Greedy,
    OneShot,
}

impl PlanCommand {
    fn run(self) -> Result<ExitCode, Failure> {
        let options = Options {
            budget: Budget {
                blocks: self.blocks,
                percent: self.percent,
                max_perplexity_rise: self.max_ppl_rise,
                max_kl: self.max_kl,
            },
            score: self.score,
            method: match self.method {
                MethodName::Greedy => Method::Greedy,
                MethodName::OneShot => Method::OneShot,
            },
            contiguous: self.contiguous,
            sub_layers: self.sub_layers,
            protect: protected(&self.protect)?,
        };
        let bar = bar("passes");
        let mut progress = |done: usize, all: usize| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        };
        let batches = self.batches.map(|batches| usize::try_from(batches).unwrap_or(usize::MAX));
        let data = self.data.as_deref();
        let found = in_pool(|| plan(&self.model, data, batches, &options, &typed(), &mut progress));
        bar.finish_and_clear();
        let found = found.map_err(failed)?;
        found.write(&self.out).map_err(failed)?;
        if self.json {
            print_json(&found)?;
        } else {
            show_plan(&found, &mut io::stdout().lock())?;
        }
        let mut stderr = io::stderr();
        writeln!(stderr, "the plan is in {}; nothing else was written", self.out.display())?;
        writeln!(stderr, "next: hadal prune apply {} --out DIR", self.out.display())?;
        Ok(ExitCode::SUCCESS)
    }
}

fn protected(text: &str) -> Result<Vec<i64>, Failure> {
    if text == "none" {
        return Ok(Vec::new());
    }
    let block = |word: &str| {
        word.trim().parse::<i64>().map_err(|_| {
            Failure::usage(format!("--protect: `{word}` is not a block; write 0,1,-1 or none"))
        })
    };
    text.split(',').map(block).collect()
}

fn show_plan(plan: &Plan, out: &mut impl Write) -> io::Result<()> {
    let mut table =
        Table::new(&["part", ">distance", ">influence", ">loss change", ">KL", "verdict"]);
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.5}"));
    for score in &plan.scores.parts {
        let whole_block = matches!(score.part, Part::Block(_));
        if whole_block == plan.options.sub_layers {
            continue;
        }
        let verdict =
            match (plan.chosen.iter().position(|&part| part == score.part), &score.refused) {
                (Some(order), _) => format!("goes ({})", order + 1),
                (None, Some(reason)) => format!("must stay: {reason}"),
                (None, None) => String::new(),
            };
        table.row([
            score.part.to_string(),
            number(score.distance),
            number(score.influence),
            number(score.loss_change),
            number(score.kl),
            verdict,
        ]);
    }
    table.print(out)?;
    let outcome = &plan.outcome;
    let share = |after: f64, before: f64| 100.0 * (after / before - 1.0);
    writeln!(
        out,
        "\nremove      {} of {} blocks: {}",
        plan.blocks - plan.kept.len(),
        plan.blocks,
        Part::list(&plan.remove)
    )?;
    writeln!(
        out,
        "predicted   perplexity {:.4}, KL {:.5}: what the parts cost one by one",
        outcome.predicted_perplexity, outcome.predicted_kl
    )?;
    writeln!(
        out,
        "measured    perplexity {:.4} -> {:.4} ({:+.2} %), KL {:.5}, on {} tokens{}",
        outcome.whole.perplexity,
        outcome.cut.perplexity,
        share(outcome.cut.perplexity, outcome.whole.perplexity),
        outcome.cut.kl,
        grouped(outcome.tokens.into()),
        if outcome.held_out {
            " that the choice was not made on"
        } else {
            " (the choice was made on the same: give more)"
        },
    )?;
    let speed = &plan.speed;
    writeln!(
        out,
        "speed       reading takes {:.1} % of the time, writing {:.1} % ({:.1} tokens/s)",
        100.0 * speed.prefill,
        100.0 * speed.decode,
        speed.decode_tokens_per_second
    )?;
    let memory = &plan.memory;
    writeln!(
        out,
        "memory      {} -> {} parameters ({:+.1} %), {} -> {}B of keys and values for each token",
        grouped(memory.parameters_before.into()),
        grouped(memory.parameters_after.into()),
        share(memory.parameters_after as f64, memory.parameters_before as f64),
        scaled(memory.kv_bytes_before as f64),
        scaled(memory.kv_bytes_after as f64),
    )
}

/// Write a model without the parts of a plan
///
/// The original is never touched. Blocks get new numbers, and every field of the config that speaks of layers is
/// corrected. A single attention or MLP cannot be left out of a file: its output projection becomes zero.
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal prune apply plan.json --out smaller
  hadal prune apply MODEL --blocks 17,18 --out smaller
  hadal prune apply model.gguf --blocks 17,18,mlp:7 --out smaller")]
struct ApplyCommand {
    /// A plan, or with --blocks a model
    #[arg(value_name = "PLAN|MODEL")]
    source: PathBuf,
    /// What goes: blocks, attn:N and mlp:N
    #[arg(long, value_name = "PART,..", value_delimiter = ',')]
    blocks: Vec<Part>,
    /// A directory that does not exist yet
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Print the record as JSON
    #[arg(long)]
    json: bool,
}

impl ApplyCommand {
    fn run(self) -> Result<ExitCode, Failure> {
        let plan = self.plan()?;
        let (model, remove) = match &plan {
            Some(plan) => (plan.source.path.clone(), plan.remove.clone()),
            None => (self.source.clone(), self.blocks.clone()),
        };
        let spinner = crate::output::spinner(format!("cutting {}", model.display()));
        let done = in_pool(|| apply(&model, &remove, plan.as_ref(), &self.out, &typed()));
        spinner.finish_and_clear();
        let manifest = done.map_err(failed)?;
        match self.json {
            true => print_json(&manifest)?,
            false => show_manifest(&manifest, &self.out)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn plan(&self) -> Result<Option<Plan>, Failure> {
        let is_plan = self.source.extension().is_some_and(|extension| extension == "json");
        match (is_plan, self.blocks.is_empty()) {
            (true, true) => Ok(Some(read_plan(&self.source).map_err(failed)?)),
            (false, false) => Ok(None),
            (true, false) => {
                Err(Failure::usage("a plan says itself what goes; leave out --blocks"))
            }
            (false, true) => Err(Failure::usage(format!(
                "nothing says what goes; name a plan, or parts of {} with --blocks 17,18",
                self.source.display()
            ))),
        }
    }
}

fn show_manifest(manifest: &Manifest, out: &Path) -> io::Result<()> {
    writeln!(
        io::stdout(),
        "{}: {} of {} blocks, without {}",
        out.display(),
        manifest.kept.len(),
        manifest.blocks,
        Part::list(&manifest.removed)
    )?;
    let mut stderr = io::stderr();
    if !manifest.silenced.is_empty() {
        writeln!(
            stderr,
            "note: {} are still in the file, with zeros for an output projection: no format has a way to leave them out. \
             They save nothing until their reader knows",
            Part::list(&manifest.silenced)
        )?;
    }
    if !manifest.exact {
        writeln!(
            stderr,
            "note: numbers that depend on depth were folded in; logits agree to rounding, not to the bit"
        )?;
    }
    if !manifest.not_copied.is_empty() {
        writeln!(
            stderr,
            "note: not copied, because they hold the whole model: {}",
            manifest.not_copied.join(", ")
        )?;
    }
    writeln!(stderr, "redo: {}", manifest.redo)?;
    writeln!(stderr, "undo: {}", manifest.undo)?;
    writeln!(
        stderr,
        "next: hadal prune check {} --original {}",
        out.display(),
        manifest.source.path.display()
    )
}

/// Compare a cut model with its original
///
/// The cut is read back; its logits must be those of the original that leaves the parts out, to the bit. Then both are
/// asked to count and to copy, by choosing and by writing: choosing survives cuts that writing does not.
#[derive(Args)]
#[command(after_help = "\
Exit code 1 if the logits differ.

Examples:
  hadal prune check smaller --original MODEL --data other.txt
  hadal prune check smaller --original MODEL --json")]
struct CheckCommand {
    /// What `hadal prune apply` wrote
    pruned: PathBuf,
    /// What it was made from
    #[arg(long, value_name = "MODEL")]
    original: PathBuf,
    /// What to measure with [default: a few sentences]
    #[arg(long, value_name = "DIR|FILE")]
    data: Option<PathBuf>,
    /// Batches of about 2048 tokens [default: 512 sequences or 65,536 tokens]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    batches: Option<u64>,
    /// Print what was found as JSON
    #[arg(long)]
    json: bool,
}

impl CheckCommand {
    fn run(self) -> Result<ExitCode, Failure> {
        let bar = bar("steps");
        let mut progress = |done: usize, all: usize| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        };
        let batches = self.batches.map(|batches| usize::try_from(batches).unwrap_or(usize::MAX));
        let found = in_pool(|| {
            check(&self.pruned, &self.original, self.data.as_deref(), batches, &mut progress)
        });
        bar.finish_and_clear();
        let found = found.map_err(failed)?;
        match self.json {
            true => print_json(&json!(found))?,
            false => show_check(&found, &mut io::stdout().lock())?,
        }
        Ok(if found.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn show_check(check: &Check, out: &mut impl Write) -> io::Result<()> {
    let logits = &check.logits;
    let verdict = match (check.passed, logits.different) {
        (true, 0) => "the same to the bit".to_owned(),
        (true, _) => {
            format!("the same to rounding (largest difference {:.2e})", logits.largest_difference)
        }
        (false, count) => format!(
            "NOT the same: {} differ, by up to {:.2e} where the largest is {:.2e}",
            grouped(count.into()),
            logits.largest_difference,
            logits.largest_logit
        ),
    };
    writeln!(out, "logits      {} compared, {verdict}", grouped(logits.compared.into()))?;
    let data = if check.data { "" } else { " of built-in sentences; give more with --data" };
    writeln!(
        out,
        "perplexity  {:.4} -> {:.4} ({:+.2} %), KL {:.5}, on {} tokens{data}",
        check.original.perplexity,
        check.cut.perplexity,
        100.0 * (check.cut.perplexity / check.original.perplexity - 1.0),
        check.cut.kl,
        grouped(check.tokens.into()),
    )?;
    for probe in &check.probes {
        writeln!(
            out,
            "{:<10}  {} questions: chosen {} -> {}, written {} -> {}",
            probe.kind,
            probe.questions,
            probe.likelier[0],
            probe.likelier[1],
            probe.written[0],
            probe.written[1]
        )?;
    }
    if check.probes.is_empty() {
        writeln!(out, "there is no tokenizer, so nothing was asked or written")?;
    }
    for sample in &check.samples {
        writeln!(
            out,
            "\n{}..\n  original  {:?}\n  cut       {:?}",
            sample.prompt, sample.original, sample.cut
        )?;
    }
    Ok(())
}
