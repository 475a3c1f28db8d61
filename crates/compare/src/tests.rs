use super::*;
use hadal_data::Feed;
use hadal_model::{Decoder, Device, Precision};
use hadal_report::figure::Marks;
use hadal_report::statistics::{SpeedUp, Verdict};
use hadal_residual::{Matrix, ResidualConfig, SkippedKeys};
use hadal_train::{RunConfig, model_config};
use std::collections::BTreeMap;

const BODY: &str = "
[train]
steps = 40
batch = 2
[model]
d_model = 16
n_layers = 4
n_heads = 2
[data.generated]
task = \"khop\"
length = 24
";

const TWO: &str = "
[[variant]]
residual = \"prenorm\"
[[variant]]
name = \"wide\"
residual = { kind = \"mgr\", streams = 4 }
";

fn suite(head: &str, variants: &str) -> Suite {
    Suite::parse(&format!("{head}\n{BODY}\n{variants}"), "test.toml").unwrap()
}

fn complaint(text: &str) -> String {
    let planned = Suite::parse(text, "test.toml").and_then(|suite| suite.plan(&Pace::new()));
    planned.unwrap_err().to_string()
}

#[test]
fn whatever_is_not_of_the_residual_stream_is_refused_by_name() {
    let with = |line: &str| complaint(&format!("{BODY}\n{TWO}\n{line}"));
    for (line, name) in [
        ("steps = 7", "steps"),
        ("optimizer.muon.lr = 0.1", "optimizer"),
        ("[variant.model]\nn_layers = 3", "model"),
        ("seed = 3", "seed"),
        ("data.train = \"elsewhere\"", "data"),
    ] {
        let said = with(line);
        let start = format!("test.toml: {name} of variant `wide` is refused");
        assert!(said.starts_with(&start), "{said}");
    }
    let said = with("nag_alpha_warmup = 5");
    assert!(said.contains("nag_alpha_warmup is of nag's recipe, but `wide` is mgr"), "{said}");
}

#[test]
fn a_recipe_reaches_its_own_variant_and_nobody_else() {
    let nag = "[[variant]]\nresidual = \"nag\"\nnag_alpha_warmup = 5\nnag_gate_slowdown = 3";
    let plan = suite("seeds = [4]", &format!("{TWO}{nag}")).plan(&Pace::new()).unwrap();
    let recipe =
        |run: &PlannedRun| (run.config.train.gain_warmup, run.config.optimizer.gate_slowdown);
    let recipes: Vec<_> = plan.iter().map(recipe).collect();
    assert_eq!(recipes, [(0, 12.0), (0, 12.0), (5, 3.0)]);
}

#[test]
fn a_precision_reaches_its_own_variant_and_nobody_else() {
    let rounded = "precision = \"bf16\"";
    let plan = suite("seeds = [4]", &format!("{TWO}{rounded}")).plan(&Pace::new()).unwrap();
    let precisions: Vec<_> = plan.iter().map(|run| run.config.train.precision).collect();
    assert_eq!(precisions, [Precision::F32, Precision::Bf16]);
    let with = |line: &str| complaint(&format!("{BODY}\n{TWO}\n{line}"));
    let said = with("precision = \"bf61\"");
    assert!(said.contains("train.precision: unknown value `bf61`; did you mean bf16?"), "{said}");
    let said = with("precison = \"bf16\"");
    assert!(said.contains("precison of a variant is unknown; did you mean precision?"), "{said}");
}

#[test]
fn skipping_reaches_its_own_variant_and_is_refused_for_others() {
    let skipping =
        "[[variant]]\nresidual = \"nag\"\nskip_rate = 0.25\nskip_kv = \"drop\"\nskip_ramp = 0.2";
    let plan = suite("seeds = [4]", &format!("{TWO}{skipping}")).plan(&Pace::new()).unwrap();
    assert_eq!((&plan[0].config.skip, &plan[1].config.skip), (&None, &None));
    let skip = plan[2].config.skip.as_ref().unwrap();
    assert_eq!((skip.rate, skip.kv, skip.ramp), (0.25, SkippedKeys::Drop, 0.2));
    let said = complaint(&format!("{BODY}[[variant]]\nresidual = \"lns\"\nskip_rate = 0.1"));
    assert!(said.contains("skip_rate is of mgr and nag's recipe, but `lns` is lns"), "{said}");
    let said = complaint(&format!("{BODY}[[variant]]\nresidual = \"nag\"\nskip_rate = 1.5"));
    assert!(said.contains("skip.rate is 1.5"), "{said}");
}

/// The FLOPs that a run saves by skipping buy it steps: as many as the formula says, and no more.
#[test]
fn equal_flops_give_a_skipping_run_the_steps_that_it_saves() {
    let nag = "[[variant]]\nresidual = \"nag\"\n[[variant]]\nname = \"skips\"\nresidual = \"nag\"\nskip_rate = 0.4";
    let plan = suite("iso_flop = true\nseeds = [0]", nag).plan(&Pace::new()).unwrap();
    let [dense, skips] = &plan[..] else { panic!("{plan:?}") };
    assert_eq!(dense.steps, 40);
    assert!((skips.flops() - dense.flops()).abs() <= skips.flops_per_step / 2.0);
    // The skippable part of a block of 16 at a length of 24: queries, outputs, scores and the MLP.
    let (d, blocks, tokens) = (16.0, 4.0, dense.tokens_per_step as f64);
    let skippable = blocks * (4.0 * d * d + 4.0 * d * 12.5 + 16.0 * d * d);
    // The target rises over a tenth of the run, in which the outer two of four blocks are protected.
    let rate = 0.4 * (0.9 + 0.05 * 0.5);
    let expected = dense.flops_per_step - 3.0 * tokens * rate * skippable;
    assert!((skips.flops_per_step - expected).abs() < 1e-9 * expected, "{skips:?}");
    assert!(skips.steps > 48, "{}", skips.steps);
    assert_eq!(skips.config.train.steps, Some(skips.steps));
}

#[test]
fn suites_that_compare_nothing_or_unfairly_are_refused_with_the_remedy() {
    for (text, words) in [
        (format!("seed = 3\n{BODY}{TWO}"), "seed belongs to one run; write seeds"),
        (format!("{BODY}[residual]\nkind = \"nag\"\n{TWO}"), "residual belongs to one run"),
        (BODY.into(), "variant is missing; write a [[variant]]"),
        (format!("{BODY}{TWO}{TWO}"), "`prenorm` is there twice"),
        (format!("baseline = \"x\"\n{BODY}{TWO}"), "`x` is no variant; there are prenorm, wide"),
        (format!("seeds = []\n{BODY}{TWO}"), "seeds is empty"),
        (format!("seeds = [1, 2, 1]\n{BODY}{TWO}"), "seeds holds 1 twice"),
        (format!("seeds = [-1]\n{BODY}{TWO}"), "seeds holds -1"),
        (format!("threads = 0\n{BODY}{TWO}"), "threads is 0; write 1 to"),
        (format!("depths = [4, 4]\n{BODY}{TWO}"), "depths holds 4 twice"),
        (format!("depths = [0]\n{BODY}{TWO}"), "the run prenorm-d0-s0 cannot be planned"),
        (format!("budget = {{ hours = 3 }}\n{BODY}{TWO}"), "unknown field `hours`"),
        (format!("budget.flops = 1e9\n{BODY}{TWO}"), "train.steps contradicts budget.flops"),
        (format!("{BODY}{TWO}\n[[variant]]\nresidual = \"mrg\""), "unknown residual policy `mrg`"),
        (format!("{BODY}{TWO}\n[[variant]]\nname = \"x\""), "variant.residual is missing"),
        (
            format!("{BODY}{TWO}\n[[variant]]\nname = \"../x\"\nresidual = \"nag\""),
            "variant.name is `../x`; it names folders",
        ),
        (format!("{BODY}{TWO}\n[[variant]]\nresidual = \"mgr:streams=0\""), "at least one stream"),
        (format!("stpes = 3\n{BODY}{TWO}"), "unknown field `stpes`"),
        (format!("seds = [1]\n{BODY}{TWO}"), "seds is unknown; did you mean seeds?"),
        (format!("seeds = [\"x\"]\n{BODY}{TWO}"), "\"x\" does not fit; write a whole number"),
        (format!("{BODY}[[variants]]\nresidual = \"nag\""), "did you mean variant?"),
        (format!("{BODY}{TWO}\n[[variant]]\nresidul = \"nag\""), "did you mean residual?"),
        (
            format!("{BODY}{TWO}\n[[variant]]\nresidual = \"nag\"\nskip_rat = 0.5"),
            "skip_rat of variant `nag` is unknown; did you mean skip_rate?",
        ),
        ("seeds = [".into(), "test.toml: TOML parse error"),
    ] {
        let said = complaint(&text);
        assert!(said.starts_with("test.toml: ") && said.contains(words), "{words}: {said}");
    }
}

#[test]
fn settings_of_the_command_line_reach_all_runs_but_not_what_makes_the_suite() {
    let changed = suite("seeds = [0]", TWO).with_setting("train.steps=7").unwrap();
    assert!(changed.plan(&Pace::new()).unwrap().iter().all(|run| run.steps == 7));
    for setting in ["residual.kind=nag", "seed=3", "seeds=[1]", "threads=2"] {
        let said = suite("", TWO).with_setting(setting).unwrap_err().to_string();
        assert!(said.contains("is the suite's; change its file"), "{said}");
    }
}

#[test]
fn a_plan_has_every_variant_at_every_depth_for_every_seed() {
    let plan = suite("seeds = [7, 1]\ndepths = [2, 4]", TWO).plan(&Pace::new()).unwrap();
    let names: Vec<&str> = plan.iter().map(|run| run.name.as_str()).collect();
    let expected = [
        "prenorm-d2-s7",
        "wide-d2-s7",
        "prenorm-d4-s7",
        "wide-d4-s7",
        "prenorm-d2-s1",
        "wide-d2-s1",
        "prenorm-d4-s1",
        "wide-d4-s1",
    ];
    assert_eq!(names, expected);
    for run in &plan {
        assert_eq!((Some(run.config.model.n_layers), run.config.seed), (run.depth, run.seed));
        assert_eq!((run.steps, run.tokens_per_step), (40, 48));
    }
}

#[test]
fn equal_flops_give_everybody_as_many_steps_as_fit() {
    let plan = suite("iso_flop = true\ndepths = [2, 4, 8]", TWO).plan(&Pace::new()).unwrap();
    let own = plan.iter().find(|run| run.name == "prenorm-d4-s0").unwrap();
    assert_eq!(own.steps, 40);
    for run in &plan {
        let off = (run.flops() - own.flops()).abs();
        assert!(off <= run.flops_per_step / 2.0, "{}: {off} FLOPs off", run.name);
        assert_eq!(run.config.train.steps, Some(run.steps));
    }
    let steps = |name: &str| plan.iter().find(|run| run.name == name).unwrap().steps;
    assert!(steps("prenorm-d2-s0") > 70 && steps("prenorm-d8-s0") < 25);
    assert!(steps("wide-d4-s0") < 40, "what a policy adds is paid for");

    let body = BODY.replace("steps = 40", "");
    let text = format!("budget.flops = {:e}\n{body}{TWO}", 2.0 * own.flops());
    let plan = Suite::parse(&text, "test.toml").unwrap().plan(&Pace::new()).unwrap();
    assert_eq!(plan[0].steps, 80);
    let text = format!("budget.flops = 1e3\n{body}{TWO}");
    assert!(complaint(&text).contains("would give prenorm 0 steps"));
}

#[test]
fn minutes_become_steps_by_the_pace_of_each_variant() {
    let body = BODY.replace("steps = 40", "");
    let text = format!("budget.minutes = 2\n{body}{TWO}");
    let suite = Suite::parse(&text, "test.toml").unwrap();
    let pace = Pace::from([("prenorm".into(), 0.5), ("wide".into(), 2.0)]);
    let plan = suite.plan(&pace).unwrap();
    let steps: Vec<u64> = plan.iter().take(2).map(|run| run.steps).collect();
    assert_eq!(steps, [240, 60]);
    let said = suite.plan(&Pace::new()).unwrap_err().to_string();
    assert!(said.contains("the speed of prenorm cannot be measured"), "{said}");
}

/// The built-in suite and those under `configs/suites`, so that none of them rots.
#[test]
fn the_suites_that_come_with_hadal_can_be_planned() {
    let built_in = Suite::parse(Suite::BUILT_IN, "built-in").unwrap();
    assert!(built_in.seeds.len() >= 3);
    let kinds: Vec<_> = built_in.variants.iter().map(|v| v.residual.about().kind).collect();
    assert_eq!(kinds, ["prenorm", "attnres", "hc", "mgr", "nag"]);
    for text in [
        Suite::BUILT_IN,
        include_str!("../../../configs/suites/depth-sweep.toml"),
        include_str!("../../../configs/suites/iso-flop.toml"),
        include_str!("../../../configs/suites/skipping.toml"),
    ] {
        let plan = Suite::parse(text, "configs").unwrap().plan(&Pace::new()).unwrap();
        assert!(plan.len() >= 3 * 5);
    }
}

fn branches(config: &RunConfig, feed: &Feed) -> BTreeMap<String, Vec<f32>> {
    let model = model_config(config, feed).unwrap();
    let decoder = Decoder::fresh(&model, config.seed, &Device::flex()).unwrap();
    let is_branch = |name: &str| name.starts_with("layers.") && !name.contains("norm");
    decoder.parameters().into_iter().filter(|(name, _)| is_branch(name)).collect()
}

/// Twenty steps of data as one hash, and the branches before the first of them.
fn start(run: &PlannedRun) -> (blake3::Hash, BTreeMap<String, Vec<f32>>) {
    let feed = run.config.open_feed().unwrap();
    let mut hasher = blake3::Hasher::new();
    for step in 0..20 {
        let batch =
            feed.train(step * run.config.train.batch as u64, run.config.train.batch).unwrap();
        for id in batch.input.ids().iter().chain(batch.target.ids()) {
            hasher.update(&id.to_le_bytes());
        }
    }
    (hasher.finalize(), branches(&run.config, &feed))
}

/// A policy may prescribe how large a matrix starts, but not with which draws.
#[test]
fn all_variants_see_the_same_tokens_and_start_from_the_same_branches() {
    let kinds = ResidualConfig::all();
    let variants: String = kinds
        .iter()
        .map(|kind| format!("[[variant]]\nresidual = \"{}\"\n", kind.about().kind))
        .collect();
    let plan = suite("seeds = [3, 4]", &variants).plan(&Pace::new()).unwrap();
    let (of_three, of_four) = plan.split_at(kinds.len());
    let (tokens, baseline) = start(&of_three[0]);
    assert!(baseline.len() >= 4 * 6, "{:?}", baseline.keys());
    let feed = of_three[0].config.open_feed().unwrap();
    let dimensions = model_config(&of_three[0].config, &feed).unwrap().dimensions();
    let sizes = |kind: &ResidualConfig| {
        use Matrix::{Down, Key, Output, Query, Up, Value};
        [Query, Key, Value, Output, Up, Down].map(|matrix| kind.branch_std(&dimensions, matrix))
    };
    let (mut same, mut prescribed) = (0, 0);
    for (run, kind) in of_three.iter().zip(&kinds) {
        let (same_tokens, branches) = start(run);
        assert_eq!(same_tokens, tokens, "{}", run.name);
        assert!(branches.keys().eq(baseline.keys()), "{}", run.name);
        if sizes(kind) == sizes(&kinds[0]) {
            assert_eq!(branches, baseline, "{}", run.name);
            same += 1;
            continue;
        }
        prescribed += 1;
        for (name, values) in &branches {
            let other = &baseline[name];
            let scale = f64::from(values[0]) / f64::from(other[0]);
            for (value, other) in values.iter().zip(other) {
                let off = (f64::from(*value) - scale * f64::from(*other)).abs();
                assert!(
                    off < 1e-5 * scale,
                    "{}: {name}: {value} is not {scale} * {other}",
                    run.name
                );
            }
        }
    }
    assert!(same > 1 && prescribed > 1, "{same} start as the baseline, {prescribed} do not");
    let (other_tokens, other) = start(&of_four[0]);
    assert!(other_tokens != tokens && other != baseline, "another seed is another start");
}

fn made(planned: &PlannedRun, loss: f64) -> RunResult {
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
    Results::of(suite, &plan, runs)
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
            "No difference to prenorm was seen in validation loss: wide (5 seeds).",
            "wide is not distinguishable from prenorm: validation loss +0.0000, 95 % interval +0.0000 to +0.0000, p = 1.0000.",
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
    let answer =
        "wide is better than prenorm: validation loss -0.0160, 1.01 times fewer tokens (5 seeds).";
    assert_eq!(table.verdict[0], answer);
    assert!(table.verdict[1].contains("times fewer tokens"), "{:?}", table.verdict);
}

#[test]
fn a_run_that_diverged_is_told_of_and_its_seed_is_left_out() {
    let suite = suite(FIVE, TWO);
    let plan = suite.plan(&Pace::new()).unwrap();
    let mut runs: Vec<RunResult> =
        plan.iter().map(|run| made(run, 1.0 + run.seed as f64)).collect();
    let lost = runs.iter_mut().find(|run| run.name == "wide-s3").unwrap();
    lost.state = RunState::Diverged("step 3: the loss is NaN; lower the rate".into());
    let results = Results::of(&suite, &plan, runs);
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
    assert!(said[1].contains("by -1.0000 in one seed"), "{said:?}");

    let plan = one.plan(&Pace::new()).unwrap();
    let mut runs: Vec<RunResult> = plan.iter().map(|run| made(run, 1.0)).collect();
    runs[0].state = RunState::Failed("no room".into());
    let table = Results::of(&one, &plan, runs).table(&one);
    assert!(table.verdict[0].contains("without a run to compare"), "{:?}", table.verdict);
    assert!(table.verdict.contains(&"prenorm-s2 failed: no room.".into()));
}

/// Four variants whose verdicts differ.
const FOUR: &str = "[[variant]]\nname = \"same\"\nresidual = \"prenorm\"\n\
    [[variant]]\nresidual = \"prenorm\"\n[[variant]]\nname = \"low\"\nresidual = \"nag\"\n\
    [[variant]]\nname = \"high\"\nresidual = \"lns\"\n";

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
    assert!(headline.starts_with("low is better than prenorm: validation loss -0.1020, "));
    assert!(headline.ends_with("fewer tokens; no difference seen: same; worse: high (5 seeds)."));
    // The lowest mean, "same", is not the best.
    let ranked: Vec<(usize, bool)> = better.ranking().iter().map(|r| (r.cell, r.best)).collect();
    assert_eq!(ranked, [(0, false), (2, true), (1, false), (3, false)]);
    let worse = loss(0.1, 0.0);
    assert!(worse.ranking().iter().all(|ranked| !ranked.best));
    let headline = &worse.table(&suite).verdict[0];
    let words = "No difference to prenorm was seen in validation loss: same; worse: high, low";
    assert!(headline.starts_with(words), "{headline}");
}

#[test]
fn pairs_are_complete_early() {
    let suite = suite("baseline = \"prenorm\"\nseeds = [3, 4]", FOUR);
    let names: Vec<String> =
        suite.plan(&Pace::new()).unwrap().into_iter().map(|run| run.name).collect();
    assert_eq!(names[..5], ["prenorm-s3", "same-s3", "low-s3", "high-s3", "prenorm-s4"]);
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
