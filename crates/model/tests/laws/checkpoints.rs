//! What is saved is what is loaded, and what cannot be loaded is named.

use crate::support::{base, every_config, forward, random, random_values, text, values};
use hadal_files::{Action, FileError};
use hadal_model::{
    CheckpointError, Decoder, Device, ModelConfig, load, replace_config, save, save_with,
};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorView};
use std::fs;
use std::path::Path;

/// A tensor as it is in a file.
struct Entry {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Entry {
    fn f32(name: &str, shape: &[usize], values: &[f32]) -> Self {
        Self::of(name, Dtype::F32, shape, values, f32::to_le_bytes)
    }

    fn of<const N: usize>(
        name: &str,
        dtype: Dtype,
        shape: &[usize],
        values: &[f32],
        bytes: impl Fn(f32) -> [u8; N],
    ) -> Self {
        let bytes = values.iter().flat_map(|&value| bytes(value)).collect();
        Self { name: name.into(), dtype, shape: shape.into(), bytes }
    }
}

/// Every parameter of a random model.
fn entries(config: &ModelConfig) -> Vec<Entry> {
    let decoder = random(config, &Device::flex());
    let entry = |declared: &hadal_residual::Declared| {
        let values = random_values(&declared.name, &declared.shape);
        Entry::f32(&declared.name, &declared.shape, &values)
    };
    decoder.declared().iter().map(entry).collect()
}

fn write(directory: &Path, config: &ModelConfig, entries: &[Entry]) {
    fs::write(directory.join("config.json"), serde_json::to_string(config).unwrap()).unwrap();
    let views = entries.iter().map(|Entry { name, dtype, shape, bytes }| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &directory.join("model.safetensors")).unwrap();
}

/// The message of a checkpoint that is made of these tensors and does not load.
fn complaint(entries: &[Entry]) -> String {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), &base(), entries);
    load(directory.path(), &Device::flex()).unwrap_err().to_string()
}

fn listing(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn logits(decoder: &Decoder) -> Vec<f32> {
    values(forward(decoder, &text(2, 6)))
}

#[test]
fn a_saved_model_loads_with_bit_identical_logits() {
    let parent = tempfile::tempdir().unwrap();
    every_config(|config| {
        let decoder = random(config, &Device::flex());
        let place = parent.path().join("model");
        save(&decoder, &place).unwrap();
        let loaded = load(&place, &Device::flex()).unwrap().decoder;
        assert_eq!(loaded.config(), config);
        assert_eq!(logits(&loaded), logits(&decoder));
    });
}

#[test]
fn a_fresh_model_is_saved_as_it_starts() {
    let parent = tempfile::tempdir().unwrap();
    let decoder = Decoder::fresh(&base(), 4, &Device::flex()).unwrap();
    save(&decoder, &parent.path().join("model")).unwrap();
    let loaded = load(&parent.path().join("model"), &Device::flex()).unwrap().decoder;
    assert_eq!(loaded.parameters(), decoder.parameters());
}

#[test]
fn a_model_of_a_training_device_is_saved_like_any_other() {
    let parent = tempfile::tempdir().unwrap();
    let decoder = random(&base(), &Device::flex().autodiff());
    save(&decoder, &parent.path().join("model")).unwrap();
    let loaded = load(&parent.path().join("model"), &Device::flex()).unwrap().decoder;
    assert_eq!(loaded.parameters(), decoder.parameters());
}

#[test]
fn saving_over_a_checkpoint_replaces_it_and_leaves_nothing_beside_it() {
    let parent = tempfile::tempdir().unwrap();
    let place = parent.path().join("model");
    let untied = ModelConfig { tie_embeddings: false, ..base() };
    for config in [&untied, &base()] {
        save(&random(config, &Device::flex()), &place).unwrap();
        assert_eq!(listing(parent.path()), ["model"]);
        assert_eq!(listing(&place), ["config.json", "manifest.json", "model.safetensors"]);
        assert_eq!(load(&place, &Device::flex()).unwrap().decoder.config(), config);
    }
}

#[test]
fn a_model_comes_with_its_tokenizer_and_hashes_of_everything() {
    let parent = tempfile::tempdir().unwrap();
    let place = parent.path().join("model");
    let decoder = random(&base(), &Device::flex());
    save_with(&decoder, &place, &[("tokenizer.json", b"{}")]).unwrap();
    let files = ["config.json", "manifest.json", "model.safetensors", "tokenizer.json"];
    assert_eq!(listing(&place), files);
    // What stays keeps its hash, whatever else is written.
    save(&decoder, &place).unwrap();
    let longer = ModelConfig { max_seq_len: 2 * base().max_seq_len, ..base() };
    replace_config(&place, &longer).unwrap();
    assert_eq!(listing(&place), files);
    assert_eq!(load(&place, &Device::flex()).unwrap().decoder.config(), &longer);
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        let path = place.join(file);
        let whole = fs::read(&path).unwrap();
        let mut damaged = whole.clone();
        damaged[whole.len() / 2] ^= 1;
        fs::write(&path, damaged).unwrap();
        let error = match file {
            "tokenizer.json" => hadal_model::Tokenizer::from_file(&path).unwrap_err().to_string(),
            _ => load(&place, &Device::flex()).unwrap_err().to_string(),
        };
        assert!(error.contains(&format!("{file} is damaged: its blake3")), "{error}");
        fs::write(&path, whole).unwrap();
    }
}

