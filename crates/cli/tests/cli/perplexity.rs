//! `hadal perplexity` as its users meet it.

use crate::support::*;
use std::fs;
use tempfile::TempDir;

#[test]
fn a_text_is_measured_with_and_without_parts() {
    let folder = TempDir::new().unwrap();
    let text = folder.path().join("story.txt");
    let story = "Once upon a time, there was a little girl named Lily. She loved to play outside. ";
    fs::write(&text, story.repeat(20)).unwrap();
    let measure = |more: &[&str]| {
        let mut command = command("perplexity");
        command.arg(stories()).arg("--data").arg(&text).args(more);
        run(&mut command)
    };
    let said = measure(&["--context", "64"]).succeeded().stdout;
    for words in ["perplexity ", " +- ", "nats", "chunks of 64"] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    let whole = measure(&["--context", "64", "--chunks", "2", "--json"]).succeeded().json();
    assert_eq!((&whole["chunks"], &whole["scored"]), (&2.into(), &62.into()));
    let cut = measure(&["--context", "64", "--chunks", "2", "--json", "--skip-blocks", "2,attn:1"]);
    let cut = cut.succeeded().json();
    let number = |json: &serde_json::Value| json["perplexity"].as_f64().unwrap();
    assert!(number(&cut) > number(&whole), "{cut} and {whole}");

    measure(&["--context", "100000"]).refused(2, &["fewer than one chunk of 100000"]);
    measure(&["--skip-blocks", "9"])
        .refused(2, &["block 9 is not in this model, whose blocks are 0 to 4"]);
    let mut missing = command("perplexity");
    missing.arg(stories()).args(["--data", "nowhere.txt"]);
    run(&mut missing).refused(2, &["nowhere.txt"]);
}
