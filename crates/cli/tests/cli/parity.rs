//! `hadal parity`: what agrees, what differs, and what is not even comparable.

use crate::support::{
    CONFIG, FILES, Run, TRACE, Tensor, Tensors, WEIGHTS, command, copy_of, edit_json, edit_tensors,
    golden, goldens, read_tensors, run,
};
use safetensors::tensor::Dtype;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn parity(directory: &Path, options: &[&str]) -> Run {
    run(command("parity").arg(directory).args(options))
}

fn is_input(name: &str) -> bool {
    matches!(name, "input_ids" | "target_ids")
}

/// Names of the comparisons that failed.
fn differing(report: &Value) -> Vec<&str> {
    let comparisons = report["comparisons"].as_array().unwrap().iter();
    comparisons.filter(|c| c["passed"] == false).map(|c| c["name"].as_str().unwrap()).collect()
}

#[test]
fn every_golden_agrees_in_every_tensor_of_its_trace() {
    assert!(goldens().len() >= 25, "some are missing");
    for directory in goldens() {
        let mut trace = read_tensors(&directory.join(TRACE));
        trace.retain(|name, _| !is_input(name));

        let text = parity(&directory, &[]).succeeded().stdout;
        let verdict = format!("all {} tensors agree within 2e-4", trace.len());
        assert!(text.contains(&verdict), "{}: {text}", directory.display());

        let report = parity(&directory, &["--json"]).succeeded().json();
        assert_eq!(report["passed"], true);
        let comparisons = report["comparisons"].as_array().unwrap();
        assert_eq!(comparisons.len(), trace.len());
        for comparison in comparisons {
            let name = comparison["name"].as_str().unwrap();
            let expected = trace.remove(name).unwrap_or_else(|| panic!("{name} twice or foreign"));
            assert_eq!(comparison["shape"], serde_json::json!(expected.shape), "{name}");
            assert!(comparison["error"].as_f64().unwrap() <= 2e-4, "{comparison}");
        }
    }
}

#[test]
fn rounded_operands_have_a_tolerance_of_their_own() {
    let worst = |options: &[&str]| {
        let report = parity(&golden("prenorm"), options).succeeded().json();
        let errors = report["comparisons"].as_array().unwrap().iter();
        let worst = errors.map(|c| c["error"].as_f64().unwrap()).fold(0.0, f64::max);
        (report["tolerance"].as_f64().unwrap(), worst)
    };
    let (tolerance, error) = worst(&["--json", "--precision", "bf16x3"]);
    assert!(tolerance == 2e-4 && error < 2e-4, "{error}");
    let (tolerance, error) = worst(&["--json", "--precision", "bf16"]);
    assert!(tolerance == 0.15 && error > 1e-3, "{error}");
}

#[test]
fn all_shows_a_line_for_every_tensor() {
    let lines = |options: &[&str]| {
        let text = parity(&golden("nag-mod"), options).succeeded().stdout;
        text.lines().filter(|line| line.ends_with("ok")).map(str::to_owned).collect::<Vec<_>>()
    };
    let trace = read_tensors(&golden("nag-mod").join(TRACE));
    let all = lines(&["--all"]);
    for name in trace.keys().filter(|name| !is_input(name)) {
        let shown = all.iter().filter(|line| line.contains(&format!(" {name} ["))).count();
        assert_eq!(shown, 1, "{name}");
    }
    assert_eq!(all.len(), trace.len() - 2);
    assert_eq!(lines(&[]).len(), 6, "readings, skipped, out, logits, loss and gradients");
}

