//! `hadal plan`.

use crate::support::{Run, command, golden, read_json, run, stories};
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

fn plan(options: &[&str]) -> Run {
    run(command("plan").args(options))
}

/// With a rate that is given, since measuring one takes time.
fn planned(options: &[&str]) -> Value {
    plan(&[&["--flops", "1T", "--json"], options].concat()).succeeded().json()
}

/// Mostly activations, and as many parameters.
const SIZES: [&str; 2] = [
    "[train]\nsteps = 2\nbatch = 16\nseq_len = 256\n\
     [model]\nvocab_size = 512\nd_model = 256\nn_layers = 8\nn_heads = 4\n\
     [data]\ntext = \"yankee\"\n[eval]\nbatches = 1\n",
    "[train]\nsteps = 2\nbatch = 4\nseq_len = 256\n\
     [model]\nvocab_size = 4096\nd_model = 512\nn_layers = 12\nn_heads = 8\n\
     [data]\ntext = \"yankee\"\n[eval]\nbatches = 1\n",
];

/// The most memory of a training process by what was planned. Larger models with the record in records/plan.
fn measured(size: &str) {
    if !cfg!(target_os = "linux") {
        return hadal_files::testing::skip(
            "/proc",
            "only Linux says how much memory a process took",
        );
    }
    let place = TempDir::new().unwrap();
    let config = place.path().join("size.toml");
    fs::write(&config, size).unwrap();
    let config = config.to_str().unwrap();
    for policy in ["prenorm", "mgr", "attnres", "hc", "nag", "siamese"] {
        let out = place.path().join(policy);
        let train = ["--residual", policy, "--out", out.to_str().unwrap()];
        run(command("train").arg(config).args(train)).succeeded();
        let peak = read_json(&out.join("outcome.json"))["peak_rss_mb"].as_f64().unwrap() * 1e6;
        let plan = planned(&[config, "--residual", policy]);
        let total = plan["policies"][0]["total_memory"].as_f64().unwrap();
        let ratio = peak / total;
        assert!((0.9..=1.1).contains(&ratio), "{policy}: {ratio:.3} of {total}");
        fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn a_process_takes_what_was_planned_within_a_tenth() {
    measured(SIZES[0]);
}

#[test]
fn so_does_one_with_more_parameters() {
    measured(SIZES[1]);
}

#[test]
fn every_policy_is_planned_for_every_body() {
    let kinds = run(command("policies").arg("--json")).succeeded().json();
    let kinds = kinds.as_array().map_or(22, Vec::len);
    for preset in ["s", "m", "l", "7b", "70b"] {
        let plan = planned(&["--preset", preset, "--all", "--devices", "64", "--memory", "80GB"]);
        let policies = plan["policies"].as_array().unwrap();
        assert!(policies.len() >= kinds.min(20), "{preset}: {}", plan["notes"]);
        for policy in policies {
            assert!(policy["total_memory"].as_f64().unwrap() > 1e8, "{preset}: {policy}");
            assert!(policy["step_seconds_overlapped"].as_f64() <= policy["step_seconds"].as_f64());
        }
    }
}

#[test]
fn models_runs_and_suites_are_planned_too() {
    let golden = golden("mgr-competitive");
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/nano.toml");
    for path in [golden.as_path(), &stories(), &configs] {
        let plan = planned(&[path.to_str().unwrap(), "--batch", "3"]);
        assert_eq!(plan["policies"][0]["plan"]["passes"]["batch"], 3, "{}", path.display());
        assert!(plan["policies"][0]["plan"]["largest_batch"].is_null());
    }
}

#[test]
fn settings_change_what_is_planned() {
    let kept = |options: &[&str]| {
        let options = [&["--preset", "s", "--residual", "mgr:streams=8"], options].concat();
        planned(&options)["policies"][0]["kept_bytes_per_token"].as_f64().unwrap()
    };
    let usual = kept(&[]);
    assert!(kept(&["--exact"]) > 1.5 * usual && kept(&["--recompute"]) < 0.6 * usual);
    assert_eq!(kept(&["--set", "memory.recompute=true"]), kept(&["--recompute"]));
    assert_eq!(kept(&["--set", "memory.inversion=false"]), kept(&["--exact"]));
    // One policy alone is shown in all its forms.
    let forms = planned(&["--preset", "s"])["forms"].as_array().unwrap().len();
    assert_eq!(
        (forms, planned(&["--preset", "s", "--residual", "hc"])["forms"].as_array().unwrap().len()),
        (4, 2)
    );
    let of_step = |devices: &str| {
        planned(&["--preset", "s", "--devices", devices])["policies"][0]["plan"]["passes"]["count"]
            .clone()
    };
    assert_eq!((of_step("1"), of_step("8"), of_step("512")), (32.into(), 4.into(), 1.into()));
}

#[test]
fn what_does_not_fit_is_said_with_what_would() {
    let said = |options: &[&str]| plan(&[&["--flops", "1T"], options].concat()).succeeded().stdout;
    let some = said(&["--preset", "l", "--memory", "48GB"]);
    assert!(some.contains("do not fit into 48.00 GB; passes of at most"), "{some}");
    let none = said(&["--preset", "70b", "--devices", "512", "--memory", "80GB"]);
    assert!(none.contains("nothing fits into 80.00 GB: one sequence takes"), "{none}");
    assert!(none.contains("weights and gradients alone are"), "{none}");
    let shorter = said(&["--preset", "7b", "--devices", "64", "--memory", "60GB"]);
    assert!(shorter.contains("less is kept with --recompute"), "{shorter}");
}

#[test]
fn nonsense_is_refused_by_its_name() {
    for (options, parts) in [
        (&["--preset", "s", "--devices", "0"][..], &["--devices"][..]),
        (&["--preset", "s", "--memory", "0"], &["--memory", "80GB"]),
        (&["--preset", "s", "--memory", "0GB"], &["--memory"]),
        (&["--preset", "s", "--memory", "much"], &["--memory", "80GB"]),
        (&["--preset", "s", "--bandwidth=-1"], &["--bandwidth", "12.5GB"]),
        (&["--preset", "s", "--flops", "NaN"], &["--flops", "100T"]),
        (&["--preset", "s", "--batch", "0"], &["--batch"]),
        (&["--preset", "s", "--wire", "int8"], &["--wire", "bf16"]),
        (&["--preset", "xl"], &["xl", "70b"]),
        (&["s"], &["--preset s"]),
        (&["nowhere.toml"], &["nowhere.toml"]),
        (&[], &["--preset"]),
        (&["--preset", "s", "--residual", "mgr:streams=0"], &["streams is 0"]),
        (&["--preset", "s", "--set", "train.batch=0"], &["at least 1"]),
        (&["--preset", "s", "--set", "train.batch=x"], &["preset s"]),
        (&["--preset", "s", "--figures", "/dev/null/figures"], &["--figures"]),
    ] {
        plan(options).refused(2, parts);
    }
    let model = golden("prenorm");
    plan(&[model.to_str().unwrap(), "--set", "train.batch=3"]).refused(2, &["--batch"]);
}

#[test]
fn figures_of_pipelines_are_drawn() {
    let place = TempDir::new().unwrap();
    let folder = place.path().join("figures");
    let policies = ["prenorm", "mgr:streams=4", "attnres", "attnres:blocks=8"];
    let policies = policies.iter().flat_map(|policy| ["--residual", policy]);
    let mut options =
        vec!["--preset", "70b", "--flops", "1T", "--figures", folder.to_str().unwrap()];
    options.extend(policies);
    plan(&options).succeeded();
    for name in ["pipeline-border", "pipeline-stages", "kept"] {
        let svg = fs::read_to_string(folder.join(format!("{name}.svg"))).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("mgr:streams=4"), "{name}");
        assert!(fs::read(folder.join(format!("{name}.png"))).unwrap().starts_with(b"\x89PNG"));
    }
}
