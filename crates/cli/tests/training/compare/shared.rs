//! Several processes on one suite: no run is made twice, the table is that of one process, and kills lose nothing.

use super::tune::{GRID, found, tuned};
use super::until::until;
use super::*;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::Child;

/// Both at once, and both to their ends.
fn together(one: &mut Command, other: &mut Command) -> [(Option<i32>, String); 2] {
    [started(one), started(other)].map(ended)
}

fn ended(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Every file below a folder.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for name in names(folder) {
        let path = folder.join(name);
        if path.is_symlink() {
            all.insert(
                path.clone(),
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes(),
            );
        } else if path.is_dir() {
            all.extend(contents(&path));
        } else {
            all.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    all
}

#[test]
fn two_processes_make_every_run_once_and_come_to_the_table_of_one() {
    let directory = temporary();
    let suite = written(directory.path(), "seeds = [0, 1]", THREE);
    let (whole, shared) = (directory.path().join("whole"), directory.path().join("shared"));
    finish(&mut compare(&suite, &whole)).succeeded();
    let start = || {
        let mut command = compare(&suite, &shared);
        command.args(["--jobs", "1"]);
        command
    };
    let ends = together(&mut start(), &mut start());
    for (code, said) in &ends {
        assert_eq!(*code, Some(0), "{said}");
        assert!(said.contains("report: "), "{said}");
    }
    // Each run has its line of having been made in one of the two logs only.
    let made = |run: &str| {
        ends.iter().filter(|(_, said)| said.contains(&format!("{run} is done\n"))).count()
    };
    for run in names(&shared.join("runs")) {
        assert_eq!(made(&run), 1, "{run}: {ends:?}");
    }
    assert_eq!(findings(&shared), findings(&whole));
    assert_eq!(table(&shared), table(&whole));
    let left = names(&shared.join("claims/processes"));
    assert_eq!(left, [] as [String; 0], "who ends in order takes its traces along");
}

#[test]
fn two_processes_tune_and_take_looks_as_one_does() {
    let directory = temporary();
    let of = |name: &str| directory.path().join(name);
    let suite = tuned(directory.path(), &format!("{GRID}rounds = 2\n"));
    finish(&mut compare(&suite, &of("whole"))).succeeded();
    for (code, said) in together(
        compare(&suite, &of("shared")).args(["--jobs", "1"]),
        compare(&suite, &of("shared")).args(["--jobs", "1"]),
    ) {
        assert_eq!(code, Some(0), "{said}");
    }
    assert_eq!(found(&of("shared")), found(&of("whole")));
    assert_eq!(table(&of("shared"))["rows"], table(&of("whole"))["rows"]);
    assert!(!of("shared").join("replaced").exists());
    let suite = until(directory.path(), "first = 2, every = 1, most = 3", THREE);
    finish(&mut compare(&suite, &of("looks"))).succeeded();
    for (code, said) in together(
        compare(&suite, &of("looks-shared")).args(["--jobs", "1"]),
        compare(&suite, &of("looks-shared")).args(["--jobs", "1"]),
    ) {
        assert_eq!(code, Some(0), "{said}");
    }
    assert_eq!(findings(&of("looks-shared")), findings(&of("looks")));
    assert_eq!(table(&of("looks-shared")), table(&of("looks")));
}

/// Operations of a suite's process, which no process of a run has.
const OPERATIONS: [&str; 8] = [
    "rename 1#2",
    "write prenorm-s1.toml",
    "write end.json",
    "write end.json#3",
    "rename end.json#2",
    "write table.json",
    "rename results.json",
    "write report.html",
];

#[test]
fn a_process_that_is_killed_at_an_operation_of_its_own_loses_nothing() {
    let directory = temporary();
    let suite = written(directory.path(), "seeds = [0, 1]", THREE);
    let whole = directory.path().join("whole");
    finish(&mut compare(&suite, &whole)).succeeded();
    for (number, operation) in OPERATIONS.into_iter().enumerate() {
        let out = directory.path().join(number.to_string());
        killed_at(compare(&suite, &out).args(["--jobs", "2"]), operation);
        for (code, said) in together(
            compare(&suite, &out).args(["--jobs", "1"]),
            compare(&suite, &out).args(["--jobs", "1"]),
        ) {
            assert_eq!(code, Some(0), "{operation}: {said}");
        }
        assert_eq!(findings(&out), findings(&whole), "{operation}");
        assert_eq!(table(&out), table(&whole), "{operation}");
    }
}

#[test]
fn of_two_processes_one_is_killed_at_any_moment_and_the_other_makes_the_table() {
    let directory = temporary();
    let suite = tuned(directory.path(), GRID);
    let (whole, shared) = (directory.path().join("whole"), directory.path().join("shared"));
    finish(&mut compare(&suite, &whole)).succeeded();
    let mut survivor = started(compare(&suite, &shared).args(["--jobs", "1"]));
    let mut dice = Dice(3);
    while survivor.try_wait().unwrap().is_none() {
        let mut child = started(compare(&suite, &shared).args(["--jobs", "1"]));
        sleep(Duration::from_millis(50 + dice.below(400)));
        child.kill().unwrap();
        child.wait_with_output().unwrap();
    }
    let (code, said) = ended(survivor);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(found(&shared), found(&whole));
    assert_eq!(table(&shared)["rows"], table(&whole)["rows"]);
}

/// A process is stopped together with its run for so long that another machine takes its run over, on a file system that
/// shows no locks. Then it wakes up.
#[test]
fn a_process_that_wakes_up_after_its_run_was_taken_over_changes_no_bit() {
    let directory = temporary();
    let one = "[[variant]]\nresidual = \"prenorm\"\n";
    let suite = written(directory.path(), "seeds = [0]", one);
    let (whole, out) = (directory.path().join("whole"), directory.path().join("out"));
    let start = |out: &Path| {
        let mut command = compare(&suite, out);
        set(command.args(["--jobs", "1"]), &["train.steps=1500", "checkpoint.every_steps=50"]);
        command
    };
    finish(&mut start(&whole)).succeeded();
    let mut sleeper = started(start(&out).process_group(0));
    let metrics = out.join("runs/prenorm-s0/metrics.jsonl");
    wait_until(&mut sleeper, || lines(&metrics) > 5);
    let signal = |signal: &str| {
        let group = format!("-{}", sleeper.id());
        assert!(Command::new("kill").args([signal, "--", &group]).status().unwrap().success());
    };
    signal("-STOP");
    let about =
        names(&out.join("claims/processes")).into_iter().find(|name| name.ends_with(".json"));
    let about = out.join("claims/processes").join(about.unwrap());
    let mut process = json(&about);
    process["machine"] = "another".into();
    process["beat_seconds"] = 0.1.into();
    fs::write(&about, process.to_string()).unwrap();
    fs::remove_file(out.join("runs/prenorm-s0/lock")).unwrap();
    let before = lines(&metrics);
    assert!(!out.join("runs/prenorm-s0/model").exists(), "it was stopped in time");
    let other = finish(start(&out).args(["--lost-after", "1"])).succeeded();
    assert!(other.stderr.contains("prenorm-s0 is done"), "{}", other.stderr);
    assert!(lines(&metrics) > before);
    let runs = contents(&out.join("runs"));
    signal("-CONT");
    let (code, said) = ended(sleeper);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("prenorm-s0 is done, by another process"), "{said}");
    let after = contents(&out.join("runs"));
    assert_eq!(after.keys().collect::<Vec<_>>(), runs.keys().collect::<Vec<_>>());
    assert!(after == runs, "a file of a finished run has changed");
    let log = fs::read_to_string(out.join("logs/prenorm-s0.log")).unwrap();
    println!("the run that woke up: {log}");
    assert_eq!(findings(&out), findings(&whole));
    assert_eq!(table(&out), table(&whole));
}

#[test]
fn whoever_has_nothing_left_says_for_whom_it_waits_or_leaves() {
    let directory = temporary();
    let one = "[[variant]]\nresidual = \"prenorm\"\n";
    let suite = written(directory.path(), "seeds = [0]", one);
    let out = directory.path().join("out");
    let mut endless = compare(&suite, &out);
    set(&mut endless, &ENDLESS);
    let mut holder = started(&mut endless);
    wait_until(&mut holder, || lines(&out.join("runs/prenorm-s0/metrics.jsonl")) > 0);
    let again = || {
        let mut command = compare(&suite, &out);
        set(&mut command, &ENDLESS);
        command
    };
    let left = finish(again().arg("--no-wait")).succeeded();
    let who = format!("process {})", holder.id());
    for words in ["nothing is left to begin; other processes have prenorm-s0 (", &who, "--table"] {
        assert!(left.stderr.contains(words), "no {words:?} in {}", left.stderr);
    }
    assert!(!out.join("table.json").exists(), "that is for those who come to the end");
    let looked = finish(again().arg("--table")).succeeded();
    assert!(looked.stdout.contains("prenorm-s0 is not done yet."), "{}", looked.stdout);
    let mut waiter = started(&mut again());
    let said = BufReader::new(waiter.stderr.take().unwrap());
    let waits = said.lines().map(Result::unwrap).find(|line| line.starts_with("waiting for "));
    let waits = waits.expect("it can only wait, and says so");
    assert!(waits.contains("prenorm-s0 (") && waits.contains(&who), "{waits}");
    let listed = finish(hadal(&["runs"]).arg(&out)).succeeded().stdout;
    assert!(listed.contains(&format!("process {}", holder.id())), "{listed}");
    send("-TERM", &holder);
    assert_eq!(ended(holder).0, Some(143));
    // What is left is free at once.
    wait_until(&mut waiter, || out.join("claims/runs/prenorm-s0/2").exists());
    send("-TERM", &waiter);
    assert_eq!(waiter.wait().unwrap().code(), Some(143));
}

#[test]
fn the_table_of_what_is_done_can_be_seen_at_any_time_and_changes_nothing() {
    let directory = temporary();
    let out = directory.path().join("out");
    let suite = written(directory.path(), "seeds = [0, 1]", THREE);
    let look = |suite: &Path| finish(compare(suite, &out).arg("--table"));
    look(&suite).refused(2, &["holds no suite yet", "hadal compare"]);
    assert!(!out.exists());
    killed_at(compare(&suite, &out).args(["--jobs", "1"]), "rename end.json#3");
    let before = contents(&out);
    let shown = look(&suite).succeeded();
    for words in ["1/2", "prenorm-s1 is not done yet.", "3 of 6 runs were done before"] {
        assert!(shown.stdout.contains(words), "no {words:?} in {}", shown.stdout);
    }
    assert!(contents(&out) == before);
    let shown = finish(compare(&suite, &out).args(["--table", "--json"])).succeeded().stdout;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let done =
        shown["runs"].as_array().unwrap().iter().filter(|run| run["state"] == "done").count();
    assert_eq!(done, 3);
    finish(&mut compare(&suite, &out)).succeeded();
    let (whole, told) = (contents(&out), look(&suite).succeeded());
    assert!(contents(&out) == whole && told.stdout.contains("6 of 6 runs were done before"));
    // Tuning comes before there can be a table.
    let suite = tuned(directory.path(), GRID);
    let out = directory.path().join("tuned");
    killed_at(compare(&suite, &out).args(["--jobs", "1"]), "rename end.json#2");
    let before = contents(&out);
    let told = finish(compare(&suite, &out).arg("--table")).succeeded();
    let words = "no table yet; it needs prenorm-lr_scale=4-n30-s8, again-lr_scale=0.25-n30-s8";
    assert!(told.stderr.contains(words), "{}", told.stderr);
    assert!(contents(&out) == before);
}

/// Two machines without a common folder, a seed each.
#[test]
fn runs_that_were_made_apart_and_copied_together_are_taken_as_they_are() {
    let directory = temporary();
    let of = |name: &str| directory.path().join(name);
    for seed in ["0", "1"] {
        let suite = written(directory.path(), &format!("seeds = [{seed}]"), THREE);
        finish(&mut compare(&suite, &of(seed))).succeeded();
    }
    let suite = written(directory.path(), "seeds = [0, 1]", THREE);
    finish(&mut compare(&suite, &of("whole"))).succeeded();
    for run in names(&of("1/runs")) {
        copy(&of("1/runs").join(&run), &of("0/runs"));
    }
    let ended = finish(&mut compare(&suite, &of("0"))).succeeded();
    assert_eq!(ended.stderr.matches("was done before").count(), 6, "{}", ended.stderr);
    assert_eq!(findings(&of("0")), findings(&of("whole")));
    // All of the folders, with what their processes left of themselves.
    copy(&of("1/claims"), &of("0"));
    fs::remove_dir_all(of("0/runs/mgr-s1/model")).unwrap();
    finish(&mut compare(&suite, &of("0"))).succeeded();
    assert_eq!(findings(&of("0")), findings(&of("whole")));
}
