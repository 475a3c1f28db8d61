//! Hand-made models with known answers: the oracles P1 to P8 of the pruning literature, and its traps.

use super::choose::choose;
use super::map::Renumbering;
use super::measure::measure;
use super::own::cut_model;
use super::turns::Turns;
use super::*;
use crate::diagnose::{Distance, watch};
use crate::train::Batch;
use hadal_model::{
    AttentionBias, Cache, Decoder, DepthKv, Device, MlpKind, ModelConfig, Part, Pass,
    SlidingWindow, Tokens, load, save,
};
use hadal_residual::{Init, ResidualConfig, Weights};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn config(residual: &str, blocks: usize) -> ModelConfig {
    ModelConfig {
        attention_bias: None,
        mlp_bias: false,
        rope_scaling: None,
        sliding_window: None,
        model_type: "hadal".into(),
        vocab_size: 19,
        d_model: 16,
        n_layers: blocks,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 6,
        d_ff: 24,
        mlp: MlpKind::Swiglu,
        rope_theta: 10_000.0,
        norm_eps: 1e-7,
        qk_norm: false,
        tie_embeddings: !residual.starts_with("nag"),
        depth_kv: DepthKv::None,
        max_seq_len: 64,
        residual: residual.parse().unwrap(),
    }
}

fn normal(name: &str, count: usize, std: f64) -> Vec<f32> {
    let mut weights = Weights::fresh(3, &Device::flex());
    weights.param(name, [count], Init::Normal { std }).val().try_into_vec_as().unwrap()
}

/// A model whose matrices are as large as in a trained one and whose gains differ, but for what `change` makes of them.
fn model(config: &ModelConfig, change: impl Fn(&str, &mut [f32])) -> Decoder {
    let mut stored = |name: &str, shape: &[usize]| {
        let count: usize = shape.iter().product();
        let mut values = if name.contains("norm") {
            normal(name, count, 0.3).iter().map(|value| value + 1.0).collect()
        } else if shape.len() == 2 {
            normal(name, count, 1.0 / (shape[1] as f64).sqrt())
        } else {
            normal(name, count, 0.4)
        };
        change(name, &mut values);
        Some(values)
    };
    Decoder::stored(config, &mut stored, &Device::flex()).unwrap()
}

/// What a block's sub-layers return through.
fn is_output_of(block: usize, name: &str) -> bool {
    ["attn.o", "mlp.down"].iter().any(|part| name == format!("layers.{block}.{part}.weight"))
}

fn scaled(blocks: &'static [usize], factor: f32) -> impl Fn(&str, &mut [f32]) {
    move |name, values| {
        if blocks.iter().any(|&block| is_output_of(block, name)) {
            values.iter_mut().for_each(|value| *value *= factor);
        }
    }
}

fn plain(_: &str, _: &mut [f32]) {}

fn batch(rows: usize, time: usize) -> Batch {
    let ids =
        |shift: u32| (0..(rows * time) as u32).map(|i| ((i + shift).pow(2) + 2) % 19).collect();
    let tokens = |shift| Tokens::rows(ids(shift), rows).unwrap();
    Batch { input: tokens(0), target: tokens(1), scored: Vec::new() }
}

fn scores(decoder: &Decoder) -> Scores {
    score(decoder, &[batch(4, 9)], &mut || {}).unwrap()
}

fn chosen(decoder: &Decoder, options: &Options) -> Vec<Part> {
    let data = [batch(4, 9)];
    let mut evaluate = |cuts: &[Vec<Part>]| measure(decoder, &data, cuts, &mut || {});
    choose(&scores(decoder), options, &mut evaluate).unwrap()
}

/// By KL: a model that learned nothing may well have a lower loss without a block.
fn blocks(count: usize) -> Options {
    let budget = Budget { blocks: Some(count), ..Budget::default() };
    Options { budget, score: Score::Kl, protect: Vec::new(), ..Options::default() }
}

fn logits(decoder: &Decoder) -> Vec<f32> {
    decoder.logits(&batch(2, 9).input, Pass::default()).unwrap().try_into_vec_as().unwrap()
}

fn without(decoder: &Decoder, parts: &[Part]) -> Decoder {
    let mut decoder = decoder.clone();
    decoder.leave_out(&Part::all_sites(parts)).unwrap();
    decoder
}

fn stories() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/stories260K")
}

