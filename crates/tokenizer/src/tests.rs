//! Both kinds of tokenizer, whole texts and streams, good files and hostile ones.

use proptest::test_runner::{Config, TestRunner};
use proptest::{collection, prop_assert_eq, sample};
use serde_json::{Map, Value, json};
use std::fs;

use super::*;

fn special(id: u32, content: &str) -> Value {
    json!({
        "id": id,
        "content": content,
        "single_word": false,
        "lstrip": false,
        "rstrip": false,
        "normalized": false,
        "special": true,
    })
}

fn vocabulary(tokens: impl IntoIterator<Item = String>) -> Map<String, Value> {
    tokens.into_iter().zip(0_u32..).map(|(token, id)| (token, json!(id))).collect()
}

/// The pipeline of Llama 2 and of stories260K. Ids: 3 to 258 are bytes, 259 "▁", 260 "a",
/// 261 "b", 262 "▁a", 263 "ab", 264 "▁ab".
fn sentencepiece_json() -> Value {
    let specials = ["<unk>", "<s>", "</s>"].map(str::to_owned);
    let bytes = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>"));
    let words = ["▁", "a", "b", "▁a", "ab", "▁ab"].map(str::to_owned);
    let model = json!({
        "type": "BPE",
        "unk_token": "<unk>",
        "fuse_unk": true,
        "byte_fallback": true,
        "vocab": vocabulary(specials.into_iter().chain(bytes).chain(words)),
        "merges": [["▁", "a"], ["a", "b"], ["▁a", "b"]],
    });
    let normalizer = json!({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]});
    let post_processor = json!({
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [
            {"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    });
    let decoder = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]});
    json!({
        "version": "1.0",
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": normalizer,
        "pre_tokenizer": null,
        "post_processor": post_processor,
        "decoder": decoder,
        "model": model,
    })
}

/// The pipeline of GPT-2. "Ã©" are the two bytes of "é" and "ð" begins a four-byte character.
fn byte_level_json() -> Value {
    let tokens = ["Ġ", "a", "Ã", "©", "ð", "aÃ", "<|endoftext|>"];
    let byte_level = json!({
        "type": "ByteLevel",
        "add_prefix_space": false,
        "trim_offsets": true,
        "use_regex": true,
    });
    let model = json!({
        "type": "BPE",
        "vocab": vocabulary(tokens.map(str::to_owned)),
        "merges": [["a", "Ã"]],
    });
    json!({
        "version": "1.0",
        "added_tokens": [special(6, "<|endoftext|>")],
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": model,
    })
}

/// A decoder that looks at the last token of the text.
fn word_suffix_json() -> Value {
    json!({
        "version": "1.0",
        "added_tokens": [special(2, "</s>")],
        "decoder": {"type": "BPEDecoder", "suffix": "</w>"},
        "model": {
            "type": "BPE",
            "vocab": {"a</w>": 0, "b</w>": 1, "</s>": 2},
            "merges": [],
        },
    })
}

fn read(content: &[u8]) -> Result<Tokenizer, TokenizerError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokenizer.json");
    fs::write(&path, content).unwrap();
    Tokenizer::from_file(&path)
}

fn load(json: &Value) -> Tokenizer {
    read(json.to_string().as_bytes()).unwrap()
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut stream = tokenizer.stream();
    let mut text = String::new();
    for &id in ids {
        text.extend(stream.push(id).unwrap());
    }
    text + &stream.finish()
}

fn assert_streaming_equals_decoding(tokenizer: &Tokenizer, choices: Vec<u32>) {
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    let strategy = collection::vec(sample::select(choices), 0..24);
    runner
        .run(&strategy, |ids| {
            prop_assert_eq!(streamed(tokenizer, &ids), tokenizer.decode(&ids).unwrap());
            Ok(())
        })
        .unwrap();
}

#[test]
fn bytes_survive_a_round_trip() {
    let tokenizer = Tokenizer::bytes();
    let text = "one é, two 叫, three 😀\n";
    let ids = tokenizer.encode(text).unwrap();
    assert_eq!(ids.len(), text.len());
    assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    assert_eq!(streamed(&tokenizer, &ids), text);
}

