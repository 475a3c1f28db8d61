//! How much memory a hostile vocabulary may take, measured by counting allocations.

use hadal_files::testing::{Counting, peak};
use hadal_gguf::{Metadata, Writer};
use hadal_tokenizer::Tokenizer;
use std::fs;
use std::path::Path;

#[global_allocator]
static COUNTING: Counting = Counting;

/// What became of a vocabulary, and the most bytes that were live at once for each byte of its file.
fn read(directory: &Path, metadata: &Metadata) -> (Result<(), String>, f64) {
    let path = directory.join("hostile.gguf");
    Writer::create(&path, metadata, Vec::new()).unwrap().finish().unwrap();
    let length = fs::metadata(&path).unwrap().len();
    let (outcome, bytes) = peak(|| Tokenizer::of_model(&path).map(drop));
    (outcome.map_err(|error| error.to_string()), bytes as f64 / length as f64)
}

/// SentencePiece's kind, all scores equal.
fn pieces(tokens: Vec<String>) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.set("tokenizer.ggml.model", "llama");
    metadata.set("tokenizer.ggml.scores", vec![0.0f32; tokens.len()]);
    metadata.set("tokenizer.ggml.tokens", tokens);
    metadata.set("tokenizer.ggml.bos_token_id", 0u32);
    metadata
}

/// Runs of one letter: every part of such a piece is a piece.
fn runs(letters: usize, longest: usize) -> Vec<String> {
    let letters = ('a'..).take(letters);
    letters.flat_map(|letter| (1..=longest).map(move |n| letter.to_string().repeat(n))).collect()
}

/// Runs of two letters, one after the other: the most merges for each byte of a piece.
fn double_runs(longest: usize) -> Vec<String> {
    let pairs = (0..=longest).flat_map(|a| (0..=longest - a).map(move |b| (a, b)));
    pairs.skip(1).map(|(a, b)| "a".repeat(a) + &"b".repeat(b)).collect()
}

/// Byte-level, with as many merges as words and no longer ones than there must be.
fn merges() -> Metadata {
    let letters: Vec<String> = (200..300).filter_map(char::from_u32).map(String::from).collect();
    let words = letters.iter().flat_map(|a| letters.iter().map(move |b| [a.clone(), b.clone()]));
    let (words, merges): (Vec<String>, Vec<String>) =
        words.map(|pair| (pair.concat(), pair.join(" "))).unzip();
    let mut metadata = Metadata::default();
    metadata.set("tokenizer.ggml.model", "gpt2");
    metadata.set("tokenizer.ggml.pre", "gpt-2");
    metadata.set("tokenizer.ggml.tokens", [letters, words].concat());
    metadata.set("tokenizer.ggml.merges", merges);
    metadata
}

/// One test, because the counters are global.
#[test]
fn memory_is_bounded_by_what_a_vocabulary_has() {
    let directory = tempfile::tempdir().unwrap();
    for (what, tokens, reason) in [
        ("long runs", runs(8, 1024), "token 128 has 129 bytes"),
        ("runs", runs(8, 128), "which no real vocabulary has"),
        ("double runs", double_runs(128), "which no real vocabulary has"),
        ("shorter ones", double_runs(100), "which no real vocabulary has"),
    ] {
        let (outcome, ratio) = read(directory.path(), &pieces(tokens));
        let refusal = outcome.expect_err(what);
        assert!(refusal.contains("hostile.gguf") && refusal.contains(reason), "{what}: {refusal}");
        assert!(ratio < 30.0, "{what}: {ratio:.1} times the file");
    }
    // What is accepted: nearly as many merges as there may be, and tokens as short as they can be.
    let short: Vec<String> = (0..40_000).filter_map(char::from_u32).map(String::from).collect();
    for (what, metadata) in
        [("runs", pieces(runs(2000, 12))), ("letters", pieces(short)), ("merges", merges())]
    {
        let (outcome, ratio) = read(directory.path(), &metadata);
        outcome.expect(what);
        assert!(ratio < 200.0, "{what}: {ratio:.1} times the file");
        assert!(ratio > 1.0, "{what}: this does not measure: {ratio:.1}");
    }
}
