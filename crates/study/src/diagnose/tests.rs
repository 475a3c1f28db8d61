//! Hand-made models with known answers.

mod interruption;

use super::diagnostic::{Diagnostic, Models};
use super::*;
use burn::module::Module;
use hadal_data::Batch;
use hadal_model::{DepthKv, Device, ModelConfig, Pass, Tokens};
use hadal_report::figure::Marks;
use hadal_report::run::Run;
use hadal_residual::{Init, Recorder, ResidualConfig, Signal, Weights};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn config(residual: &str, blocks: usize) -> ModelConfig {
    ModelConfig {
        n_layers: blocks,
        tie_embeddings: residual != "nag",
        residual: residual.parse().unwrap(),
        ..ModelConfig::tiny()
    }
}

fn normal(name: &str, seed: u64, count: usize, std: f64) -> Vec<f32> {
    let mut weights = Weights::fresh(seed, &Device::flex());
    weights.param(name, [count], Init::Normal { std }).val().try_into_vec_as().unwrap()
}

/// A fresh model, except that its matrices are as large as in a trained one, and for what `change` says.
fn model(config: &ModelConfig, change: impl Fn(&str, &[usize]) -> Option<Vec<f32>>) -> Decoder {
    let mut stored = |name: &str, shape: &[usize]| {
        let count = shape.iter().product();
        let matrix = name.starts_with("layers.") && shape.len() == 2;
        change(name, shape).or_else(|| {
            let std = 1.0 / (shape.last().copied().unwrap_or(1) as f64).sqrt();
            matrix.then(|| normal(name, 3, count, std))
        })
    };
    Decoder::stored(config, &mut stored, &Device::flex().autodiff()).unwrap()
}

fn fresh(config: &ModelConfig) -> Decoder {
    Decoder::fresh(config, 5, &Device::flex().autodiff()).unwrap()
}

fn zeros(shape: &[usize]) -> Option<Vec<f32>> {
    Some(vec![0.0; shape.iter().product()])
}

/// Whether the parameter is the output projection of one of a block's sub-layers.
fn is_output_of(block: usize, name: &str) -> bool {
    ["attn.o", "mlp.down"].iter().any(|part| name == format!("layers.{block}.{part}.weight"))
}

fn batch(rows: usize, time: usize) -> Batch {
    let ids =
        |shift: u32| (0..(rows * time) as u32).map(|i| ((i + shift).pow(2) + 2) % 19).collect();
    let tokens = |shift| Tokens::rows(ids(shift), rows).unwrap();
    Batch { input: tokens(0), target: tokens(1), scored: Vec::new() }
}

/// What a diagnostic sees of a batch.
fn seen<D: Diagnostic>(decoder: &Decoder, batch: &Batch, mut diagnostic: D) -> D {
    let plain = decoder.valid();
    watch(&plain, Variant::default(), batch, &mut [&mut diagnostic]).unwrap();
    let models = Models { learning: decoder, plain: &plain, variant: Variant::default() };
    for pass in 0..diagnostic.passes() {
        diagnostic.pass(pass, models, batch).unwrap();
    }
    diagnostic
}

fn samples(rows: usize, time: usize) -> Samples<'static> {
    Samples::tokens((0..(rows * time + 1) as u32).map(|i| (i * i + 5 * i) % 19).collect(), time)
}

/// A diagnosis that nobody watches.
fn looked(
    decoder: &Decoder,
    samples: &Samples,
    options: &Options,
) -> Result<Diagnosis, DiagnoseError> {
    look(decoder, Variant::default(), samples, options, None, &mut ()).map(Option::unwrap)
}

fn quick(decoder: &Decoder) -> Diagnosis {
    looked(decoder, &samples(6, 9), &Options::default()).unwrap()
}

/// Remembers what it was told, and stops after some passes.
#[derive(Default)]
struct Told {
    passes: Vec<(usize, usize)>,
    kinds: Vec<Kind>,
    notes: Vec<String>,
    most: Option<usize>,
}

