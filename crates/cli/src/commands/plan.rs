//! `hadal plan`: what a step of training takes on some devices, before any of it is there.

mod asked;
mod show;

use crate::failure::Failure;
use crate::output::print_json;
use crate::place::Place;
use crate::quantity::{bandwidth, flops, memory};
use crate::standard::tell;
use crate::word::whole;
use asked::Asked;
use clap::{ArgGroup, Args, ValueEnum};
use hadal_report::figure::{drawable, picture, plotly::Shared};
use hadal_report::palette;
use hadal_residual::{Memory, ResidualConfig};
use hadal_train::estimate::matmul_flops_per_second;
use hadal_train::plan::{Counted, Job, Machine, PolicyPlan, Wire, figures};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Count what a step of training takes on a number of devices: memory, traffic, time, and the largest batch that fits
///
/// Everything is counted from settings; nothing is built. Each device holds all parameters and goes through its share of the
/// batch; what the optimiser remembers is divided among devices. docs/plan.md has the sums.
#[derive(Args)]
#[command(after_help = "\
Presets: nano, micro, small (CPU), s, m, l (the MGR paper's), 7b, 70b (the shapes of Llama 2).

Examples:
  hadal plan --preset s --devices 8 --memory 24GB
  hadal plan --preset l --devices 16 --memory 80GB --bandwidth 25GB --flops 100T --wire bf16
  hadal plan --preset 7b --devices 64 --memory 192GB --batch 1 --recompute
  hadal plan configs/micro.toml --memory 4GB --residual mgr:streams=8 --residual attnres --residual hc
  hadal plan --preset m --all --json
  hadal plan --preset 70b --residual mgr --residual attnres --residual attnres:blocks=8 --figures figures")]
#[command(group = ArgGroup::new("what").args(["path", "preset"]).required(true))]
pub(crate) struct Plan {
    /// Settings of a run, a model's config (.json or .toml), a run's folder, a model's directory, or a GGUF file
    #[arg(value_name = "CONFIG|DIR|GGUF")]
    path: Option<PathBuf>,
    /// Named settings instead, as of `hadal train`
    #[arg(long)]
    preset: Option<String>,
    /// Devices, each with a copy of the model
    #[arg(long, default_value = "1", value_parser = whole::<1, MOST>)]
    devices: usize,
    /// Memory of each, e.g. 80GB
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    memory: Option<f64>,
    /// What each can send in a second, e.g. 25GB
    #[arg(long, value_name = "SIZE", default_value = "12.5GB", value_parser = bandwidth)]
    bandwidth: f64,
    /// Operations that each does in a second of training, e.g. 100T [default: half of this machine's matrix product]
    #[arg(long, value_name = "RATE", value_parser = flops)]
    flops: Option<f64>,
    /// How gradients travel
    #[arg(long, value_enum, default_value = "f32")]
    wire: WireWord,
    /// A policy, e.g. mgr:streams=8; may be given several times [default: that of the settings]
    #[arg(long, value_name = "POLICY", conflicts_with = "all")]
    residual: Vec<ResidualConfig>,
    /// Every policy with its default settings
    #[arg(long)]
    all: bool,
    /// Sequences of a pass [default: those of the settings, or 1]
    #[arg(long, value_parser = whole::<1, MOST>)]
    batch: Option<usize>,
    /// Tokens of a sequence [default: those of the settings, or the model's longest]
    #[arg(long, value_parser = whole::<1, MOST>)]
    seq: Option<usize>,
    /// Keep only the input of each sub-layer and run it twice, as memory.recompute
    #[arg(long)]
    recompute: bool,
    /// Keep streams for the backward pass instead of computing them backwards
    #[arg(long)]
    exact: bool,
    /// Change one setting of a run, e.g. train.accumulate=4
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Draw what pipeline stages would send each other, and what is kept, into this folder (SVG and PNG)
    #[arg(long, value_name = "FOLDER")]
    figures: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// More are not meant.
const MOST: usize = 1 << 24;

/// A word of `--wire`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WireWord {
    /// As they are
    F32,
    /// Rounded to bf16; sums are f32
    Bf16,
}

impl Plan {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        if let Some(folder) = &self.figures {
            place(folder).writable()?;
        }
        let asked = Asked::read(&self)?;
        let measured = self.flops.is_none();
        let machine = Machine {
            devices: self.devices as u64,
            memory: self.memory.map(|bytes| bytes as u64),
            bandwidth: self.bandwidth,
            flops: self.flops.unwrap_or_else(|| 0.5 * matmul_flops_per_second()),
            wire: match self.wire {
                WireWord::F32 => Wire::F32,
                WireWord::Bf16 => Wire::Bf16,
            },
        };
        let (mut plans, mut notes) = (Vec::new(), asked.notes.clone());
        for policy in &asked.policies {
            match asked.job(policy, &self).and_then(|job| Counted::new(job).map_err(Failure::usage))
            {
                Ok(counted) => {
                    let plan = counted.plan(&machine);
                    plans.push(PolicyPlan { name: policy.to_string(), counted, plan });
                }
                // Of all, those that can be.
                Err(failure) if self.all => notes.push(format!("left out: {}", failure.message())),
                Err(failure) => return Err(failure),
            }
        }
        // One policy alone is shown in every form.
        let forms = match plans.as_slice() {
            [one] => forms(one, &machine)?,
            _ => Vec::new(),
        };
        if self.json {
            print_json(&json!({
                "machine": machine,
                "flops_measured_here": measured,
                "policies": plans.iter().map(entry).collect::<Vec<_>>(),
                "forms": forms.iter().map(entry).collect::<Vec<_>>(),
                "notes": notes,
            }))?;
        } else {
            notes.iter().for_each(|note| tell(&format!("note: {note}")));
            show::plans(&plans, &forms, &machine, measured)?;
        }
        if let Some(folder) = &self.figures {
            draw(folder, &plans)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn place(folder: &Path) -> Place<'_> {
    Place { path: folder, option: "--figures", example: "figures" }
}

/// The same job with everything that the backward pass may keep or compute again.
fn forms(plan: &PolicyPlan, machine: &Machine) -> Result<Vec<PolicyPlan>, Failure> {
    let job = plan.counted.job();
    let inverted = Memory { recompute: false, ..Memory::default() };
    let share = job.memory.kept_share.or(inverted.kept_share);
    let memory = |kept_share, recompute| Memory { kept_share, recompute };
    let kept = |memory| plan.counted.kept_per_token(memory);
    // Not every policy can compute its streams backwards.
    let all = if kept(memory(share, false)) == kept(memory(None, false)) {
        vec![
            ("all that is needed is kept", memory(share, false)),
            ("sub-layers are computed again", memory(share, true)),
        ]
    } else {
        vec![
            ("streams are computed backwards", memory(share, false)),
            ("streams are kept", memory(None, false)),
            ("streams backwards, sub-layers again", memory(share, true)),
            ("streams kept, sub-layers again", memory(None, true)),
        ]
    };
    let of = |(name, memory): (&str, Memory)| {
        let counted = Counted::new(Job { memory, ..job.clone() }).map_err(Failure::usage)?;
        let plan = counted.plan(machine);
        Ok(PolicyPlan { name: name.into(), counted, plan })
    };
    all.into_iter().map(of).collect()
}

fn entry(policy: &PolicyPlan) -> serde_json::Value {
    let PolicyPlan { name, counted, plan } = policy;
    let job = counted.job();
    json!({
        "name": name,
        "residual": job.model.residual,
        "recompute": job.memory.recompute,
        "kept_share": job.memory.kept_share,
        "sequences": job.sequences,
        "seq_len": job.seq_len,
        "plan": plan,
        "total_memory": plan.memory.total(),
        "kept_bytes_per_token": counted.kept_per_token(job.memory),
        "sent_bytes": plan.traffic.total(),
        "step_seconds": plan.time.apart(),
        "step_seconds_overlapped": plan.time.overlapped(),
    })
}

/// Each figure as SVG and PNG.
fn draw(folder: &Path, plans: &[PolicyPlan]) -> Result<(), Failure> {
    let looks = palette::named(plans.iter().map(|plan| (&*plan.name, &*plan.name)));
    let shared = Shared { looks: &looks, ..Shared::default() };
    hadal_files::create_directory(folder).map_err(Failure::failed)?;
    for figure in figures(plans).iter().filter(|figure| drawable(figure).is_some()) {
        let svg = picture::svg(figure, shared).map_err(Failure::failed)?;
        let png = picture::png(figure, shared).map_err(Failure::failed)?;
        for (extension, content) in [("svg", svg.into_bytes()), ("png", png)] {
            let path = folder.join(format!("{}.{extension}", figure.name));
            hadal_files::write_whole(&path, content).map_err(Failure::failed)?;
        }
        tell(&format!("{}: {}", folder.join(&figure.name).display(), figure.title));
    }
    Ok(())
}
