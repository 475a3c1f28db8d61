//! `hadal import` from the disk, and what it refuses.

use crate::support::*;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn foreign(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden-hf").join(name)
}

#[test]
fn an_imported_model_says_what_it_is_and_writes_the_same() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("stories");
    let said = run(command("import").arg(stories()).arg("--out").arg(&out)).succeeded();
    for words in ["blocks", "parameters", "in memory", "SentencePiece"] {
        assert!(said.stdout.contains(words), "no {words:?} in {}", said.stdout);
    }
    assert!(said.stderr.contains("hadal generate"), "{}", said.stderr);
    let story = |model: &Path| {
        let mut generate = command("generate");
        generate.arg(model).args(["--prompt", "Once upon a time", "-n", "20"]);
        run(&mut generate).succeeded().stdout
    };
    assert_eq!(story(&out), story(&stories()));
    run(command("import").arg(stories()).arg("--out").arg(&out)).refused(2, &["exists already"]);
}

#[test]
fn scripts_read_the_shape_and_the_memory() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("qwen2");
    let mut import = command("import");
    import.arg(foreign("qwen2")).arg("--out").arg(&out).arg("--json");
    let json: serde_json::Value =
        serde_json::from_str(&run(&mut import).succeeded().stdout).unwrap();
    assert_eq!(json["config"]["attention_bias"], "qkv");
    assert_eq!(json["memory_bytes"], 4 * json["parameters"].as_u64().unwrap());
    assert_eq!(json["stored_bytes"], json["memory_bytes"]);
    assert_eq!(json["tokenizer"], false);
    let inspected = run(command("inspect").arg(&out).arg("--json")).succeeded().stdout;
    let inspected: serde_json::Value = serde_json::from_str(&inspected).unwrap();
    assert_eq!(inspected["total_parameters"], json["parameters"]);
}

#[test]
fn what_is_no_model_is_refused_before_anything_is_written() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out");
    let import = |source: &str| {
        let mut import = command("import");
        import.arg(source).arg("--out").arg(&out);
        run(&mut import)
    };
    import("nowhere").refused(2, &["nowhere", "Qwen/Qwen3-0.6B"]);
    import("a/b/c").refused(2, &["a/b/c"]);
    import(&folder.path().display().to_string()).refused(1, &["config.json"]);
    let fake = folder.path().join("fake.gguf");
    fs::write(&fake, "GGUF").unwrap();
    import(&fake.display().to_string()).refused(1, &["fake.gguf"]);
    assert!(!out.exists());
}