impl Observer for Told {
    fn passed(&mut self, done: usize, all: usize) {
        self.passes.push((done, all));
    }

    fn finished(&mut self, kinds: &[Kind]) {
        self.kinds.extend(kinds);
    }

    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    fn stops(&self) -> bool {
        self.most.is_some_and(|most| self.passes.len() >= most)
    }
}

#[track_caller]
fn assert_close(found: f64, expected: f64, tolerance: f64) {
    let scale = expected.abs().max(1.0);
    assert!((found - expected).abs() <= tolerance * scale, "{found} is not {expected}");
}

#[test]
fn an_identity_block_turns_nothing_and_is_not_missed() {
    let config = config("prenorm", 3);
    let decoder = model(&config, |name, shape| is_output_of(1, name).then(|| zeros(shape))?);
    let batch = batch(4, 7);
    let distance = seen(&decoder, &batch, Distance::new(3));
    assert_eq!(distance.get(1, 1), Some(0.0));
    assert_eq!(distance.get(0, 1), distance.get(0, 2));
    assert!(distance.get(0, 1).unwrap() > 0.05 && distance.get(2, 1).unwrap() > 0.05);
    let removals = seen(&decoder, &batch, Removals::new(3));
    for part in 0..3 {
        assert_close(removals.change(1, part).unwrap(), 0.0, 1e-6);
    }
    assert!(removals.change(0, 0).unwrap().abs() > 1e-3);
    let writes =
        seen(&decoder, &batch, Writes::new(3, Bounds::new(&config.residual, &config.dimensions())));
    assert_eq!((writes.turn(2), writes.turn(3)), (Some(0.0), Some(0.0)));
    assert!(writes.turn(4).unwrap() > 1.0);
}

/// The model of the other blocks, under their new numbers.
fn model_without(config: &ModelConfig, removed: usize) -> Decoder {
    let smaller = ModelConfig { n_layers: config.n_layers - 1, ..config.clone() };
    model(&smaller, |name, shape| {
        let (block, rest) = name.strip_prefix("layers.")?.split_once('.')?;
        let block: usize = block.parse().ok()?;
        let original = if block < removed { block } else { block + 1 };
        let std = 1.0 / (*shape.last()? as f64).sqrt();
        let name = format!("layers.{original}.{rest}");
        (shape.len() == 2).then(|| normal(&name, 3, shape.iter().product(), std))
    })
}

#[test]
fn removing_a_block_equals_a_model_built_without_it() {
    for kind in ["prenorm", "postnorm"] {
        let (config, batch) = (config(kind, 3), batch(4, 7));
        let removals = seen(&model(&config, |_, _| None), &batch, Removals::new(3));
        for block in 0..3 {
            let without = seen(&model_without(&config, block), &batch, Removals::new(2)).loss();
            assert_close(removals.loss() + removals.change(block, 0).unwrap(), without, 1e-5);
        }
    }
}

#[test]
fn a_planted_massive_activation_is_found() {
    let (config, channel) = (config("prenorm", 2), 11);
    let decoder = model(&config, |name, shape| {
        (name == "layers.1.mlp.down.weight").then(|| {
            let mut values = normal(name, 3, shape.iter().product(), 0.1);
            values[channel * shape[1]..(channel + 1) * shape[1]].fill(1e4);
            values
        })
    });
    let largest = quick(&decoder).summary.largest.unwrap();
    assert_eq!((largest.behind.as_str(), largest.channel), ("1 mlp", channel));
    assert!(largest.value > 1e4 && largest.times_median > MASSIVE, "{largest:?}");
    let ordinary = quick(&model(&config, |_, _| None)).summary.largest.unwrap();
    assert!(ordinary.times_median < 100.0, "{ordinary:?}");
}

