//! Plans as tables and sentences.

use crate::failure::Failure;
use crate::output::{Table, bytes, grouped, scaled};
use crate::standard::{Stdout, stdout};
use hadal_train::plan::{Machine, Phase, PolicyPlan, Wire};
use std::io::Write;

/// Memory, then traffic and time, then what should be known about them.
pub(super) fn plans(
    plans: &[PolicyPlan],
    forms: &[PolicyPlan],
    machine: &Machine,
    measured: bool,
) -> Result<(), Failure> {
    let mut out = stdout();
    let Some(first) = plans.first() else { return Ok(()) };
    step(first, machine, &mut out)?;
    let named = |plan: &PolicyPlan| plan.name.clone();
    writeln!(out)?;
    memory("policy", plans.iter().map(|plan| (named(plan), plan)), machine).print(&mut out)?;
    if forms.len() > 1 {
        writeln!(out)?;
        memory("form", forms.iter().map(|plan| (named(plan), plan)), machine).print(&mut out)?;
    }
    writeln!(out)?;
    time(plans, machine).print(&mut out)?;
    assumptions(plans, machine, measured, &mut out)?;
    for plan in plans {
        if let Some(words) = too_large(plan, machine) {
            writeln!(out, "{words}")?;
        }
    }
    Ok(())
}

fn step(plan: &PolicyPlan, machine: &Machine, out: &mut Stdout) -> Result<(), Failure> {
    let (job, passes) = (plan.counted.job(), plan.plan.passes);
    let model = &job.model;
    let count = |count: u64, one: &str, more: &str| match count {
        1 => format!("1 {one}"),
        n => format!("{} {more}", grouped(n.into())),
    };
    writeln!(
        out,
        "{} blocks of {}, {} parameters with {}",
        model.n_layers,
        model.d_model,
        scaled(plan.plan.parameters as f64),
        plan.name
    )?;
    writeln!(
        out,
        "a step: {} of {} tokens; {}, {} of at most {} on each",
        count(job.sequences as u64, "sequence", "sequences"),
        grouped(job.seq_len as i128),
        count(machine.devices, "device", "devices"),
        count(passes.count, "pass", "passes"),
        count(passes.batch, "sequence", "sequences"),
    )?;
    Ok(())
}

fn memory<'a>(
    name: &str,
    plans: impl Iterator<Item = (String, &'a PolicyPlan)>,
    machine: &Machine,
) -> Table {
    let name = format!("~{name}");
    let mut head = vec![
        &*name,
        ">weights",
        ">optimiser",
        ">gradients",
        ">activations",
        ">working",
        ">a pass",
        ">each device",
        ">kept",
    ];
    if machine.memory.is_some() {
        head.push(">largest batch");
    }
    let order = [&*name, "each device", "largest batch", "activations", "gradients", "weights"];
    let order = order.map(|column| column.trim_start_matches('~'));
    let mut table = Table::new(&head).dropping(&order, "--json for the rest");
    for (name, plan) in plans {
        let (pass, memory) = (&plan.plan.pass, &plan.plan.memory);
        let mut row = vec![name];
        row.extend(
            [
                pass.weights,
                pass.optimiser,
                pass.gradients,
                pass.activations,
                pass.working,
                pass.total(),
                memory.total(),
                pass.kept,
            ]
            .map(|size| bytes(size as f64)),
        );
        if machine.memory.is_some() {
            row.push(plan.plan.largest_batch.map_or("none".into(), |batch| grouped(batch.into())));
        }
        table.row(row);
    }
    table
}

fn time(plans: &[PolicyPlan], machine: &Machine) -> Table {
    let head = [
        "~policy",
        ">parameters",
        ">forward",
        ">backward",
        ">optimiser",
        ">sent",
        ">sending",
        ">step",
        ">overlapped",
        ">tokens/s",
    ];
    let order = ["policy", "overlapped", "tokens/s", "sent", "step", "parameters"];
    let mut table = Table::new(&head).dropping(&order, "--json for the rest");
    for plan in plans {
        let (time, traffic, job) = (&plan.plan.time, &plan.plan.traffic, plan.counted.job());
        let tokens = job.sequences as f64 * job.seq_len as f64;
        table.row([
            plan.name.clone(),
            scaled(plan.plan.parameters as f64),
            seconds(time.forward),
            seconds(time.backward),
            seconds(time.optimiser),
            if machine.devices > 1 { bytes(traffic.total() as f64) } else { "nothing".into() },
            seconds(time.gradients + time.parameters),
            seconds(time.apart()),
            seconds(time.overlapped()),
            scaled((tokens / time.overlapped()).round()),
        ]);
    }
    table
}

