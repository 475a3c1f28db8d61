//! `hadal new`: what it writes is read by the parsers that will read it, and its comments say what is true.

use crate::support::{command, run};
use hadal_compare::{Pace, Suite};
use hadal_train::{ConfigLayers, ModelSection, RunConfig, RunConfigError};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A new folder on the built-in text or on another, in a directory of its own.
fn folder(with_text: bool) -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let mut new = command("new");
    new.arg("my first").current_dir(directory.path());
    if with_text {
        fs::write(directory.path().join("book.txt"), "It was a dark night. ".repeat(700)).unwrap();
        new.args(["--text", "book.txt"]);
    }
    run(&mut new).succeeded();
    let folder = directory.path().join("my first");
    (directory, folder)
}

fn read(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap()
}

/// `key = value` of a line `# key = value   # words`.
fn shown_default(line: &str) -> Option<&str> {
    let setting = line.strip_prefix("# ")?;
    let (key, _) = setting.split_once(" = ")?;
    key.chars()
        .all(|c| c.is_ascii_lowercase() || "._".contains(c) || c.is_ascii_digit())
        .then_some(setting)
}

/// The text with the defaults of one line said.
fn said(text: &str, number: usize) -> String {
    let lines = text.lines().enumerate().map(|(i, line)| match shown_default(line) {
        Some(setting) if i == number => setting,
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Keys in backticks, such as `train.tokens`.
fn named_keys(text: &str) -> Vec<&str> {
    let comments = text.lines().filter_map(|line| Some(line.split_once('#')?.1));
    let quoted = comments.flat_map(|comment| comment.split('`').skip(1).step_by(2));
    quoted.filter(|word| word.chars().all(|c| c.is_ascii_lowercase() || "._".contains(c))).collect()
}

/// The settings with everything that follows from others written out.
fn resolved(text: &str) -> Result<RunConfig, RunConfigError> {
    let mut config = RunConfig::parse(text, "run.toml")?;
    let model = config.model.resolve(&config.residual, 257, config.train.seq_len.unwrap_or(64));
    config.model = ModelSection::from(&model);
    Ok(config)
}

fn plan(text: &str) -> serde_json::Value {
    let suite = Suite::parse(text, "suite.toml").unwrap_or_else(|e| panic!("{e}\n{text}"));
    let plan = suite.plan(&Pace::new()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    serde_json::to_value(&plan).unwrap()
}

#[test]
fn the_defaults_in_comments_are_the_defaults() {
    for with_text in [false, true] {
        let (_directory, folder) = folder(with_text);
        let (text, mut seen) = (read(&folder, "run.toml"), 0);
        let config = resolved(&text).unwrap();
        for number in
            (0..text.lines().count()).filter(|&n| said(&text, n) != said(&text, usize::MAX))
        {
            let line = text.lines().nth(number).unwrap();
            let with = resolved(&said(&text, number)).unwrap_or_else(|e| panic!("{line}: {e}"));
            assert_eq!(with, config, "{line}");
            seen += 1;
        }
        let text = read(&folder, "suite.toml");
        let planned = plan(&text);
        for number in
            (0..text.lines().count()).filter(|&n| said(&text, n) != said(&text, usize::MAX))
        {
            assert_eq!(
                plan(&said(&text, number)),
                planned,
                "{}",
                text.lines().nth(number).unwrap()
            );
            seen += 1;
        }
        assert!(seen >= 24, "only {seen} defaults are shown");
    }
}

#[test]
fn the_keys_that_comments_name_exist() {
    for with_text in [false, true] {
        let (_directory, folder) = folder(with_text);
        let text = read(&folder, "run.toml");
        let keys = named_keys(&text);
        assert!(keys.len() >= 5, "{keys:?}");
        for key in keys {
            let layers = ConfigLayers::default().with_toml(&text, "run.toml").unwrap();
            let set = layers.with_setting(&format!("{key}=0")).and_then(ConfigLayers::finish);
            let problem = set.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(!problem.contains("unknown field"), "{key}: {problem}");
        }
        let text = read(&folder, "suite.toml");
        let keys = named_keys(&text);
        assert!(keys.len() >= 4, "{keys:?}");
        for key in keys {
            let suite = Suite::parse(&text, "suite.toml").unwrap();
            let set = suite.with_setting(&format!("{key}=0"));
            let set = set.and_then(|suite| suite.plan(&Pace::new()).map(drop));
            let problem = set.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(!problem.contains("unknown field"), "{key}: {problem}");
        }
    }
}

#[test]
fn the_variant_in_comments_can_be_taken_in() {
    let (_directory, folder) = folder(false);
    let text = read(&folder, "suite.toml");
    let more: Vec<&str> = text
        .lines()
        .map(|line| {
            line.strip_prefix('#')
                .filter(|rest| !rest.is_empty() && !rest.starts_with(' '))
                .unwrap_or(line)
        })
        .collect();
    let (few, many) = (plan(&text), plan(&more.join("\n")));
    let count = |plan: &serde_json::Value| plan.as_array().unwrap().len();
    assert_eq!((count(&few), count(&many)), (9, 12));
}

/// The commands of the README that a new folder gets.
fn commands_of(readme: &str) -> Vec<Vec<String>> {
    let block = readme.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let words = |line: &str| {
        line.split(" #").next().unwrap().split_whitespace().map(str::to_owned).collect()
    };
    block.lines().map(words).collect()
}

#[test]
fn the_commands_of_its_readme_work() {
    for with_text in [false, true] {
        let (directory, folder) = folder(with_text);
        let readme = read(&folder, "README.md");
        assert!(readme.starts_with("# my first\n") && !readme.contains("{{"), "{readme}");
        let commands = commands_of(&readme);
        assert_eq!(commands.len(), 3, "{readme}");
        assert_eq!(commands[0], ["hadal", "train", "run.toml"]);
        assert_eq!(commands[1], ["hadal", "compare", "suite.toml"]);
        assert_eq!(commands[2], ["hadal", "serve", "runs"]);
        let start = |words: &[String]| {
            let mut start = command(&words[1]);
            start.args(&words[2..]).current_dir(&folder);
            start
        };
        for words in &commands[..2] {
            let shown = run(start(words).arg("--dry-run")).succeeded().stdout;
            assert!(shown.contains("FLOPs"), "{shown}");
            // The same from the folder above.
            let outside = Path::new("my first").join(&words[2]);
            let shown =
                run(command(&words[1]).arg(outside).arg("--dry-run").current_dir(directory.path()));
            assert!(shown.succeeded().stdout.contains("FLOPs"));
        }
        let small = ["train.steps=2", "model.n_layers=2", "model.d_model=8", "eval.batches=1"];
        let mut train = start(&commands[0]);
        run(small.iter().fold(&mut train, |train, setting| train.args(["--set", setting])))
            .succeeded();
        // The folder that the comments say how to resume.
        assert!(read(&folder, "run.toml").contains("hadal train --resume runs/run-mgr-0\n"));
        assert!(folder.join("runs/run-mgr-0/model").is_dir());
        run(start(&commands[2]).arg("--help")).succeeded();
    }
}

#[test]
fn git_ignores_what_is_made_later() {
    let (_directory, folder) = folder(true);
    assert!(folder.join("data/manifest.json").is_file());
    assert_eq!(read(&folder, ".gitignore"), "/runs\n/data\n");
}

#[test]
fn nothing_is_overwritten_and_failures_leave_nothing() {
    let directory = TempDir::new().unwrap();
    let at = |name: &str| directory.path().join(name);
    let new = |name: &str| -> Command {
        let mut new = command("new");
        new.arg(name).current_dir(directory.path());
        new
    };
    fs::write(at("file"), "mine").unwrap();
    fs::create_dir(at("folder")).unwrap();
    fs::write(at("short.txt"), "Once.").unwrap();
    fs::write(at("empty.txt"), "").unwrap();
    for name in ["file", "folder"] {
        run(&mut new(name)).refused(2, &[name, "exists already", "another name"]);
    }
    for name in [".", "..", "/", "a\nb"] {
        run(&mut new(name)).refused(2, &["name for a new folder"]);
    }
    run(new("a").args(["--text", "absent.txt"])).failed(&["absent.txt"]);
    run(new("a").args(["--text", "short.txt"]))
        .refused(2, &["short.txt", "too few", "longer text"]);
    run(new("a").args(["--text", "empty.txt"])).failed(&["no text"]);
    let mut left: Vec<_> =
        fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["empty.txt", "file", "folder", "short.txt"]);
    assert_eq!(fs::read_to_string(at("file")).unwrap(), "mine");
    assert_eq!(fs::read_dir(at("folder")).unwrap().count(), 0);
}
