//! From results of runs to cells, verdicts, the table and its figures.

use super::*;
use hadal_report::figure::Marks;
use hadal_report::statistics::{SpeedUp, Verdict};

pub(super) fn made(planned: &PlannedRun, loss: f64) -> RunResult {
    let point = |part: f64, loss| Point {
        tokens: 1e3 * part,
        seconds: 2.0 * part,
        flops: 1e6 * part,
        loss,
        accuracy: Some(0.25 * part),
    };
    RunResult {
        name: planned.name.clone(),
        variant: planned.variant.clone(),
        depth: planned.depth,
        seed: planned.seed,
        state: RunState::Done,
        train_loss: Some(loss),
        validation_loss: Some(loss),
        accuracy: Some(0.5),
        tokens: Some(planned.tokens()),
        flops: Some(planned.flops()),
        skip_rate: None,
        tokens_per_second: Some(1e3),
        seconds: Some(4.0),
        peak_rss_mb: Some(50.0),
        damage: Vec::new(),
        curve: vec![point(1.0, loss + 1.0), point(2.0, loss)],
    }
}

/// Runs whose loss is a function of variant and seed.
fn results(suite: &Suite, loss: impl Fn(&PlannedRun) -> f64) -> Results {
    let plan = suite.plan(&Pace::new()).unwrap();
    let runs = plan.iter().map(|run| made(run, loss(run))).collect();
    Results::of(suite, &plan, runs, 0)
}

const FIVE: &str = "seeds = [0, 1, 2, 3, 4]";

#[test]
fn identical_variants_are_not_distinguishable() {
    let suite = suite(FIVE, TWO);
    let results = results(&suite, |run| 1.0 + 0.1 * run.seed as f64);
    let against = results.cells[1].against.as_ref().unwrap();
    assert_eq!(against.verdict, Verdict::NotDistinguishable);
    assert_eq!((against.paired.mean_difference, against.p_holm), (0.0, Some(1.0)));
    assert_eq!(against.speed_up_tokens, SpeedUp::Times(1.0));
    let table = results.table(&suite);
    assert_eq!(
        table.verdict[..2],
        [
            "No difference seen between wide and prenorm on two-hop lookup",
            "wide: no difference from prenorm seen: 0.0000 nats above prenorm in held-out loss over 5 seeds, 95 % interval +0.0000 to +0.0000, p = 1.000.",
        ]
    );
    assert!(results.cells[0].against.is_none());
}

/// The seeds differ by far more than the policies, which pairing takes out.
#[test]
fn a_small_difference_that_every_seed_shows_is_found() {
    let suite = suite(FIVE, TWO);
    let noise = [0.001, -0.002, 0.0005, 0.0015, -0.001];
    let results = results(&suite, |run| {
        let seed = 1.0 + 0.3 * run.seed as f64;
        if run.variant == "wide" { 0.99 * seed + noise[run.seed as usize] } else { seed }
    });
    let against = results.cells[1].against.as_ref().unwrap();
    assert_eq!(against.verdict, Verdict::Better);
    assert!(matches!(against.speed_up_tokens, SpeedUp::Times(times) if times > 1.0));
    let table = results.table(&suite);
    let answer = "wide is better than prenorm on two-hop lookup: 0.0160 nats less held-out loss";
    assert_eq!(table.verdict[0], answer);
    assert!(table.verdict[1].contains("1.01x fewer tokens (seed by seed "), "{:?}", table.verdict);
}

#[test]
fn a_run_that_diverged_is_told_of_and_its_seed_is_left_out() {
    let suite = suite(FIVE, TWO);
    let plan = suite.plan(&Pace::new()).unwrap();
    let mut runs: Vec<RunResult> =
        plan.iter().map(|run| made(run, 1.0 + run.seed as f64)).collect();
    let lost = runs.iter_mut().find(|run| run.name == "wide-s3").unwrap();
    lost.state = RunState::Diverged("step 3: the loss is NaN; lower the rate".into());
    let results = Results::of(&suite, &plan, runs, 0);
    let cell = &results.cells[1];
    assert_eq!((cell.done, cell.against.as_ref().unwrap().paired.n), ((4, 5), 4));
    assert_eq!(cell.validation_loss.n, 4);
    let table = results.table(&suite);
    let told = "wide-s3 diverged: step 3: the loss is NaN.".to_owned();
    assert!(table.verdict.contains(&told), "{:?}", table.verdict);
    let runs = table.columns.iter().position(|name| name == "runs").unwrap();
    assert_eq!(table.rows[1][runs], "4/5");
    assert!(!results.is_complete());
}