/// `1.23 ms`.
fn seconds(seconds: f64) -> String {
    match seconds {
        0.0 => "0 s".into(),
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s if s < 1e4 => format!("{s:.2} s"),
        s => format!("{:.1} h", s / 3600.0),
    }
}

fn assumptions(
    plans: &[PolicyPlan],
    machine: &Machine,
    measured: bool,
    out: &mut Stdout,
) -> Result<(), Failure> {
    let rate = format!("{}FLOP/s", scaled(machine.flops));
    let rate =
        if measured { format!("{rate}, half of this machine's matrix product") } else { rate };
    writeln!(out)?;
    writeln!(
        out,
        "memory      weights to working: what a pass has when it holds most; a pass: with program and allocator; each device: \
         the most of all, {}; kept: all that the way forward leaves",
        moments(plans)
    )?;
    if machine.devices > 1 {
        let wire = match machine.wire {
            Wire::F32 => "f32",
            Wire::Bf16 => "bf16",
        };
        writeln!(
            out,
            "traffic     each device sends its gradients to their owners ({wire}), and its parameters to all (f32)"
        )?;
        writeln!(
            out,
            "time        at {rate} and {}/s on each; overlapped: gradients travel during the backward pass",
            bytes(machine.bandwidth)
        )?;
    } else {
        writeln!(out, "time        at {rate}")?;
    }
    writeln!(out, "all of it is counted, not measured: docs/plan.md")?;
    Ok(())
}

/// When devices hold most.
fn moments(plans: &[PolicyPlan]) -> String {
    let word = |phase: Phase| match phase {
        Phase::Pass => "in a pass",
        Phase::Optimiser => "while the optimiser moves parameters",
        Phase::Evaluation => "in an evaluation, whose logits exist all at once",
        Phase::Checkpoint => "on the first device, which saves what all remember",
    };
    let first = plans[0].plan.memory.fullest;
    if plans.iter().all(|plan| plan.plan.memory.fullest == first) {
        return word(first).into();
    }
    let mut parts = Vec::new();
    for phase in [Phase::Pass, Phase::Optimiser, Phase::Evaluation, Phase::Checkpoint] {
        let of = plans.iter().filter(|plan| plan.plan.memory.fullest == phase);
        let names: Vec<&str> = of.map(|plan| &*plan.name).collect();
        if !names.is_empty() {
            parts.push(format!("{} for {}", word(phase), names.join(", ")));
        }
    }
    parts.join("; ")
}

/// What would fit, where the batch of the settings does not.
fn too_large(plan: &PolicyPlan, machine: &Machine) -> Option<String> {
    let all = machine.memory?;
    let (name, memory) = (&plan.name, &plan.plan.memory);
    if memory.total() <= all {
        return None;
    }
    let (all, total) = (bytes(all as f64), bytes(memory.total() as f64));
    Some(match plan.plan.largest_batch {
        Some(batch) => format!(
            "{name}: {total} do not fit into {all}; passes of at most {batch} sequences do (train.batch={batch}, with \
             train.accumulate for the rest)"
        ),
        None => {
            let least = bytes(plan.plan.least as f64);
            let always = bytes((2 * memory.weights) as f64);
            let more = if machine.memory.is_some_and(|all| 2 * memory.weights >= all) {
                format!(
                    "; weights and gradients alone are {always} on every device, however many there are: take a smaller \
                     model, or devices with more memory"
                )
            } else if plan.counted.job().memory.recompute {
                "; take shorter sequences (--seq), or devices with more memory".into()
            } else {
                "; less is kept with --recompute, and with shorter sequences (--seq)".into()
            };
            format!("{name}: nothing fits into {all}: one sequence takes {least}{more}")
        }
    })
}