fn every_way() -> Vec<Options> {
    let mut ways = Vec::new();
    for score in [Score::Distance, Score::Influence, Score::Kl] {
        for method in [Method::OneShot, Method::Greedy] {
            for contiguous in [false, true] {
                let way = Options { score, method, contiguous, ..blocks(1) };
                ways.extend(way.check().is_ok().then_some(way));
            }
        }
    }
    ways
}

#[test]
fn an_identity_block_scores_zero_goes_first_and_is_not_missed() {
    for identity in [0, 2, 4] {
        let decoder = model(&config("prenorm", 5), move |name, values| {
            if is_output_of(identity, name) {
                values.fill(0.0);
            }
        });
        let found = scores(&decoder);
        let own = found.of(Part::Block(identity)).unwrap();
        assert_eq!((own.distance, own.influence), (Some(0.0), Some(0.0)));
        assert!(own.kl.unwrap() < 1e-9 && own.loss_change.unwrap().abs() < 1e-6);
        // The one behind it reads what it read: numbers are those of the block itself, not of its successor.
        assert_eq!(found.distances[identity][0], Some(0.0));
        for way in every_way() {
            assert_eq!(chosen(&decoder, &way), [Part::Block(identity)], "{way:?}");
        }
        let map = Renumbering::new(5, &[Part::Block(identity)]).unwrap();
        let (cut, exact) = cut_model(&decoder, &map).unwrap();
        assert!(exact);
        assert_eq!(logits(&cut), logits(&decoder));
    }
}

#[test]
fn the_last_block_is_measured_before_the_final_norm() {
    // An identity at the end turns nothing, although the norm behind it would.
    let decoder = model(&config("prenorm", 3), scaled(&[2], 0.0));
    let found = scores(&decoder);
    assert_eq!(found.distances[2], [Some(0.0)]);
    assert_eq!(found.distances[1][0], found.distances[1][1]);
    assert!(found.distances[1][0].unwrap() > 0.01);
}

#[test]
fn planted_damage_raises_every_score_and_protects_the_block() {
    let calm = scores(&model(&config("prenorm", 5), scaled(&[0, 1, 2, 3, 4], 0.2)));
    let wild = model(&config("prenorm", 5), |name, values| {
        let factor = if is_output_of(3, name) { 2.0 } else { 0.2 };
        if (0..5).any(|block| is_output_of(block, name)) {
            values.iter_mut().for_each(|value| *value *= factor);
        }
    });
    let damaged = scores(&wild);
    let (before, after) = (calm.of(Part::Block(3)).unwrap(), damaged.of(Part::Block(3)).unwrap());
    assert!(after.distance > before.distance && after.influence > before.influence);
    assert!(after.kl > before.kl);
    // A run of blocks that began at the end can only grow towards the damage.
    let forced = |way: &Options| way.contiguous && way.method == Method::Greedy;
    for way in every_way().iter().filter(|way| !forced(way)) {
        let four = Options { budget: Budget { blocks: Some(4), ..way.budget }, ..way.clone() };
        let four = if way.contiguous {
            Options { budget: Budget { blocks: Some(3), ..way.budget }, ..four }
        } else {
            four
        };
        assert!(!chosen(&wild, &four).contains(&Part::Block(3)), "{four:?}");
    }
}

#[test]
fn distances_are_a_metric() {
    let decoder = model(&config("prenorm", 6), plain);
    for time in 3..9 {
        // One sample each, because the inequality holds for each and not for means of arc cosines alone.
        let one = batch(1, time);
        let mut distance = Distance::new(6);
        watch(&decoder, &one, &mut [&mut distance]).unwrap();
        let d = |from: usize, n: usize| if n == 0 { 0.0 } else { distance.get(from, n).unwrap() };
        for from in 0..6 {
            for n in 0..=6 - from {
                assert!((0.0..=1.0).contains(&d(from, n)));
                for k in 0..=6 - from - n {
                    assert!(d(from, n + k) <= d(from, n) + d(from + n, k) + 1e-12);
                }
            }
        }
    }
}