#[test]
fn gates_start_at_their_biases() {
    for kind in ["mgr", "mgr:gate=independent", "mgr:streams=2", "highway:gate=scalar"] {
        let config = config(kind, 4);
        let decoder = fresh(&config);
        let gates = seen(&decoder, &batch(3, 5), Distribution::gates(4));
        let start = &config.residual.initial_gates(&config.dimensions())[0];
        for site in start.first_site..=start.last_site {
            let streams = (0..).map_while(|stream| gates.range(site, stream));
            let mut count = 0;
            for (least, mean, most) in streams {
                for found in [least, mean, most] {
                    assert_close(found, start.values[0], 1e-6);
                }
                count += 1;
            }
            assert!(count > 0, "{kind}: no gate at sub-layer {site}");
        }
    }
}

#[test]
fn pools_start_even() {
    let decoder = fresh(&config("attnres", 2));
    let pools = seen(&decoder, &batch(2, 5), Distribution::pools(2));
    for sources in 2..=5 {
        for source in 0..sources {
            let (least, _, most) = pools.range(sources - 1, source).unwrap();
            assert_close(least, 1.0 / sources as f64, 1e-6);
            assert_close(most, 1.0 / sources as f64, 1e-6);
        }
    }
}

#[test]
fn the_angle_of_a_nag_sub_layer_is_the_arc_tangent_of_its_gain() {
    let config = config("nag", 3);
    let decoder = fresh(&config);
    let batch = batch(3, 6);
    let (alphas, log_gain) = lanes::parameters(&decoder).unwrap();
    let lanes = seen(&decoder, &batch, Lanes::new(alphas.clone(), log_gain));
    let writes =
        seen(&decoder, &batch, Writes::new(3, Bounds::new(&config.residual, &config.dimensions())));
    for (site, alpha) in alphas.iter().enumerate() {
        let rotation = lanes.rotation(site).unwrap();
        assert_close(writes.turn(site).unwrap(), rotation, 1e-4);
        // Every modulation starts around one half.
        assert_close(rotation, (0.5 * alpha).atan().to_degrees(), 0.1);
    }
    // The norm lane grows by what the rotations say.
    let output = seen(
        &decoder,
        &batch,
        Output::new(3, Bounds::new(&config.residual, &config.dimensions()), log_gain),
    );
    let expected: f64 =
        (0..6).map(|site| 1.0 + lanes.rotation(site).unwrap().to_radians().tan().powi(2)).product();
    assert_close(output.growth()[3].unwrap(), expected, 0.02);
}

/// Xiong's model: unit embedding, even attention, and an MLP that keeps half of the second moment.
fn xiong_model(config: &ModelConfig, seed: u64) -> Decoder {
    let width = config.d_model;
    let unit = 1.0 / (width as f64).sqrt();
    let mut stored = |name: &str, shape: &[usize]| {
        let count = shape.iter().product();
        let part = name.rsplit('.').nth(1)?;
        Some(match part {
            "embed" => normal(name, seed, count, 1.0),
            "q" | "k" => vec![0.0; count],
            "o" => (0..count).map(|i| f32::from(u8::from(i % width == i / width))).collect(),
            "v" | "up" => normal(name, seed, count, unit),
            // E relu(z)^4 = 3/2, where ReLU itself has 1/2.
            "down" => normal(name, seed, count, unit / 3f64.sqrt()),
            _ => return None,
        })
    };
    Decoder::stored(config, &mut stored, &Device::flex().autodiff()).unwrap()
}

#[test]
fn a_fresh_prenorm_stream_grows_within_the_bounds_of_xiong() {
    const SEEDS: u64 = 24;
    let blocks = 8;
    for kind in ["prenorm", "lns"] {
        let config = ModelConfig {
            d_model: 40,
            n_heads: 1,
            n_kv_heads: 1,
            head_dim: 40,
            d_ff: 40,
            ..config(kind, blocks)
        };
        let bounds = Bounds::new(&config.residual, &config.dimensions());
        let mut output = Output::new(blocks, bounds.clone(), 0.0);
        for seed in 0..SEEDS {
            let decoder = xiong_model(&config, seed).valid();
            watch(&decoder, Variant::default(), &batch(4, 5), &mut [&mut output]).unwrap();
        }
        for (block, (growth, (least, most))) in
            output.growth().into_iter().zip(bounds.growth()).enumerate().skip(1)
        {
            let growth = growth.unwrap();
            assert!(*least < growth && growth < *most, "{kind} {block}: {growth} {least} {most}");
        }
    }
}

