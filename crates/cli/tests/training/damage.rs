//! Damage is noticed and named, and never spreads to what is still whole.

use crate::support::*;
use hadal_files::testing::skip;
use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Positions over a whole file: its ends, and others between that are no multiple of anything.
fn positions(length: usize, count: usize) -> Vec<usize> {
    let mut dice = Dice(length as u64);
    let between = (0..count).map(|_| dice.below(length as u64) as usize);
    [0, length - 1].into_iter().chain(between).collect()
}

/// Evaluations, samples and saves fall on the same steps, where the order of the three matters.
const SETTINGS: [&str; 4] =
    ["train.steps=15", "checkpoint.every_steps=5", "eval.every_steps=5", "sample.every_steps=5"];

fn strictly(run: &Path) -> Command {
    let mut command = resume(run);
    command.arg("--strict");
    command
}

/// A run that was killed behind its second save, and what it would have come to.
struct Begun {
    directory: TempDir,
    begun: PathBuf,
    reference: PathBuf,
    count: Cell<usize>,
}

impl Begun {
    fn new() -> Self {
        let directory = temporary();
        let path = |name: &str| directory.path().join(name);
        let (data, begun, reference) = (path("data"), path("begun"), path("reference"));
        prepare(&data, &words(400), &[]);
        finish(&mut on_text(&reference, &data, &SETTINGS)).succeeded();
        // The 12th step: besides steps, evaluations and saves write to the log or wait for it.
        killed_at(&mut on_text(&begun, &data, &SETTINGS), "write metrics.jsonl#18");
        assert_eq!(newest(&begun).file_name().unwrap(), "step-000000010");
        Self { directory, begun, reference, count: Cell::new(0) }
    }

    /// A copy of the run.
    fn run(&self) -> PathBuf {
        self.count.set(self.count.get() + 1);
        let run = self.directory.path().join(format!("run-{}", self.count.get()));
        copy(&self.begun, &run);
        run
    }
}