#[test]
fn several_directories_get_a_line_each_and_the_worst_exit_code() {
    let copy = copy_of(&golden("prenorm"));
    let wrong = copy.path();
    edit_tensors(&wrong.join(TRACE), |trace| trace.get_mut("loss").unwrap().set(0, |x| x + 1.0));
    let several = |options: &[&str], directories: &[&Path]| {
        run(command("parity").args(options).args(directories))
    };
    let all = goldens();
    let all: Vec<&Path> = all.iter().map(PathBuf::as_path).collect();
    let lines = several(&[], &all).succeeded().stdout;
    assert_eq!(lines.lines().filter(|line| line.contains("  ok  ")).count(), all.len(), "{lines}");

    let differing = several(&[], &[&golden("nag"), wrong]);
    assert_eq!((differing.code, differing.stderr.as_str()), (1, ""));
    assert!(differing.stdout.contains("1 DIFFER"), "{}", differing.stdout);

    // A directory that cannot be run does not keep the others from running.
    let nowhere = Path::new("nowhere");
    let broken = several(&["--json"], &[wrong, nowhere, &golden("nag")]);
    assert_eq!(broken.code, 2);
    assert!(broken.stderr.contains("cannot read nowhere"), "{}", broken.stderr);
    let passed = |i: usize| broken.json()[i]["report"]["passed"].clone();
    assert_eq!((passed(0), passed(2)), (false.into(), true.into()));
    assert!(broken.json()[1]["error"].as_str().is_some_and(|error| error.contains("nowhere")));
}

#[test]
fn a_device_is_named_and_one_that_is_not_compiled_in_is_refused_with_the_remedy() {
    let directory = golden("prenorm");
    parity(&directory, &["--device", "flex"]).succeeded();
    parity(&directory, &["--device", "abacus"]).refused(2, &["abacus", "flex", "wgpu", "metal"]);
    for (name, compiled_in) in [
        ("wgpu", cfg!(feature = "wgpu")),
        ("cuda", cfg!(feature = "cuda")),
        ("rocm", cfg!(feature = "rocm")),
        ("metal", cfg!(feature = "metal")),
    ] {
        if !compiled_in {
            let remedy = format!("`cargo build --release --features {name}`");
            let reasons = [format!("this hadal was built without {name}"), remedy];
            let reasons = reasons.each_ref().map(String::as_str);
            parity(&directory, &["--device", name]).refused(2, &reasons);
            run(command("generate").arg(&directory).args(["--prompt", "a", "--device", name]))
                .refused(2, &reasons);
        }
    }
}

#[test]
fn one_changed_value_of_the_trace_is_found_where_it_is() {
    for (directory, name, index, place) in [
        ("mgr-competitive", "logits", 500, [1, 0, 8].as_slice()),
        ("mgr-competitive", "grad.layers.1.mlp.up.weight", 1000, &[41, 16]),
        ("mgr-competitive", "h.3", 77, &[0, 3, 5]),
        ("mgr-competitive", "out", 575, &[1, 11, 23]),
        ("mgr-competitive", "loss", 0, &[0]),
        ("nag-mod", "skipped", 4, &[4]),
    ] {
        let copy = copy_of(&golden(directory));
        edit_tensors(&copy.path().join(TRACE), |trace| {
            let tensor = trace.get_mut(name).unwrap();
            let step = 0.05 * tensor.magnitude();
            tensor.set(index, |value| value + step);
        });
        let run = parity(copy.path(), &["--json"]);
        assert_eq!(run.code, 1, "{name}: {}", run.stderr);
        let report = run.json();
        assert_eq!(report["passed"], false);
        assert_eq!(differing(&report), [name]);
        let found = report["comparisons"].as_array().unwrap().iter().find(|c| c["name"] == name);
        assert_eq!(found.unwrap()["index"], serde_json::json!(place), "{name}");

        let text = parity(copy.path(), &[]);
        assert_eq!((text.code, text.stderr.as_str()), (1, ""));
        assert!(text.stdout.contains("DIFFERS"), "{}", text.stdout);
        assert!(text.stdout.contains(&format!("{name} {place:?}")), "{}", text.stdout);
        assert!(text.stdout.contains("1 of "), "{}", text.stdout);
    }
}

