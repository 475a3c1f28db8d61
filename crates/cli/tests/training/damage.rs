//! Damage is noticed and named, and never spreads to what is still whole.

use crate::support::*;
use hadal_files::testing::skip;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Positions over a whole file: its ends, and others between that are no multiple of anything.
fn positions(length: usize, count: usize) -> Vec<usize> {
    let mut dice = Dice(length as u64);
    let between = (0..count).map(|_| dice.below(length as u64) as usize);
    [0, length - 1].into_iter().chain(between).collect()
}

/// Evaluations, samples and saves fall on the same steps, where the order of the three matters.
const SETTINGS: [&str; 4] =
    ["train.steps=15", "checkpoint.every_steps=5", "eval.every_steps=5", "sample.every_steps=5"];

#[test]
fn any_flipped_byte_of_the_newest_checkpoint_is_refused_and_the_one_before_takes_over() {
    let directory = temporary();
    let (data, run) = (directory.path().join("data"), directory.path().join("run"));
    prepare(&data, &words(400), &[]);
    let reference = directory.path().join("reference");
    finish(&mut on_text(&reference, &data, &SETTINGS)).succeeded();
    finish(&mut on_text(&run, &data, &SETTINGS)).succeeded();
    fs::remove_dir_all(run.join("model")).unwrap();
    let checkpoint = newest(&run);
    for name in STATE_FILES {
        let path = checkpoint.join(name);
        let good = fs::read(&path).unwrap();
        for position in positions(good.len(), 12) {
            flip(&path, position);
            let ended = finish(&mut resume(&run));
            let ended = ended.refused(1, &[name, checkpoint.to_str().unwrap()]);
            assert!(ended.stderr.contains("damaged"), "{name} {position}: {}", ended.stderr);
            fs::write(&path, &good).unwrap();
        }
        for wrong in [&good[..good.len() / 2], &[]] {
            fs::write(&path, wrong).unwrap();
            finish(&mut resume(&run)).refused(1, &[name, "damaged"]);
        }
        fs::remove_file(&path).unwrap();
        finish(&mut resume(&run)).refused(1, &[name]);
        fs::write(&path, &good).unwrap();
    }
    flip(&checkpoint.join(STATE_FILES[0]), 5000);
    finish(&mut resume(&run)).refused(1, &["remove its directory"]);
    fs::remove_dir_all(&checkpoint).unwrap();
    let ended = finish(&mut resume(&run)).succeeded();
    assert!(ended.stderr.contains("at step 10"), "{}", ended.stderr);
    assert_same(&run, &reference, "from the checkpoint before");
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
