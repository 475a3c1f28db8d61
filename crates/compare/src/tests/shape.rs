//! Widths that a suite chooses, for every policy and for values that make no sense.

use super::*;
use hadal_residual::ResidualConfig;

/// A model that is large enough for a unit of `d_ff` to be less than a hundredth of it.
const WIDE: &str = "
[train]
steps = 40
batch = 2
[model]
d_model = 48
n_layers = 4
n_heads = 4
d_ff = 128
mlp = \"swiglu\"
[data.generated]
task = \"khop\"
length = 24
";

fn plan(head: &str, variants: &str) -> Vec<PlannedRun> {
    Suite::parse(&format!("{head}\n{WIDE}\n{variants}"), "test.toml")
        .and_then(|suite| suite.plan(&Pace::new()))
        .unwrap()
}

fn every_policy() -> String {
    let kinds = ResidualConfig::all();
    kinds
        .iter()
        .map(|kind| format!("[[variant]]\nresidual = \"{}\"\n", kind.about().kind))
        .collect()
}

#[test]
fn every_policy_can_be_given_the_parameters_of_the_baseline() {
    let free = plan("baseline = \"prenorm\"\nseeds = [0]", &every_policy());
    let matched =
        plan("baseline = \"prenorm\"\nseeds = [0]\nmatch = \"parameters\"", &every_policy());
    assert!(free.len() > 10 && free.iter().all(|run| run.shape.is_none()));
    let own = &free[0];
    assert_eq!(matched[0].parameters, own.parameters);
    assert_eq!(matched[0].config.model.d_ff, Some(128));
    let mut moved = 0;
    for (free, run) in free.iter().zip(&matched) {
        let shape = run.shape.as_ref().unwrap();
        assert_eq!((shape.parameters, shape.target), (run.parameters, own.parameters));
        assert_eq!(run.config.model.d_ff, Some(shape.d_ff), "{}", run.name);
        // The granularity: half a unit of d_ff, three matrices in each of four blocks.
        let left = run.parameters.abs_diff(own.parameters);
        assert!(left <= 3 * 48 * 4 / 2, "{}: {left}", run.name);
        assert!((shape.off - (run.parameters as f64 / own.parameters as f64 - 1.0)).abs() < 1e-12);
        moved += usize::from(shape.d_ff != 128);
        // Half a unit may be rounded either way.
        if free.parameters != own.parameters + 288 {
            assert_eq!(free.parameters > own.parameters + 288, shape.d_ff < 128, "{}", run.name);
        }
        // Nothing else has changed.
        let mut same = run.config.clone();
        same.model = free.config.model.clone();
        assert_eq!(same, free.config);
    }
    assert!(moved >= 5, "{moved}");
}

#[test]
fn widths_for_depths_keep_the_count_of_the_models_own_depth() {
    let head = "seeds = [0, 1]\ndepths = [2, 4, 8, 16]\nshape = \"fixed-parameters\"";
    let runs = plan(head, TWO);
    let own = runs.iter().find(|run| run.name == "prenorm-d4-s0").unwrap();
    assert_eq!(own.shape.as_ref().unwrap().d_model, 48);
    assert_eq!(own.shape.as_ref().unwrap().d_ff, 128);
    let mut widths = Vec::new();
    for run in runs.iter().filter(|run| run.variant == "prenorm" && run.seed == 0) {
        let shape = run.shape.as_ref().unwrap();
        assert!(shape.off.abs() <= 0.01 && shape.target == own.parameters, "{shape:?}");
        assert_eq!(Some(shape.n_layers), run.depth);
        assert_eq!((shape.n_heads, shape.head_dim), (4, shape.d_model / 4));
        assert!(shape.head_dim.is_multiple_of(2));
        // The nearest widths are steps of 8 apart, so the ratio can bend by that much.
        let bent = shape.d_ff as f64 / shape.d_model as f64 / (128.0 / 48.0);
        assert!((0.6..1.6).contains(&bent), "{shape:?}");
        widths.push(shape.d_model);
    }
    assert!(widths.is_sorted_by(|a, b| a > b), "{widths:?}");
    // Without a match, variants have these shapes and their own counts.
    for run in &runs {
        let of = |name: &str| runs.iter().find(|run| run.name == name).unwrap();
        let base = of(&format!("prenorm-d{}-s{}", run.depth.unwrap(), run.seed));
        assert_eq!(run.config.model, base.config.model, "{}", run.name);
        assert!(run.variant == "prenorm" || run.parameters > base.parameters);
    }
}