#[test]
fn the_byte_tokenizer_begins_and_ends_with_end_of_text() {
    let tokenizer = Tokenizer::bytes();
    assert_eq!(tokenizer.begin(), Some(256));
    assert_eq!(tokenizer.ends(), [256]);
    assert_eq!(tokenizer.vocab_size(), 257);
    assert_eq!(tokenizer.decode(&[256, 97, 256]).unwrap(), "a");
}

#[test]
fn a_character_is_held_back_until_its_last_byte() {
    let tokenizer = Tokenizer::bytes();
    let mut stream = tokenizer.stream();
    for id in [0xF0, 0x9F, 0x98] {
        assert_eq!(stream.push(id).unwrap(), None);
    }
    assert_eq!(stream.push(0x80).unwrap().as_deref(), Some("😀"));
    assert_eq!(stream.push(0xC3).unwrap(), None);
    assert_eq!(stream.finish(), "\u{FFFD}");
}

#[test]
fn invalid_bytes_are_replaced_at_once() {
    let tokenizer = Tokenizer::bytes();
    let mut stream = tokenizer.stream();
    assert_eq!(stream.push(0xFF).unwrap().as_deref(), Some("\u{FFFD}"));
    assert_eq!(stream.push(0xE5).unwrap(), None);
    assert_eq!(stream.push(0x61).unwrap().as_deref(), Some("\u{FFFD}a"));
    assert_eq!(stream.finish(), "");
}

#[test]
fn an_id_beyond_the_vocabulary_is_refused() {
    for tokenizer in [Tokenizer::bytes(), load(&sentencepiece_json())] {
        let error = tokenizer.decode(&[4000]).unwrap_err();
        assert!(error.to_string().contains("4000"), "{error}");
        let error = tokenizer.stream().push(4000).unwrap_err();
        assert!(matches!(error, TokenizerError::UnknownId { id: 4000 }));
    }
}

#[test]
fn streaming_equals_decoding_for_bytes() {
    let choices = vec![0x0A, 0x61, 0xC3, 0xA9, 0xE5, 0x8F, 0xAB, 0xF0, 0x9F, 0x98, 0x80, 0xFF, 256];
    assert_streaming_equals_decoding(&Tokenizer::bytes(), choices);
}

#[test]
fn streaming_equals_decoding_for_byte_fallback() {
    let tokenizer = load(&sentencepiece_json());
    let choices = vec![0, 1, 2, 13, 198, 172, 258, 259, 260, 261, 262, 263, 264];
    assert_streaming_equals_decoding(&tokenizer, choices);
}

#[test]
fn streaming_equals_decoding_for_byte_level() {
    let tokenizer = load(&byte_level_json());
    assert_streaming_equals_decoding(&tokenizer, (0..7).collect());
}

#[test]
fn streaming_equals_decoding_for_word_suffixes() {
    let tokenizer = load(&word_suffix_json());
    assert_streaming_equals_decoding(&tokenizer, (0..3).collect());
}

#[test]
fn a_sentencepiece_like_file_is_read_with_its_special_tokens() {
    let tokenizer = load(&sentencepiece_json());
    assert_eq!(tokenizer.begin(), Some(1));
    assert_eq!(tokenizer.ends(), [2]);
    assert_eq!(tokenizer.vocab_size(), 265);
    assert_eq!(tokenizer.encode("ab a").unwrap(), [1, 264, 262]);
    assert_eq!(tokenizer.encode("é").unwrap(), [1, 259, 198, 172]);
    assert_eq!(tokenizer.decode(&[1, 264, 262, 2]).unwrap(), "ab a");
    assert_eq!(tokenizer.decode(&[1, 2]).unwrap(), "");
}

