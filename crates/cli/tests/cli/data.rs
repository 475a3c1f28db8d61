//! Prepared data as every command reads it: damage is seen by whoever reads it, and named.

use crate::support::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const TEXT: &str = "the quick brown fox jumps over the lazy dog, and the dog sleeps on. ";

/// A folder with prepared bytes in two shards and a run of two steps on them.
struct Bench {
    folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        let bench = Self { folder: TempDir::new().unwrap() };
        fs::write(bench.at("text.txt"), TEXT.repeat(1000)).unwrap();
        let settings = format!(
            "[data]\ntrain = {:?}\n\n[train]\nsteps = 2\nbatch = 2\nseq_len = 32\n\n\
             [model]\nd_model = 16\nn_layers = 2\nn_heads = 2\n",
            bench.at("data")
        );
        fs::write(bench.at("run.toml"), settings).unwrap();
        let mut prepare = data("prepare", &bench.at("text.txt"));
        prepare.arg("--out").arg(bench.at("data")).args(["--shard-tokens", "65536"]);
        run(&mut prepare).succeeded();
        let mut train = command("train");
        train.arg(bench.at("run.toml")).args(["--residual", "nag"]);
        run(train.arg("--out").arg(bench.at("run"))).succeeded();
        bench
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn data(action: &str, path: &Path) -> Command {
    let mut command = command("data");
    command.arg(action).arg(path);
    command
}

#[test]
fn a_damaged_shard_is_refused_by_every_command_that_reads_it() {
    let bench = Bench::new();
    let shard = bench.at("data/shard-00001.bin");
    let good = fs::read(&shard).unwrap();
    let on_run = |name: &str, more: &[&str]| {
        let mut command = command(name);
        let (before, after) = more.split_at(usize::from(!more[0].starts_with('-')));
        command.args(before).arg(bench.at("run")).args(after);
        command
    };
    let out = |mut command: Command| {
        command.arg("--out").arg(bench.at("out"));
        command
    };
    let mut stats = data("stats", &bench.at("data"));
    let mut peek = data("peek", &bench.at("data"));
    peek.args(["--at", "66000", "-n", "5"]);
    let mut diagnose = out(on_run("diagnose", &["--only", "removal", "--batches", "1"]));
    let mut other = out(on_run("diagnose", &["--only", "sink", "--batches", "40"]));
    other.arg("--data").arg(bench.at("data"));
    let mut plan = out(on_run("prune", &["plan", "--blocks", "1", "--protect", "none"]));
    let mut skip = out(on_run("skip", &["calibrate", "--rate", "0.2"]));
    let all = [&mut stats, &mut peek, &mut diagnose, &mut other, &mut plan, &mut skip];
    for command in all {
        for (place, bit) in [(good.len() - 40, 1), (good.len() - 2, 2), (3000, 1)] {
            let mut bad = good.clone();
            bad[place] ^= bit;
            fs::write(&shard, bad).unwrap();
            let reasons = [shard.to_str().unwrap(), "is damaged", "copy it again", "prepare again"];
            run(command).failed(&reasons);
            assert!(!bench.at("out").exists());
        }
        // It is the shard and nothing else. (A model that learned nothing may not be worth a cut.)
        fs::write(&shard, &good).unwrap();
        let said = run(command);
        assert!(!said.stderr.contains("damaged"), "{}", said.stderr);
        let _ = fs::remove_dir_all(bench.at("out"));
        let _ = fs::remove_file(bench.at("out"));
    }
    // Shards that are not read are not hashed either.
    let mut bad = good.clone();
    bad[3000] ^= 1;
    fs::write(&shard, bad).unwrap();
    run(data("peek", &bench.at("data")).args(["--at", "0", "-n", "5"])).succeeded();
    run(&mut data("verify", &bench.at("data"))).refused(1, &["shard-00001.bin is damaged"]);
}

#[test]
fn packed_text_stops_where_it_should() {
    let folder = TempDir::new().unwrap();
    let text = folder.path().join("text.txt");
    fs::write(&text, TEXT.repeat(1000)).unwrap();
    let out = folder.path().join("data");
    let mut prepare = data("prepare", &text);
    prepare.arg("--out").arg(&out);
    run(prepare.args(["--max-bytes", "5000"])).refused(1, &["more than 5000 bytes", "--max-bytes"]);
    run(data("prepare", &text).arg("--out").arg(&out)).succeeded();
}

/// Every shard stays open; a shell's limit is lower than what a preparation can make.
#[test]
#[cfg(unix)]
fn there_may_be_more_shards_than_a_shell_allows_open_files() {
    let folder = TempDir::new().unwrap();
    let (text, out) = (folder.path().join("text.txt"), folder.path().join("data"));
    fs::write(&text, [TEXT; 100].join("<|endoftext|>")).unwrap();
    let mut prepare = data("prepare", &text);
    run(prepare.arg("--out").arg(&out).args(["--shard-tokens", "50"])).succeeded();
    let stats = data("stats", &out);
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -Sn 64 && exec \"$@\"", "sh"]).arg(stats.get_program());
    let output = shell.args(stats.get_args()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Learning may take long, and somebody may use the tokenizer that is there.
#[test]
fn a_tokenizer_is_not_written_over_another_file() {
    let folder = TempDir::new().unwrap();
    let (text, out) = (folder.path().join("text.txt"), folder.path().join("new/tokenizer.json"));
    fs::write(&text, TEXT.repeat(20)).unwrap();
    let mut learn = data("train-tokenizer", &text);
    learn.args(["--vocab-size", "270", "--out"]).arg(&out);
    run(&mut learn).succeeded();
    let first = fs::read(&out).unwrap();
    fs::remove_file(&text).unwrap();
    // The place is looked at first: without its text it could not learn.
    run(&mut learn).refused(2, &["tokenizer.json exists already", "--out other.json"]);
    assert!(fs::read(&out).unwrap() == first);
}