#[test]
fn a_damaged_newest_checkpoint_is_set_aside_and_the_one_before_leads_to_the_same_bits() {
    let begun = Begun::new();
    for name in STATE_FILES {
        let run = begun.run();
        let checkpoint = newest(&run);
        let path = checkpoint.join(name);
        let good = fs::read(&path).unwrap();
        for position in positions(good.len(), 12) {
            flip(&path, position);
            let ended = finish(&mut strictly(&run));
            let ended =
                ended.refused(1, &[name, checkpoint.to_str().unwrap(), "move its directory"]);
            assert!(ended.stderr.contains("damaged"), "{name} {position}: {}", ended.stderr);
            fs::write(&path, &good).unwrap();
        }
        let bad = Some(vec![b'x'; good.len()]);
        for wrong in [bad, Some(good[..good.len() / 2].to_vec()), Some(Vec::new()), None] {
            let run = begun.run();
            let path = newest(&run).join(name);
            match wrong {
                Some(wrong) => fs::write(&path, wrong).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            finish(&mut strictly(&run)).refused(1, &[name, "damaged", "move its directory"]);
            let ended = finish(&mut resume(&run)).succeeded();
            assert!(ended.stderr.contains("at step 5\n"), "{}", ended.stderr);
            let warning = ended.stderr.lines().find(|line| line.starts_with("warning: ")).unwrap();
            for word in [name, "step-000000010.damaged", "going on from step 5"] {
                assert!(warning.contains(word), "{warning}");
            }
            assert!(run.join("checkpoints/step-000000010.damaged").is_dir());
            assert_same(&run, &begun.reference, "from the checkpoint before");
        }
    }
}

#[test]
fn a_run_without_a_whole_checkpoint_is_refused_and_keeps_what_it_has() {
    let begun = Begun::new();
    let run = begun.run();
    let before = checkpoints(&run);
    for checkpoint in &before {
        fs::remove_file(checkpoint.join("manifest.json")).unwrap();
    }
    for _ in 0..2 {
        let ended = finish(&mut resume(&run));
        ended.refused(1, &["step-000000005", "step-000000010", "restore one", "begin again"]);
        assert_eq!(checkpoints(&run), before);
    }
    // What the message says.
    fs::remove_dir_all(run.join("checkpoints")).unwrap();
    finish(&mut resume(&run)).succeeded();
    assert_same(&run, &begun.reference, "begun again");
}

#[test]
fn logs_that_are_missing_short_empty_or_damaged_are_mended_and_the_model_is_the_same() {
    let begun = Begun::new();
    for name in ["metrics.jsonl", "samples.jsonl", "events.out.tfevents.0.hadal"] {
        let good = fs::read(begun.begun.join(name)).unwrap();
        let half = good[..good.len() / 2].to_vec();
        let mut flipped = good.clone();
        flipped[0] ^= 1;
        let nul = vec![0; good.len()];
        for wrong in [None, Some(Vec::new()), Some(half), Some(flipped), Some(nul)] {
            let run = begun.run();
            fs::remove_file(run.join(name)).unwrap();
            if let Some(wrong) = &wrong {
                fs::write(run.join(name), wrong).unwrap();
            }
            let ended = finish(&mut resume(&run)).succeeded();
            let about = format!("{name} {:?}: {}", wrong.map(|wrong| wrong.len()), ended.stderr);
            let warned = |line: &str| line.starts_with("warning: ") && line.contains(name);
            assert!(ended.stderr.lines().any(warned), "{about}");
            assert!(model(&run) == model(&begun.reference), "{about}");
            // Every line that is there can be read, and is one of the untouched run's.
            let all = curve(&begun.reference);
            let own = curve(&run);
            assert!(own.iter().all(|line| all.contains(line)), "{about}");
            assert_eq!(own.last(), all.last(), "{about}");
            if name != "metrics.jsonl" {
                assert_eq!(own, all, "{about}");
            }
            // What was mended needs no mending any more.
            fs::remove_dir_all(run.join("model")).unwrap();
            let ended = finish(&mut resume(&run)).succeeded();
            assert!(!ended.stderr.contains("warning: "), "{about}\n{}", ended.stderr);
            assert_eq!(curve(&run), own, "{about}");
        }
    }
}

/// A digit is no damage that a reader could notice.
#[test]
fn a_changed_digit_in_the_metrics_is_noticed() {
    let begun = Begun::new();
    let run = begun.run();
    let metrics = run.join("metrics.jsonl");
    let text = fs::read_to_string(&metrics).unwrap();
    let place = text.find("\"loss\":").unwrap() + 8;
    let other = if text.as_bytes()[place] == b'9' { "8" } else { "9" };
    fs::write(&metrics, format!("{}{other}{}", &text[..place], &text[place + 1..])).unwrap();
    let ended = finish(&mut resume(&run)).succeeded();
    assert!(ended.stderr.contains("bytes are not what was written"), "{}", ended.stderr);
}

/// Statistics, the outcome and old checkpoints are beside the point: the model is not lost for them.
#[test]
fn side_work_that_fails_is_a_warning() {
    let begun = Begun::new();
    let run = begun.run();
    // Places that cannot be written, and an old checkpoint that cannot be removed as a directory.
    for name in ["outcome.json", "peak_rss_mb"] {
        let _ = fs::remove_file(run.join(name));
        fs::create_dir(run.join(name)).unwrap();
    }
    let old = run.join("checkpoints/step-000000005");
    fs::remove_dir_all(&old).unwrap();
    fs::write(&old, "in the way").unwrap();
    // The best one would stay.
    let leftover = run.join("checkpoints/step-000000003");
    fs::write(&leftover, "in the way").unwrap();
    let ended = finish(&mut resume(&run)).succeeded();
    for word in ["outcome.json", "peak_rss_mb", "an old checkpoint stays"] {
        let warned = |line: &str| line.starts_with("warning: ") && line.contains(word);
        assert!(ended.stderr.lines().any(warned), "{word}: {}", ended.stderr);
    }
    assert!(model(&run) == model(&begun.reference));
    // The part that cannot be removed is no reason either.
    let ended = finish(&mut resume(&run)).succeeded();
    assert!(ended.stderr.contains("step-000000003.part"), "{}", ended.stderr);
}

#[test]
fn what_another_run_left_is_never_taken_for_the_new_ones() {
    let directory = temporary();
    let run = directory.path().join("run");
    let settings = ["train.steps=6", "checkpoint.every_steps=3"];
    finish(&mut on_task(&run, &settings)).succeeded();
    // As `rm RUN/*`, which leaves directories.
    for entry in fs::read_dir(&run).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::remove_file(path).unwrap();
        }
    }
    let refused = |words: &[&str]| {
        let words: Vec<&str> = [&["run", "another run left", "--out"], words].concat();
        finish(&mut on_task(&run, &settings)).refused(2, &words);
        assert!(!run.join("config.toml").exists());
    };
    refused(&["checkpoints/step-000000003", "model"]);
    fs::remove_dir_all(run.join("checkpoints")).unwrap();
    refused(&["model"]);
    fs::remove_dir_all(run.join("model")).unwrap();
    for name in ["metrics.jsonl", "outcome.json"] {
        fs::write(run.join(name), "{}\n").unwrap();
        refused(&[name]);
        fs::remove_file(run.join(name)).unwrap();
    }
    fs::create_dir_all(run.join("failures/step-000000001-0")).unwrap();
    refused(&["failures/step-000000001-0"]);
    fs::remove_dir_all(run.join("failures")).unwrap();
    // Other files are nobody's business.
    fs::write(run.join("notes.txt"), "mine").unwrap();
    finish(&mut on_task(&run, &settings)).succeeded();
    assert_eq!(fs::read_to_string(run.join("notes.txt")).unwrap(), "mine");
}

