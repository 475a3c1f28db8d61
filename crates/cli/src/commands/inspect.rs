//! `hadal inspect`: what a model is and what it costs, before it is built.

use crate::failure::Failure;
use crate::model_file::{Described, describe};
use crate::output::{Table, grouped, print_json, scaled};
use crate::sheet::{Sheet, with_fields};
use crate::standard::{stdout, tell};
use clap::Args;
use hadal_model::{ModelConfig, ModelCost};
use hadal_residual::{InitialGate, ResidualConfig};
use serde_json::json;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Show a model's shape, parameters, FLOPs and memory, and what its policy adds over prenorm
///
/// Only settings and headers are read, so a model of any size can be looked at.
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal inspect examples/mgr-s.toml
  hadal inspect configs/micro.toml
  hadal inspect DIR --json
  hadal inspect model-Q4_1.gguf
  hadal inspect config.json --residual mgr:streams=8,gate=independent")]
pub(crate) struct Inspect {
    /// A config (.json or .toml), settings of a run or a suite, a run's folder, a model's directory, or a GGUF file
    #[arg(value_name = "CONFIG|DIR|GGUF")]
    path: PathBuf,
    /// Look at this policy instead, e.g. mgr:streams=8
    #[arg(long, value_name = "POLICY")]
    residual: Option<ResidualConfig>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Inspect {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let Described { mut config, trained, notes } = describe(&self.path)?;
        // A checkpoint has its weights already, so it needs no initial values.
        let model = (trained && self.residual.is_none()).then_some(&*self.path);
        let trained = model.is_some();
        if let Some(residual) = self.residual {
            config.residual = residual;
        }
        let checked = if trained { config.check() } else { config.check_fresh() };
        checked.map_err(|error| Failure::usage(format!("{}: {error}", self.path.display())))?;

        let cost = ModelCost::of(&config).map_err(Failure::usage)?;
        let baseline = ModelConfig { residual: ResidualConfig::default(), ..config.clone() };
        let baseline = ModelCost::of(&baseline).map_err(Failure::usage)?;
        let gates = config.residual.initial_gates(&config.dimensions());
        let sheet = Sheet::of(&config, &cost, model);
        if self.json {
            let json = json!({
                "config": config,
                "residual": config.residual.to_string(),
                "about": config.residual.about(),
                "cost": cost,
                "total_parameters": cost.parameters.total(),
                "prenorm": baseline,
                "over_prenorm": over(&cost, &baseline),
                "initial_gates": gates,
                "notes": notes,
            });
            print_json(&with_fields(json, sheet.json()))?;
        } else {
            notes.iter().for_each(|note| tell(&format!("note: {note}")));
            sheet.print(&mut stdout())?;
            writeln!(stdout())?;
            print(&config, &cost, &baseline, &gates)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A quantity that can be compared between policies.
type Measure = (&'static str, &'static str, fn(&ModelCost) -> u64);

const MEASURES: [Measure; 5] = [
    ("parameters", "", |cost| cost.parameters.total()),
    ("forward FLOPs", "per token", |cost| cost.forward_flops_per_token),
    ("activations kept", "bytes per token", |cost| cost.activation_bytes_per_token),
    ("depth state", "bytes per token", |cost| cost.state_bytes_per_token),
    ("keys and values", "bytes per token", |cost| cost.kv_bytes_per_token),
];

/// What the policy adds, by the names of the JSON fields.
fn over(cost: &ModelCost, baseline: &ModelCost) -> serde_json::Value {
    let more = |get: fn(&ModelCost) -> u64| get(cost) as i128 as i64 - get(baseline) as i128 as i64;
    json!({
        "parameters": more(|c| c.parameters.total()),
        "forward_flops_per_token": more(|c| c.forward_flops_per_token),
        "activation_bytes_per_token": more(|c| c.activation_bytes_per_token),
        "state_bytes_per_token": more(|c| c.state_bytes_per_token),
        "kv_bytes_per_token": more(|c| c.kv_bytes_per_token),
    })
}

fn print(
    config: &ModelConfig,
    cost: &ModelCost,
    baseline: &ModelCost,
    gates: &[InitialGate],
) -> io::Result<()> {
    let mut out = stdout();
    let about = config.residual.about();
    writeln!(out, "{}: {}", config.residual, about.summary)?;
    writeln!(out, "  {}", about.equation)?;
    writeln!(out, "  {}\n", about.paper)?;

    let p = &cost.parameters;
    let mut table = Table::new(&["parameters", ">count", ">share"]);
    for (name, count) in [
        ("embedding", p.embedding),
        ("head", p.head),
        ("attention", p.attention),
        ("mlp", p.mlp),
        ("depth keys and values", p.depth_kv),
        ("norms", p.norms),
        ("residual policy", p.residual),
        ("total", p.total()),
    ] {
        let share = 100.0 * count as f64 / p.total() as f64;
        table.row([name.to_owned(), grouped(count.into()), format!("{share:.2} %")]);
    }
    table.print(&mut out)?;

    writeln!(out)?;
    let mut table = Table::new(&["cost", ">this model", "unit", ">over prenorm", ">relative"]);
    for (name, unit, get) in MEASURES {
        let (ours, theirs) = (get(cost), get(baseline));
        let relative = 100.0 * (ours as f64 / theirs as f64 - 1.0);
        table.row([
            name.to_owned(),
            scaled(ours as f64),
            unit.to_owned(),
            grouped(i128::from(ours) - i128::from(theirs)),
            format!("{relative:+.3} %"),
        ]);
    }
    table.print(&mut out)?;
    writeln!(
        out,
        "at {} tokens of context; activations as kept by fused kernels (docs/costs.md)",
        grouped(config.max_seq_len as i128)
    )?;

    if !gates.is_empty() {
        writeln!(out)?;
        let mut table = Table::new(&["initial gate", "sub-layers", "value"]);
        for gate in gates {
            table.row([gate.name.to_owned(), range(gate), value(gate)]);
        }
        table.print(&mut out)?;
    }
    Ok(())
}

fn range(gate: &InitialGate) -> String {
    format!("{}..={}", gate.first_site, gate.last_site)
}

fn value(gate: &InitialGate) -> String {
    match gate.values.as_slice() {
        [] => String::new(),
        [one] => format!("{one:.6}"),
        [first, .., last] => format!("{first:.6} to {last:.6}"),
    }
}