#[test]
fn a_count_may_be_named_and_heads_may_keep_their_width() {
    let head = "seeds = [0]\ndepths = [3, 12]\nshape = \"fixed-parameters\"\nparameters = 250_000\nmatch = \"parameters\"";
    for run in plan(head, TWO) {
        assert!((run.parameters as f64 / 250e3 - 1.0).abs() < 0.012, "{run:?}");
        assert_eq!(run.config.model.n_heads, 4);
    }
    let kept = WIDE.replace("n_heads = 4", "n_heads = 6\nn_kv_heads = 3\nhead_dim = 8");
    let text = format!("seeds = [0]\ndepths = [2, 16]\nshape = \"fixed-parameters\"\n{kept}{TWO}");
    let runs = Suite::parse(&text, "test.toml").and_then(|suite| suite.plan(&Pace::new())).unwrap();
    let shapes: Vec<_> = runs.iter().filter_map(|run| run.shape.as_ref()).collect();
    for shape in &shapes {
        assert_eq!((shape.head_dim, shape.n_heads * 8), (8, shape.d_model));
        assert_eq!(shape.n_kv_heads * 2, shape.n_heads);
    }
    assert!(shapes[0].d_model > 48 && shapes[2].d_model < 48, "{shapes:?}");
}

#[test]
fn budgets_follow_the_shapes() {
    let head = "seeds = [0]\ndepths = [2, 4, 8]\nshape = \"fixed-parameters\"\nmatch = \"parameters\"\niso_flop = true";
    let runs = plan(head, TWO);
    let own = runs.iter().find(|run| run.name == "prenorm-d4-s0").unwrap();
    assert_eq!(own.steps, 40);
    for run in &runs {
        let off = (run.flops() - own.flops()).abs();
        assert!(off <= run.flops_per_step / 2.0, "{}: {off} FLOPs off", run.name);
        assert!(run.steps.abs_diff(40) < 20, "as many parameters, nearly as many FLOPs: {run:?}");
    }
    let body = WIDE.replace("steps = 40", "");
    let text = format!("budget.minutes = 1\nmatch = \"parameters\"\n{body}{TWO}");
    let suite = Suite::parse(&text, "test.toml").unwrap();
    let pace = Pace::from([("prenorm".into(), 0.5), ("wide".into(), 1.0)]);
    let runs = suite.plan(&pace).unwrap();
    assert_eq!((runs[0].steps, runs[1].steps), (120, 60));
    assert_ne!(runs[0].config.model.d_ff, runs[1].config.model.d_ff);
    // What is measured is what will run.
    let pacers = suite.pacers(9).unwrap();
    assert!(pacers.iter().zip(&runs).all(|(pacer, run)| pacer.config.model == run.config.model));
}

#[test]
fn a_setting_of_the_command_line_chooses_again() {
    let text = format!("seeds = [0]\nmatch = \"parameters\"\n{WIDE}{TWO}");
    let suite = Suite::parse(&text, "test.toml").unwrap();
    let d_ff = |suite: &Suite| suite.plan(&Pace::new()).unwrap()[1].config.model.d_ff.unwrap();
    let before = d_ff(&suite);
    let after = d_ff(&suite.with_setting("model.d_ff=200").unwrap());
    assert!(before < 128 && (128..200).contains(&after), "{before} {after}");
}

