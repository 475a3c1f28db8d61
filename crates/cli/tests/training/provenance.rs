//! What a run says about its making, and that nothing of its surroundings is asked for it.

use crate::support::*;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

#[path = "../../build.rs"]
#[allow(dead_code, reason = "its main function is cargo's")]
mod build_script;

use build_script::commit;

/// git starts what the settings of a repository name.
#[test]
fn a_hostile_repository_around_a_run_is_not_asked() {
    let directory = temporary();
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.args(arguments).current_dir(directory.path());
        let output = command.output().expect("git can be started");
        assert!(output.status.success(), "{output:?}");
    };
    git(&["init", "-q"]);
    fs::write(directory.path().join("a"), "a").unwrap();
    git(&["add", "a"]);
    git(&["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "x"]);
    git(&["config", "core.fsmonitor", "touch pwned; false #"]);
    let mut command = on_task(Path::new("run"), &["train.steps=1"]);
    finish(command.current_dir(directory.path())).succeeded();
    assert!(!directory.path().join("pwned").exists());
    let about = fs::read_to_string(directory.path().join("run/run.json")).unwrap();
    let about: Value = serde_json::from_str(&about).unwrap();
    for key in ["hadal", "executable", "data", "task_generator", "simd", "computing_threads"] {
        assert!(!about[key].is_null(), "{key} of {about}");
    }
    assert_eq!(about["commit"].as_str(), option_env!("HADAL_COMMIT"), "that of the build");
    assert!(about.get("commit_of_working_directory").is_none());
}

#[test]
fn the_way_of_computing_is_recorded() {
    let directory = temporary();
    let about = |name: &str, variable: &str| -> Value {
        let run = directory.path().join(name);
        let mut command = on_task(&run, &["train.steps=1"]);
        finish(command.env(variable, "1")).succeeded();
        serde_json::from_str(&fs::read_to_string(run.join("run.json")).unwrap()).unwrap()
    };
    assert_eq!(about("portable", "HADAL_PORTABLE")["simd"], "portable");
    assert_eq!(about("plain", "HADAL_PLAIN")["simd"], "plain");
    let one = about("one", "RAYON_NUM_THREADS");
    assert_eq!(one["computing_threads"], 1);
    let named = fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("model name"));
    assert_eq!(one["cpu"].is_string(), named, "{one}");
}

#[test]
fn the_commit_is_found_in_the_files_of_a_repository() {
    let directory = temporary();
    let git = directory.path().join(".git");
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let [a, b, c] = ["a", "b", "c"].map(|digit| digit.repeat(40));
    assert_eq!(commit(&git), None);
    write(".git/HEAD", "ref: refs/heads/main\n");
    assert_eq!(commit(&git), None);
    write(".git/packed-refs", &format!("# pack-refs\n{b} refs/heads/other\n{a} refs/heads/main\n"));
    assert_eq!(commit(&git), Some(a.clone()));
    write(".git/refs/heads/main", &format!("{c}\n"));
    assert_eq!(commit(&git), Some(c));
    // A worktree has a file in its place.
    write(".git/worktrees/w/HEAD", "ref: refs/heads/other\n");
    write(".git/worktrees/w/commondir", "../..\n");
    write("w/.git", &format!("gitdir: {}\n", git.join("worktrees/w").display()));
    assert_eq!(commit(&directory.path().join("w/.git")), Some(b));
    write("w/.git", "gitdir: ../.git/worktrees/w\n");
    assert!(commit(&directory.path().join("w/.git")).is_some());
    write(".git/HEAD", &format!("{a}\n"));
    assert_eq!(commit(&git), Some(a));
    write(".git/HEAD", "nonsense\n");
    assert_eq!(commit(&git), None);
}
