//! `hadal prune plan`: scores, a choice, and its cost.

use super::{bar, typed};
use crate::device::DeviceOption;
use crate::estimate::show_estimate;
use crate::failure::Failure;
use crate::output::{Table, bytes, grouped, print_json};
use crate::place::Place;
use crate::screen::Screen;
use crate::standard::{stderr, stdout, tell};
use clap::{Args, ValueEnum};
use hadal_cpu::pool::in_pool;
use hadal_model::Part;
use hadal_study::prune::{
    Budget, Method, Options, Plan, PlanEstimate, PruneError, Request, Score, discard_measurements,
    estimate, measurements_of, plan, write_plan_figures,
};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Measure every block and sub-layer, and choose what goes
///
/// Every score is measured on one half of the data, the cost of the choice on the other half. Nothing is written but
/// the plan, and nothing is written over without --force. If it is stopped, what was measured stays in FILE.measured,
/// and the same command goes on from there.
#[derive(Args)]
#[command(after_help = "\
Scores:
  loss       the loss without the part
  kl         KL divergence of the predictions from the whole model's
  distance   angular distance between what goes in and out (Gromov), last token of each sequence
  influence  1 - cosine of what goes in and out (ShortGPT), all tokens

Examples:
  hadal prune plan MODEL --data text.txt --blocks 4
  hadal prune plan MODEL --data text.txt --blocks 4 --dry-run
  hadal prune plan MODEL --data text.txt --percent 25 --score distance --method one-shot --contiguous
  hadal prune plan MODEL --data text.txt --max-ppl-rise 5 --sub-layers --out plan.json
  hadal prune plan MODEL --data text.txt --blocks 8 --figures cut
  hadal prune plan MODEL --data text.txt --max-kl 0.05 --protect 0,1,2,-2,-1 --json")]
pub(super) struct PlanCommand {
    /// Model directory, finished run, or .gguf
    model: PathBuf,
    /// What to measure with: a text, or a directory of `hadal data prepare` [default: the run's held-out data]
    #[arg(long, value_name = "DIR|FILE")]
    data: Option<PathBuf>,
    /// Cut this many blocks, or sub-layers with --sub-layers
    #[arg(long, value_name = "N")]
    blocks: Option<usize>,
    /// Cut this share of them
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true)]
    percent: Option<f64>,
    /// Cut as many as raise perplexity by no more than this
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true)]
    max_ppl_rise: Option<f64>,
    /// Cut as many as keep KL(whole || cut) below this, in nats
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
    #[command(flatten)]
    device: DeviceOption,
    /// Where the plan goes
    #[arg(short, long, value_name = "FILE", default_value = "plan.json")]
    out: PathBuf,
    /// Write figures here, as JSON, CSV, SVG and PNG, and plan.html with all of them
    #[arg(long, value_name = "DIR")]
    figures: Option<PathBuf>,
    /// Write over a plan, over figures and over measurements of another model
    #[arg(long)]
    force: bool,
    /// Say what would be measured, and about how long and how much memory it takes, and stop
    #[arg(long)]
    dry_run: bool,
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
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
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
        let device = self.device.open()?;
        self.places()?;
        let keep = measurements_of(&self.out);
        if !self.dry_run && keep.exists() && !self.force {
            tell(&format!("going on from {}", keep.display()));
        }
        let typed = typed();
        let request = Request {
            model: &self.model,
            data: self.data.as_deref(),
            batches: self.batches.map(|batches| usize::try_from(batches).unwrap_or(usize::MAX)),
            options: &options,
            device: &device,
            command: &typed,
            keep: Some(&keep),
            force: self.force,
        };
        if self.dry_run {
            return self.tell_estimate(&in_pool(|| estimate(&request))?);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let signal = hadal_train::stop_on_signals(&stop).map_err(Failure::failed)?;
        let bar = bar("passes");
        let mut progress = |done: usize, all: usize| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        };
        let found = in_pool(|| plan(&request, &stop, &mut progress));
        bar.finish_and_clear();
        let found = match found {
            Err(stopped @ PruneError::Stopped { .. }) => {
                tell(&format!("{stopped}; what was measured is in {}", keep.display()));
                tell(&format!("go on with: {typed}"));
                return Ok(ExitCode::from(signal.exit_code()));
            }
            found => found?,
        };
        found.write(&self.out)?;
        discard_measurements(&self.out).map_err(Failure::failed)?;
        if let Some(directory) = &self.figures {
            write_plan_figures(directory, &found, &self.out)?;
        }
        if self.json {
            print_json(&found)?;
        } else {
            show_plan(&found, &mut stdout())?;
        }
        let mut stderr = stderr();
        if let Some(directory) = &self.figures {
            writeln!(stderr, "look at it: {}", directory.join("plan.html").display())?;
        }
        writeln!(stderr, "the plan is in {}; no model was written", self.out.display())?;
        let cut = found.source.cut_name();
        writeln!(stderr, "next: hadal prune apply {} --out {cut}", self.out.display())?;
        Ok(ExitCode::SUCCESS)
    }
}

