//! Damaged, absurd and missing files: a message and an exit code, whatever they hold.

use crate::generate::byte_model;
use crate::parity::parity;
use crate::support::{
    CONFIG, FILES, Noise, Run, TRACE, WEIGHTS, command, command_of_little_memory, copy_of,
    edit_json, edit_tensors, golden, run, stories,
};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

// `Run` checks every run for panics, backtraces, signals and strange exit codes.

/// Where the header of a safetensors file ends; all of any other file.
fn header(file: &str, bytes: &[u8]) -> usize {
    let length = bytes.first_chunk().map_or(0, |length| u64::from_le_bytes(*length) as usize);
    if file.ends_with("safetensors") { 8 + length } else { bytes.len() }
}

/// Flips single bits of a file, half of them in its header, and counts the runs that noticed.
fn flip_bits(path: &Path, flips: usize, seed: u64, attempt: impl Fn() -> Run) -> usize {
    let whole = fs::read(path).unwrap();
    let header = header(&path.display().to_string(), &whole);
    let mut noise = Noise::new(seed);
    let mut noticed = 0;
    for i in 0..flips {
        let place = noise.below(if i % 2 == 0 { header } else { whole.len() });
        let bit = noise.below(8);
        let mut damaged = whole.clone();
        damaged[place] ^= 1 << bit;
        fs::write(path, damaged).unwrap();
        let run = attempt();
        if run.code != 0 {
            noticed += 1;
        }
        if run.code == 2 {
            assert!(run.stderr.starts_with("error: "), "bit {bit} of byte {place}: {}", run.stderr);
        }
    }
    fs::write(path, whole).unwrap();
    noticed
}

/// Cuts a file at many lengths; every cut must be noticed, and the file named.
fn truncate(path: &Path, cuts: usize, attempt: impl Fn() -> Run) {
    let whole = fs::read(path).unwrap();
    for i in 0..cuts {
        fs::write(path, &whole[..whole.len() * i / cuts]).unwrap();
        attempt().failed(&[&path.display().to_string()]);
    }
    fs::write(path, &whole[..whole.len() - 1]).unwrap();
    attempt().failed(&[&path.display().to_string()]);
    fs::write(path, whole).unwrap();
}

fn damage_golden(name: &str, file: &str) {
    let copy = copy_of(&golden(name));
    let path = copy.path().join(file);
    let attempt = || parity(copy.path(), &[]);
    let noticed = flip_bits(&path, 200, 1, attempt);
    assert!(noticed > 50, "only {noticed} of 200 flipped bits were noticed");
    truncate(&path, 40, attempt);
    // Only the file was damaged.
    attempt().succeeded();
}

#[test]
fn damaged_weights_never_panic() {
    damage_golden("mgr-competitive", WEIGHTS);
}

#[test]
fn a_damaged_config_never_panics() {
    damage_golden("mhc", CONFIG);
}

#[test]
fn a_damaged_trace_never_panics() {
    damage_golden("nag-mod", TRACE);
}

fn generate(directory: &Path) -> Run {
    run(command("generate").arg(directory).args(["--prompt", "Once 漢", "-n", "3"]))
}

#[test]
fn a_damaged_tokenizer_never_panics() {
    let copy = copy_of(&stories());
    let path = copy.path().join("tokenizer.json");
    let noticed = flip_bits(&path, 150, 2, || generate(copy.path()));
    assert!(noticed > 20, "only {noticed} of 150 flipped bits were noticed");
    truncate(&path, 20, || generate(copy.path()));
}

#[test]
fn damaged_hugging_face_files_never_panic() {
    let copy = copy_of(&stories());
    for file in [CONFIG, WEIGHTS] {
        let path = copy.path().join(file);
        assert!(flip_bits(&path, 60, 3, || generate(copy.path())) > 10);
        truncate(&path, 10, || generate(copy.path()));
    }
}

#[test]
fn weights_that_are_not_finite_are_named() {
    for (value, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let copy = copy_of(&golden("mgr-competitive"));
        edit_tensors(&copy.path().join(WEIGHTS), |weights| {
            weights.get_mut("layers.1.attn.o.weight").unwrap().set(5, |_| value);
        });
        let reasons = [WEIGHTS, "`layers.1.attn.o.weight`", shown, "element 5"];
        parity(copy.path(), &[]).refused(2, &reasons);
        generate(copy.path()).failed(&reasons);
    }
}

#[test]
fn weights_that_overflow_are_a_difference_and_no_text() {
    let copy = copy_of(&golden("prenorm"));
    edit_tensors(&copy.path().join(WEIGHTS), |weights| {
        weights.get_mut("layers.0.mlp.up.weight").unwrap().set(5, |_| f32::MAX);
    });
    assert_eq!(parity(copy.path(), &[]).code, 1);
    let report = parity(copy.path(), &["--json"]);
    assert_eq!((report.code, &report.json()["passed"]), (1, &false.into()));

    let model = byte_model(256, |weights| {
        let up = weights.get_mut("layers.0.mlp.up.weight").unwrap();
        // Whatever is read, one of two opposite rows has a positive product with it.
        (0..8).for_each(|i| up.set(i, |_| f32::MAX));
        (8..16).for_each(|i| up.set(i, |_| f32::MIN));
    });
    generate(model.path()).failed(&["no usable logits"]);
}