#[test]
fn shapes_that_cannot_be_are_refused_with_the_reason() {
    let wide = |head: &str| complaint(&format!("{head}\n{WIDE}{TWO}"));
    let fixed = "shape = \"fixed-parameters\"";
    for (said, words) in [
        (wide("match = \"flops\""), "unknown value `flops`"),
        (wide("match = true"), "does not fit"),
        (wide("shape = \"square\""), "unknown value `square`"),
        (wide("mach = \"parameters\""), "mach is unknown; did you mean match?"),
        (wide("parameters = 1000"), "parameters needs shape = \"fixed-parameters\""),
        (wide(fixed), "shape needs depths = [..], or parameters = N"),
        (wide(&format!("{fixed}\nparameters = 0")), "parameters is 0; write a whole number"),
        (wide(&format!("{fixed}\nparameters = -5")), "parameters is -5; write a whole number"),
        (wide(&format!("{fixed}\nparameters = 1.5")), "parameters is 1.5; write a whole number"),
        (wide(&format!("{fixed}\nparameters = nan")), "parameters is NaN; write a whole number"),
        (wide(&format!("{fixed}\nparameters = inf")), "parameters is inf; write a whole number"),
        (wide(&format!("{fixed}\nparameters = \"x\"")), "does not fit"),
        (
            wide(&format!("{fixed}\nparameters = 100")),
            "finds no width at 4 blocks within 1 % of 100 parameters (d_model 8 has ",
        ),
        (
            wide(&format!("{fixed}\ndepths = [2, 4000]")),
            "finds no width at 4000 blocks within 1 % of ",
        ),
        (
            // The streams of this one alone are more than all MLPs of the baseline.
            complaint(&format!(
                "match = \"parameters\"\n{}[[variant]]\nresidual = \"prenorm\"\n[[variant]]\nresidual = \"nag\"",
                WIDE.replace("d_ff = 128", "d_ff = 1\nvocab_size = 60000")
            )),
            "match would give nag a d_ff of -",
        ),
        (
            // A unit of d_ff is a large part of such a model.
            complaint(&format!(
                "match = \"parameters\"\n{}{TWO}",
                BODY.replace("d_model = 16", "d_model = 4\nd_ff = 3")
            )),
            "the model is too small for it; make it wider, or leave match out",
        ),
    ] {
        assert!(said.starts_with("test.toml: ") && said.contains(words), "{words}: {said}");
    }
}

#[test]
fn chosen_shapes_are_columns_and_sentences_and_others_are_not_there() {
    let text = format!(
        "seeds = [0, 1]\ndepths = [4, 8]\nshape = \"fixed-parameters\"\nmatch = \"parameters\"\n{WIDE}{TWO}"
    );
    let suite = Suite::parse(&text, "test.toml").unwrap();
    let plan = suite.plan(&Pace::new()).unwrap();
    let made =
        |plan: &[PlannedRun]| plan.iter().map(|run| super::findings::made(run, 1.0)).collect();
    let results = Results::of(&suite, &plan, made(&plan), 0);
    let table = results.table(&suite);
    for column in ["d_model", "d_ff", "d/L", "parameters off, %"] {
        assert!(table.columns.iter().any(|name| name == column), "{:?}", table.columns);
    }
    assert!(table.rows.iter().all(|row| row.len() == table.columns.len()));
    let said = table.verdict.join("\n");
    assert!(said.contains("parameters at every depth, to within 0."), "{said}");
    assert!(said.contains(": d_model is 48 at 4 blocks, "), "{said}");
    assert!(said.contains("The MLPs of all variants are as wide (d_ff "), "{said}");
    let json = serde_json::to_value(&results).unwrap();
    assert_eq!(json["cells"][0]["shape"]["d_model"], 48);
    let head = results.csv().lines().next().unwrap().to_owned();
    assert!(head.ends_with(",d_ff,parameters_off"));
    assert!(
        results.csv().lines().all(|line| line
            .split('"')
            .step_by(2)
            .collect::<String>()
            .matches(',')
            .count()
            == head.matches(',').count())
    );

    let plain = super::suite("seeds = [0]", TWO);
    let plan = plain.plan(&Pace::new()).unwrap();
    let results = Results::of(&plain, &plan, made(&plan), 0);
    assert!(!results.table(&plain).columns.iter().any(|name| name == "d_ff"));
    assert!(serde_json::to_value(&results).unwrap()["cells"][0].get("shape").is_none());
    assert!(results.csv().lines().next().unwrap().ends_with(",skip_rate"));
}

#[test]
fn the_small_depthbench_has_one_count_for_all() {
    let text = include_str!("../../../../configs/suites/depthbench-small.toml");
    let runs = Suite::parse(text, "depthbench-small.toml")
        .and_then(|suite| suite.plan(&Pace::new()))
        .unwrap();
    let cells: Vec<&PlannedRun> = runs.iter().filter(|run| run.seed == 0).collect();
    assert_eq!((cells.len(), runs.len()), (10 * 3, 10 * 3 * 5));
    let find = |name: &str| cells.iter().find(|run| run.name == name).unwrap();
    let own = find("prenorm-d6-s0").parameters;
    for run in &cells {
        let shape = run.shape.as_ref().unwrap();
        let off = shape.parameters as f64 / own as f64 - 1.0;
        assert!(off.abs() < 0.01, "{}: {shape:?}", run.name);
        assert!((240_000..270_000).contains(&run.parameters));
        assert_eq!(run.steps, 600);
    }
    let aspect = |name: &str| find(name).shape.as_ref().unwrap().aspect();
    assert!(aspect("prenorm-d3-s0") > 24.0 && aspect("prenorm-d12-s0") < 3.5);
}