impl PlanCommand {
    fn tell_estimate(&self, found: &PlanEstimate) -> Result<ExitCode, Failure> {
        if self.json {
            print_json(found)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut out = stdout();
        writeln!(
            out,
            "model       {} blocks, {}, {} parameters",
            found.blocks,
            found.residual,
            grouped(found.parameters.into())
        )?;
        let others = if found.held_out { "others" } else { "the same: give more" };
        writeln!(
            out,
            "data        {} tokens to choose on, {} to judge by, {others}",
            grouped(found.choice_tokens.into()),
            grouped(found.judge_tokens.into())
        )?;
        let parts = if self.sub_layers { "sub-layers" } else { "blocks" };
        writeln!(
            out,
            "measured    every block and sub-layer alone, then the choice of {}{} of {} {parts}, then its cost",
            if self.blocks.is_some() || self.percent.is_some() { "" } else { "up to " },
            found.most,
            found.candidates
        )?;
        show_estimate(&found.estimate, &mut out)?;
        writeln!(out, "writes      {}", self.out.display())?;
        Ok(ExitCode::SUCCESS)
    }

    /// Looks at the places for results before anything is measured.
    fn places(&self) -> Result<(), Failure> {
        let out = Place { path: &self.out, option: "-o", example: "other.json" };
        out.free(self.force)?;
        match &self.figures {
            Some(path) => Place { path, option: "--figures", example: "other" }.free(self.force),
            None => Ok(()),
        }
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

/// Columns of the scores, and those that stay longest on a narrow screen.
const SCORES: [&str; 6] = ["part", ">distance", ">influence", ">loss change", ">KL", "~verdict"];
const FIRST: [&str; 4] = ["part", "verdict", "loss change", "KL"];

fn show_plan(plan: &Plan, out: &mut impl Write) -> io::Result<()> {
    let mut table = Table::new(&SCORES).dropping(&FIRST, "--json for the rest");
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
    show_curve(plan, out)?;
    let (outcome, memory, screen) = (&plan.outcome, &plan.memory, Screen::stdout());
    let facts = [
        format!(
            "remove      {} of {} blocks: {}",
            plan.blocks - plan.kept.len(),
            plan.blocks,
            Part::list(&plan.remove)
        ),
        format!(
            "predicted   perplexity {:.4}, KL {:.5}: what the parts cost one by one",
            outcome.predicted_perplexity, outcome.predicted_kl
        ),
        format!(
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
        ),
        format!("speed       {}", plan.speed.words()),
        format!(
            "memory      {} -> {} parameters ({:+.1} %), {} -> {} of keys and values for each token",
            grouped(memory.parameters_before.into()),
            grouped(memory.parameters_after.into()),
            share(memory.parameters_after as f64, memory.parameters_before as f64),
            bytes(memory.kv_bytes_before as f64),
            bytes(memory.kv_bytes_after as f64),
        ),
    ];
    writeln!(out)?;
    facts.iter().try_for_each(|fact| writeln!(out, "{}", screen.wrapped(fact, 12)))
}

/// What each further cut costs.
fn show_curve(plan: &Plan, out: &mut impl Write) -> io::Result<()> {
    if plan.curve.len() < 2 {
        return Ok(());
    }
    writeln!(out)?;
    let mut table = Table::new(&[">gone", "last", ">perplexity", ">rise", ">KL"]);
    let whole = plan.outcome.whole.perplexity;
    for (i, (part, cost)) in plan.chosen.iter().zip(&plan.curve).enumerate() {
        table.row([
            (i + 1).to_string(),
            part.to_string(),
            format!("{:.4}", cost.perplexity),
            format!("{:+.2} %", share(cost.perplexity, whole)),
            format!("{:.5}", cost.kl),
        ]);
    }
    table.print(out)
}

/// How much more, in per cent.
fn share(after: f64, before: f64) -> f64 {
    100.0 * (after / before - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_fit_the_screen_and_the_verdict_stays() {
        let mut table = Table::new(&SCORES).dropping(&FIRST, "--json for the rest");
        table.row(["attn:12", "0.17879", "0.16605", "1.03507", "0.87004", "goes (1)"]);
        let reason = "must stay: it fills streams that later blocks read";
        table.row(["mlp:12", "-", "-", "-", "-", reason]);
        for width in [40, 60, 80, 120] {
            let text = table.text(&Screen { width: Some(width), ..Screen::FILE });
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
            assert!(text.contains("verdict") && text.contains("loss change"), "{text}");
            assert_eq!(text.contains("influence"), width >= 80, "{text}");
        }
    }
}
