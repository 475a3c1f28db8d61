//! From a suite to its runs: which there are, and how many steps each gets.

use super::*;
use hadal_model::{DepthKv, Precision, ValueResidual};
use hadal_residual::SkippedKeys;

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
fn what_attention_takes_of_earlier_depth_reaches_its_own_variant_and_nobody_else() {
    let deep = "depth_kv = \"attention\"\nvalue_residual = \"learned\"";
    let plan = suite("seeds = [4]", &format!("{TWO}{deep}")).plan(&Pace::new()).unwrap();
    let found = |run: &PlannedRun| (run.config.model.depth_kv, run.config.model.value_residual);
    let expected =
        [(DepthKv::None, ValueResidual::None), (DepthKv::Attention, ValueResidual::Learned)];
    assert_eq!(plan.iter().map(found).collect::<Vec<_>>(), expected);
    let with = |line: &str| complaint(&format!("{BODY}\n{TWO}\n{line}"));
    let said = with("value_residual = \"learnt\"");
    assert!(said.contains("model.value_residual") && said.contains("learned"), "{said}");
    let said = with("depthkv = \"attention\"");
    assert!(said.contains("depthkv of a variant is unknown; did you mean depth_kv?"), "{said}");
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
    assert!(
        said.contains("skip_rate is of the recipe of mgr, nag, gr, ddl, but `lns` is lns"),
        "{said}"
    );
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
        include_str!("../../../../configs/suites/depth-sweep.toml"),
        include_str!("../../../../configs/suites/iso-flop.toml"),
        include_str!("../../../../configs/suites/skipping.toml"),
        include_str!("../../../../configs/suites/stress.toml"),
        include_str!("../../../../configs/suites/depthbench-small.toml"),
    ] {
        let plan = Suite::parse(text, "configs").unwrap().plan(&Pace::new()).unwrap();
        assert!(plan.len() >= 3 * 5);
    }
}

#[test]
fn pairs_are_complete_early() {
    let suite = suite("baseline = \"prenorm\"\nseeds = [3, 4]", FOUR);
    let names: Vec<String> =
        suite.plan(&Pace::new()).unwrap().into_iter().map(|run| run.name).collect();
    assert_eq!(names[..5], ["prenorm-s3", "same-s3", "low-s3", "high-s3", "prenorm-s4"]);
}
