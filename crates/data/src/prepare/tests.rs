//! Every format, any number of threads, any interruption: the same bytes.

use super::*;
use crate::testing::{
    Workshop, contents, documents, gzip, json_lines, parquet, prose, trained, zstandard,
};
use crate::{DataConfig, Feed};
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

/// The second comes while the first is in the middle of its work, and again when it is done.
#[test]
fn two_at_once_leave_one_whole_directory() {
    let workshop = Workshop::new();
    workshop.write("a.txt", prose(100));
    let mut options = workshop.options();
    options.shard_tokens = 1000;
    let alone = PrepareOptions { out: workshop.path("alone"), ..options.clone() };
    prepare(&alone, &mut |_| ControlFlow::Continue(())).unwrap();
    let (reached, wait) = std::sync::mpsc::channel();
    let (go, may_go) = std::sync::mpsc::channel::<()>();
    thread::scope(|scope| {
        let options = &options;
        let first = scope.spawn(move || {
            let mut held = false;
            prepare(options, &mut |report| {
                if report.shards == 2 && !held {
                    held = true;
                    reached.send(()).unwrap();
                    may_go.recv().unwrap();
                }
                ControlFlow::Continue(())
            })
        });
        wait.recv().unwrap();
        let error = prepare(options, &mut |_| ControlFlow::Continue(())).unwrap_err();
        assert!(matches!(error, DataError::Busy { .. }), "{error}");
        go.send(()).unwrap();
        first.join().unwrap().unwrap();
    });
    prepare(&options, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(contents(&options.out), contents(&alone.out));
}

#[test]
fn more_text_than_allowed_is_an_error_and_a_larger_limit_goes_on() {
    let workshop = Workshop::new();
    let text = prose(400);
    workshop.write("a.txt.zst", zstandard(text.as_bytes()));
    workshop.write("b.txt.gz", gzip(text.as_bytes()));
    let limited = |most: Option<u64>| {
        workshop.prepare(|options| {
            options.shard_tokens = 1000;
            options.max_bytes = most;
        })
    };
    let error = limited(Some(20_000)).unwrap_err().to_string();
    assert!(error.contains("more than 20000 bytes") && error.contains("--max-bytes"), "{error}");
    let written: usize = contents(&workshop.out()).values().map(Vec::len).sum();
    assert!(written < 60_000, "{written} bytes were written");
    let bytes = limited(None).unwrap().totals.bytes;
    let whole = contents(&workshop.out());
    fs::remove_dir_all(workshop.out()).unwrap();
    assert!(limited(Some(bytes - 1)).is_err());
    assert_eq!(limited(Some(bytes)).unwrap().totals.bytes, bytes);
    assert_eq!(contents(&workshop.out()), whole);
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

/// Changes one byte of a file in place.
fn flip(path: &std::path::Path, byte: usize) {
    let mut content = fs::read(path).unwrap();
    content[byte] ^= 1;
    fs::write(path, content).unwrap();
}

#[test]
fn a_damaged_shard_is_seen_by_whoever_reads_it_first() {
    let workshop = Workshop::new();
    workshop.write("a.txt", prose(30));
    let set = workshop.prepared(|options| options.shard_tokens = 500);
    let shards = set.shards().len();
    assert!(shards > 3);
    let at = |index: usize| set.manifest().shards[..index].iter().map(|s| s.tokens).sum::<u64>();
    let last = workshop.out().join(format!("shard-{:05}.bin", shards - 1));
    // Another letter, which is in the vocabulary as well.
    flip(&last, 40);
    let open = || ShardSet::open(&workshop.out()).unwrap();
    let damaged = |error: String| {
        let name = last.display().to_string();
        assert!(error.contains(&name) && error.contains("prepare again"), "{error}");
    };
    damaged(crate::stats(&open(), 3, &mut |_| ()).unwrap_err().to_string());
    damaged(crate::peek(&open(), set.len() - 1, 1).unwrap_err().to_string());
    damaged(open().read(at(shards - 1) - 1, 2).unwrap_err().to_string());
    let config = DataConfig { train: Some(workshop.out()), ..DataConfig::default() };
    let feed = Feed::open(&config, Some(16), 0).unwrap();
    damaged(feed.held_out(0, 1).unwrap_err().to_string());
    damaged(feed.verify().unwrap_err().to_string());
    // Damage that is said once is said again, and what is whole can be read.
    damaged(feed.held_out(0, 1).unwrap_err().to_string());
    assert_eq!(crate::peek(&open(), 0, 50).unwrap().tokens.len(), 50);
}

#[test]
fn a_shard_is_compared_once() {
    let workshop = Workshop::new();
    workshop.write("a.txt", prose(30));
    let set = workshop.prepared(|options| options.shard_tokens = 500);
    set.verify(&mut |_| ()).unwrap();
    // In place: the open file changes. A second look would see it.
    let path = workshop.out().join("shard-00000.bin");
    let before = set.read(4, 1).unwrap()[0];
    use std::io::{Seek, Write};
    let mut file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.seek(std::io::SeekFrom::Start(40)).unwrap();
    file.write_all(&[before as u8 ^ 1]).unwrap();
    assert_eq!(set.read(4, 1).unwrap(), [before ^ 1]);
}

#[test]
fn a_damaged_tokenizer_is_seen_when_it_is_loaded() {
    let workshop = Workshop::new();
    workshop.write("a.txt", prose(30));
    let tokenizer = TokenizerChoice::File(trained(&workshop, 300));
    let set = workshop.prepared(|options| options.tokenizer = tokenizer);
    let path = set.tokenizer_file().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    // Still a tokenizer, but another one.
    fs::write(&path, text.replacen("\"lstrip\": false", "\"lstrip\":  true", 1)).unwrap();
    assert_ne!(fs::read_to_string(&path).unwrap(), text);
    let config = DataConfig { train: Some(workshop.out()), ..DataConfig::default() };
    let feed = Feed::open(&config, Some(16), 0).unwrap();
    for error in
        [feed.tokenizer().unwrap_err().to_string(), set.tokenizer().unwrap_err().to_string()]
    {
        assert!(error.contains("tokenizer.json is damaged"), "{error}");
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_in_the_place_of_a_file_is_refused_at_once() {
    let workshop = Workshop::new();
    workshop.write("a.txt", prose(30));
    workshop.prepared(|options| options.shard_tokens = 500);
    for name in ["shard-00000.bin", "manifest.json"] {
        let path = workshop.out().join(name);
        let content = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let error = ShardSet::open(&workshop.out()).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("not a regular file"), "{error}");
        fs::remove_file(&path).unwrap();
        fs::write(&path, content).unwrap();
    }
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