#[test]
fn even_attention_gives_the_first_token_its_share() {
    let config = config("prenorm", 2);
    let decoder =
        model(&config, |name, shape| name.ends_with("attn.q.weight").then(|| zeros(shape))?);
    let sink = seen(&decoder, &batch(3, 6), Sink::new(2));
    let Marks::Lines { series } = &sink.figures()[0].marks else { panic!("lines") };
    let even = (1..6).map(|t| 1.0 / (t + 1) as f64).sum::<f64>() / 5.0;
    for line in series {
        for share in &line.y {
            assert_close(share.unwrap(), even, 1e-6);
        }
    }
}

#[test]
fn a_head_that_looks_at_the_first_token_is_a_sink() {
    // Keys agree with queries for the first token, and for it alone; most rotary pairs are slow.
    let config = ModelConfig { rope_theta: 1e30, ..config("prenorm", 1) };
    let first = 7u32;
    let decoder = model(&config, |name, shape| match name {
        "embed.weight" => {
            let mut values = vec![0.1; shape.iter().product()];
            for token in 0..shape[0] {
                let own = if token == first as usize { 1.0 } else { -1.0 };
                values[token * shape[1]] = own;
            }
            Some(values)
        }
        "layers.0.attn.q.weight" => Some(vec![1.0; shape.iter().product()]),
        "layers.0.attn.k.weight" => Some(
            (0..shape.iter().product())
                .map(|i| if i % shape[1] == 0 { 20.0 } else { 0.0 })
                .collect(),
        ),
        _ => None,
    });
    let ids = vec![first, 1, 2, 3, 4, 5];
    let batch = Batch { input: Tokens::row(&ids), target: Tokens::row(&ids), scored: Vec::new() };
    let mut summary = Summary::default();
    seen(&decoder, &batch, Sink::new(1)).tell(&mut summary);
    let (_, share) = summary.sink.unwrap();
    assert!(share > 0.99, "{share}");
}

#[test]
fn gradients_pass_an_identity_block_unchanged() {
    let decoder =
        model(&config("prenorm", 2), |name, shape| is_output_of(1, name).then(|| zeros(shape))?);
    let gradient = seen(&decoder, &batch(3, 6), Gradient::new(2));
    let Marks::Lines { series } = &gradient.figures()[0].marks else { panic!("lines") };
    let [attention, mlp] = &series[..] else { panic!("two curves") };
    let last = mlp.y[1].unwrap();
    assert!(last > 0.0);
    assert_close(mlp.y[0].unwrap() / last, 1.0, 1e-5);
    assert_close(attention.y[1].unwrap() / last, 1.0, 1e-5);
    assert!((attention.y[0].unwrap() / last - 1.0).abs() > 1e-3);
}

