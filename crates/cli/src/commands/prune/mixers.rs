//! `hadal prune mixers`: a model with streams whose mixers no longer depend on the token.

use super::{bar, typed};
use crate::estimate::show_estimate;
use crate::failure::Failure;
use crate::output::{Table, grouped, print_json};
use crate::place::Place;
use crate::standard::{stderr, stdout, tell};
use clap::{Args, ValueEnum};
use hadal_cpu::pool::in_pool;
use hadal_model::Part;
use hadal_study::diagnose::StandIn;
use hadal_study::prune::{
    MixersCut, MixersEstimate, MixersRequest, PruneError, Which, estimate_mixers, mixers,
};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Replace the mixers of a model with several streams by the identity or by their means
///
/// A mixer is the matrix by which a sub-layer mixes streams (hc, mhc, mhc_lite). Many are the identity, or the same for
/// every token, and need not be computed. Means and choices are made on one half of the data, perplexity before and after
/// is measured on the other. The result is written with --out alone, and only if it computes what was measured. Without
/// any mixer, their parameters are gone as well.
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal prune mixers MODEL --data text.txt --replace identity
  hadal prune mixers MODEL --data text.txt --replace mean --out fixed
  hadal prune mixers MODEL --data text.txt --replace identity --sites 4,5,attn:6 --out fewer
  hadal prune mixers MODEL --data text.txt --replace identity --keep 4 --out fewer
  hadal prune mixers MODEL --data text.txt --replace mean --keep 4 --dry-run")]
pub(super) struct MixersCommand {
    /// Model directory, or finished run
    model: PathBuf,
    /// What to measure with: a text, or a directory of `hadal data prepare` [default: the run's held-out data]
    #[arg(long, value_name = "DIR|FILE")]
    data: Option<PathBuf>,
    /// What stands in: the identity, or the mean over tokens
    #[arg(long, value_enum)]
    replace: Replace,
    /// Whose mixers go: `all`, or blocks, attn:N and mlp:N
    #[arg(long, value_name = "all|PART,..", default_value = "all", conflicts_with = "keep")]
    sites: Sites,
    /// Replace all but so many, which cost most when they alone are replaced
    #[arg(long, value_name = "N")]
    keep: Option<usize>,
    /// Batches of about 2048 tokens [default: 512 sequences or 65,536 tokens]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    batches: Option<u64>,
    /// New directory for the result; nothing is written without it
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Say what would be measured, and about how long and how much memory it takes, and stop
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Replace {
    Identity,
    Mean,
}

/// All sub-layers, or some.
#[derive(Clone)]
struct Sites(Option<Vec<Part>>);

impl std::str::FromStr for Sites {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self(None));
        }
        let parts = text.split(',').map(str::parse).collect::<Result<Vec<Part>, _>>();
        parts.map(|parts| Self(Some(parts))).map_err(|error| format!("{error}; or `all`"))
    }
}

impl MixersCommand {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let place = self.out.as_deref().map(|path| Place { path, option: "-o", example: "other" });
        if let Some(place) = place {
            place.writable()?;
        }
        let typed = typed();
        let request = MixersRequest {
            model: &self.model,
            data: self.data.as_deref(),
            batches: self.batches.map(|batches| usize::try_from(batches).unwrap_or(usize::MAX)),
            by: match self.replace {
                Replace::Identity => StandIn::Identity,
                Replace::Mean => StandIn::Mean,
            },
            which: match (self.keep, &self.sites.0) {
                (Some(keep), _) => Which::AllBut(keep),
                (None, Some(parts)) => Which::Of(parts.clone()),
                (None, None) => Which::All,
            },
            out: self.out.as_deref(),
            command: &typed,
        };
        if self.dry_run {
            return self.tell_estimate(&in_pool(|| estimate_mixers(&request))?);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let signal = hadal_train::stop_on_signals(&stop).map_err(Failure::failed)?;
        let bar = bar("passes");
        let mut progress = |done: usize, all: usize| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        };
        let found = in_pool(|| mixers(&request, &stop, &mut progress));
        bar.finish_and_clear();
        let found = match found {
            Err(stopped @ PruneError::Stopped { .. }) => {
                tell(&format!("{stopped}; nothing was written"));
                return Ok(ExitCode::from(signal.exit_code()));
            }
            found => found?,
        };
        match self.json {
            true => print_json(&found)?,
            false => show(&found, &mut stdout())?,
        }
        let mut stderr = stderr();
        match &self.out {
            None => writeln!(stderr, "nothing was written; --out DIR writes the model")?,
            Some(out) => {
                writeln!(stderr, "the model is in {}", out.display())?;
                writeln!(stderr, "undo: {}", found.undo)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn tell_estimate(&self, found: &MixersEstimate) -> Result<ExitCode, Failure> {
        if self.json {
            print_json(found)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut out = stdout();
        writeln!(out, "model       {} sub-layers, {}", found.sites, found.residual)?;
        let others = if found.held_out { "others" } else { "the same: give more" };
        writeln!(
            out,
            "data        {} tokens to choose on, {} to judge by, {others}",
            grouped(found.choice_tokens.into()),
            grouped(found.judge_tokens.into())
        )?;
        show_estimate(&found.estimate, &mut out)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn show(found: &MixersCut, out: &mut impl Write) -> io::Result<()> {
    if !found.worth.is_empty() {
        let mut table = Table::new(&["part", ">loss change", "verdict"]);
        for worth in &found.worth {
            let stays = found.kept.iter().any(|kept| kept.sites().contains(&worth.part.sites()[0]));
            let verdict = if stays { "stays" } else { "replaced" };
            table.row([
                worth.part.to_string(),
                format!("{:+.5}", worth.loss_change),
                verdict.to_owned(),
            ]);
        }
        table.print(out)?;
        writeln!(out)?;
    }
    let by = match found.replaced_by {
        StandIn::Identity => "the identity",
        StandIn::Mean => "their means",
    };
    writeln!(out, "replaced    {} by {by}", Part::list(&found.replaced))?;
    if !found.kept.is_empty() {
        writeln!(out, "kept        {}", Part::list(&found.kept))?;
    }
    let (before, after) = (found.whole.perplexity, found.cut.perplexity);
    writeln!(
        out,
        "measured    perplexity {before:.4} -> {after:.4} ({:+.2} %), on {} tokens{}",
        100.0 * (after / before - 1.0),
        grouped(found.tokens.into()),
        if found.held_out {
            " that nothing was chosen on"
        } else {
            " (means and choices were made on the same: give more)"
        }
    )?;
    writeln!(
        out,
        "parameters  {} -> {}",
        grouped(found.parameters_before.into()),
        grouped(found.parameters_after.into())
    )?;
    writeln!(out, "stream      {}", found.result)
}
