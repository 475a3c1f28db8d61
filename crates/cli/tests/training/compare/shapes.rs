//! Widths that a suite chooses, from the plan to the report.

use super::*;

/// Large enough for a unit of `d_ff` to be less than a hundredth of a model.
fn written(directory: &Path, head: &str) -> PathBuf {
    let path = directory.join("suite.toml");
    let body = BODY
        .replace("d_model = 16", "d_model = 32\nd_ff = 96\nmlp = \"swiglu\"")
        .replace("steps = 30", "steps = 4")
        .replace("every_steps = 10", "every_steps = 2");
    fs::write(&path, format!("{head}\n{body}\n{THREE}")).unwrap();
    path
}

#[test]
fn matched_models_have_the_same_count_from_the_plan_to_the_report() {
    let directory = temporary();
    let head =
        "seeds = [0, 1]\ndepths = [2, 4]\nshape = \"fixed-parameters\"\nmatch = \"parameters\"";
    let suite = written(directory.path(), head);
    let out = directory.path().join("out");
    let shown = finish(compare(&suite, &out).arg("--dry-run")).succeeded().stdout;
    for words in ["d_model", "d_ff", "d/L", "off, %"] {
        assert!(shown.contains(words), "no {words} in {shown}");
    }
    let plan = finish(compare(&suite, &out).args(["--dry-run", "--json"])).succeeded().stdout;
    let plan: Value = serde_json::from_str(&plan).unwrap();
    let ended = finish(&mut compare(&suite, &out)).succeeded();
    assert!(ended.stdout.contains("parameters at every depth, to within "), "{}", ended.stdout);
    assert!(ended.stdout.contains("The MLPs of all variants are as wide"), "{}", ended.stdout);
    let report = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(report.contains("parameters off, %") && report.contains("The MLPs of all variants"));
    let results = json(&out.join("results.json"));
    let cells = results["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 6);
    let target = cells[0]["parameters"].as_f64().unwrap();
    for cell in cells {
        assert!((cell["parameters"].as_f64().unwrap() / target - 1.0).abs() < 0.01, "{cell}");
        let is_mine = |run: &&Value| {
            run["variant"] == cell["variant"] && run["depth"] == cell["depth"] && run["seed"] == 1
        };
        let planned = plan.as_array().unwrap().iter().find(is_mine).unwrap();
        assert_eq!(planned["shape"], cell["shape"]);
        // The trained model is the planned one.
        let run = out.join("runs").join(planned["name"].as_str().unwrap());
        let model = json(&run.join("model/config.json"));
        for key in ["n_layers", "d_model", "d_ff", "n_heads", "head_dim"] {
            assert_eq!(model[key], cell["shape"][key], "{key} of {}", run.display());
        }
    }
    assert_ne!(cells[0]["shape"]["d_ff"], cells[2]["shape"]["d_ff"], "mgr has streams to pay for");
    // Started again, it is the same.
    let again = finish(&mut compare(&suite, &out)).succeeded();
    assert!(again.stderr.contains("12 of 12 runs were done before"), "{}", again.stderr);
}

#[test]
fn shapes_that_cannot_be_are_refused_before_there_is_a_folder() {
    let directory = temporary();
    let out = directory.path().join("out");
    let suite = written(directory.path(), "shape = \"fixed-parameters\"\nparameters = 12");
    finish(&mut compare(&suite, &out)).refused(2, &["suite.toml: shape finds no width", "12"]);
    let suite = written(directory.path(), "match = \"flops\"");
    finish(&mut compare(&suite, &out)).refused(2, &["match", "unknown value `flops`"]);
    assert!(!out.exists());
}