#[test]
fn every_policy_can_be_diagnosed() {
    let memories = [DepthKv::None, DepthKv::Attention, DepthKv::AttentionMlp];
    let mut told = BTreeSet::new();
    for (i, residual) in ResidualConfig::all().into_iter().enumerate() {
        let kind = residual.about().kind;
        let plain = config(kind, 3);
        let deep = ModelConfig { depth_kv: memories[i % 3], ..plain.clone() };
        // Tokens without keys leave no depth slots.
        let decoder = fresh(if deep.check().is_ok() { &deep } else { &plain });
        let Diagnosis { summary, figures } = quick(&decoder);
        let names: BTreeSet<&str> = figures.iter().map(|figure| figure.name.as_str()).collect();
        assert_eq!(names.len(), figures.len(), "{kind}: a name twice");
        for name in [
            "output-rms",
            "stream-growth",
            "gradient-rms",
            "gradient-rms-parameters",
            "write-size",
            "write-angle",
            "reading-turn",
            "angular-distance",
            "removal-loss",
            "removal-perplexity",
            "massive-activations",
            "attention-sink",
        ] {
            assert!(names.contains(name), "{kind} has no {name}");
        }
        // Whatever a policy shows is drawn, and nothing else.
        let shown = shown(&decoder);
        for (signal, name) in [
            (Signal::Streams, "angular-distance-stream-1"),
            (Signal::Streams, "massive-activations-streams"),
            (Signal::Gain, "nag-rotation"),
            (Signal::Gates, "gates-histogram"),
        ] {
            assert_eq!(names.contains(name), shown.contains(&signal), "{kind}: {name}");
        }
        told.extend(shown);
        for figure in &figures {
            assert!(has_values(&figure.marks), "{kind}: {} is empty", figure.name);
            assert!(figure.caption.len() > 40 && !figure.x.label.is_empty(), "{}", figure.name);
        }
        assert!(summary.loss.is_finite() && summary.norm_growth.unwrap() > 0.0, "{kind}");
        assert!(summary.gradient_ratio.unwrap().is_finite(), "{kind}: {summary:?}");
        assert_eq!((summary.sequences, summary.tokens), (6, 54), "{kind}");
    }
    for signal in [Signal::Streams, Signal::Gain, Signal::Gates] {
        assert!(told.contains(&signal), "no policy shows {signal:?}");
    }
}

/// Which signals a policy shows.
fn shown(decoder: &Decoder) -> BTreeSet<Signal> {
    let mut probe = Recorder::of(&Signal::ALL);
    let pass = Pass { probe: Some(&mut probe), ..Pass::default() };
    decoder.valid().logits(&batch(2, 5).input, pass).unwrap();
    probe.seen.into_iter().map(|(_, signal, _)| signal).collect()
}

fn has_values(marks: &Marks) -> bool {
    match marks {
        Marks::Lines { series } => series.iter().all(|line| line.y.iter().any(Option::is_some)),
        Marks::Bars { series } => series.iter().any(|bars| bars.values.iter().any(Option::is_some)),
        Marks::Points { series } => series.iter().all(|points| !points.x.is_empty()),
        Marks::Boxes { series } => {
            series.iter().all(|boxes| boxes.boxes.iter().any(Option::is_some))
        }
        Marks::Heat { values, .. } => values.iter().flatten().any(Option::is_some),
    }
}

#[test]
fn watching_changes_nothing() {
    for kind in ["prenorm", "mgr", "nag", "hc"] {
        let decoder = fresh(&config(kind, 3));
        let before = decoder.parameters();
        let batch = batch(4, 7);
        let whole = seen(&decoder, &batch, Removals::new(3)).loss();
        let watched = looked(&decoder, &samples(6, 9), &Options::default()).unwrap();
        assert!(watched.summary.loss.is_finite());
        assert_eq!(decoder.parameters(), before, "{kind}");
        assert_eq!(seen(&decoder, &batch, Removals::new(3)).loss(), whole, "{kind}");
    }
}

#[test]
fn only_what_was_asked_for_is_measured() {
    let decoder = fresh(&config("mgr", 3));
    let options = Options { only: vec![Kind::Sink], batches: Some(1) };
    let mut told = Told::default();
    let found = look(&decoder, Variant::default(), &samples(6, 9), &options, None, &mut told);
    let found = found.unwrap().unwrap();
    assert_eq!(found.figures.len(), 1);
    assert_eq!((told.passes, told.kinds), (vec![(1, 1)], vec![Kind::Sink]));
    assert_eq!(found.summary.norm_growth, None);
    let error = "sinks".parse::<Kind>().unwrap_err().to_string();
    assert!(error.contains("unknown diagnostic `sinks`") && error.contains("sink"), "{error}");
}

