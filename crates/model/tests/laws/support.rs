//! The configs that every law is tried on, and models in which no term is zero.

use crate::variants::VARIANTS;
use burn::tensor::Tensor;
use hadal_model::{
    AttentionBias, Cache, Decoder, DepthKv, Device, MlpKind, ModelConfig, Pass, RopeScaling,
    SlidingWindow, Tokens, ValueResidual, Yarn,
};
use hadal_residual::{AnyResidual, Init, ResidualConfig, Site, Weights};
use std::any::Any;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Sub-layers that no token runs: the first MLP and the second attention; all attention after the filling.
pub(crate) const DESERTED: [&str; 5] = [
    "nag:directions=3,skip_threshold=[0.0,9.0,9.0,0.0,0.25,0.25]",
    "nag:directions=3,skip_threshold=[0.0,9.0,9.0,0.0,0.25,0.25],skip_kv=drop",
    "mgr:streams=3,skip_threshold={\"attention\":9.0,\"mlp\":0.28}",
    "gr:streams=2,rank=2,skip_threshold=[0.0,9.0,9.0,0.0,1.1,1.1]",
    "ddl:channels=2,skip_threshold=[0.0,9.0,9.0,0.0,1.0,1.0]",
];

/// Whether tokens skip, so that the number of rows of a product depends on all of them: sums of few rows are made in
/// another order than those of many, and results agree only to rounding.
pub(crate) fn skips(config: &ModelConfig) -> bool {
    const TIME: usize = 8;
    let dimensions = config.dimensions();
    let all_run = |block| config.residual.running(block, TIME, &dimensions) == TIME;
    config.residual.skipping().is_some() || !(0..config.n_layers).all(all_run)
}

/// Whether the policy has a fused form for this model, by which one token can be decoded without tensors.
pub(crate) fn has_fused_form(config: &ModelConfig) -> bool {
    let dimensions = config.dimensions();
    let sites: Vec<Site> = dimensions.each_site().collect();
    policy(config).decode(&sites, &hadal_residual::StepMode::default()).is_some()
}

/// Why the policy needs the sub-layer at this site, if it does, or why others need its values.
pub(crate) fn required_because(config: &ModelConfig, site: Site) -> Option<&'static str> {
    let routed_next = config.value_residual != ValueResidual::None
        && config.residual == ROUTED.parse().unwrap()
        && site.index == 0;
    let of_values = routed_next.then_some("tokens that skip the next one have none");
    policy(config).required_because(site).or(of_values)
}

fn policy(config: &ModelConfig) -> AnyResidual {
    config.residual.init(&config.dimensions(), &mut Weights::fresh(0, &Device::flex()))
}

/// The middle one of three blocks is routed, and its predictor lets some tokens run.
pub(crate) const ROUTED: &str = "prenorm:capacity=0.5";

const DEPTH_MEMORIES: [DepthKv; 3] = [DepthKv::None, DepthKv::Attention, DepthKv::AttentionMlp];

/// Three blocks of PreNorm whose heads are together wider than the stream, so that no width can be taken for another
/// unnoticed.
pub(crate) fn base() -> ModelConfig {
    ModelConfig::tiny()
}

/// The base with this policy.
pub(crate) fn with_policy(text: &str) -> ModelConfig {
    ModelConfig { residual: text.parse().unwrap(), ..base() }
}

/// Every policy with every depth memory; the other switches follow from the policy's text, so that a new policy leaves the
/// models of others as they are.
pub(crate) fn configs() -> Vec<ModelConfig> {
    let variants = VARIANTS.iter().map(|text| text.parse().unwrap());
    let policies = ResidualConfig::all().into_iter().chain(variants);
    policies
        .flat_map(|residual: ResidualConfig| {
            let i: usize = residual.to_string().bytes().map(usize::from).sum();
            DEPTH_MEMORIES.into_iter().enumerate().map(move |(j, depth_kv)| ModelConfig {
                residual: residual.clone(),
                depth_kv,
                qk_norm: (i + j) % 2 == 1,
                mlp: if (i + j).is_multiple_of(3) { MlpKind::Swiglu } else { MlpKind::Relu2 },
                tie_embeddings: !(i + 2 * j).is_multiple_of(3),
                ..base()
            })
        })
        .chain(imported())
        .chain(valued())
        // Tokens without keys leave no depth slots and know no windows.
        .filter(|config| config.check().is_ok())
        .collect()
}

