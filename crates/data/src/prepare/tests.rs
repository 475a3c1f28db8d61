//! Every format, any number of threads, any interruption: the same bytes.

use super::*;
use crate::testing::{Workshop, contents, documents, gzip, json_lines, parquet, prose, zstandard};
use ::parquet::basic::{Compression, ZstdLevel};
use std::fs;

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

/// Stops as soon as `stop` returns true, as a kill would; false if it never did.
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
            // What a kill in the middle of a write leaves.
            for name in ["shard-00001.bin.7.part", "manifest.json.partial"] {
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
    // Killed after the manifest was written and before the progress was removed.
    fs::write(options.out.join(PROGRESS), before_last.unwrap()).unwrap();
    prepare(&options, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(contents(&options.out), expected);
    // Killed after a shard was renamed and before the progress recorded it.
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
        assert!(matches!(error, DataError::Different { .. }) && error.is_usage(), "{error}");
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
        assert!(error.to_string().contains(said) && error.is_usage(), "{error}");
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
