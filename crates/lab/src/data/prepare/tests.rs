//! Every format, any number of threads, any interruption: the same bytes.

use super::*;
use crate::data::testing::{
    Workshop, contents, documents, gzip, json_lines, parquet, prose, zstandard,
};
use ::parquet::basic::{Compression, ZstdLevel};
use hadal_model::Tokenizer;
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

/// What the byte tokenizer must make of documents.
fn expected(documents: &[String]) -> Vec<u32> {
    documents.iter().flat_map(|text| text.bytes().map(u32::from).chain([256])).collect()
}

fn tokens(set: &ShardSet) -> Vec<u32> {
    set.read(0, set.len() as usize).unwrap()
}

#[test]
fn every_format_gives_the_same_tokens() {
    let documents = documents(250);
    let text = documents.join("<|endoftext|>").into_bytes();
    let lines = json_lines(&documents).into_bytes();
    let rows: Vec<_> = documents.iter().map(|text| Some(text.as_str())).collect();
    let middle = text.windows(13).position(|window| window == b"<|endoftext|>").unwrap();
    let files = [
        ("a.txt", text.clone()),
        ("a.txt.gz", gzip(&text)),
        ("a.TXT.zst", zstandard(&text)),
        ("a.jsonl", lines.clone()),
        ("a.jsonl.gz", gzip(&lines)),
        ("a.jsonl.zst", zstandard(&lines)),
        ("marked.txt", [b"\xef\xbb\xbf", text.as_slice()].concat()),
        ("members.txt.gz", [gzip(&text[..middle]), gzip(&text[middle..])].concat()),
        ("frames.txt.zst", [zstandard(&text[..middle]), zstandard(&text[middle..])].concat()),
        ("a.parquet", parquet(&rows, Compression::UNCOMPRESSED)),
        ("snappy.parquet", parquet(&rows, Compression::SNAPPY)),
        ("gzip.parquet", parquet(&rows, Compression::GZIP(Default::default()))),
        ("zstd.parquet", parquet(&rows, Compression::ZSTD(ZstdLevel::default()))),
    ];
    for (name, content) in files {
        let workshop = Workshop::new();
        workshop.write(name, content);
        let set = workshop.prepared(|options| options.shard_tokens = 3000);
        assert!(set.shards().len() > 3, "{name}");
        assert_eq!(tokens(&set), expected(&documents), "{name}");
        assert_eq!(set.manifest().totals.documents, 250, "{name}");
        set.verify(&mut |_| ()).unwrap();
    }
}

#[test]
fn a_directory_is_read_in_the_order_of_its_names() {
    let workshop = Workshop::new();
    fs::create_dir(workshop.input().join("b")).unwrap();
    for (name, text) in
        [("c.txt", "3"), ("b/x.txt", "2"), ("a.jsonl", "{\"text\":\"1\"}"), ("notes.md", "no")]
    {
        workshop.write(name, text);
    }
    let set = workshop.prepared(|_| ());
    assert_eq!(tokens(&set), expected(&["1", "2", "3"].map(str::to_owned)));
    assert_eq!(set.manifest().sources.len(), 3);
}

#[test]
fn threads_do_not_change_a_byte() {
    let workshop = Workshop::new();
    workshop.write("a.txt", prose(400));
    workshop.write("b.jsonl", json_lines(&documents(100)));
    let mut results = Vec::new();
    for threads in [1, 2, 7] {
        let out = workshop.path(&format!("out-{threads}"));
        workshop
            .prepare(|options| {
                options.threads = threads;
                options.shard_tokens = 2000;
                options.out = out.clone();
            })
            .unwrap();
        results.push(contents(&out));
    }
    assert!(results[0].len() > 10);
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}

