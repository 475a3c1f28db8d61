//! `hadal inspect`.

use crate::support::{
    CONFIG, Run, WEIGHTS, command, command_of_little_memory, copy_of, count_parameters, edit_json,
    golden, goldens, read_json, run, stories,
};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn inspect(path: &Path, options: &[&str]) -> Run {
    run(command("inspect").arg(path).args(options))
}

fn report(path: &Path, options: &[&str]) -> Value {
    inspect(path, &[&["--json"], options].concat()).succeeded().json()
}

/// A config file of its own: a changed copy of the prenorm golden's.
fn config_with(changes: Value) -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("changed.json");
    fs::copy(golden("prenorm").join(CONFIG), &path).unwrap();
    edit_json(&path, |config| {
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
    });
    (directory, path)
}

#[test]
fn parameters_are_those_of_the_weights() {
    for directory in goldens().into_iter().chain([stories()]) {
        let name = directory.display();
        let count = count_parameters(&directory.join(WEIGHTS));
        let report = report(&directory, &[]);
        assert_eq!(report["total_parameters"], count, "{name}");
        let groups = report["cost"]["parameters"].as_object().unwrap();
        assert_eq!(groups.values().map(|n| n.as_u64().unwrap()).sum::<u64>(), count, "{name}");
    }
}

