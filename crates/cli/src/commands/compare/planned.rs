//! What a suite will run, before it runs.

mod tuning;

use crate::failure::Failure;
use crate::output::{Table, bytes, duration, grouped, print_json, scaled};
use crate::screen::Screen;
use crate::standard::stdout;
use hadal_compare::{Budget, Lanes, Pace, PlannedRun, Shape, Suite, estimate};
use hadal_cpu::machine::cores;
use hadal_cpu::pool::start_pool;
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;

/// Prints every run and what all of them may take.
pub(super) fn show(suite: &Suite, lanes: Lanes, as_json: bool) -> Result<ExitCode, Failure> {
    if let Budget::Minutes(minutes) = suite.budget {
        return before_speed(suite, minutes, as_json);
    }
    let plan = suite.plan(&Pace::new())?;
    let tuning = suite.tuning(&Pace::new())?;
    if as_json {
        match tuning.is_empty() {
            true => print_json(&plan)?,
            false => print_json(&serde_json::json!({ "tuning": tuning, "runs": plan }))?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let screen = Screen::stdout();
    // The guess has a thread on each core. If the pool cannot be made here, rayon makes one when it is first needed.
    let _ = start_pool(Some(cores()));
    let mut out = stdout();
    let tuned = tuning::show(suite, &tuning, lanes, &screen, &mut out)?;
    let colours = screen.policies(plan.iter().map(|run| run.variant.as_str()));
    let mut head = vec!["run", ">parameters", ">steps", ">tokens", ">FLOPs"];
    let is_shaped = plan.iter().any(|run| run.shape.is_some());
    if is_shaped {
        head.extend(SHAPE);
    }
    let mut table = Table::new(&head);
    for (run, colour) in plan.iter().zip(colours) {
        let mut row = vec![
            run.name.clone(),
            grouped(run.parameters.into()),
            grouped(run.steps.into()),
            scaled(run.tokens() as f64),
            scaled(run.flops()),
        ];
        row.extend(run.shape.iter().flat_map(of_shape));
        table.row(row);
        table.paint(0, colour);
    }
    table.show(&mut out);
    let flops: f64 = plan.iter().map(PlannedRun::flops).sum();
    let estimate = estimate(suite, &plan, lanes, cores())?;
    let text = format!(
        "{} runs, {}FLOPs, {} at a time on {} each: about {} here (the first pair after {}), {} of memory at most. A guess from FLOPs; evaluation and other programs add to it.",
        plan.len(),
        scaled(flops),
        lanes.jobs,
        threads(lanes.threads),
        duration(estimate.seconds),
        duration(estimate.first_pair_seconds),
        bytes(estimate.memory),
    );
    writeln!(out, "{}", screen.wrapped(&text, 0))?;
    if let Some(rule) = &suite.rule {
        let looks: Vec<String> = rule.looks.iter().map(ToString::to_string).collect();
        let text = format!(
            "Seeds are added until every comparison is decided: looks after {} seeds. These are all runs that there may \
             be; the first look takes {} of them.",
            looks.join(", "),
            plan.len() / rule.most().max(1) * rule.looks.first().copied().unwrap_or(0)
        );
        writeln!(out, "{}", screen.wrapped(&text, 0))?;
    }
    if tuned > 0.0 {
        writeln!(out, "With tuning: about {}.", duration(tuned + estimate.seconds))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Columns of a shape that the suite chose.
const SHAPE: [&str; 5] = [">blocks", ">d_model", ">d_ff", ">d/L", ">off, %"];

fn of_shape(shape: &Shape) -> [String; 5] {
    [
        shape.n_layers.to_string(),
        shape.d_model.to_string(),
        shape.d_ff.to_string(),
        format!("{:.1}", shape.aspect()),
        format!("{:+.2}", 100.0 * shape.off),
    ]
}

/// Steps of a budget of minutes follow from a speed that is measured at the start. Until then there are only shapes.
fn before_speed(suite: &Suite, minutes: f64, as_json: bool) -> Result<ExitCode, Failure> {
    let shapes = suite.shapes()?;
    let why = format!(
        "budget.minutes is {minutes}: steps follow from a speed that is measured at the start"
    );
    if shapes.is_empty() {
        let origin = suite.origin();
        return Err(Failure::usage(format!("{origin}: {why}; there is nothing to show before")));
    }
    if as_json {
        let shapes: Vec<_> =
            shapes.iter().map(|(name, shape)| json!({"run": name, "shape": shape})).collect();
        print_json(&shapes)?;
        return Ok(ExitCode::SUCCESS);
    }
    let head: Vec<&str> = ["run", ">parameters"].into_iter().chain(SHAPE).collect();
    let mut table = Table::new(&head);
    for (name, shape) in &shapes {
        let mut row = vec![name.clone(), grouped(shape.parameters.into())];
        row.extend(of_shape(shape));
        table.row(row);
    }
    let mut out = stdout();
    table.show(&mut out);
    writeln!(out, "{why}.")?;
    Ok(ExitCode::SUCCESS)
}

fn threads(threads: usize) -> String {
    if threads == 1 { "1 thread".into() } else { format!("{threads} threads") }
}
