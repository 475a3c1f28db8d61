//! `hadal policies`: what there is to choose from.

mod names;

use self::names::Names;
use crate::failure::Failure;
use crate::output::{Table, print_json};
use crate::screen::Screen;
use crate::standard::stdout;
use clap::Args;
use hadal_residual::{Dimensions, Released, ResidualConfig};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::process::ExitCode;

/// List every residual policy: what it does, carries and adds
#[derive(Args)]
#[command(after_help = "\
Wherever a policy is named, write kind[:key=value,...]; omitted keys take the papers' defaults. The name of a released
model stands for its policy and settings, and takes further keys: kimi_k3:block_size=8.

Examples:
  hadal policies
  hadal policies kimi_k3
  hadal policies mgr:streams=8,gate=independent
  hadal policies --json")]
pub(crate) struct Policies {
    /// Show this one in full, e.g. mgr:streams=8
    #[arg(value_name = "POLICY")]
    policy: Option<ResidualConfig>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A model that every sensible setting fits.
const NOMINAL: Dimensions =
    Dimensions { width: 1024, blocks: 1024, norm_eps: 1e-6, removed: Vec::new() };

impl Policies {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let policies = match &self.policy {
            Some(policy) => {
                policy.check(&NOMINAL).map_err(Failure::usage)?;
                vec![policy.clone()]
            }
            None => ResidualConfig::all(),
        };
        if self.json {
            let rows: Vec<_> = policies
                .iter()
                .map(|policy| {
                    let checkpoint = self.policy.as_ref().and_then(checkpoint);
                    let (text, about) = (policy.to_string(), policy.about());
                    let mut row = json!({ "policy": text, "config": policy, "about": about, "released": policy.released() });
                    if let (Some(fields), Some(checkpoint)) = (row.as_object_mut(), checkpoint) {
                        fields.insert("checkpoint".into(), checkpoint);
                    }
                    row
                })
                .collect();
            print_json(&rows)?;
        } else if let Some(policy) = self.policy {
            print_one(&policy)?;
        } else {
            print_all(&policies)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The names and shapes of the policy's parameters in a small model.
fn checkpoint(policy: &ResidualConfig) -> Option<Value> {
    let Names { dimensions: Dimensions { width, blocks, .. }, declared } =
        Names::of(policy, NOMINAL.blocks)?;
    let parameters: Vec<_> = declared
        .iter()
        .map(|parameter| json!({ "name": parameter.name, "shape": parameter.shape }))
        .collect();
    Some(json!({ "width": width, "blocks": blocks, "parameters": parameters }))
}

fn print_all(policies: &[ResidualConfig]) -> io::Result<()> {
    let colours = Screen::stdout().policies(policies.iter().map(|policy| policy.about().kind));
    let mut summaries = Table::new(&["policy", "~what it does"]);
    let mut table =
        Table::new(&["~policy (defaults)", "~floats/token", "~extra parameters", "~paper"]);
    for (policy, colour) in policies.iter().zip(colours) {
        let about = policy.about();
        summaries.row([about.kind, about.summary]);
        summaries.paint(0, colour);
        table.row([policy.to_string().as_str(), about.state, about.parameters, about.paper]);
        table.paint(0, colour);
    }
    let mut out = stdout();
    summaries.show(&mut out);
    writeln!(out)?;
    table.show(&mut out);
    writeln!(out)?;
    released(policies).show(&mut out);
    writeln!(out, "\nd: width, L: sub-layers (2 per block), n: streams, C: directions.")?;
    writeln!(
        out,
        "`hadal policies KIND` shows a policy's equation and the names of its parameters."
    )
}

/// The streams of released models, by the names that stand for them.
fn released(policies: &[ResidualConfig]) -> Table {
    let mut table = Table::new(&["name", "~stands for", "~stream of"]);
    for policy in policies {
        for released in policy.released() {
            table.row([released.name, &stands_for(policy, released), released.models]);
        }
    }
    table
}

/// A released model's stream in short form.
fn stands_for(policy: &ResidualConfig, released: &Released) -> String {
    let kind = policy.about().kind;
    match released.settings {
        "" => kind.to_owned(),
        settings => format!("{kind}:{settings}"),
    }
}

fn print_one(policy: &ResidualConfig) -> io::Result<()> {
    let about = policy.about();
    let mut out = stdout();
    let screen = Screen::stdout();
    let colour = screen.policies([about.kind]).first().copied().unwrap_or_default();
    out.send(&format!("{}\n", screen.paint(&policy.to_string(), colour.bold())));
    writeln!(out, "{}\n", screen.wrapped(about.summary, 0))?;
    for line in [
        format!("update      {}", about.equation),
        format!("state       {} floats per token", about.state),
        format!("parameters  {} beyond prenorm", about.parameters),
        format!("paper       {}", about.paper),
    ] {
        writeln!(out, "{}", screen.wrapped(&line, 12))?;
    }
    for released in policy.released() {
        let (name, form) = (released.name, stands_for(policy, released));
        let line = format!("used by     {}: `{name}`, which is {form}", released.models);
        writeln!(out, "{}", screen.wrapped(&line, 12))?;
    }
    let Some(names) = Names::of(policy, NOMINAL.blocks) else { return Ok(()) };
    let Dimensions { width, blocks, .. } = names.dimensions;
    let lines = names.lines();
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nin a checkpoint of {blocks} blocks of width {width}, norms included")?;
    lines.iter().try_for_each(|line| writeln!(out, "  {line}"))
}