/// What models of other makers have: biases, windows and stretched rotations, alone and together, over policies that
/// skip and policies that do not.
fn imported() -> Vec<ModelConfig> {
    let yarn = Yarn {
        factor: 4.0,
        original_max_seq_len: 8,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: 1.2,
        truncate: true,
    };
    let window = |size, blocks| Some(SlidingWindow { size, blocks });
    let biased = ModelConfig { attention_bias: Some(AttentionBias::Qkv), ..base() };
    let narrow = ModelConfig { sliding_window: window(3, None), mlp: MlpKind::Swiglu, ..base() };
    let all = ModelConfig {
        attention_bias: Some(AttentionBias::All),
        mlp_bias: true,
        rope_scaling: Some(RopeScaling::Yarn(yarn)),
        sliding_window: window(4, Some(vec![0, 2])),
        removed_blocks: Vec::new(),
        qk_norm: true,
        ..base()
    };
    let gated = ModelConfig { mlp: MlpKind::Swiglu, tie_embeddings: false, ..all.clone() };
    let policies = [
        "prenorm",
        "mgr:streams=2",
        "nag:directions=3,skip_threshold=0.25",
        "mgr:streams=2,skip_threshold=[0.0,0.34,0.36,0.4,0.22,0.34]",
    ];
    let depths = DEPTH_MEMORIES.into_iter();
    depths
        .flat_map(|depth_kv| {
            let shapes = [&biased, &narrow, &all, &gated]
                .map(|config| ModelConfig { depth_kv, ..config.clone() });
            policies.iter().flat_map(move |policy| {
                let residual: ResidualConfig = policy.parse().unwrap();
                shapes.clone().map(|config| ModelConfig { residual: residual.clone(), ..config })
            })
        })
        .collect()
}

/// Policies of all sorts whose attention takes values of the first one, with every depth memory: streams, readers that look
/// back, tokens that skip the first attention or a later one, biases and windows.
pub(crate) fn valued() -> Vec<ModelConfig> {
    let policies = [
        "prenorm",
        "denseformer",
        "gr:streams=2",
        "mhc:streams=2",
        "attnres:block_size=2",
        "nag:directions=3,skip_threshold=0.25",
        "mgr:streams=2,skip_threshold=[0.0,0.34,0.36,0.4,0.22,0.34]",
        ROUTED,
    ];
    let ways = [ValueResidual::Learned, ValueResidual::Fixed];
    let each = policies.into_iter().enumerate().flat_map(|(i, policy)| {
        DEPTH_MEMORIES.into_iter().enumerate().map(move |(j, depth_kv)| {
            let odd = (i + j) % 2 == 1;
            ModelConfig {
                depth_kv,
                value_residual: ways[(i + j) % 2],
                qk_norm: !odd,
                attention_bias: (!odd).then_some(AttentionBias::All),
                sliding_window: odd.then_some(SlidingWindow { size: 4, blocks: Some(vec![1]) }),
                ..with_policy(policy)
            }
        })
    });
    // Both ways without anything else, and everything at once.
    let bare = ways.map(|value_residual| ModelConfig { value_residual, ..base() });
    each.chain(bare).filter(|config| config.check().is_ok()).collect()
}

/// Tries a law on every config and reports all that break it.
#[track_caller]
pub(crate) fn every_config(law: impl Fn(&ModelConfig)) {
    every(&configs(), law);
}

