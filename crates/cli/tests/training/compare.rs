//! `hadal compare`: suites of models so small that a run takes a second.

mod earlier;
#[cfg(unix)]
mod scripts;
mod shapes;
#[cfg(unix)]
mod shared;
mod tune;
mod until;

use crate::support::*;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

const BODY: &str = "
[train]
steps = 30
batch = 2
[model]
d_model = 16
n_layers = 2
n_heads = 2
[data.generated]
task = \"khop\"
length = 24
[eval]
every_steps = 10
batches = 1
[checkpoint]
every_steps = 5
";

pub(crate) const THREE: &str = "
[[variant]]
residual = \"prenorm\"
[[variant]]
name = \"again\"
residual = \"prenorm\"
[[variant]]
residual = \"mgr:streams=2\"
";

pub(crate) fn written(directory: &Path, head: &str, variants: &str) -> PathBuf {
    let path = directory.join("suite.toml");
    fs::write(&path, format!("{head}\n{BODY}\n{variants}")).unwrap();
    path
}

pub(crate) fn compare(suite: &Path, out: &Path) -> Command {
    let mut command = hadal(&["compare"]);
    command.arg(suite).arg("--out").arg(out);
    command
}

pub(crate) fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// All findings except times and memory, and what was done before.
pub(crate) fn findings(out: &Path) -> Value {
    let mut results = timeless(json(&out.join("results.json")));
    for run in results["runs"].as_array_mut().unwrap() {
        for key in ["tokens_per_second", "seconds", "peak_rss_mb"] {
            run.as_object_mut().unwrap().remove(key).unwrap();
        }
    }
    for cell in results["cells"].as_array_mut().unwrap() {
        for key in ["tokens_per_second", "peak_rss_mb"] {
            cell.as_object_mut().unwrap().remove(key).unwrap();
        }
        if let Some(against) = cell["against"].as_object_mut() {
            against.remove("speed_up_seconds").unwrap();
        }
    }
    results
}

/// Results without what was there before: that is another call's.
fn timeless(mut results: Value) -> Value {
    assert!(results.as_object_mut().unwrap().remove("earlier").is_some());
    results
}

/// The table as people read it, likewise, with its figures.
pub(crate) fn table(out: &Path) -> Value {
    let mut table = json(&out.join("table.json"));
    let columns = table["columns"].as_array().unwrap().clone();
    for row in table["rows"].as_array_mut().unwrap() {
        for (column, cell) in columns.iter().zip(row.as_array_mut().unwrap()) {
            if ["tokens/s", "peak memory, MB", "speed-up, time"].contains(&column.as_str().unwrap())
            {
                *cell = Value::Null;
            }
        }
    }
    let verdict = table["verdict"].as_array_mut().unwrap();
    verdict.retain(|sentence| !sentence.as_str().unwrap().contains("done before"));
    for sentence in verdict {
        let text = sentence.as_str().unwrap();
        let text = text.split(" and in ").next().unwrap();
        *sentence = text.split(", but takes").next().unwrap().into();
    }
    table
}