#[test]
fn any_flipped_byte_of_a_shard_is_refused_by_name() {
    let directory = temporary();
    let (data, run) = (directory.path().join("data"), directory.path().join("run"));
    prepare(&data, &words(400), &["--shard-tokens", "600"]);
    finish(&mut on_text(&run, &data, &["train.steps=3"])).succeeded();
    let before = model(&run);
    let shard = data.join("shard-00001.bin");
    let good = fs::read(&shard).unwrap();
    let fresh = directory.path().join("fresh");
    for position in positions(good.len(), 10) {
        flip(&shard, position);
        finish(&mut on_text(&fresh, &data, &[])).refused(2, &["shard-00001.bin", "damaged"]);
        finish(&mut resume(&run)).refused(2, &["shard-00001.bin", "damaged"]);
        fs::write(&shard, &good).unwrap();
    }
    assert!(!fresh.exists(), "a run that cannot start leaves no folder");
    fs::remove_file(&shard).unwrap();
    finish(&mut resume(&run)).refused(2, &["shard-00001.bin", "missing"]);
    fs::write(&shard, &good).unwrap();
    finish(&mut resume(&run)).succeeded();
    assert!(model(&run) == before);
}

#[test]
fn a_changed_tokenizer_file_is_refused_by_name() {
    let directory = temporary();
    let (data, run) = (directory.path().join("data"), directory.path().join("run"));
    let tokenizer =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/stories260K/tokenizer.json");
    prepare(&data, &words(400), &["--tokenizer", tokenizer.to_str().unwrap()]);
    finish(&mut on_text(&run, &data, &["train.steps=3"])).succeeded();
    assert!(run.join("model/tokenizer.json").exists());
    flip(&data.join("tokenizer.json"), 2000);
    finish(&mut resume(&run)).refused(2, &["tokenizer.json", "damaged"]);
}

#[test]
fn unfinished_checkpoints_are_ignored_and_cleared_away() {
    let directory = temporary();
    let (run, reference) = (directory.path().join("run"), directory.path().join("reference"));
    for out in [&run, &reference] {
        finish(&mut on_task(out, &["train.steps=6", "checkpoint.every_steps=3"])).succeeded();
    }
    // The rest of a step that is not saved again, newer than every whole one.
    let part = run.join("checkpoints/step-000000007.part");
    fs::create_dir(&part).unwrap();
    fs::write(part.join("state.json"), "{").unwrap();
    finish(&mut resume(&run)).succeeded();
    assert!(!part.exists());
    assert_same(&run, &reference, "with an unfinished checkpoint");
}

/// A small file system in memory; gone when dropped.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(path: &'a Path, options: &str) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(path);
        mount.output().is_ok_and(|output| output.status.success()).then_some(Self(path))
    }

    fn grow(&self, options: &str) {
        let mut mount = Command::new("mount");
        mount.args(["-o", &format!("remount,{options}")]).arg(self.0);
        assert!(mount.status().unwrap().success());
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn a_full_disk_is_one_clear_message_and_the_last_checkpoint_is_intact() {
    let directory = temporary();
    let disk_path = directory.path().join("disk");
    fs::create_dir(&disk_path).unwrap();
    let settings = |every| ["train.steps=40", every, "checkpoint.keep=100"];
    let reference = directory.path().join("reference");
    finish(&mut on_task(&reference, &settings("checkpoint.every_steps=0"))).succeeded();
    // The disk fills at different moments of a save; the last is too small for the finished model.
    for (size, every) in [
        (400, "checkpoint.every_steps=1"),
        (444, "checkpoint.every_steps=1"),
        (480, "checkpoint.every_steps=1"),
        (172, "checkpoint.every_steps=0"),
    ] {
        let Some(disk) = SmallDisk::mount(&disk_path, &format!("size={size}k")) else {
            return skip("mount", "a small file system cannot be mounted here (it takes root)");
        };
        let run = disk_path.join("run");
        let ended = finish(&mut on_task(&run, &settings(every)));
        let ended = ended.refused(1, &["No space left on device", "run"]);
        println!("{size}k: {}", ended.stderr.lines().last().unwrap_or_default());
        let left = checkpoints(&run);
        assert!(left.len() > 1 && !left.iter().any(|path| is_unfinished(path)), "{left:?}");
        // Still full: the same message again, and trying loses nothing.
        finish(&mut resume(&run)).refused(1, &["No space left on device"]);
        assert!(checkpoints(&run).len() >= left.len());
        disk.grow("size=64m");
        finish(&mut resume(&run)).succeeded();
        assert_same(&run, &reference, "after a full disk");
    }
}