#[test]
fn one_seed_or_none_decides_nothing() {
    let one = suite("seeds = [2]", TWO);
    let results = results(&one, |run| if run.variant == "wide" { 1.0 } else { 2.0 });
    assert_eq!(results.cells[1].against.as_ref().unwrap().verdict, Verdict::OneSeed);
    let said = results.table(&one).verdict;
    assert!(said[1].contains("1.0000 nats below prenorm in held-out loss. One seed"), "{said:?}");

    let plan = one.plan(&Pace::new()).unwrap();
    let mut runs: Vec<RunResult> = plan.iter().map(|run| made(run, 1.0)).collect();
    runs[0].state = RunState::Failed("no room".into());
    let table = Results::of(&one, &plan, runs, 0).table(&one);
    assert_eq!(table.verdict[0], "No comparison: 1 of 2 runs are done and whole");
    assert!(table.verdict.contains(&"prenorm-s2 failed: no room.".into()));
}

#[test]
fn the_answer_comes_first_and_the_best_is_the_lowest_that_is_better() {
    let suite = suite(&format!("baseline = \"prenorm\"\n{FIVE}"), FOUR);
    let loss = |low: f64, same: f64| {
        results(&suite, |run| {
            let seed = run.seed as f64;
            let shift = match run.variant.as_str() {
                "low" => low - 0.001 * seed,
                "high" => 0.3 + 0.001 * seed,
                // Up and down: no difference is seen, whatever the mean.
                "same" => same + 0.5 * (seed - 2.0),
                _ => 0.0,
            };
            2.0 + shift
        })
    };
    let better = loss(-0.1, -0.2);
    let headline = &better.table(&suite).verdict[0];
    assert!(headline.starts_with("low learns two-hop lookup about 1."), "{headline}");
    assert!(headline.ends_with("x faster than prenorm; high is worse; same: no difference seen"));
    // The lowest mean, "same", is not the best.
    let ranked: Vec<(usize, bool)> = better.ranking().iter().map(|r| (r.cell, r.best)).collect();
    assert_eq!(ranked, [(0, false), (2, true), (1, false), (3, false)]);
    let worse = loss(0.1, 0.0);
    assert!(worse.ranking().iter().all(|ranked| !ranked.best));
    let headline = &worse.table(&suite).verdict[0];
    let words = "Nothing here is better than prenorm on two-hop lookup; high and low are worse, same: no difference seen";
    assert_eq!(headline, words);
}

#[test]
fn rows_columns_and_figures_fit_together() {
    let suite = suite("seeds = [0, 1]\ndepths = [2, 4]\niso_flop = true", TWO);
    let results = results(&suite, |run| 1.0 / run.depth.unwrap() as f64 + 0.01 * run.seed as f64);
    assert_eq!(results.comparisons, 2);
    let table = results.table(&suite);
    assert_eq!(table.rows.len(), 4);
    assert!(table.rows.iter().all(|row| row.len() == table.columns.len()));
    let csv = results.csv();
    // Policies are the only cells that may hold commas.
    let cells = |line: &str| {
        let outside: String = line.split('"').step_by(2).collect();
        outside.split(',').count()
    };
    let counts: Vec<usize> = csv.lines().map(cells).collect();
    assert!(counts.len() == 5 && counts.iter().all(|&count| count == counts[0]), "{csv}");
    let names: Vec<&str> = table.figures.iter().map(|figure| figure.name.as_str()).collect();
    let expected = [
        "validation-loss-d2",
        "accuracy-d2",
        "validation-loss-d4",
        "accuracy-d4",
        "differences",
        "loss-by-depth",
        "loss-by-flops",
    ];
    assert_eq!(names, expected);
    let Marks::Lines { series } = &table.figures[5].marks else { panic!("no lines") };
    assert_eq!(series[0].x, [2.0, 4.0]);
    let text = serde_json::to_string(&table).unwrap();
    assert_eq!(serde_json::from_str::<SuiteTable>(&text).unwrap(), table);
}

/// A report says in words what was learnt and what a blind guess is worth; a new task needs its words there.
#[test]
fn every_task_has_words_and_a_chance_level_in_reports() {
    for task in hadal_data::tasks::TaskConfig::all() {
        let generated = serde_json::to_value(&task).unwrap();
        let said = hadal_report::page::Task::of(&serde_json::json!({ "generated": generated }));
        assert_ne!(said.name, task.name());
        assert!(said.chance.is_some_and(|chance| chance > 0.0 && chance < 0.5), "{said:?}");
        let mut settings =
            generated.as_object().unwrap().values().filter_map(serde_json::Value::as_u64);
        let named = |number: u64| said.about.contains(&number.to_string());
        assert!(settings.any(named), "{said:?}");
    }
}
