use super::*;
use crate::memory::peak_rss_mb;
use crate::optim::OptimizerConfig;
use hadal_model::{Device, ModelConfig};
use safetensors::tensor::{Dtype, TensorView};
use std::time::Instant;

fn decoder(width: usize, blocks: usize, vocabulary: usize) -> Decoder {
    let text = format!("d_model = {width}\nn_layers = {blocks}\nn_heads = 4\n");
    let section: crate::ModelSection = toml::from_str(&text).unwrap();
    let model: ModelConfig = section.resolve(&"prenorm".parse().unwrap(), vocabulary, 64);
    Decoder::fresh(&model, 1, &Device::flex().autodiff()).unwrap()
}

fn counters() -> State {
    State { step: 7, config: "c".into(), data: "d".into(), ..State::default() }
}

/// A model and an optimiser in which no two numbers are the same.
fn filled(decoder: &mut Decoder) -> Optimizer {
    let mut optimizer = Optimizer::new(&OptimizerConfig::default(), decoder);
    let mut number = 0.0;
    let mut next = || {
        number += 0.5;
        number
    };
    decoder.change_parameters(|_, values| values.fill_with(&mut next));
    for slot in optimizer.slots_mut().values_mut() {
        slot.first.fill_with(&mut next);
        slot.second.fill_with(&mut next);
    }
    optimizer
}

#[test]
fn a_streamed_file_has_the_bytes_that_the_library_would_write_and_the_hash_of_them() {
    let mut decoder = decoder(8, 2, 50);
    let optimizer = filled(&mut decoder);
    let mut all = Vec::new();
    for (name, values) in decoder.parameters() {
        let slot = &optimizer.slots()[&name];
        for (prefix, values) in [("w", &values), ("m", &slot.first), ("v", &slot.second)] {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            if !bytes.is_empty() {
                all.push((format!("{prefix}.{name}"), slot.shape.clone(), bytes));
            }
        }
    }
    let views = all.iter().map(|(name, shape, bytes)| {
        (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    let expected = safetensors::serialize(views, None).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("step");
    save(&counters(), &decoder, &optimizer, &path).unwrap();
    assert!(std::fs::read(path.join(TENSORS)).unwrap() == expected);
    // This compares the hashes, too.
    assert_eq!(read(&path).unwrap(), counters());
}

#[test]
fn a_state_comes_back_to_the_bit() {
    let mut decoder = decoder(8, 2, 50);
    let optimizer = filled(&mut decoder);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("step");
    save(&counters(), &decoder, &optimizer, &path).unwrap();
    let parameters = decoder.parameters();
    decoder.change_parameters(|_, values| values.fill(0.0));
    let mut other = Optimizer::new(&OptimizerConfig::default(), &decoder);
    restore(&path, &mut decoder, &mut other).unwrap();
    assert_eq!(decoder.parameters(), parameters);
    assert_eq!(other.slots(), optimizer.slots());
}

/// As versions before this one wrote it.
#[test]
fn counters_without_hashes_of_logs_are_still_read() {
    let text = r#"{"step": 6, "skipped_sequences": 0, "failures": 0, "best": null,
        "logs": {"metrics.jsonl": 990}, "config": "c", "data": "d"}"#;
    let state: State = serde_json::from_str(text).unwrap();
    assert!(state.log_hashes.is_empty() && state.logs["metrics.jsonl"] == 990);
}

/// `cargo test --release --workspace --lib -- --ignored --nocapture saving_takes`
#[test]
#[ignore = "a measurement: a hundred million parameters"]
#[allow(clippy::print_stdout, reason = "the result of the measurement")]
fn what_saving_takes() {
    let decoder = decoder(768, 12, 20_000);
    let mut optimizer = Optimizer::new(&OptimizerConfig::default(), &decoder);
    for slot in optimizer.slots_mut().values_mut() {
        slot.first.fill(0.5);
        slot.second.fill(0.25);
    }
    let count: usize = decoder.parameters().iter().map(|(_, values)| values.len()).sum();
    let directory = tempfile::tempdir().unwrap();
    for round in 0..4 {
        // Linux: the high-water mark begins again.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        let before = peak_rss_mb().unwrap_or_default();
        let begin = Instant::now();
        save(&counters(), &decoder, &optimizer, &directory.path().join(format!("{round}")))
            .unwrap();
        let time = begin.elapsed().as_secs_f64();
        let peak = peak_rss_mb().unwrap_or_default();
        let hash = hash(&directory.path().join(format!("{round}/{TENSORS}"))).unwrap();
        println!("{count} parameters: {time:.2} s, {before:.0} -> {peak:.0} MiB, {hash:?}");
    }
}