#[test]
fn one_changed_weight_shows_from_its_sub_layer_on() {
    let copy = copy_of(&golden("prenorm"));
    edit_tensors(&copy.path().join(WEIGHTS), |weights| {
        // The MLP of block 1 is sub-layer 3: the first to read its output is sub-layer 4.
        weights.get_mut("layers.1.mlp.down.weight").unwrap().set(70, |value| value + 1.0);
    });
    let run = parity(copy.path(), &["--json"]);
    assert_eq!(run.code, 1, "{}", run.stderr);
    let report = run.json();
    let differing = differing(&report);
    for name in ["h.4", "h.5", "out", "logits", "loss"] {
        assert!(differing.contains(&name), "{name} not in {differing:?}");
    }
    for name in ["h.0", "h.1", "h.2", "h.3"] {
        assert!(!differing.contains(&name), "{name} in {differing:?}");
    }
}

#[test]
fn the_tolerance_decides_and_is_reported() {
    let strict = parity(&golden("prenorm"), &["--tolerance", "0"]);
    assert_eq!(strict.code, 1);
    assert!(strict.stdout.contains("tensors differ by more than 0e0"), "{}", strict.stdout);

    let copy = copy_of(&golden("prenorm"));
    edit_tensors(&copy.path().join(TRACE), |trace| {
        let logits = trace.get_mut("logits").unwrap();
        let step = 0.01 * logits.magnitude();
        logits.set(0, |value| value + step);
    });
    assert_eq!(parity(copy.path(), &["--tolerance", "0.001"]).code, 1);
    let loose = parity(copy.path(), &["--tolerance", "0.1", "--json"]).succeeded().json();
    assert_eq!(loose["tolerance"], 0.1);
}

#[test]
fn a_tolerance_that_is_no_tolerance_is_refused() {
    for text in ["-1", "-1e-9", "NaN", "nan", "inf", "much", ""] {
        let option = format!("--tolerance={text}");
        parity(&golden("prenorm"), &[&option]).refused(2, &["--tolerance", "such as 2e-4"]);
    }
    parity(&golden("prenorm"), &["--tolerance", "-1"]).refused(2, &[]);
}

#[test]
fn a_missing_or_cut_file_is_named() {
    for name in FILES {
        let copy = copy_of(&golden("mgr-competitive"));
        let path = copy.path().join(name);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        parity(copy.path(), &[]).refused(2, &[&path.display().to_string()]);
        fs::remove_file(&path).unwrap();
        let absent = format!("cannot read {}: No such file", path.display());
        parity(copy.path(), &[]).refused(2, &[&absent]);
    }
    parity(Path::new("no/such/place"), &[]).refused(2, &["no/such/place"]);
}

#[test]
fn a_file_of_another_model_is_named() {
    for (name, reasons) in [
        (CONFIG, ["model.safetensors does not fit its config", "missing: residual.log_gain [1]"]),
        (WEIGHTS, ["model.safetensors does not fit its config", "missing: residual.1.pool"]),
        (TRACE, ["trace.safetensors", "`grad.head.weight`"]),
    ] {
        let copy = copy_of(&golden("mgr-competitive"));
        fs::copy(golden("nag").join(name), copy.path().join(name)).unwrap();
        parity(copy.path(), &[]).refused(2, &reasons);
    }
}

/// What makes a trace incomparable, and what the message must say.
type Flaw = (fn(&mut Tensors), &'static [&'static str]);

