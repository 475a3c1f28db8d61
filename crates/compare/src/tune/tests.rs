//! Suites for all of these tests, and grids as they are written.

mod choices;
mod refusals;
mod stages;

use super::grid::{Axis, LR_SCALE};
use super::*;
use crate::{Pace, PlannedRun, Suite};

const BODY: &str = "
[train]
steps = 40
batch = 2
[model]
d_model = 16
n_layers = 2
n_heads = 2
[data.generated]
task = \"khop\"
length = 24
[optimizer]
adamw.lr = 0.003
muon.lr = 0.02
[schedule]
warmup_steps = 10
";

const TWO: &str = "
[[variant]]
residual = \"prenorm\"
[[variant]]
name = \"wide\"
residual = { kind = \"mgr\", streams = 4 }
";

fn suite(head: &str, rest: &str) -> Suite {
    Suite::parse(&format!("{head}\n{BODY}\n{rest}"), "test.toml").unwrap()
}

fn first_round(suite: &Suite) -> Vec<PlannedRun> {
    suite.tuning(&Pace::new()).unwrap().remove(0).runs
}

fn labels(suite: &Suite, variant: usize) -> Vec<String> {
    let points = suite.tune.as_ref().unwrap().points(variant);
    points.iter().map(GridPoint::label).collect()
}

#[test]
fn a_suite_without_a_grid_is_not_tuned() {
    let suite = suite("", TWO);
    assert_eq!(suite.tune, None);
    assert!(suite.tuning(&Pace::new()).unwrap().is_empty());
}

#[test]
fn a_grid_has_every_combination_and_a_variants_own_list_takes_the_place_of_the_shared_one() {
    let shared = "[tune]\nlr_scale = [0.5, 1.0]\nschedule.final_share = [0, 0.1]\n";
    let own = "[variant.tune]\nlr_scale = [4]\noptimizer.clip = [1, 2]\n";
    let suite = suite("", &format!("{shared}{TWO}{own}"));
    let expected = [
        "lr_scale=0.5,schedule.final_share=0",
        "lr_scale=0.5,schedule.final_share=0.1",
        "lr_scale=1,schedule.final_share=0",
        "lr_scale=1,schedule.final_share=0.1",
    ];
    assert_eq!(labels(&suite, 0), expected);
    let expected = [
        "lr_scale=4,optimizer.clip=1,schedule.final_share=0",
        "lr_scale=4,optimizer.clip=2,schedule.final_share=0",
        "lr_scale=4,optimizer.clip=1,schedule.final_share=0.1",
        "lr_scale=4,optimizer.clip=2,schedule.final_share=0.1",
    ];
    assert_eq!(labels(&suite, 1), expected);
}

#[test]
fn one_scale_moves_both_rates_and_nothing_else() {
    let suite = suite("", &format!("[tune]\nlr_scale = [0.1, 1]\n{TWO}"));
    let runs = first_round(&suite);
    let rates = |run: &PlannedRun| {
        let optimizer = &run.config.optimizer;
        (optimizer.adamw.lr, optimizer.muon.lr)
    };
    assert_eq!((rates(&runs[0]), rates(&runs[1])), ((0.0003, 0.002), (0.003, 0.02)));
    let mut scaled = runs[0].config.clone();
    scaled.optimizer = runs[1].config.optimizer.clone();
    assert_eq!(scaled, runs[1].config);
    let own = &suite.plan(&Pace::new()).unwrap()[0].config;
    let at_one = hadal_train::RunConfig { seed: own.seed, ..runs[1].config.clone() };
    assert_eq!(at_one, *own, "a tuning run is a run of the table with another seed");
}

#[test]
fn tuning_runs_are_called_by_their_settings_and_go_seed_by_seed_the_baseline_first() {
    let suite =
        suite("baseline = \"wide\"", &format!("[tune]\nseeds = [7, 5]\nlr_scale = [1, 2]\n{TWO}"));
    let runs = first_round(&suite);
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    let expected = [
        "wide-lr_scale=1-n40-s7",
        "wide-lr_scale=2-n40-s7",
        "prenorm-lr_scale=1-n40-s7",
        "prenorm-lr_scale=2-n40-s7",
        "wide-lr_scale=1-n40-s5",
    ];
    assert_eq!(names[..5], expected);
    assert!(runs.iter().all(|run| run.config.seed == run.seed));
    let text = "[tune]\noptimizer.adamw.betas = [[0.9, 0.95], [0.9, 0.99]]\n";
    let odd = first_round(&self::suite("", &format!("{text}{TWO}")));
    let name = &odd[0].name;
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.+=".contains(c);
    assert!(name.starts_with("prenorm-point=") && name.chars().all(fits), "{name}");
    assert_ne!(odd[0].name, odd[1].name);
}

#[test]
fn a_shorter_run_is_the_whole_one_in_miniature() {
    let nag = "[[variant]]\nresidual = \"nag\"\nnag_alpha_warmup = 20\n";
    let suite = suite("", &format!("[tune]\nlr_scale = [1, 2]\nshare = 0.25\n{TWO}{nag}"));
    let runs = first_round(&suite);
    let run = runs.iter().find(|run| run.variant == "nag").unwrap();
    let train = &run.config.train;
    assert_eq!((run.steps, train.steps, train.gain_warmup), (10, Some(10), 5));
    assert_eq!(run.config.schedule.warmup_steps, 3);
}

#[test]
fn halving_gives_each_round_the_better_points_and_more_steps() {
    let suite = suite(
        "",
        &format!("[tune]\nseeds = [9]\nlr_scale = [1, 2, 3, 4, 5]\nrounds = 3\nkeep = 0.5\n{TWO}"),
    );
    let rounds = suite.tuning(&Pace::new()).unwrap();
    let shape: Vec<_> =
        rounds.iter().map(|r| (r.round, r.is_certain, r.runs.len(), r.runs[0].steps)).collect();
    assert_eq!(shape, [(1, true, 10, 10), (2, false, 6, 20), (3, false, 4, 40)]);
}

#[test]
fn the_depth_of_the_choice_is_the_middle_one_unless_each_has_its_own() {
    let with = |more: &str| {
        let rest = format!("[tune]\nseeds = [9]\nlr_scale = [1, 2]\n{more}\n{TWO}");
        let suite = suite("depths = [8, 2, 4, 6]", &rest);
        let depths = |run: &PlannedRun| run.depth.unwrap();
        first_round(&suite).iter().map(depths).collect::<Vec<_>>()
    };
    assert_eq!(with(""), [4; 4]);
    assert_eq!(with("depth = 8"), [8; 4]);
    assert_eq!(with("per = \"cell\""), [8, 8, 8, 8, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6]);
}

/// A choice for a variant holds at all depths, one for a cell at its own.
#[test]
fn what_was_chosen_reaches_the_runs_of_the_table() {
    let suite = suite("seeds = [0]\ndepths = [2, 4]", &format!("[tune]\nlr_scale = [1, 2]\n{TWO}"));
    let point =
        GridPoint::all(&[Axis { key: LR_SCALE.into(), values: vec![toml::Value::Integer(2)] }])
            .remove(0);
    let rates = |suite: &Suite| -> Vec<f64> {
        let plan = suite.plan(&Pace::new()).unwrap();
        plan.iter().map(|run| run.config.optimizer.adamw.lr).collect()
    };
    let all = suite.clone().with_choice("wide", None, point.clone());
    assert_eq!(rates(&all), [0.003, 0.006, 0.003, 0.006]);
    let one = suite.with_choice("wide", Some(4), point);
    assert_eq!(rates(&one), [0.003, 0.003, 0.003, 0.006]);
    assert_eq!(rates(&one.untuned()), [0.003; 4]);
}

/// If tuning changes what a step costs, the budget decides the steps; the baseline's own choice is not the budget.
#[test]
fn equal_flops_stay_equal_whatever_is_tuned() {
    let suite = suite(
        "iso_flop = true\nseeds = [0]",
        &format!("[tune]\nseeds = [9]\ntrain.batch = [1, 4]\n{TWO}"),
    );
    let runs = first_round(&suite);
    assert_eq!((runs[0].steps, runs[1].steps), (80, 20));
    let four = suite.tune.as_ref().unwrap().points(0).remove(1);
    let plan = suite.with_choice("prenorm", None, four).plan(&Pace::new()).unwrap();
    assert_eq!((plan[0].steps, plan[0].config.train.batch), (20, 4));
    assert_eq!(plan[1].config.train.batch, 2);
    assert!((plan[0].flops() - plan[1].flops()).abs() <= plan[1].flops_per_step);
}
