//! How much memory a pass may take, measured by counting allocations.

use hadal_files::testing::Counting;
use hadal_model::{
    Decoder, DepthKv, Device, ModelConfig, Pass, Tokens, convert, cross_entropy, load, save,
};
use hadal_residual::ResidualConfig;
use std::fs;
use std::sync::{Mutex, PoisonError};

/// The counters are global, so measurements must not overlap.
static MEASURING: Mutex<()> = Mutex::new(());

#[global_allocator]
static COUNTING: Counting = Counting;

/// The most bytes that were live at once during `work`, beyond those that were live before.
fn peak(work: impl FnOnce()) -> usize {
    hadal_files::testing::peak(work).1
}

fn config(residual: ResidualConfig, blocks: usize) -> ModelConfig {
    ModelConfig {
        vocab_size: 32,
        d_model: 64,
        n_layers: blocks,
        n_kv_heads: 4,
        head_dim: 16,
        d_ff: 128,
        norm_eps: 1e-6,
        max_seq_len: 64,
        residual,
        ..ModelConfig::tiny()
    }
}

/// Peak memory of one training step on two rows of `time` tokens.
fn step(decoder: &Decoder, time: u32) -> usize {
    let tokens = Tokens::rows((0..2 * time).map(|i| i * 7 % 32).collect(), 2).unwrap();
    let train = || {
        let logits = decoder.logits(&tokens, Pass::default()).unwrap();
        drop(cross_entropy(logits, &tokens).backward());
    };
    // The first step also makes the parameters and whatever the backend keeps.
    train();
    peak(train)
}

/// A source or stream is read by every later sub-layer, so a copy for each reader would make memory grow with the
/// square of the depth; one copy for all keeps it linear. What is counted is what 63 more tokens take: the gradients of
/// the parameters and autodiff's notes on its operations, a few kilobytes for each reader and source, exist for one
/// token too and say nothing about copies.
#[test]
fn activations_of_a_training_step_grow_with_depth_and_not_with_its_square() {
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    for policy in [
        "prenorm",
        "attnres",
        "attnres:delta=true",
        "mgr",
        "mgr:gate=independent",
        "gr",
        "ddl:channels=4",
    ] {
        let peaks = [8, 16, 32].map(|blocks| {
            let config = config(policy.parse().unwrap(), blocks);
            let decoder = Decoder::fresh(&config, 1, &Device::flex().autodiff()).unwrap();
            step(&decoder, 64) - step(&decoder, 1)
        });
        for pair in peaks.windows(2) {
            let ratio = pair[1] as f64 / pair[0] as f64;
            assert!(ratio < 2.3, "{policy}: twice the depth takes {ratio:.2} times: {peaks:?}");
            assert!(ratio > 1.6, "{policy}: this does not measure the pass: {peaks:?}");
        }
    }
}

/// A large model must fit: it is in memory once when it is loaded, and not at all when it is copied.
#[test]
fn loading_takes_a_model_once_and_converting_a_tensor_at_a_time() {
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    let place = tempfile::tempdir().unwrap();
    let shape = ModelConfig { d_model: 192, d_ff: 768, ..config("prenorm".parse().unwrap(), 12) };
    let decoder = Decoder::fresh(&shape, 1, &Device::flex()).unwrap();
    let bytes = 4 * decoder.parameters().iter().map(|(_, values)| values.len()).sum::<usize>();
    let largest = 4 * shape.d_model * shape.d_ff;
    let directory = place.path().join("model");
    save(&decoder, &directory).unwrap();
    drop(decoder);
    let mut loaded = None;
    let loading = peak(|| loaded = Some(load(&directory, &Device::flex()).unwrap()));
    drop(loaded);
    assert!(loading >= bytes, "{loading} bytes do not hold a model of {bytes}");
    assert!(loading <= bytes + bytes / 20 + 2 * largest, "{loading} for a model of {bytes}");
    let copy = place.path().join("copy");
    let converting = peak(|| drop(convert(&directory, &copy, &mut |_, _| ()).unwrap()));
    assert!(converting <= bytes / 10 + 3 * largest, "{converting} for a model of {bytes}");
}

/// The config is read before the weights and may contain anything.
#[test]
fn a_hostile_config_takes_little_memory() {
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().unwrap();
    let weights = directory.path().join("model.safetensors");
    fs::write(&weights, [&2u64.to_le_bytes()[..], b"{}"].concat()).unwrap();
    let largest = ["mgr:streams=4096", "hc:streams=64", "mhc:streams=64", "mhc_lite:streams=6"];
    let policies = ResidualConfig::all()
        .into_iter()
        .chain(largest.map(|text| text.parse::<ResidualConfig>().unwrap()));
    for residual in policies {
        let huge = ModelConfig {
            vocab_size: 1 << 24,
            d_model: 1 << 20,
            n_heads: 1 << 14,
            head_dim: 1 << 14,
            d_ff: 1 << 24,
            max_seq_len: 1 << 30,
            depth_kv: DepthKv::AttentionMlp,
            tie_embeddings: false,
            qk_norm: true,
            ..config(residual, 4096)
        };
        let json = serde_json::to_string(&huge).unwrap();
        fs::write(directory.path().join("config.json"), json).unwrap();
        let bytes = peak(|| drop(load(directory.path(), &Device::flex()).unwrap_err()));
        let megabytes = bytes >> 20;
        assert!(megabytes < 400, "{}: {megabytes} MB", huge.residual);
    }
}