#[test]
fn a_suite_comes_to_a_table_and_what_is_done_is_not_done_again() {
    let directory = temporary();
    let suite = written(directory.path(), "seeds = [0, 1]", THREE);
    let out = directory.path().join("out");
    let first = finish(&mut compare(&suite, &out)).succeeded();
    for words in ["held-out loss", "tokens/s", "no difference seen", "again", "mgr"] {
        assert!(first.stdout.contains(words), "no {words:?} in {}", first.stdout);
    }
    let report = out.join("report.html");
    assert!(first.stderr.contains(&report.display().to_string()), "{}", first.stderr);
    assert!(fs::read_to_string(&report).unwrap().contains("no difference seen"));
    let results = json(&out.join("results.json"));
    assert_eq!(results["runs"].as_array().unwrap().len(), 6);
    for run in results["runs"].as_array().unwrap() {
        for key in ["train_loss", "validation_loss", "accuracy", "tokens_per_second", "seconds"] {
            assert!(run[key].as_f64().is_some_and(f64::is_finite), "{key} of {run}");
        }
    }
    let again = &results["cells"][1]["against"];
    assert_eq!(again["verdict"], "not_distinguishable");
    assert_eq!(again["paired"]["mean_difference"], 0.0);
    for text in [&first.stdout, &first.stderr] {
        assert!(text.contains("0 of 6 runs were done before."), "{text}");
    }
    let before = fs::read(out.join("table.csv")).unwrap();
    // Nothing is trained again, so not even times differ.
    let second = finish(compare(&suite, &out).arg("--json")).succeeded();
    assert_eq!(second.stderr.matches("was done before").count(), 6, "{}", second.stderr);
    assert!(before == fs::read(out.join("table.csv")).unwrap());
    let again = serde_json::from_str::<Value>(&second.stdout).unwrap();
    let told = "6 of 6 runs were done before (by hadal ";
    assert!(second.stderr.contains(told), "{}", second.stderr);
    assert!(fs::read_to_string(&report).unwrap().contains(told));
    assert_eq!(
        (&again["earlier"]["done"], &again["earlier"]["warnings"]),
        (&6.into(), &Value::Array(vec![]))
    );
    assert_eq!(timeless(again), timeless(results));
    // More seeds and variants reuse the existing runs.
    let suite = written(directory.path(), "seeds = [0, 1, 2]", THREE);
    let third = finish(&mut compare(&suite, &out)).succeeded();
    assert_eq!(third.stderr.matches("was done before").count(), 6, "{}", third.stderr);
}

#[test]
fn a_suite_that_was_killed_anywhere_comes_to_the_same_table() {
    let directory = temporary();
    let suite = written(directory.path(), "seeds = [0, 1]", THREE);
    let (whole, parts) = (directory.path().join("whole"), directory.path().join("parts"));
    let began = Instant::now();
    finish(&mut compare(&suite, &whole)).succeeded();
    // What was done before a kill stays done, so eight kills must come early to come in time on any machine.
    let latest = (began.elapsed().as_millis() as u64 / 5).max(1);
    let mut dice = Dice(5);
    let mut kills = 0;
    for _ in 0..8 {
        let mut child = started(&mut compare(&suite, &parts));
        sleep(Duration::from_millis(10 + dice.below(latest)));
        child.kill().unwrap();
        kills += usize::from(child.wait_with_output().unwrap().status.code().is_none());
    }
    println!("{kills} kills");
    assert!(kills >= 2, "only {kills} of 8 kills came in time");
    finish(&mut compare(&suite, &parts)).succeeded();
    assert_eq!(findings(&parts), findings(&whole));
    assert_eq!(table(&parts), table(&whole));
}

#[test]
fn a_suite_that_is_asked_to_stop_says_how_to_go_on() {
    let directory = temporary();
    let suite = written(directory.path(), "seeds = [0]", THREE);
    let (whole, parts) = (directory.path().join("whole"), directory.path().join("parts"));
    let more = |command: &mut Command| set(command, &["train.steps=120"]);
    let mut command = compare(&suite, &whole);
    more(&mut command);
    finish(&mut command).succeeded();
    let mut command = compare(&suite, &parts);
    more(&mut command);
    let metrics = parts.join("runs/prenorm-s0/metrics.jsonl");
    let stopped = signalled(&mut command, "-TERM", || lines(&metrics) > 5);
    assert_eq!(stopped.code, Some(143), "{}", stopped.stderr);
    let next = format!("go on with: hadal compare {}", suite.display());
    assert!(stopped.stderr.contains(&next), "{}", stopped.stderr);
    assert!(!parts.join("runs/prenorm-s0/model").exists());
    let mut command = compare(&suite, &parts);
    more(&mut command);
    finish(&mut command).succeeded();
    assert_eq!(findings(&parts), findings(&whole));
}

#[test]
fn several_at_a_time_find_the_same_as_one_after_another() {
    let directory = temporary();
    let suite = written(directory.path(), "seeds = [0, 1]", THREE);
    let outs = ["1", "3"].map(|jobs| {
        let out = directory.path().join(jobs);
        finish(compare(&suite, &out).args(["--jobs", jobs])).succeeded();
        out
    });
    assert_eq!(findings(&outs[0]), findings(&outs[1]));
    assert_eq!(table(&outs[0]), table(&outs[1]));
}