#[test]
fn the_text_shows_groups_costs_the_policy_and_its_gates() {
    let text = inspect(&golden("mgr-competitive"), &[]).succeeded().stdout;
    for part in [
        "mgr:streams=4,gate=competitive",
        "arXiv 2605.23259",
        "softmax",
        "embedding",
        "residual policy",
        "17,511",
        "forward FLOPs",
        "activations kept",
        "keys and values",
        "over prenorm",
        "initial gate",
        "beta",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

/// Our JSON configs are flat except for the policy, and JSON's scalars are TOML's.
fn as_toml(config: &Value) -> String {
    let lines = |value: &Value| {
        let fields = value.as_object().unwrap().iter().filter(|(_, value)| !value.is_object());
        fields.map(|(key, value)| format!("{key} = {value}\n")).collect::<String>()
    };
    format!("{}[residual]\n{}", lines(config), lines(&config["residual"]))
}

#[test]
fn a_directory_its_json_and_the_same_in_toml_are_one_model() {
    for name in ["prenorm", "mgr-independent", "nag-mod", "moda-attention-mlp"] {
        let directory = golden(name);
        let json = directory.join(CONFIG);
        let folder = TempDir::new().unwrap();
        let toml = folder.path().join("model.toml");
        fs::write(&toml, as_toml(&read_json(&json))).unwrap();
        let mut expected = report(&directory, &[]);
        assert!(expected["stored"]["bytes"].as_u64().unwrap() > 0);
        // Settings alone store nothing and have no tokenizer.
        for absent in ["stored", "tokenizer_kind", "tokenizer_tokens"] {
            expected[absent] = Value::Null;
        }
        assert_eq!(report(&json, &[]), expected, "{name}");
        assert_eq!(report(&toml, &[]), expected, "{name}");
    }
}

#[test]
fn another_policy_is_put_in_its_place() {
    let shape = |directory: &Path| {
        let mut config = read_json(&directory.join(CONFIG));
        config.as_object_mut().unwrap().remove("residual");
        config
    };
    let base = golden("prenorm");
    let alike: Vec<_> =
        goldens().into_iter().filter(|other| shape(other) == shape(&base)).collect();
    assert!(alike.len() > 10, "{alike:?}");
    for directory in alike {
        let theirs = report(&directory, &[]);
        let policy = theirs["residual"].as_str().unwrap();
        let ours = report(&base.join(CONFIG), &["--residual", policy]);
        assert_eq!(ours["residual"], theirs["residual"]);
        let parameters = count_parameters(&directory.join(WEIGHTS));
        assert_eq!(ours["total_parameters"], parameters, "{policy}");
    }
    let short = report(&golden("prenorm").join(CONFIG), &["--residual", "mgr"]);
    assert_eq!(short["residual"], "mgr:streams=4,gate=competitive");
    assert_eq!(short["config"]["residual"]["streams"], 4);
}

#[test]
fn what_a_policy_adds_is_the_difference_to_prenorm() {
    let report = report(&golden("mhc"), &[]);
    for key in [
        "forward_flops_per_token",
        "activation_bytes_per_token",
        "state_bytes_per_token",
        "kv_bytes_per_token",
    ] {
        let number = |whose: &str| report[whose][key].as_i64().unwrap();
        assert_eq!(number("over_prenorm"), number("cost") - number("prenorm"), "{key}");
    }
    let added = report["over_prenorm"]["parameters"].as_i64().unwrap();
    let prenorm = count_parameters(&golden("prenorm").join(WEIGHTS)) as i64;
    assert_eq!(added, report["total_parameters"].as_i64().unwrap() - prenorm);
    assert!(added > 0);
}

#[test]
fn a_petabyte_is_counted_without_memory() {
    let (_folder, path) =
        config_with(json!({"d_model": 1 << 20, "d_ff": 1 << 24, "n_layers": 4096}));
    let run = run(command_of_little_memory("inspect").arg(&path).arg("--json")).succeeded();
    assert!(run.json()["total_parameters"].as_u64().unwrap() > 1 << 50);
}

#[test]
fn the_largest_config_is_counted_without_wrapping() {
    let flops = |max_seq_len: u64| {
        let size = 1 << 14;
        let (_folder, path) = config_with(json!({
            "n_heads": size, "n_kv_heads": size, "head_dim": size, "n_layers": 4096,
            "max_seq_len": max_seq_len
        }));
        let run = inspect(&path, &["--json"]);
        // Refusing it would be as good.
        (run.code == 0).then(|| run.json()["cost"]["forward_flops_per_token"].as_f64().unwrap())
    };
    let (short, long) = (flops(1), flops(1 << 30));
    assert!(long.is_none_or(|long| long > short.unwrap()), "{short:?} {long:?}");
}

#[test]
fn impossible_models_are_refused_with_the_reason() {
    for (changes, reason) in [
        (json!({"n_heads": 3, "n_kv_heads": 2}), "n_heads 3 is not divisible"),
        (json!({"head_dim": 7}), "must be even"),
        (json!({"d_model": 0}), "d_model is 0"),
        (json!({"d_model": 1u64 << 50}), "d_model is 1125899906842624"),
        (json!({"n_layers": 1e9}), "invalid type"),
        (json!({"n_layers": -1}), "invalid value"),
        (json!({"norm_eps": 0.0}), "norm_eps is 0"),
        (json!({"rope_theta": -5.0}), "rope_theta is -5"),
        (json!({"mlp": "gelu"}), "unknown variant `gelu`"),
        (json!({"n_layer": 3}), "unknown field `n_layer`"),
        (json!({"model_type": "gpt"}), "gpt"),
        (json!({"residual": {"kind": "prenrom"}}), "did you mean prenorm?"),
        (json!({"residual": {"kind": "mgr", "steams": 4}}), "unknown field `steams`"),
        (json!({"residual": {"streams": 4}}), "missing field `kind`"),
        (json!({"residual": {"kind": "mgr", "streams": 6}}), "Eq. 14 has no initial gate"),
        (json!({"residual": {"kind": "mhc_lite", "streams": 8}}), "40,320 permutations"),
    ] {
        let (_folder, path) = config_with(changes);
        inspect(&path, &[]).refused(2, &[&path.display().to_string(), reason]);
    }
}

#[test]
fn impossible_policies_are_refused_with_the_reason() {
    let config = golden("prenorm").join(CONFIG);
    for (policy, reason) in [
        ("mgr:streams=6", "Eq. 14 has no initial gate"),
        ("mhc_lite:streams=8", "40,320 permutations"),
        ("mgr:streams=0", "at least one stream"),
        ("hc:streams=1000000000000", "1000000000000"),
        ("mhc:sinkhorn_iters=0", "sinkhorn_iters is 0"),
        ("mixln:post_fraction=1.5", "between 0 and 1"),
        ("nag:directions=18446744073709551615", "directions"),
        ("nag:skip_threshold=-1", "skip_threshold is -1"),
        ("prenrom", "known are prenorm, postnorm"),
        ("mgr:steams=4", "unknown field `steams`"),
    ] {
        inspect(&config, &["--residual", policy]).refused(2, &[reason]);
    }
}

#[test]
fn a_policy_put_in_the_place_of_a_trained_one_starts_fresh() {
    inspect(&golden("prenorm"), &["--residual", "mgr:streams=6"])
        .refused(2, &["Eq. 14 has no initial gate"]);
}

#[test]
fn a_trained_model_needs_no_initial_gate() {
    let copy = copy_of(&golden("mgr-competitive"));
    edit_json(&copy.path().join(CONFIG), |config| config["residual"]["streams"] = 6.into());
    let report = report(copy.path(), &[]);
    assert_eq!(report["residual"], "mgr:streams=6,gate=competitive");
    assert_eq!(report["initial_gates"], json!([]));
}

#[test]
fn what_is_no_config_is_named() {
    let weights = golden("prenorm").join(WEIGHTS);
    inspect(&weights, &[]).refused(2, &[&weights.display().to_string(), "weights alone"]);
    inspect(Path::new("nowhere"), &[]).refused(2, &["cannot read nowhere: No such file"]);
    inspect(Path::new("nowhere.toml"), &[]).refused(2, &["nowhere.toml", "No such file"]);
    let empty = TempDir::new().unwrap();
    inspect(empty.path(), &[]).refused(2, &["config.json: No such file"]);
}

#[test]
fn the_sheet_shows_shape_types_bytes_tokenizer_and_template() {
    let text = inspect(&stories(), &[]).succeeded().stdout;
    for part in [
        "blocks           5",
        "width            64, MLP 172",
        "heads            8 of 8",
        "key heads        4",
        "vocabulary       512",
        "context          512",
        "on disk          1.04 MB, f32",
        "in memory        1.04 MB, f32",
        "keys and values  1.28 kB per token, 655.36 kB at full context",
        "tokenizer        SentencePiece's BPE, 512 tokens",
        "chat template    none",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    let json = report(&stories(), &[]);
    assert_eq!(json["stored"]["types"], json!([["f32", 260_032]]));
    assert_eq!(json["memory_bytes"], 4 * 260_032);
    assert_eq!(
        json["kv_bytes_at_full_context"],
        512 * json["kv_bytes_per_token"].as_u64().unwrap()
    );
    assert_eq!(json["tokenizer_tokens"], 512);
    let copy = copy_of(&stories());
    fs::write(copy.path().join("chat_template.jinja"), "{{ messages }}").unwrap();
    assert_eq!(report(copy.path(), &[])["chat_template"], true);
}

#[test]
fn import_prints_the_same_sheet() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("stories");
    let said = run(command("import").arg(stories()).arg("--out").arg(&out)).succeeded().stdout;
    let inspected = inspect(&out, &[]).succeeded().stdout;
    assert!(said.contains("chat template") && inspected.starts_with(&said), "{said}\n{inspected}");
}

#[test]
fn settings_of_runs_and_suites_are_read() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let micro = root.join("configs/micro.toml");
    let said = inspect(&micro, &[]).succeeded();
    for part in ["blocks           6", "width            128, MLP 512", "settings alone", "mgr"] {
        assert!(said.stdout.contains(part), "no {part:?} in\n{}", said.stdout);
    }
    assert!(said.stderr.contains("the data decides the vocabulary"), "{}", said.stderr);
    let json = report(&micro, &[]);
    assert_eq!(json["config"]["max_seq_len"], 128);
    assert_eq!(json["notes"].as_array().unwrap().len(), 1);
    // A task knows its vocabulary and its length.
    let nano = report(&root.join("configs/nano.toml"), &[]);
    assert_eq!(nano["notes"], json!([]));
    assert_eq!(nano["config"]["n_layers"], 4);
    let suite = report(&root.join("configs/suites/depth-sweep.toml"), &["--residual", "mgr"]);
    assert_eq!(suite["residual"], "mgr:streams=4,gate=competitive");
    assert!(suite["notes"][0].as_str().unwrap().contains("a suite"), "{}", suite["notes"]);
    // A run that has not finished.
    let folder = TempDir::new().unwrap();
    fs::copy(&micro, folder.path().join("config.toml")).unwrap();
    let notes = report(folder.path(), &[])["notes"].to_string();
    assert!(notes.contains("no finished model"), "{notes}");
    let wrong = folder.path().join("wrong.toml");
    fs::write(&wrong, "[model]\nd_model = 8\nwidth = 1\n").unwrap();
    inspect(&wrong, &[]).refused(2, &["wrong.toml", "width"]);
}