#[test]
fn only_the_first_space_of_a_stream_is_dropped() {
    let tokenizer = load(&sentencepiece_json());
    let mut stream = tokenizer.stream();
    assert_eq!(stream.push(1).unwrap(), None);
    assert_eq!(stream.push(264).unwrap().as_deref(), Some("ab"));
    assert_eq!(stream.push(262).unwrap().as_deref(), Some(" a"));
    assert_eq!(stream.push(259).unwrap().as_deref(), Some(" "));
    assert_eq!(stream.push(264).unwrap().as_deref(), Some(" ab"));
}

#[test]
fn a_byte_run_is_held_back_until_it_ends() {
    let tokenizer = load(&sentencepiece_json());
    let mut stream = tokenizer.stream();
    assert_eq!(stream.push(13).unwrap(), None);
    assert_eq!(stream.push(261).unwrap().as_deref(), Some("\nb"));
    assert_eq!(stream.push(13).unwrap(), None);
    assert_eq!(stream.finish(), "\n");
}

#[test]
fn a_byte_level_file_gives_out_what_is_complete() {
    let tokenizer = load(&byte_level_json());
    assert_eq!(tokenizer.begin(), Some(6));
    assert_eq!(tokenizer.ends(), [6]);
    assert_eq!(tokenizer.encode("aé a").unwrap(), [5, 3, 0, 1]);
    let mut stream = tokenizer.stream();
    assert_eq!(stream.push(5).unwrap().as_deref(), Some("a"));
    assert_eq!(stream.push(3).unwrap().as_deref(), Some("é"));
    assert_eq!(stream.push(0).unwrap().as_deref(), Some(" "));
    assert_eq!(stream.finish(), "");
}

#[test]
fn begin_and_end_can_be_overridden() {
    let tokenizer = load(&sentencepiece_json()).with_begin(None).with_ends(vec![7, 8]);
    assert_eq!(tokenizer.begin(), None);
    assert_eq!(tokenizer.ends(), [7, 8]);
}

#[test]
fn stored_truncation_is_ignored() {
    let mut json = sentencepiece_json();
    json["truncation"] = json!({
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    });
    assert_eq!(load(&json).encode("ab a").unwrap(), [1, 264, 262]);
}

#[test]
fn a_missing_file_or_a_directory_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing.json");
    for path in [missing.as_path(), directory.path()] {
        let error = Tokenizer::from_file(path).unwrap_err();
        assert!(matches!(error, TokenizerError::Read { .. }), "{error}");
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }
}

#[test]
fn hostile_content_is_refused() {
    let longer_than_any_token = json!({
        "model": {"type": "BPE", "vocab": {"aa": 0, "bb": 1}, "merges": [["aa", "bb"]]},
    })
    .to_string();
    let nested = "[".repeat(100_000);
    let contents: [&[u8]; 8] = [
        b"",
        b"not json",
        b"\xFF\xFE\x00",
        b"{\"version\": \"\xFF\"}",
        b"{\"version\": \"1.0\"}",
        b"[1, 2, 3]",
        nested.as_bytes(),
        longer_than_any_token.as_bytes(),
    ];
    for content in contents {
        let error = read(content).unwrap_err();
        assert!(matches!(error, TokenizerError::Malformed { .. }), "{error}");
        assert!(error.to_string().contains("tokenizer.json"), "{error}");
    }
}

#[test]
fn a_truncated_file_is_refused_wherever_it_ends() {
    let json = sentencepiece_json().to_string();
    for length in (0..json.len()).step_by(61) {
        let error = read(&json.as_bytes()[..length]).unwrap_err();
        assert!(matches!(error, TokenizerError::Malformed { .. }), "{error}");
    }
}

#[test]
fn a_token_beyond_the_vocabulary_is_refused() {
    let mut json = sentencepiece_json();
    json["post_processor"]["special_tokens"]["<s>"]["ids"] = json!([65_541]);
    let error = Tokenizer::from_bytes(Path::new("t.json"), json.to_string().as_bytes());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("t.json") && error.contains("adds token 65541"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_pipe_in_the_place_of_a_tokenizer_is_refused_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("tokenizer.json");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let error = Tokenizer::from_file(&pipe).unwrap_err().to_string();
    assert!(error.contains("not a regular file"), "{error}");
}
