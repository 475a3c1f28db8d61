//! `hadal policies`.

use crate::support::{Run, command, run};
use hadal_residual::ResidualConfig;
use serde_json::Value;

/// What the library has, in its order.
fn kinds() -> Vec<&'static str> {
    let kinds: Vec<_> = ResidualConfig::all().iter().map(|policy| policy.about().kind).collect();
    assert_eq!(kinds.first(), Some(&"prenorm"), "the baseline comes first");
    kinds
}

fn policies(arguments: &[&str]) -> Run {
    run(command("policies").args(arguments))
}

fn first_word(line: &str) -> &str {
    line.split([' ', ':']).next().unwrap_or_default()
}

#[test]
fn every_kind_is_listed_with_a_line_and_a_table_row() {
    let text = policies(&[]).succeeded().stdout;
    for kind in kinds() {
        let lines: Vec<_> = text.lines().filter(|line| first_word(line) == kind).collect();
        assert_eq!(lines.len(), 2, "{kind} in {text}");
        let named = lines[1].contains("arXiv") || lines[1].contains("no paper");
        assert!(named, "{kind} names no paper: {}", lines[1]);
    }
}

#[test]
fn the_json_list_tells_everything_about_each_kind() {
    let rows = policies(&["--json"]).succeeded().json();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.iter().map(|row| &row["config"]["kind"]).collect::<Vec<_>>(), kinds());
    for row in rows {
        for key in ["kind", "summary", "equation", "state", "parameters", "paper"] {
            let text = row["about"][key].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{key} is missing in {row}");
        }
    }
}

#[test]
fn one_policy_is_shown_in_full() {
    let about = policies(&["mgr", "--json"]).succeeded().json()[0]["about"].clone();
    let text = policies(&["mgr"]).succeeded().stdout;
    for key in ["summary", "equation", "state", "parameters", "paper"] {
        assert!(text.contains(about[key].as_str().unwrap()), "{key}: {text}");
    }
    assert_eq!(text.lines().next(), Some("mgr:streams=4,gate=competitive"));
}

#[test]
fn every_policy_names_its_parameters_and_their_shapes() {
    for kind in kinds() {
        let checkpoint = policies(&[kind, "--json"]).succeeded().json()[0]["checkpoint"].clone();
        let text = policies(&[kind]).succeeded().stdout;
        let parameters = checkpoint["parameters"].as_array().unwrap();
        assert!(!parameters.is_empty(), "{kind} has not even norms");
        for parameter in parameters {
            // Sites are listed together, so the line is found by the word after them.
            let name = parameter["name"].as_str().unwrap();
            let last = name.rsplit('.').find(|word| *word != "weight").unwrap();
            let told = text.lines().any(|line| line.starts_with("  ") && line.contains(last));
            assert!(told, "{kind} does not tell {name}: {text}");
            assert!(!parameter["shape"].as_array().unwrap().is_empty(), "{kind}: {name}");
        }
    }
}

#[test]
fn short_forms_are_echoed_in_full() {
    for (short, full) in [
        ("prenorm", "prenorm"),
        ("mgr", "mgr:streams=4,gate=competitive"),
        ("mgr:streams=8,gate=independent", "mgr:streams=8,gate=independent"),
        ("mgr:gate=independent", "mgr:streams=4,gate=independent"),
        ("hc:streams=2", "hc:streams=2,dynamic=true"),
        ("hc:dynamic=false", "hc:streams=4,dynamic=false"),
        ("mhc:sinkhorn_iters=5", "mhc:streams=4,sinkhorn_iters=5"),
        ("attnres:blocks=3", "attnres:blocks=3"),
        ("highway:gate=scalar", "highway:gate=scalar"),
        ("nag:skip_threshold=0.25", "nag:directions=32,skip_threshold=0.25"),
    ] {
        let text = policies(&[short]).succeeded().stdout;
        assert_eq!(text.lines().next(), Some(full), "{short}");
        let json = policies(&[short, "--json"]).succeeded().json();
        assert_eq!(json[0]["policy"], full, "{short}");
    }
}

#[test]
fn mixture_of_depths_is_read_as_older_commands_spell_it() {
    let full = |text: &str| policies(&[text, "--json"]).succeeded().json()[0]["policy"].clone();
    let usual = full("prenorm:capacity=0.125,every=2");
    assert_eq!(full("prenorm:capacity=0.125"), usual, "every other block is usual");
    assert!(usual.as_str().unwrap().contains("capacity=0.125"), "{usual}");
    let other = full("prenorm:every=3,capacity=0.5");
    assert_eq!(full("prenorm:capacity=0.5,every=3"), other);
    assert!(other.as_str().unwrap().ends_with("capacity=0.5,every=3"), "{other}");
}

#[test]
fn every_full_form_reads_back_as_itself() {
    let rows = policies(&["--json"]).succeeded().json();
    for full in rows.as_array().unwrap().iter().map(|row| row["policy"].as_str().unwrap()) {
        let again = policies(&[full, "--json"]).succeeded().json();
        assert_eq!(again[0]["policy"], Value::from(full));
    }
}

#[test]
fn what_is_no_policy_is_refused_with_the_reason() {
    let known = kinds().join(", ");
    for (text, reason) in [
        ("prenrom", known.as_str()),
        ("mrg", "did you mean mgr?"),
        ("", known.as_str()),
        ("MGR", "unknown residual policy `MGR`; did you mean mgr?"),
        ("mgr:steams=4", "unknown field `steams`; did you mean streams?"),
        ("mgr:streams", "`streams` is not a setting"),
        ("mgr:streams=-1", "-1"),
        ("mgr:streams=99999999999999999999999", "write a whole number"),
        ("mgr:streams=4,streams=4", "`streams` is set twice"),
        ("mgr:gate=open", "known are independent, competitive"),
        ("nag:skip_threshold=nan", "nan"),
        ("prenorm:streams=2", "unknown field `streams`"),
    ] {
        policies(&[text]).refused(2, &[reason]);
    }
}

#[test]
fn settings_that_make_no_model_are_refused() {
    policies(&["mhc_lite:streams=8"]).refused(2, &["40,320"]);
    policies(&["mgr:streams=0"]).refused(2, &["at least one stream"]);
    policies(&["prenorm:capacity=1.5"]).refused(2, &["capacity is 1.5", "at most 1"]);
    policies(&["prenorm:every=3"]).refused(2, &["every"]);
}