const FLAWS: &[Flaw] = &[
    (|t| drop(t.insert("surprise".into(), Tensor::floats(&[1], &[0.0]))), &["`surprise`"]),
    (|t| drop(t.insert("h.6".into(), t["h.5"].clone())), &["`h.6`"]),
    (|t| drop(t.remove("input_ids")), &["`input_ids`"]),
    (|t| ids(t, "input_ids", |ids| ids[3] = 41), &["token 41", "vocabulary of 41"]),
    (|t| ids(t, "input_ids", |ids| ids[3] = -7), &["`input_ids`", "-7"]),
    (|t| ids(t, "target_ids", |ids| ids[3] = i32::MAX), &["token 2147483647"]),
    (|t| ids(t, "target_ids", |ids| ids[3] = -100), &["`target_ids`", "-100"]),
    (|t| shape(t, "input_ids", &[24]), &["`input_ids`", "[24]", "[batch, time]"]),
    (|t| shape(t, "target_ids", &[3, 8]), &["`target_ids`", "[3, 8]", "[2, 12]"]),
    (|t| drop(t.insert("input_ids".into(), Tensor::integers(&[2, 0], &[]))), &["no tokens"]),
    (|t| t.get_mut("input_ids").unwrap().dtype = Dtype::F32, &["`input_ids`", "F32", "I32"]),
    (|t| t.get_mut("target_ids").unwrap().dtype = Dtype::F32, &["`target_ids`", "F32", "I32"]),
    (|t| t.get_mut("logits").unwrap().dtype = Dtype::I32, &["`logits`", "I32", "F32"]),
    (|t| t.get_mut("h.2").unwrap().set(9, |_| f32::NAN), &["`h.2`", "NaN", "element 9"]),
    (
        |t| drop(t.insert("out".into(), Tensor::floats(&[2], &[1.0, 2.0]))),
        &["`out`", "has shape [2]"],
    ),
    (|t| drop(t.insert("out".into(), Tensor::floats(&[0], &[]))), &["`out`", "has shape [0]"]),
];

fn ids(trace: &mut Tensors, name: &str, change: impl FnOnce(&mut [i32])) {
    let tensor = trace.get_mut(name).unwrap();
    let chunks = tensor.bytes.as_chunks::<4>().0.iter();
    let mut ids: Vec<_> = chunks.map(|bytes| i32::from_le_bytes(*bytes)).collect();
    change(&mut ids);
    *tensor = Tensor::integers(&tensor.shape, &ids);
}

fn shape(trace: &mut Tensors, name: &str, shape: &[usize]) {
    trace.get_mut(name).unwrap().shape = shape.to_vec();
}

#[test]
fn a_trace_that_does_not_fit_the_model_is_refused_with_the_reason() {
    for &(flaw, reasons) in FLAWS {
        let copy = copy_of(&golden("prenorm"));
        edit_tensors(&copy.path().join(TRACE), flaw);
        parity(copy.path(), &[]).refused(2, &[&["trace.safetensors"], reasons].concat());
    }
    let copy = copy_of(&golden("prenorm"));
    edit_json(&copy.path().join(CONFIG), |config| config["max_seq_len"] = 11.into());
    parity(copy.path(), &[]).refused(2, &["trace.safetensors", "12 tokens", "max_seq_len is 11"]);
}

#[test]
fn a_trace_with_nothing_to_compare_proves_nothing() {
    let copy = copy_of(&golden("prenorm"));
    edit_tensors(&copy.path().join(TRACE), |trace| trace.retain(|name, _| is_input(name)));
    parity(copy.path(), &[]).refused(2, &["trace.safetensors"]);
    let beside = run(command("parity").args([copy.path(), &golden("nag")]));
    assert_eq!(beside.code, 2);
}

#[test]
fn a_tensor_of_another_shape_is_another_tensor() {
    let copy = copy_of(&golden("prenorm"));
    edit_tensors(&copy.path().join(TRACE), |trace| shape(trace, "logits", &[12, 2, 41]));
    parity(copy.path(), &[]).refused(2, &["`logits`", "[12, 2, 41]", "[2, 12, 41]"]);
}

#[test]
fn gradients_without_targets_are_explained() {
    let copy = copy_of(&golden("prenorm"));
    edit_tensors(&copy.path().join(TRACE), |trace| drop(trace.remove("target_ids")));
    parity(copy.path(), &[]).refused(2, &["trace.safetensors", "target_ids"]);
}