#[test]
fn influence_is_one_minus_the_cosine_of_the_distance_on_the_same_token() {
    let decoder = model(&config("prenorm", 4), plain);
    let mut turns = Turns::default();
    watch(&decoder, &batch(1, 1), &mut [&mut turns]).unwrap();
    for block in 0..4 {
        for part in [Part::Block(block), Part::Attention(block), Part::Mlp(block)] {
            let (d, influence) = (turns.distance(part).unwrap(), turns.influence(part).unwrap());
            let expected = 1.0 - (std::f64::consts::PI * d).cos();
            assert!(d > 0.0 && (influence - expected).abs() < 1e-12, "{part}");
        }
    }
}

#[test]
fn all_tokens_and_last_tokens_are_told_apart() {
    let decoder = model(&config("prenorm", 3), plain);
    let found = scores(&decoder);
    assert_ne!(found.distances, found.distances_of_all_tokens);
    let one_token = score(&decoder, &[batch(4, 1)], &mut || {}).unwrap();
    assert_eq!(one_token.distances, one_token.distances_of_all_tokens);
}

#[test]
fn massive_activations_do_not_overflow_the_scores() {
    // Far beyond what f16 holds, and the squares beyond what f32 sums.
    let decoder = model(&config("prenorm", 3), |name, values| {
        if name == "embed.weight"
            || name.ends_with("attn.o.weight")
            || name.ends_with("down.weight")
        {
            values.iter_mut().for_each(|value| *value *= 1e15);
        }
    });
    for part in scores(&decoder).parts {
        assert!(part.influence.is_some_and(|i| (0.0..=2.0).contains(&i)), "{part:?}");
        assert!(part.distance.is_some_and(|d| (0.0..=1.0).contains(&d)), "{part:?}");
    }
}

/// `--nocapture` shows the gap, which is worth knowing and nothing to depend on.
#[test]
#[allow(clippy::print_stdout)]
fn greedy_comes_close_to_the_best_of_all_subsets() {
    let decoder = model(&config("prenorm", 8), scaled(&[0, 1, 2, 3, 4, 5, 6, 7], 0.5));
    let data = [batch(4, 9)];
    let mut subsets = Vec::new();
    for bits in 0u32..256 {
        if bits.count_ones() == 3 {
            subsets
                .push((0..8).filter(|i| bits >> i & 1 == 1).map(Part::Block).collect::<Vec<_>>());
        }
    }
    let costs = measure(&decoder, &data, &subsets, &mut || {}).unwrap();
    let mut kls: Vec<f64> = costs.cuts.iter().map(|cut| cut.as_ref().unwrap().kl).collect();
    let greedy = chosen(&decoder, &Options { score: Score::Kl, ..blocks(3) });
    let of_greedy = measure(&decoder, &data, &[greedy], &mut || {}).unwrap();
    let found = of_greedy.cuts[0].as_ref().unwrap().kl;
    kls.sort_by(f64::total_cmp);
    let rank = kls.iter().filter(|&&kl| kl < found).count();
    println!(
        "KL of the best three blocks {:.5}, greedy {found:.5}, place {} of {}",
        kls[0],
        rank + 1,
        kls.len()
    );
    assert!(found >= kls[0] && rank < kls.len() / 4, "place {rank}");
}

#[test]
fn scores_of_sub_layers_are_those_of_their_halves() {
    let decoder = model(&config("prenorm", 4), |name, values| {
        if name == "layers.2.attn.o.weight" {
            values.fill(0.0);
        }
    });
    let options = Options { sub_layers: true, ..blocks(1) };
    assert_eq!(chosen(&decoder, &options), [Part::Attention(2)]);
    let found = scores(&decoder);
    assert_eq!(found.of(Part::Attention(2)).unwrap().influence, Some(0.0));
    assert_eq!(
        found.of(Part::Mlp(2)).unwrap().influence,
        found.of(Part::Block(2)).unwrap().influence
    );
}

#[test]
fn ends_are_protected_unless_told_otherwise() {
    let decoder = model(&config("prenorm", 5), scaled(&[0, 1, 4], 0.0));
    let protected = Options { protect: Options::default().protect, ..blocks(2) };
    let mut found = chosen(&decoder, &protected);
    found.sort();
    assert_eq!(found, [Part::Block(2), Part::Block(3)]);
    let mut free = chosen(&decoder, &blocks(3));
    free.sort();
    assert_eq!(free, [Part::Block(0), Part::Block(1), Part::Block(4)]);
}

