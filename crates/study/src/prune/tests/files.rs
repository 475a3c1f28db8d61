//! What is written, and whether it reads back.

use super::*;
use hadal_model::{Cache, load, save};
use std::fs;
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

#[test]
fn a_cut_directory_reads_back_as_the_original_that_leaves_the_parts_out() {
    let place = TempDir::new().unwrap();
    let whole = load(&stories(), &Device::flex()).unwrap().decoder;
    for (i, parts) in [
        vec![],
        vec![Part::Block(2)],
        vec![Part::Block(3), Part::Block(1)],
        vec![Part::Attention(2), Part::Mlp(3), Part::Block(1)],
    ]
    .iter()
    .enumerate()
    {
        let out = place.path().join(i.to_string());
        let manifest = apply(&stories(), parts, None, &out, "test").unwrap();
        let cut = load(&out, &Device::flex()).unwrap().decoder;
        assert_eq!(logits(&cut), without(&whole, parts), "{parts:?}");
        assert_eq!(cut.config().n_layers, manifest.kept.len());
        // The cache follows the new count: decoding is still the forward pass.
        let mut cache = Cache::new(cut.config());
        let row = &batch(1, 9).input;
        let pass = Pass { cache: Some(&mut cache), ..Pass::default() };
        let decoded: Vec<f32> = cut.logits(row, pass).unwrap().try_into_vec_as().unwrap();
        let forward: Vec<f32> =
            cut.logits(row, Pass::default()).unwrap().try_into_vec_as().unwrap();
        assert!(decoded.iter().zip(&forward).all(|(a, b)| (a - b).abs() < 1e-3));
        assert!(out.join("tokenizer.json").is_file() && out.join("pruned.json").is_file());
        let found = check(&out, &stories(), None, None, &mut |_, _| {}).unwrap();
        assert!(found.passed && found.logits.different == 0, "{:?}", found.logits);
        assert_eq!(found.probes.len(), 2);
    }
}

#[test]
fn a_cut_of_nothing_has_the_same_bytes() {
    let place = TempDir::new().unwrap();
    let out = place.path().join("same");
    apply(&stories(), &[], None, &out, "test").unwrap();
    let bytes = |path: PathBuf| fs::read(path).unwrap();
    let (old, new) =
        (bytes(stories().join("model.safetensors")), bytes(out.join("model.safetensors")));
    let read = |bytes: &'static [u8]| safetensors::SafeTensors::deserialize(bytes).unwrap();
    let (old, new) = (read(old.leak()), read(new.leak()));
    assert_eq!(old.len(), new.len());
    for (name, tensor) in old.tensors() {
        assert_eq!(new.tensor(&name).unwrap(), tensor);
    }
}

/// The stories in two files with an index, and a config with fields for each layer.
fn sharded(place: &Path) -> PathBuf {
    let directory = place.join("sharded");
    fs::create_dir(&directory).unwrap();
    let bytes = fs::read(stories().join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut files = [Vec::new(), Vec::new()];
    let mut map = serde_json::Map::new();
    for (i, (name, view)) in tensors.tensors().into_iter().enumerate() {
        map.insert(name.clone(), format!("model-0000{}-of-00002.safetensors", i % 2 + 1).into());
        files[i % 2].push((name, view));
    }
    for (i, tensors) in files.into_iter().enumerate() {
        let path = directory.join(format!("model-0000{}-of-00002.safetensors", i + 1));
        safetensors::serialize_to_file(tensors, None, &path).unwrap();
    }
    let index = serde_json::json!({"metadata": {"total_size": 1}, "weight_map": map});
    fs::write(directory.join("model.safetensors.index.json"), index.to_string()).unwrap();
    let mut config: serde_json::Value =
        serde_json::from_slice(&fs::read(stories().join("config.json")).unwrap()).unwrap();
    config["layer_types"] = serde_json::json!(["a", "b", "c", "d", "e"]);
    config["max_window_layers"] = 4.into();
    fs::write(directory.join("config.json"), config.to_string()).unwrap();
    fs::write(directory.join("LICENSE"), "MIT").unwrap();
    fs::write(directory.join("pytorch_model.bin"), "the whole model").unwrap();
    directory
}

#[test]
fn sharded_directories_keep_their_shards_and_lose_other_weights() {
    let place = TempDir::new().unwrap();
    let (directory, out) = (sharded(place.path()), place.path().join("out"));
    let manifest = apply(&directory, &[Part::Block(1)], None, &out, "test").unwrap();
    assert_eq!(manifest.not_copied, ["pytorch_model.bin"]);
    assert!(out.join("LICENSE").is_file());
    let json = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&fs::read(out.join(name)).unwrap()).unwrap()
    };
    let config = json("config.json");
    assert_eq!(config["layer_types"], serde_json::json!(["a", "c", "d", "e"]));
    assert_eq!(
        (&config["max_window_layers"], &config["num_hidden_layers"]),
        (&3.into(), &4.into())
    );
    let index = json("model.safetensors.index.json");
    let map = index["weight_map"].as_object().unwrap();
    let mut total = 0;
    for (name, file) in map {
        let bytes = fs::read(out.join(file.as_str().unwrap())).unwrap();
        total += safetensors::SafeTensors::deserialize(&bytes)
            .unwrap()
            .tensor(name)
            .unwrap()
            .data()
            .len();
    }
    assert_eq!(index["metadata"]["total_size"], total);
    assert!(map.contains_key("model.layers.3.mlp.up_proj.weight"));
    assert!(!map.contains_key("model.layers.4.mlp.up_proj.weight"));
}

