//! Models are what they were when they were written or first used, or they are refused.

use crate::support::*;
use serde_json::json;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const MANIFEST: &str = "manifest.json";
const TOKENIZER: &str = "tokenizer.json";

fn generate(model: &Path) -> Command {
    let mut command = command("generate");
    command.arg(model).args(["--prompt", "Once", "-n", "2"]);
    command
}

/// The stories as one of our models, with its manifest.
fn imported(folder: &TempDir) -> PathBuf {
    let out = folder.path().join("stories");
    run(command("import").arg(stories()).arg("--out").arg(&out)).succeeded();
    out
}

fn export(model: &Path, out: &Path, format: &str) -> Command {
    let mut command = command("export");
    command.arg(model).arg("--out").arg(out).args(["--format", format]);
    command
}

/// Changes a bit as a disk does: the time of the last change stays.
fn rot(path: &Path, position: usize) {
    let time = fs::metadata(path).unwrap().modified().unwrap();
    let mut bytes = fs::read(path).unwrap();
    bytes[position] ^= 1;
    fs::write(path, bytes).unwrap();
    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn any_flipped_bit_of_a_written_model_is_refused_by_name() {
    let folder = TempDir::new().unwrap();
    let ours = imported(&folder);
    let exported = folder.path().join("exported");
    run(&mut export(&ours, &exported, "hf")).succeeded();
    for model in [&ours, &exported] {
        for file in [CONFIG, WEIGHTS, TOKENIZER] {
            let path = model.join(file);
            let length = fs::metadata(&path).unwrap().len() as usize;
            let mut noise = Noise::new(length as u64);
            for position in (0..6).map(|_| noise.below(length)).chain([0, length - 1]) {
                rot(&path, position);
                let reasons = [&*path.display().to_string(), "is damaged", "manifest.json"];
                run(&mut generate(model)).refused(1, &reasons);
                rot(&path, position);
            }
        }
        run(&mut generate(model)).succeeded();
    }
    // The config alone is read by `inspect`.
    rot(&ours.join(CONFIG), 3);
    run(command("inspect").arg(&ours)).refused(2, &[CONFIG, "is damaged"]);
    rot(&ours.join(CONFIG), 3);
    rot(&ours.join(WEIGHTS), 100_000);
    run(command("inspect").arg(&ours)).succeeded();
    // Damage is not passed on.
    let copy = folder.path().join("copy");
    run(command("import").arg(&ours).arg("--out").arg(&copy)).refused(1, &[WEIGHTS, "is damaged"]);
    for format in ["hf", "gguf"] {
        run(&mut export(&ours, &copy, format)).refused(1, &[WEIGHTS, "is damaged"]);
    }
    assert_eq!(names(folder.path()), ["exported", "stories"]);
    // On purpose.
    run(generate(&ours).env("HADAL_VERIFY", "0")).succeeded();
    fs::remove_file(ours.join(MANIFEST)).unwrap();
    run(&mut generate(&ours)).succeeded();
}

#[test]
fn a_damaged_manifest_is_refused() {
    let folder = TempDir::new().unwrap();
    let model = imported(&folder);
    let path = model.join(MANIFEST);
    let whole = fs::read(&path).unwrap();
    // What is no part of a name or a hash may be another blank.
    let parts = whole.iter().enumerate().filter(|(_, byte)| byte.is_ascii_alphanumeric());
    for (position, _) in parts.step_by(7) {
        rot(&path, position);
        run(&mut generate(&model)).refused(1, &[MANIFEST]);
        rot(&path, position);
    }
    fs::remove_file(model.join("generation_config.json")).unwrap();
    let reasons = ["generation_config.json is missing, but manifest.json names it"];
    run(&mut generate(&model)).refused(1, &reasons);
}

#[test]
fn foreign_files_are_held_to_what_they_were_at_first_use() {
    let folder = TempDir::new().unwrap();
    let directory = folder.path().join("theirs");
    fs::create_dir(&directory).unwrap();
    for file in [CONFIG, WEIGHTS, TOKENIZER] {
        fs::write(directory.join(file), fs::read(stories().join(file)).unwrap()).unwrap();
    }
    let gguf = folder.path().join("theirs.gguf");
    run(&mut export(&directory, &gguf, "gguf")).succeeded();
    let cache = folder.path().join("cache");
    let cached = |command: &mut Command| run(command.env("HADAL_CACHE", &cache));
    let files = [(CONFIG, 9), (WEIGHTS, 200_000), (TOKENIZER, 3000)]
        .map(|(file, position)| (directory.clone(), directory.join(file), position));
    for (model, file, position) in files.into_iter().chain([(gguf.clone(), gguf.clone(), 300_000)])
    {
        assert_eq!(cached(&mut generate(&model)).succeeded().stderr.matches("warning").count(), 0);
        rot(&file, position);
        let reasons =
            [&*file.display().to_string(), "is damaged: it was blake3", "hadal verify --accept"];
        cached(&mut generate(&model)).refused(1, &reasons);
        cached(&mut generate(&model)).refused(1, &reasons);
        cached(generate(&model).env("HADAL_VERIFY", "0"));
        rot(&file, position);
        cached(&mut generate(&model)).succeeded();
    }
    // What was written since may be on purpose, but is mentioned once.
    rot(&gguf, 300_000);
    File::options().write(true).open(&gguf).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    let warned = cached(&mut generate(&gguf)).succeeded().stderr;
    assert!(warned.starts_with("warning: ") && warned.contains("theirs.gguf"), "{warned}");
    assert!(!cached(&mut generate(&gguf)).succeeded().stderr.contains("warning"));
    // Without a cache everything works, and nothing is held to anything.
    rot(&gguf, 300_000);
    run(&mut generate(&gguf)).succeeded();
    cached(&mut generate(&gguf)).refused(1, &["is damaged"]);
    cached(command("verify").arg("--accept").arg(&gguf)).succeeded();
    cached(&mut generate(&gguf)).succeeded();
}

#[test]
fn verify_says_for_every_file_what_it_is() {
    let folder = TempDir::new().unwrap();
    let model = imported(&folder);
    let text = folder.path().join("text.txt");
    fs::write(&text, "A text of some words. ".repeat(40)).unwrap();
    let data = folder.path().join("data");
    run(command("data").arg("prepare").arg(&text).arg("--out").arg(&data)).succeeded();
    let cache = folder.path().join("cache");
    let verify = |paths: &[&Path], more: &[&str]| {
        run(command("verify").args(paths).args(more).env("HADAL_CACHE", &cache))
    };
    let lines = |run: &Run, status: &str| -> usize {
        run.stdout.lines().filter(|line| line.starts_with(status)).count()
    };
    let all = verify(&[&model, &data], &[]).succeeded();
    assert_eq!(lines(&all, "ok "), all.stdout.lines().count(), "{}", all.stdout);
    for file in [CONFIG, WEIGHTS, TOKENIZER, "shard-00000.bin"] {
        assert!(all.stdout.contains(file), "no {file} in {}", all.stdout);
    }
    // Below a folder, too.
    let below = verify(&[folder.path()], &[]).succeeded();
    assert_eq!(lines(&below, "ok "), lines(&all, "ok "), "{}", below.stdout);

    rot(&data.join("shard-00000.bin"), 20);
    rot(&model.join(WEIGHTS), 3000);
    fs::remove_file(model.join(TOKENIZER)).unwrap();
    let damaged = verify(&[&model, &data], &[]);
    assert_eq!((damaged.code, lines(&damaged, "damaged "), lines(&damaged, "missing ")), (1, 2, 1));
    assert!(damaged.stderr.contains("3 of ") && damaged.stderr.contains(WEIGHTS));
    let json = verify(&[&model], &["--json"]);
    let of = |name: &str| {
        let list = json.json();
        let line = list.as_array().unwrap().iter();
        let mut line = line.filter(|line| line["path"].as_str().unwrap().ends_with(name));
        line.next().unwrap()["status"].clone()
    };
    assert_eq!(of(WEIGHTS), "damaged");
    assert_eq!(of(TOKENIZER), "missing");
    assert_eq!(of(CONFIG), "ok");

    let theirs = folder.path().join("theirs.safetensors");
    fs::write(&theirs, fs::read(stories().join(WEIGHTS)).unwrap()).unwrap();
    assert_eq!(lines(&verify(&[&theirs], &[]).succeeded(), "remembered "), 1);
    assert_eq!(lines(&verify(&[&theirs], &[]).succeeded(), "ok "), 1);
    rot(&theirs, 5000);
    assert_eq!(lines(&verify(&[&theirs], &[]), "damaged "), 1);
    verify(&[&theirs], &["--accept"]).succeeded();
    assert_eq!(lines(&verify(&[&theirs], &[]).succeeded(), "ok "), 1);
    let without = run(command("verify").arg(&theirs)).succeeded();
    assert_eq!(lines(&without, "no hash "), 1);

    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    verify(&[&empty], &[]).refused(2, &["empty", "nothing that can be verified"]);
    verify(&[&empty.join("nowhere")], &[]).refused(2, &["nowhere"]);
}

/// The process is killed before each of its operations on files in turn.
#[test]
fn an_export_is_whole_or_absent() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out");
    let mut kills = 0;
    for at in 1.. {
        let mut export = export(&stories(), &out, "hf");
        let ended = export.env("HADAL_FAULT", format!("kill:{at}")).output().unwrap();
        if ended.status.success() {
            break;
        }
        kills += 1;
        // The last operation is the name itself: a kill after it leaves a whole directory.
        assert!(!out.exists(), "killed at operation {at}: {:?}", names(&out));
        assert!(at < 100, "it never ends");
    }
    assert!(kills > 5, "only {kills} operations");
    assert_eq!(names(folder.path()), ["out"], "what killed ones left is gone");
    run(&mut generate(&out)).succeeded();
    assert!(names(&out).contains(&MANIFEST.to_owned()));
    // A failure leaves nothing, and takes nothing that it did not make.
    let note = out.join("note.txt");
    fs::write(&note, "mine").unwrap();
    run(&mut export(&stories(), &out, "hf")).refused(2, &["exists already"]);
    let other = folder.path().join("other");
    let mut full = export(&stories(), &other, "hf");
    run(full.env("HADAL_FAULT", "full:write model")).refused(1, &["other"]);
    assert_eq!(names(folder.path()), ["out"]);
    assert_eq!(fs::read_to_string(&note).unwrap(), "mine");
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_refused_at_once() {
    let pipe = |path: &Path| {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    for file in [CONFIG, WEIGHTS, TOKENIZER, "generation_config.json"] {
        let copy = copy_of(&stories());
        let path = copy.path().join(file);
        let _ = fs::remove_file(&path);
        pipe(&path);
        run(&mut generate(copy.path())).refused(1, &[file, "not a regular file"]);
        let out = copy.path().join("out");
        run(command("import").arg(copy.path()).arg("--out").arg(&out))
            .refused(1, &[file, "not a regular file"]);
    }
    let folder = TempDir::new().unwrap();
    let gguf = folder.path().join("a.gguf");
    pipe(&gguf);
    run(&mut generate(&gguf)).refused(1, &["a.gguf", "not a regular file"]);
}

#[test]
fn numbers_that_single_precision_does_not_have_are_refused() {
    for eps in [1e-50, 1e56] {
        let copy = copy_of(&golden("prenorm"));
        edit_json(&copy.path().join(CONFIG), |config| config["norm_eps"] = json!(eps));
        run(command("inspect").arg(copy.path())).refused(2, &["norm_eps is"]);
        let copy = copy_of(&stories());
        edit_json(&copy.path().join(CONFIG), |config| config["rms_norm_eps"] = json!(eps));
        run(command("inspect").arg(copy.path())).refused(2, &["norm_eps is"]);
    }
}

#[test]
fn a_misspelt_key_of_a_foreign_config_is_refused() {
    let copy = copy_of(&stories());
    edit_json(&copy.path().join(CONFIG), |config| {
        let eps = config.as_object_mut().unwrap().remove("rms_norm_eps").unwrap();
        config["rms_norm_epsilon"] = eps;
    });
    let reasons = [CONFIG, "rms_norm_epsilon", "did you mean rms_norm_eps?"];
    run(command("inspect").arg(copy.path())).refused(2, &reasons);
}

#[test]
fn a_config_of_absurdly_many_blocks_is_refused_without_memory() {
    let folder = TempDir::new().unwrap();
    for blocks in [4_000_000_000u64, 1 << 63] {
        let config = json!({
            "architectures": ["Qwen2ForCausalLM"], "vocab_size": 64, "hidden_size": 16,
            "intermediate_size": 24, "num_hidden_layers": blocks, "num_attention_heads": 2,
            "use_sliding_window": true, "sliding_window": 4, "max_window_layers": 0
        });
        fs::write(folder.path().join(CONFIG), config.to_string()).unwrap();
        run(command_of_little_memory("inspect").arg(folder.path()))
            .refused(2, &["num_hidden_layers is"]);
    }
}