#[test]
fn saving_makes_the_directories_above() {
    let parent = tempfile::tempdir().unwrap();
    let place = parent.path().join("runs/first/model");
    save(&random(&base(), &Device::flex()), &place).unwrap();
    assert_eq!(listing(place.parent().unwrap()), ["model"]);
}

#[test]
fn a_save_that_fails_says_where_and_leaves_the_old_checkpoint() {
    let parent = tempfile::tempdir().unwrap();
    // The longest name there can be: no file with a longer one fits beside it, even for root, which permissions would
    // not stop.
    let place = parent.path().join("m".repeat(255));
    let old = random(&base(), &Device::flex());
    fs::create_dir(&place).unwrap();
    write(&place, &base(), &entries(&base()));

    let other = Decoder::fresh(&base(), 1, &Device::flex()).unwrap();
    let error = save(&other, &place).unwrap_err();
    assert!(
        matches!(error, CheckpointError::File(FileError { action: Action::Write, .. })),
        "{error}"
    );
    assert!(error.to_string().contains(&"m".repeat(255)), "{error}");
    assert_eq!(listing(parent.path()), ["m".repeat(255)]);
    assert_eq!(logits(&load(&place, &Device::flex()).unwrap().decoder), logits(&old));
}

#[test]
fn saving_below_a_file_fails_and_leaves_the_file() {
    let parent = tempfile::tempdir().unwrap();
    let file = parent.path().join("notes");
    fs::write(&file, "keep me").unwrap();
    let error = save(&random(&base(), &Device::flex()), &file.join("model")).unwrap_err();
    assert!(error.to_string().contains("cannot write"), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "keep me");
    assert_eq!(listing(parent.path()), ["notes"]);
}

#[test]
fn half_precision_files_load() {
    let directory = tempfile::tempdir().unwrap();
    let narrow = |dtype, name: &str, shape: &[usize]| {
        let values = random_values(name, shape);
        match dtype {
            Dtype::F16 => {
                Entry::of(name, dtype, shape, &values, |v| f16::from_f32(v).to_le_bytes())
            }
            _ => Entry::of(name, dtype, shape, &values, |v| bf16::from_f32(v).to_le_bytes()),
        }
    };
    let rounded = |dtype, value: f32| match dtype {
        Dtype::F16 => f16::from_f32(value).to_f32(),
        _ => bf16::from_f32(value).to_f32(),
    };
    for dtype in [Dtype::F16, Dtype::BF16] {
        let model = random(&base(), &Device::flex());
        let entries: Vec<Entry> =
            model.declared().iter().map(|d| narrow(dtype, &d.name, &d.shape)).collect();
        write(directory.path(), &base(), &entries);
        let loaded = load(directory.path(), &Device::flex()).unwrap().decoder;
        for ((name, found), (_, full)) in loaded.parameters().iter().zip(model.parameters()) {
            let expected: Vec<f32> = full.iter().map(|&value| rounded(dtype, value)).collect();
            assert_eq!(*found, expected, "{name} as {dtype}");
        }
    }
}

#[test]
fn every_difference_to_the_config_is_named() {
    let mut entries = entries(&base());
    entries.retain(|entry| entry.name != "norm.weight");
    let find = |name: &str| entries.iter().position(|entry| entry.name == name).unwrap();
    let (turned, integer) = (find("layers.0.mlp.up.weight"), find("layers.2.attn.o.weight"));
    entries[turned].shape.reverse();
    entries[integer].dtype = Dtype::I32;
    entries.push(Entry::f32("layers.3.attn.q.weight", &[2], &[1.0, 2.0]));

    let text = complaint(&entries);
    for expected in [
        "model.safetensors does not fit its config:",
        "missing: norm.weight [16]",
        "wrong shape: layers.0.mlp.up.weight is [16, 24], not [24, 16]",
        "`layers.2.attn.o.weight` has dtype I32, but it must be F32, F16 or BF16",
        "unexpected: layers.3.attn.q.weight",
    ] {
        assert!(text.contains(expected), "{expected} is not in: {text}");
    }
    assert_eq!(text.lines().count(), 5, "{text}");
}

#[test]
fn a_long_list_of_differences_is_cut_short() {
    let text = complaint(&[]);
    let count = entries(&base()).len();
    assert!(text.ends_with(&format!("and {} more", count - 12)), "{text}");
}

#[test]
fn values_that_are_not_finite_are_refused_by_name() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut entries = entries(&base());
        let target = &mut entries[7];
        target.bytes[20..24].copy_from_slice(&value.to_le_bytes());
        let name = target.name.clone();
        let text = complaint(&entries);
        assert!(text.contains(&format!("`{name}` holds {value} at element 5")), "{text}");
    }
}

#[test]
#[cfg(unix)]
fn whoever_may_read_the_config_may_read_the_weights() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    save(&random(&base(), &Device::flex()), directory.path()).unwrap();
    let mode = |name: &str| {
        fs::metadata(directory.path().join(name)).unwrap().permissions().mode() & 0o777
    };
    assert_eq!(mode("model.safetensors"), mode("config.json"));
}