/// A gate's rate is divided by its slowdown.
#[test]
fn a_run_that_diverges_is_shown_as_such_and_stops_nobody() {
    let directory = temporary();
    let wild = "[[variant]]\nname = \"wild\"\nresidual = \"nag\"\nnag_gate_slowdown = 1e-36\n";
    let suite = written(directory.path(), "seeds = [0, 1]", &format!("{wild}{THREE}"));
    let text = fs::read_to_string(&suite).unwrap();
    fs::write(&suite, format!("baseline = \"prenorm\"\n{text}")).unwrap();
    let out = directory.path().join("out");
    let ended = finish(&mut compare(&suite, &out)).succeeded();
    for words in ["wild-s0 diverged: step", "wild-s1 diverged", "0/2", "is not compared"] {
        assert!(ended.stdout.contains(words), "no {words:?} in {}", ended.stdout);
    }
    assert!(ended.stderr.contains("warning: wild-s0 diverged"), "{}", ended.stderr);
    let results = json(&out.join("results.json"));
    let states: Vec<_> = results["runs"].as_array().unwrap().iter().map(|r| &r["state"]).collect();
    // The baseline is run first.
    let one = ["done", "diverged", "done", "done"];
    assert_eq!(states, [one, one].concat());
    // It diverges in the same way when it is tried again.
    finish(&mut compare(&suite, &out)).succeeded();
    assert_eq!(timeless(json(&out.join("results.json"))), timeless(results));
}

/// A file is in the way of a folder.
#[test]
fn a_process_that_fails_is_one_failure_behind_the_table() {
    let directory = temporary();
    let suite = written(directory.path(), "seeds = [0, 1]", THREE);
    let out = directory.path().join("out");
    fs::create_dir_all(out.join("runs")).unwrap();
    fs::write(out.join("runs/again-s1"), "in the way").unwrap();
    let ended = finish(&mut compare(&suite, &out));
    assert!(ended.stdout.contains("again-s1 failed: cannot create"), "{}", ended.stdout);
    ended.refused(1, &["1 of 6 runs failed", "logs"]);
    fs::remove_file(out.join("runs/again-s1")).unwrap();
    finish(&mut compare(&suite, &out)).succeeded();
}

#[test]
fn what_is_no_fair_comparison_is_refused_before_there_is_a_folder() {
    let directory = temporary();
    let unfair = format!("{THREE}\n[variant.train]\nsteps = 99\n");
    let suite = written(directory.path(), "", &unfair);
    let out = directory.path().join("out");
    finish(&mut compare(&suite, &out)).refused(2, &["suite.toml", "train of variant `mgr`"]);
    finish(&mut compare(Path::new("nowhere.toml"), &out)).refused(2, &["cannot read nowhere.toml"]);
    finish(compare(&suite, &out).args(["--jobs", "0"])).refused(2, &["--jobs"]);
    assert!(!out.exists());
}

#[test]
fn minutes_are_turned_into_steps_once() {
    let directory = temporary();
    let body = BODY.replace("steps = 30", "");
    let suite = directory.path().join("suite.toml");
    let head = "seeds = [0, 1]\nbudget.minutes = 0.002";
    fs::write(&suite, format!("{head}\n{body}\n{THREE}")).unwrap();
    let out = directory.path().join("out");
    finish(&mut compare(&suite, &out)).succeeded();
    let pace = fs::read(out.join("pace.json")).unwrap();
    let steps = |results: &Value| results["cells"][2]["steps"].as_u64().unwrap();
    let first = json(&out.join("results.json"));
    assert!(steps(&first) > 1, "{first}");
    fs::remove_dir_all(out.join("runs/mgr-s1")).unwrap();
    finish(&mut compare(&suite, &out)).succeeded();
    assert!(fs::read(out.join("pace.json")).unwrap() == pace);
    assert_eq!(steps(&json(&out.join("results.json"))), steps(&first));
    assert!(!out.join("pace").exists());
}

#[test]
fn a_dry_run_shows_every_run_and_makes_none() {
    let directory = temporary();
    let suite = written(directory.path(), "seeds = [0, 1]\ndepths = [2, 3]", THREE);
    let out = directory.path().join("out");
    let shown = finish(compare(&suite, &out).arg("--dry-run")).succeeded().stdout;
    assert!(shown.contains("mgr-d3-s1") && shown.contains("12 runs"), "{shown}");
    assert!(shown.contains(" here (the first pair after ") && shown.contains("B of memory"));
    assert!(!out.exists());
}