#[test]
fn numbers_that_overflow_are_refused() {
    let decoder = model(&config("prenorm", 2), |name, shape| {
        name.contains("norm").then(|| vec![f32::MAX; shape.iter().product()])
    });
    let error = looked(&decoder, &samples(2, 5), &Options::default()).unwrap_err();
    assert!(matches!(error, DiagnoseError::NotFinite { .. }), "{error}");
}

#[test]
fn what_is_written_reads_back_as_the_figures_of_a_run() {
    let Diagnosis { summary, mut figures } = quick(&fresh(&config("nag", 2)));
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("config.toml"), "seed = 1\n").unwrap();
    let out = directory.path().join("diagnosis");
    write(&out, &figures, std::slice::from_ref(&summary), None).unwrap();
    let run = Run::read(directory.path()).unwrap();
    figures.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(run.figures.len(), figures.len());
    for (read, written) in run.figures.iter().zip(&figures) {
        assert_eq!((&read.name, &read.title), (&written.name, &written.title));
        let csv = fs::read_to_string(out.join(format!("{}.csv", read.name))).unwrap();
        assert!(csv.lines().count() > 1, "{}", read.name);
    }
    let text = fs::read_to_string(out.join("about/summary.json")).unwrap();
    assert_eq!(serde_json::from_str::<Summary>(&text).unwrap().residual, summary.residual);
}

#[test]
fn skips_are_told_by_depth_kind_position_and_token() {
    // No token skips block 0, every token skips the attention of block 1, none skips its MLP.
    let config = config("nag:skip_threshold=[0.0,0.0,9.0,0.0]", 2);
    let (decoder, batch) = (fresh(&config), batch(20, 6));
    let skips = seen(&decoder, &batch, Skips::new(&config, None));
    assert_eq!([0, 1, 2, 3].map(|site| skips.at(site).unwrap()), [0.0, 0.0, 1.0, 0.0]);
    let mut summary = Summary::default();
    skips.tell(&mut summary);
    let told = summary.skips.unwrap();
    assert_eq!((told.attention, told.mlp), (Some(0.5), Some(0.0)));
    assert!(told.flops > 0.0 && told.flops < 0.5, "{told:?}");
    // All tokens skip one of four, and only tokens that occur often enough count.
    assert!(!told.most.is_empty());
    assert!(told.most.iter().all(|token| token.skipped == 0.25 && token.count >= 5), "{told:?}");
    let figures = skips.figures();
    let names: Vec<_> = figures.iter().map(|figure| figure.name.as_str()).collect();
    assert_eq!(names, ["skip-by-depth", "skip-by-position", "skip-by-token"]);
    let Marks::Lines { series } = &figures[1].marks else { panic!("lines") };
    assert_eq!(series[0].y, [Some(0.5); 6]);
    assert_eq!(series[1].y, [Some(0.0); 6]);
}

#[test]
fn skipped_tokens_are_called_by_their_text() {
    let config = ModelConfig { vocab_size: 257, ..config("mgr:streams=2,skip_threshold=9.0", 2) };
    let ids: Vec<u32> =
        b"aaaaaabbbbbbbbc\xffc\xff\xff\xff\xff\xff".iter().map(|&b| b.into()).collect();
    let tokens = || Tokens::rows(ids.clone(), 1).unwrap();
    let batch = Batch { input: tokens(), target: tokens(), scored: Vec::new() };
    let tokenizer = Some(hadal_model::Tokenizer::bytes());
    let skips = seen(&fresh(&config), &batch, Skips::new(&config, tokenizer));
    // The first sub-layer fills a stream.
    assert_eq!(skips.at(0), None);
    assert_eq!(skips.at(3), Some(1.0));
    let figure = skips.figures().remove(2);
    assert_eq!(figure.x.categories, ["\"a\" x6", "\"b\" x8", "#255 x6"]);
}

#[test]
fn a_model_in_which_nobody_can_skip_has_no_figure_of_it() {
    let config = config("nag", 2);
    let skips = seen(&fresh(&config), &batch(2, 5), Skips::new(&config, None));
    assert!(skips.figures().is_empty());
}
