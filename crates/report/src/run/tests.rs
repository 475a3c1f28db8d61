use super::*;
use std::fs::File;
use tempfile::TempDir;

const STEP: &str = "{\"kind\":\"train\",\"step\":1,\"loss\":2.5,\"gradient_norm\":null,\"rate\":1.0,\"tokens\":8,\"tokens_per_second\":null}\n";
const EVALUATION: &str = "{\"kind\":\"eval\",\"step\":1,\"loss\":2.25}\n";

/// A run that is done.
fn run() -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("config.toml"), "seed = 3\n").unwrap();
    fs::write(folder.path().join(METRICS), format!("{STEP}{EVALUATION}")).unwrap();
    fs::create_dir(folder.path().join("model")).unwrap();
    folder
}

fn write_outcome(folder: &Path) {
    let outcome = Outcome {
        parameters: 1,
        tokens: 8,
        seconds: 0.5,
        tokens_per_second: 16.0,
        peak_rss_mb: 1.0,
        training_flops: None,
        communication: None,
    };
    fs::write(folder.join(Outcome::FILE), serde_json::to_string(&outcome).unwrap()).unwrap();
    let files = [METRICS, Outcome::FILE, "config.toml"];
    hadal_files::write_manifest_of(folder, &files).unwrap();
}

fn problems(run: &Run) -> Vec<String> {
    run.damage.iter().map(ToString::to_string).collect()
}

#[test]
fn a_line_that_cannot_be_read_is_counted_and_the_rest_is_there() {
    let folder = run();
    let path = folder.path().join(METRICS);
    let damaged = STEP.replacen('{', "z", 1);
    // A key that is no key of ours leaves a step without its loss.
    let other = STEP.replacen("loss", "losd", 1);
    fs::write(&path, format!("{STEP}{damaged}\0\0\0{STEP}{other}{EVALUATION}{{\"kind\"")).unwrap();
    fs::write(folder.path().join("samples.jsonl"), "{\"step\":1,\"text\":\"a\"}\nx\n").unwrap();
    let run = Run::read(folder.path()).unwrap();
    assert_eq!((run.steps.len(), run.evaluations.len(), run.samples.len()), (1, 1, 1));
    assert_eq!(
        problems(&run),
        [
            "metrics.jsonl: 3 lines cannot be read and are left out",
            "samples.jsonl: 1 line cannot be read and is left out"
        ]
    );
    assert!(!run.is_comparable());
}

#[test]
fn other_damaged_files_are_named_and_left_out() {
    let folder = run();
    fs::create_dir(folder.path().join("diagnosis")).unwrap();
    for file in ["run.json", "outcome.json", "diagnosis/a.json"] {
        fs::write(folder.path().join(file), "{").unwrap();
    }
    let run = Run::read(folder.path()).unwrap();
    assert_eq!((run.outcome, run.figures.len()), (None, 0));
    assert_eq!(run.provenance, Provenance::default());
    let problems = problems(&run);
    assert_eq!(problems.len(), 3);
    for (problem, file) in problems.iter().zip(["run.json", "outcome.json", "diagnosis/a.json"]) {
        assert!(problem.starts_with(&format!("{file}: it is damaged (")), "{problem}");
    }
    assert!(run.is_comparable());
}

/// A digit that was flipped makes a line that can be read.
#[test]
fn metrics_that_changed_after_the_end_are_noticed() {
    let folder = run();
    write_outcome(folder.path());
    let whole = Run::read(folder.path()).unwrap();
    assert!(whole.is_comparable() && whole.damage.is_empty(), "{:?}", whole.damage);
    assert_eq!(whole.outcome.unwrap().tokens, 8);
    let path = folder.path().join(METRICS);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("2.25", "1.25")).unwrap();
    let run = Run::read(folder.path()).unwrap();
    assert_eq!(problems(&run), ["metrics.jsonl: it is not what was written when the run ended"]);
    assert!(!run.is_comparable());
    fs::remove_file(&path).unwrap();
    assert!(!Run::read(folder.path()).unwrap().is_comparable());
    // An unfinished run goes on writing, whatever an earlier end said.
    fs::write(&path, text + STEP).unwrap();
    fs::remove_dir(folder.path().join("model")).unwrap();
    assert!(Run::read(folder.path()).unwrap().damage.is_empty());
}

/// A gigabyte without a line, as a lost disk block leaves it.
#[test]
fn huge_files_are_read_without_memory_for_them() {
    let folder = run();
    fs::create_dir(folder.path().join("diagnosis")).unwrap();
    for file in [METRICS, "samples.jsonl", "run.json", "outcome.json", "diagnosis/a.json"] {
        let length = if file == "samples.jsonl" { 1 << 22 } else { 1 << 30 };
        File::create(folder.path().join(file)).unwrap().set_len(length).unwrap();
    }
    let run = Run::read(folder.path()).unwrap();
    assert_eq!(run.damage.len(), 5, "{:?}", run.damage);
    assert!(run.damage[0].problem.contains("larger than"), "{:?}", run.damage);
    let Ok(status) = fs::read_to_string("/proc/self/status") else { return };
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kilobytes: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes < 800_000, "{kilobytes} kB");
}

#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_not_waited_for() {
    let folder = run();
    for file in ["lock", "samples.jsonl", "run.json", "outcome.json", METRICS] {
        let path = folder.path().join(file);
        let _ = fs::remove_file(&path);
        std::os::unix::fs::symlink("/dev/zero", path).unwrap();
    }
    let run = Run::read(folder.path()).unwrap();
    assert_eq!((run.status, run.damage.len()), (Status::Done, 4));
    assert!(run.damage.iter().all(|damage| damage.problem.contains("not a regular file")));
}

/// A run that went on behind a failure and was then interrupted has not failed.
#[test]
fn a_run_has_failed_if_it_did_not_go_on_behind_its_last_failure() {
    let folder = run();
    let path = folder.path();
    fs::remove_dir(path.join("model")).unwrap();
    assert_eq!(status(path), Status::Stopped);
    let fail = |name: &str| fs::create_dir_all(path.join("failures").join(name)).unwrap();
    fail("step-000000007-0.00000000000000ab.part");
    assert_eq!(status(path), Status::Stopped);
    // One step is recorded.
    fail("step-000000001-0");
    assert_eq!(status(path), Status::Failed);
    fs::write(path.join(METRICS), STEP.replace("\"step\":1", "\"step\":2")).unwrap();
    assert_eq!(status(path), Status::Stopped);
    // A rollback may fail at an earlier step.
    fail("step-000000009-1");
    fail("step-000000002-2");
    assert_eq!(status(path), Status::Failed);
    fs::remove_file(path.join(METRICS)).unwrap();
    fail("step-000000000-3");
    assert_eq!(status(path), Status::Failed);
    // It may have been killed before it recorded another step.
    let evidence = path.join("failures/step-000000000-3/failed-step.json");
    for (then, expected) in [("skip", Status::Stopped), ("stop", Status::Failed)] {
        fs::write(&evidence, format!("{{\"batches\": [], \"then\": \"{then}\"}}")).unwrap();
        assert_eq!(status(path), expected);
    }
}
