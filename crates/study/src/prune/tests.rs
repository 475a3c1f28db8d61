//! Hand-made models with known answers: the oracles P1 to P8 of the pruning literature, and its traps.

mod choices;
mod cuts;
mod files;
mod resume;

use super::choose::choose;
use super::course::Course;
use super::measure::measure;
use super::scores;
use super::scores::score;
use super::*;
use hadal_data::Batch;
use hadal_model::{Decoder, Device, MlpKind, ModelConfig, Part, Pass, Tokens, Variant};
use hadal_residual::{Init, StepMode, Weights};
use std::path::{Path, PathBuf};

fn config(residual: &str, blocks: usize) -> ModelConfig {
    ModelConfig {
        n_layers: blocks,
        mlp: MlpKind::Swiglu,
        tie_embeddings: !residual.starts_with("nag"),
        max_seq_len: 64,
        residual: residual.parse().unwrap(),
        ..ModelConfig::tiny()
    }
}

fn normal(name: &str, count: usize, std: f64) -> Vec<f32> {
    let mut weights = Weights::fresh(3, &Device::flex());
    weights.param(name, [count], Init::Normal { std }).val().try_into_vec_as().unwrap()
}

/// A model whose matrices are as large as in a trained one and whose gains differ, as modified by `change`.
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

/// Whether the parameter is the output projection of one of a block's sub-layers.
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
    score(decoder, &StepMode::default(), &[batch(4, 9)], &mut Course::default()).unwrap()
}

fn chosen(decoder: &Decoder, options: &Options) -> Vec<Part> {
    let data = [batch(4, 9)];
    let mut evaluate = |cuts: &[Vec<Part>]| {
        measure(decoder, &StepMode::default(), &data, cuts, &mut Course::default())
    };
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

/// The logits without some parts.
fn without(decoder: &Decoder, parts: &[Part]) -> Vec<f32> {
    let absent = Part::all_sites(parts);
    let pass = Variant::without(&absent).pass();
    decoder.logits(&batch(2, 9).input, pass).unwrap().try_into_vec_as().unwrap()
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

/// A plan with numbers that are easy to read.
pub(super) fn some_plan() -> Plan {
    let cost = |perplexity: f64| Cost { loss: perplexity.ln(), perplexity, kl: 0.1 };
    let part = |part: Part| PartScore {
        part,
        distance: Some(part.block() as f64 / 16.0),
        influence: Some(0.1),
        loss_change: Some(if part == Part::Block(0) { 64f64.ln() } else { 0.1 }),
        perplexity_change: Some(1.0),
        kl: Some(0.1),
        refused: None,
    };
    Plan {
        format: 1,
        source: Source {
            path: "/models/model.gguf".into(),
            kind: SourceKind::Gguf,
            files: Vec::new(),
        },
        residual: "prenorm".into(),
        blocks: 16,
        remove: vec![Part::Block(12), Part::Block(14)],
        chosen: vec![Part::Block(14), Part::Block(12)],
        kept: Vec::new(),
        options: Options { protect: Options::default().protect, ..blocks(2) },
        outcome: Outcome {
            predicted_perplexity: 40.0,
            predicted_kl: 0.2,
            whole: cost(37.7),
            cut: cost(41.9),
            held_out: true,
            tokens: 256,
        },
        curve: vec![cost(39.2), cost(41.9)],
        memory: Memory {
            parameters_before: 134_515_008,
            parameters_after: 125_000_000,
            kv_bytes_before: 1280,
            kv_bytes_after: 1024,
        },
        speed: Speed {
            prefill: 0.93,
            decode: 0.93,
            prefill_range: Some([0.91, 0.95]),
            decode_range: Some([0.93, 0.931]),
            prefill_tokens_per_second: 1.0,
            decode_tokens_per_second: 1.0,
        },
        scores: Scores {
            loss: 32f64.ln(),
            perplexity: 32.0,
            tokens: 256,
            parts: scores::all_parts(16).into_iter().map(part).collect(),
            distances: Vec::new(),
            distances_of_all_tokens: Vec::new(),
        },
        data: Some(MeasuredOn {
            path: Some("/data/text.txt".into()),
            batches: 2,
            tokens: String::new(),
        }),
        command: "hadal prune plan".into(),
    }
}