#[test]
fn budgets_hold_or_are_refused() {
    let decoder = model(&config("prenorm", 6), scaled(&[2, 4], 0.0));
    let budget = |budget| Options { budget, ..blocks(0) };
    let limited = budget(Budget { max_kl: Some(1e-6), ..Budget::default() });
    for method in [Method::Greedy, Method::OneShot] {
        let mut found = chosen(&decoder, &Options { method, ..limited.clone() });
        found.sort();
        assert_eq!(found, [Part::Block(2), Part::Block(4)]);
    }
    let share = budget(Budget { percent: Some(49.9), ..Budget::default() });
    assert_eq!(chosen(&decoder, &share).len(), 2);
    let error = |options: &Options, decoder: &Decoder| {
        let mut evaluate = |cuts: &[Vec<Part>]| measure(decoder, &[batch(4, 9)], cuts, &mut || {});
        choose(&scores(decoder), options, &mut evaluate).unwrap_err().to_string()
    };
    assert!(error(&budget(Budget::default()), &decoder).contains("nothing says how much"));
    assert!(
        error(&budget(Budget { max_kl: Some(-1.0), ..Budget::default() }), &decoder)
            .contains("--max-kl is -1")
    );
    assert!(
        error(&budget(Budget { percent: Some(100.0), ..Budget::default() }), &decoder)
            .contains("below 100")
    );
    assert!(error(&blocks(7), &decoder).contains("only 6 may"));
    let lively = model(&config("prenorm", 6), plain);
    let none = budget(Budget { max_kl: Some(1e-9), ..Budget::default() });
    assert!(error(&none, &lively).contains("nothing can go within the budget"));
    let greedy = Options { score: Score::Distance, ..blocks(1) };
    assert!(error(&greedy, &decoder).contains("--score loss or kl"));
}

#[test]
fn blocks_that_follow_each_other_are_the_least_distant_run() {
    let decoder = model(&config("prenorm", 7), scaled(&[3, 4], 0.01));
    let options =
        Options { score: Score::Distance, method: Method::OneShot, contiguous: true, ..blocks(2) };
    assert_eq!(chosen(&decoder, &options), [Part::Block(3), Part::Block(4)]);
    let found = scores(&decoder);
    let best = (0..=5).map(|from| found.distances[from][1].unwrap()).fold(f64::INFINITY, f64::min);
    assert_eq!(found.distances[3][1], Some(best));
}

/// Which policies can be cut in a file, and whether the logits then agree to the bit.
#[test]
fn a_cut_is_written_only_where_it_computes_the_same() {
    let cut = |residual: &ResidualConfig, parts: &[Part]| {
        let config = config(&residual.to_string(), 6);
        let decoder = model(&config, plain);
        let map = Renumbering::new(6, parts).unwrap();
        match cut_model(&decoder, &map) {
            Ok((cut, exact)) => {
                let (expected, found) = (logits(&without(&decoder, parts)), logits(&cut));
                if exact {
                    assert_eq!(found, expected, "{residual}");
                }
                if exact { "exact" } else { "rounded" }
            }
            Err(PruneError::NotWritable { .. }) => "refused",
            Err(error) => panic!("{residual}: {error}"),
        }
    };
    let outcomes = |parts: &[Part]| -> Vec<(&'static str, &'static str)> {
        let all = ResidualConfig::all();
        all.iter().map(|residual| (residual.about().kind, cut(residual, parts))).collect()
    };
    let of = |list: &[(&'static str, &'static str)], outcome: &str| -> Vec<&'static str> {
        list.iter().filter(|(_, found)| *found == outcome).map(|(kind, _)| *kind).collect()
    };
    let whole = outcomes(&[Part::Block(4), Part::Block(3)]);
    assert_eq!(of(&whole, "rounded"), ["lns"]);
    assert_eq!(of(&whole, "refused"), ["deepnorm", "denseformer", "siamese"], "{whole:?}");
    // A half that returns zero is one that is absent where streams are sums, and nowhere else.
    let halves = outcomes(&[Part::Mlp(4)]);
    for (kind, expected) in
        [("prenorm", "exact"), ("lns", "exact"), ("postnorm", "refused"), ("mgr", "refused")]
    {
        assert!(halves.contains(&(kind, expected)), "{kind}: {halves:?}");
    }
}