/// Stops as soon as the progress says so, as a kill would; false if it never did.
fn interrupted(options: &PrepareOptions, mut stop: impl FnMut(&PrepareProgress) -> bool) -> bool {
    let outcome = prepare(options, &mut |report| {
        if stop(report) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    match outcome {
        Ok(_) => false,
        Err(DataError::Stopped { .. }) => true,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn an_interrupted_preparation_goes_on_and_ends_with_the_same_bytes() {
    let workshop = Workshop::new();
    workshop.write("a.txt", prose(100));
    workshop.write("b.jsonl", json_lines(&documents(60)));
    let rows = documents(50);
    let rows: Vec<_> = rows.iter().map(|text| Some(text.as_str())).collect();
    workshop.write("c.parquet", parquet(&rows, Compression::SNAPPY));
    let mut options = workshop.options();
    options.shard_tokens = 2500;
    let whole = workshop.prepared(|changed| *changed = options.clone());
    assert!(whole.shards().len() > 5);
    let expected = contents(&workshop.out());
    for at in 0.. {
        options.out = workshop.path(&format!("cut-{at}"));
        let mut calls = 0;
        let stopped = interrupted(&options, |_| {
            calls += 1;
            calls > at
        });
        if !stopped {
            assert!(at > whole.shards().len());
            break;
        }
        if options.out.exists() {
            // What a kill in the middle of a write leaves behind.
            for name in ["shard-00001.bin.partial", "manifest.json.partial"] {
                fs::write(options.out.join(name), "half").unwrap();
            }
        }
        // A second interruption, a little later.
        let mut calls = 0;
        interrupted(&options, |_| {
            calls += 1;
            calls > 2
        });
        prepare(&options, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(contents(&options.out), expected, "stopped at call {at}");
    }
}

#[test]
fn what_a_kill_between_two_steps_leaves_behind_does_no_harm() {
    let workshop = Workshop::new();
    workshop.write("a.txt", prose(100));
    let mut options = workshop.options();
    options.shard_tokens = 1000;
    let mut before_last = None;
    prepare(&options, &mut |report| {
        if report.shards > 0 {
            before_last = Some(fs::read(options.out.join(PROGRESS)).unwrap());
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    let expected = contents(&options.out);
    // Killed after the manifest and before the progress went.
    fs::write(options.out.join(PROGRESS), before_last.unwrap()).unwrap();
    prepare(&options, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(contents(&options.out), expected);
    // Killed after a shard was renamed and before the progress knew of it.
    let cut = PrepareOptions { out: workshop.path("cut"), ..options };
    assert!(interrupted(&cut, |report| report.shards == 3));
    fs::copy(workshop.out().join("shard-00003.bin"), cut.out.join("shard-00003.bin")).unwrap();
    prepare(&cut, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(contents(&cut.out), expected);
}

#[test]
fn other_settings_or_sources_are_refused() {
    let workshop = Workshop::new();
    workshop.write("a.txt", prose(100));
    let refused = |change: &dyn Fn(&mut PrepareOptions), said: &str| {
        let error = workshop.prepare(|options| {
            options.shard_tokens = 1000;
            change(options);
        });
        let error = error.unwrap_err();
        assert!(matches!(error, DataError::Different { .. }) && error.is_misuse(), "{error}");
        assert!(error.to_string().contains(said), "{error}");
    };
    let mut options = workshop.options();
    options.shard_tokens = 1000;
    for finished in [false, true] {
        if finished {
            prepare(&options, &mut |_| ControlFlow::Continue(())).unwrap();
        } else {
            assert!(interrupted(&options, |report| report.shards == 3));
        }
        refused(&|options| options.shard_tokens = 999, "tokens per shard was 1000, now 999");
        refused(&|options| options.text_key = "body".into(), "text key was text, now body");
        refused(&|options| options.inputs.push(workshop.input()), "input was 1 files, now 2 files");
    }
    workshop.write("a.txt", prose(101));
    refused(&|_| (), "a.txt was");
}

#[test]
fn a_directory_with_something_else_in_it_is_left_alone() {
    let workshop = Workshop::new();
    workshop.write("a.txt", "text");
    fs::create_dir(workshop.out()).unwrap();
    fs::write(workshop.out().join("thesis.doc"), "precious").unwrap();
    let error = workshop.prepare(|_| ()).unwrap_err();
    assert!(matches!(error, DataError::Occupied { .. }), "{error}");
    assert_eq!(contents(&workshop.out()).len(), 1);
}

#[test]
fn two_cannot_write_at_once() {
    let workshop = Workshop::new();
    workshop.write("a.txt", "text");
    let _first = Output::open(&workshop.out()).unwrap();
    let error = workshop.prepare(|_| ()).unwrap_err();
    assert!(matches!(error, DataError::Busy { .. }), "{error}");
}

#[test]
fn inputs_without_text_are_refused_and_leave_nothing_behind() {
    let workshop = Workshop::new();
    let error = workshop.prepare(|_| ()).unwrap_err();
    assert!(matches!(error, DataError::NoFiles { .. }), "{error}");
    workshop.write("a.txt", " \n<|endoftext|>\n");
    workshop.write("b.jsonl", "{\"text\": \"\"}\n");
    let error = workshop.prepare(|_| ()).unwrap_err();
    assert!(matches!(error, DataError::Empty), "{error}");
    workshop.write("c.csv", "a,b");
    for (name, said) in [("in/c.csv", "not a kind of file"), ("in/missing.txt", "does not exist")] {
        let input = workshop.path(name);
        let error = workshop.prepare(|options| options.inputs = vec![input]).unwrap_err();
        assert!(error.to_string().contains(said) && error.is_misuse(), "{error}");
    }
    assert!(!workshop.out().exists());
}

#[test]
fn bad_text_is_named_whatever_holds_it() {
    let rows = [Some("a"), None];
    let truncated = gzip(prose(300).as_bytes());
    let half_packed = zstandard(prose(300).as_bytes());
    for (name, content, said) in [
        ("a.txt", b"fine\ncaf\xe9".to_vec(), "a.txt: line 2 is not UTF-8 (byte 8"),
        ("a.jsonl", b"{\"text\": \"a\"}\n{\"text\"".to_vec(), "a.jsonl: line 2: EOF"),
        ("a.parquet", parquet(&rows, Compression::SNAPPY), "a.parquet: row 2: it is null"),
        ("b.parquet", b"PAR1 and so on".to_vec(), "b.parquet"),
        ("a.txt.gz", truncated[..truncated.len() / 2].to_vec(), "a.txt.gz"),
        ("a.txt.zst", half_packed[..half_packed.len() / 2].to_vec(), "a.txt.zst"),
        ("b.txt.gz", b"not packed".to_vec(), "b.txt.gz"),
    ] {
        let workshop = Workshop::new();
        workshop.write(name, content);
        let message = workshop.prepare(|_| ()).unwrap_err().to_string();
        assert!(message.contains(said), "{message}");
    }
    let workshop = Workshop::new();
    workshop.write("a.parquet", parquet(&[Some("a")], Compression::SNAPPY));
    for (column, said) in [("body", "no column `body` among id, text"), ("id", "holds no text")] {
        let message =
            workshop.prepare(|options| options.text_key = column.into()).unwrap_err().to_string();
        assert!(message.contains(said), "{message}");
    }
}

#[test]
fn damage_to_a_prepared_directory_is_found_and_named() {
    let workshop = Workshop::new();
    workshop.write("a.txt", prose(30));
    let set = workshop.prepared(|options| options.shard_tokens = 1000);
    let fingerprint = set.fingerprint();
    drop(set);
    let good = contents(&workshop.out());
    let verdict = || ShardSet::open(&workshop.out()).and_then(|set| set.verify(&mut |_| ()));
    for (name, content) in &good {
        let path = workshop.out().join(name);
        fs::remove_file(&path).unwrap();
        let message = verdict().unwrap_err().to_string();
        assert!(message.contains(name.as_str()), "{message}");
        if name.ends_with(".bin") {
            for byte in (0..content.len()).step_by(97) {
                let mut bad = content.clone();
                bad[byte] ^= 1;
                fs::write(&path, bad).unwrap();
                let message = verdict().unwrap_err().to_string();
                assert!(
                    message.contains(name.as_str()) && message.contains("damaged"),
                    "{message}"
                );
            }
        }
        for half in [&content[..content.len() / 2], &[]] {
            fs::write(&path, half).unwrap();
            let message = verdict().unwrap_err().to_string();
            assert!(message.contains(name.as_str()) && message.contains("damaged"), "{message}");
        }
        fs::write(&path, content).unwrap();
    }
    verdict().unwrap();
    let text = String::from_utf8(good["manifest.json"].clone()).unwrap();
    for (from, to) in [
        ("shard-00001.bin", "../shard-00001.bin"),
        ("\"version\": 1", "\"version\": 2"),
        ("\"tokens\": ", "\"tokens\": 1"),
    ] {
        fs::write(workshop.out().join("manifest.json"), text.replacen(from, to, 1)).unwrap();
        let message = verdict().unwrap_err().to_string();
        assert!(message.contains("manifest.json is damaged"), "{message}");
    }
    fs::write(workshop.out().join("manifest.json"), &text).unwrap();
    assert_eq!(ShardSet::open(&workshop.out()).unwrap().fingerprint(), fingerprint);
}

#[test]
fn a_damaged_shard_is_not_built_upon() {
    let workshop = Workshop::new();
    workshop.write("a.txt", prose(100));
    let mut options = workshop.options();
    options.shard_tokens = 1000;
    assert!(interrupted(&options, |report| report.shards == 4));
    let error = ShardSet::open(&options.out).unwrap_err().to_string();
    assert!(error.contains("has not finished"), "{error}");
    let path = options.out.join("shard-00001.bin");
    let mut content = fs::read(&path).unwrap();
    content[100] ^= 1;
    fs::write(&path, content).unwrap();
    let error = prepare(&options, &mut |_| ControlFlow::Continue(())).unwrap_err().to_string();
    assert!(error.contains("shard-00001.bin is damaged"), "{error}");
}

#[test]
fn windows_are_read_across_shards() {
    let workshop = Workshop::new();
    workshop.write("a.txt", prose(50));
    let set = workshop.prepared(|options| options.shard_tokens = 100);
    let all = tokens(&set);
    for start in (0..all.len()).step_by(37) {
        for len in [0, 1, 99, 100, 101, 350] {
            let read = set.read(start as u64, len);
            match all.get(start..start + len) {
                Some(window) => assert_eq!(read.unwrap(), window),
                None => assert!(matches!(read, Err(DataError::OutOfRange { .. }))),
            }
        }
    }
    assert!(set.read(u64::MAX, 2).is_err());
}

#[test]
fn a_long_document_is_cut_for_memory_but_not_for_the_model() {
    let workshop = Workshop::new();
    let text = documents(6000).join("\n");
    assert!(text.len() > 2 * PIECE_BYTES);
    workshop.write("a.txt", &text);
    // GPT-2's words, learned from other text.
    let path = bpe(&workshop);
    let set = workshop.prepared(|options| {
        options.tokenizer = TokenizerChoice::File(path.clone());
        options.shard_tokens = 50_000;
    });
    let mut whole = Tokenizer::from_file(&path).unwrap().encode(&text).unwrap();
    whole.push(set.manifest().tokenizer.end_of_text);
    assert_eq!(tokens(&set), whole);
    assert_eq!(set.manifest().totals.documents, 1);
    assert_eq!(set.manifest().totals.bytes, text.len() as u64);
    assert_eq!(fs::read(set.tokenizer_file().unwrap()).unwrap(), fs::read(&path).unwrap());
}

fn bpe(workshop: &Workshop) -> PathBuf {
    fs::write(workshop.path("learn.txt"), prose(50)).unwrap();
    let path = workshop.path("bpe.json");
    let options = crate::data::TrainTokenizerOptions {
        inputs: vec![workshop.path("learn.txt")],
        text_key: "text".into(),
        vocab_size: 350,
        max_bytes: u64::MAX,
        out: path.clone(),
        threads: 1,
    };
    crate::data::train_tokenizer(&options, &mut |_| ControlFlow::Continue(())).unwrap();
    path
}

/// One token for each word, with `<s>` before and `</s>` after every text.
fn words(path: &Path, count: usize, framed: bool) {
    let mut vocabulary: Map<String, Value> =
        (0..count).map(|id| (format!("w{id}"), json!(id))).collect();
    let mut added = Vec::new();
    for name in ["<unk>", "<s>", "</s>"] {
        let id = vocabulary.len();
        vocabulary.insert(name.into(), json!(id));
        added.push(json!({
            "id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        }));
    }
    let special = |name: &str| {
        let ids = [&vocabulary[name]];
        (name.to_owned(), json!({ "id": name, "ids": ids, "tokens": [name] }))
    };
    let frame = json!({
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "</s>", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": Map::from_iter([special("<s>"), special("</s>")]),
    });
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": if framed { frame } else { Value::Null },
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    });
    fs::write(path, tokenizer.to_string()).unwrap();
}

#[test]
fn a_document_has_one_beginning_and_one_end() {
    let workshop = Workshop::new();
    let path = workshop.path("words.json");
    let long = "w1 w2 w3\n".repeat(PIECE_BYTES / 6);
    workshop.write("a.txt", format!("w5 w6<|endoftext|>{long}"));
    for framed in [true, false] {
        words(&path, 10, framed);
        let out = workshop.path(&format!("framed-{framed}"));
        workshop
            .prepare(|options| {
                options.tokenizer = TokenizerChoice::File(path.clone());
                options.out = out.clone();
            })
            .unwrap();
        let found = tokens(&ShardSet::open(&out).unwrap());
        let begin: &[u32] = if framed { &[11] } else { &[] };
        let body = [1, 2, 3].repeat(PIECE_BYTES / 6);
        assert_eq!(found, [begin, &[5, 6, 12], begin, &body, &[12]].concat());
    }
}

#[test]
fn a_large_vocabulary_takes_four_bytes() {
    let workshop = Workshop::new();
    let path = workshop.path("words.json");
    words(&path, 70_000, false);
    workshop.write("a.txt", "w0 w65535 w65536 w69999");
    let set = workshop.prepared(|options| options.tokenizer = TokenizerChoice::File(path));
    assert_eq!(set.shards()[0].width(), 4);
    assert_eq!(tokens(&set), [0, 65_535, 65_536, 69_999, 70_002]);
}

#[test]
fn a_tokenizer_without_an_end_is_refused() {
    let workshop = Workshop::new();
    workshop.write("a.txt", "text");
    let path = workshop.path("words.json");
    let tokenizer = json!({
        "version": "1.0",
        "model": {"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1}, "unk_token": "<unk>"},
    });
    fs::write(&path, tokenizer.to_string()).unwrap();
    let error =
        workshop.prepare(|options| options.tokenizer = TokenizerChoice::File(path)).unwrap_err();
    assert!(matches!(error, DataError::NoEndOfText { .. }), "{error}");
}
