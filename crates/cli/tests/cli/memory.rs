//! What does not fit into memory is refused before it is read.

use crate::support::{
    CONFIG, WEIGHTS, command, copy_of, edit_json, golden, read_json, run, stories,
};
use serde_json::{Map, json};
use std::fs::{self, File};
use std::io::Write;
use std::process::Command;
use tempfile::TempDir;

#[test]
fn every_command_that_loads_a_model_asks_first() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::write(at("text.txt"), "Once upon a time there was a girl. ".repeat(200)).unwrap();
    let (model, text, nag) = (stories().display().to_string(), at("text.txt"), golden("nag"));
    let (out, nag) = (at("out"), nag.display().to_string());
    let jobs: [(&[&str], i32); 6] = [
        (&["generate", &model, "-p", "x"], 1),
        (&["chat", &model, "--template", "chatml"], 1),
        (&["perplexity", &model, "--data", &text], 1),
        (&["diagnose", &model, "--data", &text, "--out", &out], 1),
        (&["prune", "plan", &model, "--data", &text, "--blocks", "1", "--out", &out], 1),
        (&["parity", &nag], 2),
    ];
    for (arguments, code) in jobs {
        let asked = |size: &str| -> Command {
            let mut asked = command(arguments[0]);
            asked.args(&arguments[1..]).env("HADAL_MEMORY", size);
            asked
        };
        run(&mut asked("1kB")).refused(code, &["needs", "1.0 kB are free", "HADAL_MEMORY=any"]);
        run(&mut asked("much")).refused(code, &["HADAL_MEMORY is \"much\"", "16GB"]);
        assert!(!folder.path().join("out").exists(), "{arguments:?}");
    }
    for size in ["any", "1TB"] {
        let mut generate = command("generate");
        generate.args([&*model, "-p", "x", "-n", "2"]).env("HADAL_MEMORY", size);
        run(&mut generate).succeeded();
    }
}

#[test]
fn keys_and_values_of_a_long_text_count() {
    let need = |tokens: &str| {
        let mut generate = command("generate");
        generate.arg(stories()).args(["-p", "x", "-n", tokens]).env("HADAL_MEMORY", "1.3MB");
        run(&mut generate)
    };
    need("1").succeeded();
    need("500").refused(1, &["keys and values of 501 tokens", "1.3 MB are free"]);
}

/// Nothing but a header says how large it is: the file is a hole.
#[test]
fn a_huge_model_is_refused_by_its_header() {
    let copy = copy_of(&golden("prenorm"));
    let _ = fs::remove_file(copy.path().join("manifest.json"));
    let (blocks, width) = (512, 1 << 14);
    edit_json(&copy.path().join(CONFIG), |config| {
        for (key, value) in [("n_layers", blocks), ("d_model", width), ("d_ff", 4 * width)] {
            config[key] = value.into();
        }
    });
    let mlp = read_json(&copy.path().join(CONFIG))["mlp"].clone();
    assert_eq!(mlp, "relu2");
    // The names do not matter: what is stored is what would be read.
    let mut header = Map::new();
    let mut end = 0u64;
    for block in 0..blocks {
        for part in ["up", "down"] {
            let (start, bytes) = (end, 16 * (width * width) as u64);
            end += bytes;
            let shape = if part == "up" { [4 * width, width] } else { [width, 4 * width] };
            header.insert(
                format!("layers.{block}.mlp.{part}.weight"),
                json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]}),
            );
        }
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = File::create(copy.path().join(WEIGHTS)).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(&header).unwrap();
    file.set_len(8 + header.len() as u64 + end).unwrap();
    let mut generate = command("generate");
    generate.arg(copy.path()).args(["-p", "x"]).env_remove("HADAL_MEMORY");
    run(&mut generate).refused(1, &["needs 4402.", " GB weights in f32", "GB are free"]);
}