#[test]
fn a_block_that_fills_streams_is_refused_with_the_policys_reason() {
    let decoder = model(&config("mgr:streams=4", 6), plain);
    let map = Renumbering::new(6, &[Part::Block(1)]).unwrap();
    let error = cut_model(&decoder, &map).unwrap_err().to_string();
    assert!(
        error.contains("attention of block 1 must stay: it fills one of the streams"),
        "{error}"
    );
    assert!(error.contains("--skip-blocks"));
    let refused = scores(&decoder).of(Part::Block(0)).unwrap().refused.clone();
    assert!(refused.unwrap().contains("fills one of the streams"));
}

#[test]
fn thresholds_of_single_sub_layers_are_cut_with_them() {
    let thresholds = "nag:directions=3,skip_threshold=[0.0,0.01,0.02,0.03,0.04,0.05,0.06,0.07]";
    let decoder = model(&config(thresholds, 4), plain);
    let map = Renumbering::new(4, &[Part::Block(1)]).unwrap();
    let (cut, _) = cut_model(&decoder, &map).unwrap();
    let expected: ResidualConfig =
        "nag:directions=3,skip_threshold=[0.0,0.01,0.04,0.05,0.06,0.07]".parse().unwrap();
    assert_eq!(cut.config().residual, expected);
}

#[test]
fn windows_and_biases_follow_their_blocks() {
    let window = |blocks: &[usize]| SlidingWindow { size: 3, blocks: Some(blocks.to_vec()) };
    let whole = ModelConfig {
        attention_bias: Some(AttentionBias::All),
        mlp_bias: true,
        sliding_window: Some(window(&[0, 2, 3])),
        ..config("prenorm", 4)
    };
    let decoder = model(&whole, plain);
    for (parts, expected) in [
        (vec![Part::Block(1)], Some(window(&[0, 1, 2]))),
        (vec![Part::Block(2), Part::Attention(1), Part::Mlp(3)], Some(window(&[0, 2]))),
        (vec![Part::Block(0), Part::Block(2), Part::Block(3)], None),
    ] {
        let map = Renumbering::new(4, &parts).unwrap();
        let (cut, exact) = cut_model(&decoder, &map).unwrap();
        assert_eq!(cut.config().sliding_window, expected, "{parts:?}");
        assert!(exact, "{parts:?}");
        assert_eq!(logits(&cut), logits(&without(&decoder, &parts)), "{parts:?}");
    }
}

#[test]
fn cutting_stops_before_perplexity_rises_too_far() {
    // The second block does nothing, the others matter.
    let decoder = model(&config("prenorm", 4), scaled(&[1], 0.0));
    let most = |percent| Options {
        budget: Budget { max_perplexity_rise: Some(percent), ..Budget::default() },
        protect: Vec::new(),
        ..Options::default()
    };
    for method in [Method::Greedy, Method::OneShot] {
        let data = [batch(4, 9)];
        let mut evaluate = |cuts: &[Vec<Part>]| measure(&decoder, &data, cuts, &mut || {});
        let mut gone = |percent| {
            let options = Options { method, ..most(percent) };
            choose(&scores(&decoder), &options, &mut evaluate).unwrap()
        };
        let (few, many) = (gone(0.0), gone(1e9));
        assert!(few.contains(&Part::Block(1)), "{method:?}: {few:?}");
        assert_eq!(many.len(), 4, "{method:?}: {many:?}");
        let costs = measure(&decoder, &data, &[few], &mut || {}).unwrap();
        let cut = costs.cuts[0].as_ref().unwrap();
        assert!(cut.perplexity <= costs.whole.perplexity, "{method:?}");
    }
}

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
        assert_eq!(logits(&cut), logits(&without(&whole, parts)), "{parts:?}");
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
        plan(&directory, Some(&text), Some(2), &options, "hadal prune plan", &mut |_, _| {})
            .unwrap();
    assert_eq!(found.remove, [Part::Block(2)]);
    assert_eq!(found.kept, [0, 1, 3, 4]);
    assert!(found.outcome.held_out && found.outcome.cut.kl < 1e-9);
    assert!(found.memory.parameters_after < found.memory.parameters_before);
    assert_eq!(found.memory.kv_bytes_after * 5, found.memory.kv_bytes_before * 4);
    assert!(found.speed.prefill > 0.0 && found.speed.decode_tokens_per_second > 0.0);
    let file = place.path().join("plan.json");
    found.write(&file).unwrap();
    // Numbers lose a last bit in JSON; what is done with a plan does not depend on it.
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