#[test]
fn a_config_that_asks_for_a_petabyte_is_refused_without_memory() {
    for golden_name in ["prenorm", "mhc-lite", "nag", "denseformer", "attnres-full"] {
        let copy = copy_of(&golden(golden_name));
        edit_json(&copy.path().join(CONFIG), |config| {
            config["d_model"] = (1 << 20).into();
            config["d_ff"] = (1 << 24).into();
            config["n_layers"] = 2000.into();
        });
        let reasons = ["model.safetensors does not fit its config", "not [41, 1048576]", "more"];
        run(command_of_little_memory("parity").arg(copy.path())).refused(2, &reasons);
    }
    let copy = copy_of(&golden("prenorm"));
    edit_json(&copy.path().join(CONFIG), |config| config["max_seq_len"] = (1 << 30).into());
    run(command_of_little_memory("parity").arg(copy.path())).succeeded();
    edit_json(&copy.path().join(CONFIG), |config| config["vocab_size"] = u64::MAX.into());
    run(command_of_little_memory("parity").arg(copy.path())).refused(2, &["vocab_size is"]);
}

/// A safetensors file with this header and no tensors.
fn only_header(header: &str) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()
}

#[test]
fn headers_that_lie_are_refused_without_memory() {
    let tensor = |shape: &str, offsets: &str| {
        only_header(&format!(
            r#"{{"input_ids":{{"dtype":"I32","shape":{shape},"data_offsets":{offsets}}}}}"#
        ))
    };
    let lies = [
        u64::MAX.to_le_bytes().to_vec(),
        [&(1u64 << 40).to_le_bytes()[..], b"{}"].concat(),
        [&8u64.to_le_bytes()[..], b"\xff\xfe\xff\xfe\xff\xfe\xff\xfe"].concat(),
        tensor("[1099511627776,1099511627776]", "[0,0]"),
        tensor("[1099511627776]", "[0,4398046511104]"),
        tensor("[18446744073709551615,2]", "[0,8]"),
        tensor("[1]", "[4,0]"),
        tensor("[1]", "[18446744073709551612,18446744073709551615]"),
        tensor("[-1]", "[0,4]"),
        only_header("{}"),
        only_header("[]"),
        only_header(&"[".repeat(100_000)),
        only_header(&r#"{"a":"#.repeat(100_000)),
    ];
    let copy = copy_of(&golden("prenorm"));
    for (i, lie) in lies.iter().enumerate() {
        for file in [WEIGHTS, TRACE] {
            let path = copy.path().join(file);
            let whole = fs::read(&path).unwrap();
            fs::write(&path, lie).unwrap();
            let run = run(command_of_little_memory("parity").arg(copy.path()));
            run.refused(2, &[file]);
            assert!(run.stderr.len() < 2000, "lie {i} is retold at length: {}", run.stderr);
            fs::write(&path, whole).unwrap();
        }
    }
}

/// Replaces each file in turn and expects the commands that read it to name it.
fn replace_each_file(replace: impl Fn(&Path)) {
    for file in FILES {
        let copy = copy_of(&golden("mgr-competitive"));
        let path = copy.path().join(file);
        fs::remove_file(&path).unwrap();
        replace(&path);
        let named = path.display().to_string();
        parity(copy.path(), &[]).refused(2, &[&named]);
        if file != TRACE {
            generate(copy.path()).failed(&[&named]);
        }
        if file == CONFIG {
            run(command("inspect").arg(copy.path())).refused(2, &[&named]);
        }
    }
}

#[test]
fn a_directory_in_the_place_of_a_file_is_named() {
    replace_each_file(|path| fs::create_dir(path).unwrap());
}

/// A link to itself: unlike a mode of 000, not even root can read it.
#[test]
fn an_unreadable_file_is_named() {
    replace_each_file(|path| symlink(path, path).unwrap());
}

#[test]
fn an_empty_file_is_named() {
    replace_each_file(|path| fs::write(path, "").unwrap());
}

#[test]
fn a_file_of_anything_is_named() {
    replace_each_file(|path| symlink("/dev/zero", path).unwrap());
    replace_each_file(|path| fs::write(path, b"\xff\xfe\x00\xd8 not UTF-8 \xc3\x28").unwrap());
}

#[test]
fn deep_nesting_is_refused_and_not_recursed_into() {
    for opening in ["[", r#"{"residual":"#] {
        replace_each_file(|path| fs::write(path, opening.repeat(100_000)).unwrap());
        let copy = copy_of(&stories());
        fs::write(copy.path().join("tokenizer.json"), opening.repeat(100_000)).unwrap();
        generate(copy.path()).failed(&["tokenizer.json"]);
    }
    let copy = copy_of(&golden("prenorm"));
    let toml = copy.path().join("deep.toml");
    for text in ["a=".to_owned() + &"[".repeat(100_000), "a=".to_owned() + &"{a=".repeat(100_000)] {
        fs::write(&toml, text).unwrap();
        run(command("inspect").arg(&toml)).refused(2, &["deep.toml"]);
    }
}

#[test]
fn a_toml_error_does_not_print_the_whole_file() {
    let copy = copy_of(&golden("prenorm"));
    let toml = copy.path().join("long.toml");
    fs::write(&toml, "a=".to_owned() + &"[".repeat(100_000)).unwrap();
    let run = run(command("inspect").arg(&toml));
    run.refused(2, &["long.toml"]);
    assert!(run.stderr.len() < 2000, "{} bytes", run.stderr.len());
}

#[test]
fn a_path_need_not_be_utf8() {
    let copy = copy_of(&golden("prenorm"));
    let strange = copy.path().join(OsStr::from_bytes(b"strange-\xff"));
    parity(&strange, &[]).refused(2, &["strange-", TRACE]);
    fs::create_dir(&strange).unwrap();
    for file in FILES {
        fs::rename(copy.path().join(file), strange.join(file)).unwrap();
    }
    parity(&strange, &[]).succeeded();
}