/// Tries a law on these configs and reports all that break it.
#[track_caller]
pub(crate) fn every(configs: &[ModelConfig], law: impl Fn(&ModelConfig)) {
    let broken: Vec<String> = configs
        .iter()
        .filter_map(|config| {
            let reason = catch_unwind(AssertUnwindSafe(|| law(config))).err()?;
            let ModelConfig { residual, depth_kv, value_residual, sliding_window, .. } = config;
            Some(format!(
                "{residual} with depth_kv {depth_kv:?}, value_residual {value_residual:?} and window {sliding_window:?}: {}",
                message(&*reason)
            ))
        })
        .collect();
    assert!(
        broken.is_empty(),
        "{} of {} configs break this law:\n{}",
        broken.len(),
        configs.len(),
        broken.join("\n")
    );
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Elements that depend on the name and shape alone; sizes as in a trained model, so that every
/// gate is ajar and no nonlinearity is saturated.
pub(crate) fn random_values(name: &str, shape: &[usize]) -> Vec<f32> {
    let leaf = name.rsplit('.').next().unwrap_or(name);
    let (mean, std) = match leaf {
        _ if name.contains("norm") => (1.0, 0.3),
        _ if name.starts_with("embed") || name.starts_with("head") => (0.0, 0.5),
        // Alike at all sites, so that one threshold lies in the middle of the gains of each.
        "alpha" | "sharpness" => (0.6, 0.05),
        // Far from a sum of zero, which no norm could stretch back to its size.
        "pre" | "post" | "resid" | "scale" => (1.0, 0.2),
        _ if leaf == "weights" || leaf.ends_with("_scale") => (0.6, 0.2),
        _ if leaf.ends_with("_weight") && shape.len() == 2 => (0.0, 0.25),
        _ if shape.len() == 2 => (0.0, 1.0 / (shape[0].max(shape[1]) as f64).sqrt()),
        _ => (0.0, 0.6),
    };
    let count = shape.iter().product();
    let mut weights = Weights::fresh(11, &Device::flex());
    let normal = weights.param(name, [count], Init::Normal { std }).val();
    values(normal + mean)
}

/// A model with random parameters.
pub(crate) fn random(config: &ModelConfig, device: &Device) -> Decoder {
    built(config, device, |name, shape| Some(random_values(name, shape)))
}

/// A model with these parameters; unknown ones start fresh.
pub(crate) fn built(
    config: &ModelConfig,
    device: &Device,
    mut stored: impl FnMut(&str, &[usize]) -> Option<Vec<f32>>,
) -> Decoder {
    Decoder::stored(config, &mut stored, device).unwrap()
}

/// Random rows of tokens.
pub(crate) fn text(batch: usize, time: usize) -> Tokens {
    let ids = (0..(batch * time) as u32).map(|i| (i * i + 5 * i + 2) % 19).collect();
    Tokens::rows(ids, batch).unwrap()
}

/// Some columns of the rows.
pub(crate) fn columns(tokens: &Tokens, from: usize, count: usize) -> Tokens {
    let rows = tokens.ids().chunks(tokens.time());
    let ids = rows.flat_map(|row| row[from..from + count].to_vec()).collect();
    Tokens::rows(ids, tokens.batch()).unwrap()
}

/// The logits of one pass.
pub(crate) fn forward(decoder: &Decoder, tokens: &Tokens) -> Tensor<3> {
    decoder.logits(tokens, Pass::default()).unwrap()
}

/// The logits of several passes through one cache.
pub(crate) fn decoded(
    decoder: &Decoder,
    tokens: &Tokens,
    chunks: &[usize],
    absent: &[Site],
) -> Tensor<3> {
    let mut cache = Cache::new(decoder.config());
    let parts = chunks.iter().map(|&count| {
        let part = columns(tokens, cache.len(), count);
        let pass = Pass { cache: Some(&mut cache), absent, ..Pass::default() };
        decoder.logits(&part, pass).unwrap()
    });
    Tensor::cat(parts.collect(), 1)
}

/// The elements of a tensor.
pub(crate) fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.try_into_vec_as().unwrap()
}

/// Asserts that two tensors agree, relative to the largest magnitude.
#[track_caller]
pub(crate) fn assert_close<const D: usize>(actual: Tensor<D>, expected: Tensor<D>, tolerance: f32) {
    assert_eq!(actual.dims(), expected.dims());
    let (actual, expected) = (values(actual), values(expected));
    let scale = expected.iter().fold(f32::MIN_POSITIVE, |most, value| most.max(value.abs()));
    for (i, (a, e)) in actual.iter().zip(&expected).enumerate() {
        assert!((a - e).abs() <= tolerance * scale, "element {i}: {a} is not {e} (scale {scale})");
    }
}

#[test]
fn every_kind_is_tried_with_every_depth_memory_and_switch() {
    let tried = |pick: fn(&ModelConfig) -> String| -> BTreeSet<(&str, String)> {
        configs().iter().map(|config| (config.residual.about().kind, pick(config))).collect()
    };
    let depth = tried(|config| format!("{:?}", config.depth_kv));
    let norm = tried(|config| config.qk_norm.to_string());
    let mlp = tried(|config| format!("{:?}", config.mlp));
    let tied = tried(|config| config.tie_embeddings.to_string());
    let mut whole = 0;
    for residual in ResidualConfig::all() {
        let kind = residual.about().kind;
        let count = |set: &BTreeSet<(&str, String)>| set.iter().filter(|(k, _)| *k == kind).count();
        // Where tokens have no keys, there is no depth memory.
        let possible = |&depth_kv: &DepthKv| {
            let config = ModelConfig { residual: residual.clone(), depth_kv, ..base() };
            config.check().is_ok()
        };
        let memories = DEPTH_MEMORIES.iter().filter(|memory| possible(memory)).count();
        assert_eq!(count(&depth), memories, "{kind}");
        assert!(memories >= 1, "{kind} makes no model");
        if memories == DEPTH_MEMORIES.len() {
            assert_eq!([&norm, &mlp, &tied].map(count), [2, 2, 2], "{kind}");
            whole += 1;
        }
    }
    assert!(whole > 0, "no kind has every depth memory");
}