#[test]
fn an_index_whose_metadata_is_no_table_is_written_anew() {
    let place = TempDir::new().unwrap();
    let (directory, out) = (sharded(place.path()), place.path().join("out"));
    let path = directory.join("model.safetensors.index.json");
    let mut index: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    index["metadata"] = "about 1 MB".into();
    fs::write(&path, index.to_string()).unwrap();
    apply(&directory, &[Part::Block(1)], None, &out, "test").unwrap();
    let index = fs::read(out.join("model.safetensors.index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    assert!(index["metadata"]["total_size"].as_u64().unwrap() > 0);
}

#[test]
fn an_index_cannot_point_outside_its_directory() {
    let place = TempDir::new().unwrap();
    let directory = sharded(place.path());
    let index = serde_json::json!({"weight_map": {"model.layers.0.x": "../secret.safetensors"}});
    fs::write(directory.join("model.safetensors.index.json"), index.to_string()).unwrap();
    let error = apply(&directory, &[], None, &place.path().join("out"), "test").unwrap_err();
    assert!(error.to_string().contains("../secret.safetensors"), "{error}");
}

#[test]
fn nothing_is_overwritten_and_failures_leave_nothing() {
    let place = TempDir::new().unwrap();
    let error =
        |out: &Path, parts: &[Part]| apply(&stories(), parts, None, out, "test").unwrap_err();
    assert!(matches!(error(place.path(), &[Part::Block(1)]), PruneError::Exists { .. }));
    let out = place.path().join("out");
    assert!(matches!(error(&out, &[Part::Block(5)]), PruneError::NoSuchPart { .. }));
    let all: Vec<Part> = (0..5).map(Part::Block).collect();
    assert!(matches!(error(&out, &all), PruneError::NothingLeft { .. }));
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn a_plan_tells_what_it_measured_and_refuses_another_model() {
    let place = TempDir::new().unwrap();
    let directory = place.path().join("model");
    save(
        &model(&ModelConfig { vocab_size: 257, ..config("prenorm", 5) }, scaled(&[2], 0.0)),
        &directory,
    )
    .unwrap();
    let text = place.path().join("text.txt");
    fs::write(&text, "The quick brown fox jumps over the lazy dog. ".repeat(120)).unwrap();
    let options = Options { protect: Options::default().protect, ..blocks(1) };
    let found =
        plan(&request(&directory, &text, &options), &AtomicBool::new(false), &mut |_, _| {})
            .unwrap();
    assert_eq!(found.remove, [Part::Block(2)]);
    assert_eq!(found.kept, [0, 1, 3, 4]);
    assert!(found.outcome.held_out && found.outcome.cut.kl < 1e-9);
    assert_eq!(found.curve.len(), found.chosen.len());
    assert_eq!(found.curve.last(), Some(&found.outcome.cut));
    assert!(found.memory.parameters_after < found.memory.parameters_before);
    assert_eq!(found.memory.kv_bytes_after * 5, found.memory.kv_bytes_before * 4);
    assert!(found.speed.prefill > 0.0 && found.speed.decode_tokens_per_second > 0.0);
    let file = place.path().join("plan.json");
    found.write(&file).unwrap();
    // Numbers lose a last bit in JSON; nothing done with a plan depends on it.
    let back = read_plan(&file).unwrap();
    assert_eq!(
        (&back.remove, &back.source, &back.kept),
        (&found.remove, &found.source, &found.kept)
    );

    let out = place.path().join("cut");
    let manifest = apply(&found.source.path, &found.remove, Some(&found), &out, "test").unwrap();
    assert!(manifest.exact && manifest.scores.is_some());
    assert!(check(&out, &directory, Some(&text), Some(1), &mut |_, _| {}).unwrap().passed);
    save(&model(&ModelConfig { vocab_size: 257, ..config("prenorm", 5) }, plain), &directory)
        .unwrap();
    let error =
        apply(&found.source.path, &found.remove, Some(&found), &place.path().join("b"), "test");
    assert!(matches!(error.unwrap_err(), PruneError::Changed { .. }));
    let error = check(&out, &directory, None, None, &mut |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("the cut was made from it"), "{error}");
}

pub(super) fn request<'a>(model: &'a Path, data: &'a Path, options: &'a Options) -> Request<'a> {
    static DEVICE: LazyLock<Device> = LazyLock::new(Device::flex);
    let device = &*DEVICE;
    let (batches, command) = (Some(2), "hadal prune plan");
    Request { model, data: Some(data), batches, options, device, command, keep: None, force: false }
}

/// A model of five blocks that reads bytes, and some text.
pub(super) fn model_and_text(place: &Path) -> (PathBuf, PathBuf) {
    let directory = place.join("model");
    save(&model(&ModelConfig { vocab_size: 257, ..config("prenorm", 5) }, plain), &directory)
        .unwrap();
    let text = place.join("text.txt");
    fs::write(&text, "The quick brown fox jumps over the lazy dog. ".repeat(120)).unwrap();
    (directory, text)
}

/// A plan for that model, and where it is.
fn planned(place: &Path) -> (Plan, PathBuf) {
    let (directory, text) = model_and_text(place);
    let options = Options { protect: Options::default().protect, ..blocks(1) };
    let found =
        plan(&request(&directory, &text, &options), &AtomicBool::new(false), &mut |_, _| {})
            .unwrap();
    let file = place.join("plan.json");
    found.write(&file).unwrap();
    (found, file)
}

#[test]
fn every_changed_byte_of_a_plan_is_noticed_or_harmless() {
    let place = TempDir::new().unwrap();
    let (_, file) = planned(place.path());
    let text = fs::read(&file).unwrap();
    let good = read_plan(&file).unwrap();
    for byte in 0..text.len() {
        for bit in [0, 1, 4] {
            let mut bad = text.clone();
            bad[byte] ^= 1 << bit;
            fs::write(&file, &bad).unwrap();
            match read_plan(&file) {
                // A blank for another one, or the name of the hash itself.
                Ok(plan) => assert_eq!(plan, good, "bit {bit} of byte {byte}"),
                Err(error) => assert!(error.to_string().contains("plan.json"), "{error}"),
            }
        }
    }
    // Blanks mean nothing.
    let spaced = String::from_utf8(text).unwrap().replace(",\n", " ,\n\n ");
    fs::write(&file, spaced).unwrap();
    assert_eq!(read_plan(&file).unwrap(), good);
}

#[test]
fn a_plan_whose_parts_contradict_each_other_is_refused() {
    let place = TempDir::new().unwrap();
    let (found, file) = planned(place.path());
    let good: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let refused = |said: &str, change: &dyn Fn(&mut serde_json::Value)| {
        let mut bad = good.clone();
        // As an older version wrote it, or as somebody changed it on purpose.
        bad.as_object_mut().unwrap().remove("hash").unwrap();
        fs::write(&file, bad.to_string()).unwrap();
        assert_eq!(read_plan(&file).unwrap().remove, found.remove);
        change(&mut bad);
        fs::write(&file, bad.to_string()).unwrap();
        let error = read_plan(&file).unwrap_err().to_string();
        assert!(error.contains("plan.json") && error.contains(said), "{error}");
    };
    let other = if found.remove == [Part::Block(2)] { "3" } else { "2" };
    refused("`remove` is", &|plan| plan["remove"] = [other].into());
    refused("`remove` is", &|plan| plan["chosen"] = [other].into());
    refused("`kept` is", &|plan| plan["kept"] = vec![0, 1, 4].into());
    refused("`kept` is", &|plan| plan["blocks"] = 6.into());
    refused("1 to 4096", &|plan| plan["blocks"] = (1u64 << 40).into());
    refused("should go, but `blocks` is 5", &|plan| {
        plan["remove"] = ["7"].into();
        plan["chosen"] = ["7"].into();
    });
    refused("`options` protects it", &|plan| {
        plan["options"]["protect"] = vec![2, 3].into();
    });
    refused("`options` chooses other parts", &|plan| plan["options"]["sub_layers"] = true.into());
    refused("`curve`", &|plan| plan["curve"] = serde_json::json!([]));
    refused("`curve`", &|plan| plan["outcome"]["cut"]["kl"] = 7.5.into());
    refused("perplexity", &|plan| plan["outcome"]["whole"]["loss"] = 7.5.into());
    refused("predicts", &|plan| plan["outcome"]["predicted_kl"] = 7.5.into());
    refused("`scores`", &|plan| {
        plan["scores"]["parts"].as_array_mut().unwrap().pop();
    });
    refused("distances", &|plan| plan["scores"]["distances"][0] = serde_json::json!([]));
    refused("`memory`", &|plan| plan["memory"]["parameters_after"] = (1u64 << 60).into());
    refused("`source`", &|plan| plan["source"]["files"][0]["blake3"] = "0".into());
    // One byte, with the hash that it was written with.
    let mut bad = good.clone();
    bad["speed"]["prefill"] = 0.125.into();
    fs::write(&file, bad.to_string()).unwrap();
    let error = read_plan(&file).unwrap_err().to_string();
    assert!(error.contains("plan.json") && error.contains("its `hash`"), "{error}");
}

#[test]
fn a_number_of_blocks_that_nobody_has_is_refused_at_once() {
    let place = TempDir::new().unwrap();
    let directory = sharded(place.path());
    let path = directory.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for blocks in [4097, u64::from(u32::MAX), u64::MAX] {
        config["num_hidden_layers"] = blocks.into();
        fs::write(&path, config.to_string()).unwrap();
        let out = place.path().join("out");
        let error = apply(&directory, &[Part::Block(0)], None, &out, "test").unwrap_err();
        assert!(matches!(error, PruneError::TooDeep { .. }), "{error}");
        assert!(!out.exists());
    }
}

#[cfg(unix)]
#[test]
fn a_cut_does_not_hold_what_a_link_leads_to_elsewhere() {
    let place = TempDir::new().unwrap();
    let (directory, out) = (sharded(place.path()), place.path().join("out"));
    fs::write(place.path().join("id_rsa"), "secret").unwrap();
    fs::write(directory.join("modeling.py"), "import os").unwrap();
    std::os::unix::fs::symlink("../id_rsa", directory.join("notes.txt")).unwrap();
    let manifest = apply(&directory, &[Part::Block(1)], None, &out, "test").unwrap();
    assert_eq!(
        (manifest.left_out, manifest.code),
        (vec!["notes.txt".into()], vec!["modeling.py".into()])
    );
    assert!(!out.join("notes.txt").exists() && out.join("LICENSE").is_file());
}

#[test]
fn a_damaged_cut_is_noticed() {
    let place = TempDir::new().unwrap();
    let out = place.path().join("out");
    apply(&stories(), &[Part::Block(2)], None, &out, "test").unwrap();
    let weights = out.join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&weights, bytes).unwrap();
    let error = check(&out, &stories(), None, None, &mut |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("it was written by the cut"), "{error}");
}
