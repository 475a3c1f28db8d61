//! What every policy shows, and the streams whose figures theory gives.

use super::*;
use hadal_model::{DepthKv, Pass};
use hadal_report::figure::Marks;
use hadal_residual::{Recorder, ResidualConfig, Signal};
use std::collections::BTreeSet;

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
fn every_policy_can_be_diagnosed() {
    let memories = [DepthKv::None, DepthKv::Attention, DepthKv::AttentionMlp];
    let mut told = BTreeSet::new();
    for (i, residual) in ResidualConfig::all().into_iter().enumerate() {
        let kind = residual.about().kind;
        let plain = config(kind, 3);
        let deep = ModelConfig { depth_kv: memories[i % 3], ..plain.clone() };
        // Tokens without keys leave no depth slots.
        // Fresh sub-layers may write nothing, which has no angle.
        let decoder = model(if deep.check().is_ok() { &deep } else { &plain }, |_, _| None);
        let Diagnosis { summary, figures, .. } = quick(&decoder);
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
            "connectivity",
            "token-rank",
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

/// Matrices as in a trained model, and parameters of the policy that differ from place to place.
fn restless(kind: &str) -> Decoder {
    model(&config(kind, 3), |name, shape| {
        let around = if name.contains("norm") { 1.0 } else { 0.0 };
        let drawn = || normal(name, 7, shape.iter().product(), 0.3).into_iter();
        name.starts_with("residual.").then(|| drawn().map(|x| x + around).collect())
    })
}

#[test]
fn every_diagnostic_answers_or_says_why_not_whatever_the_policy() {
    let directory = tempfile::tempdir().unwrap();
    let mut refused: BTreeSet<&str> = BTreeSet::new();
    let mut answered = BTreeSet::new();
    for residual in ResidualConfig::all() {
        let kind = residual.about().kind;
        let subject = Subject {
            name: kind.into(),
            path: kind.into(),
            step: None,
            decoder: restless(kind),
            config: None,
            mode: hadal_residual::StepMode::default(),
            absent: Vec::new(),
        };
        let mut journal = Journal::open(&directory.path().join(kind));
        let options = Options { only: Kind::ALL.to_vec(), batches: None };
        let data = samples(16, 9);
        let found = diagnose(&subject, &data, &options, &mut journal, &mut ()).unwrap().unwrap();
        for asked in Kind::ALL {
            let reason = found.summary.refused.iter().find(|r| r.diagnostic == asked);
            assert_ne!(
                found.shown.contains(&asked),
                reason.is_some(),
                "{kind} {asked:?}: {reason:?}"
            );
            assert!(reason.is_none_or(|r| r.reason.len() > 15), "{kind} {asked:?}: {reason:?}");
            refused.extend(reason.map(|_| asked.name()));
            answered.extend(found.shown.iter().map(|kind| kind.name()));
        }
        for figure in &found.figures {
            assert!(has_values(&figure.marks), "{kind}: {} is empty", figure.name);
        }
        // What is asked of a model has a price before it starts.
        let plan = plan(&subject, &data, &options).unwrap();
        assert!(plan.seconds > 0.0 && plan.diagnostics.contains(&Kind::Usefulness), "{kind}");
    }
    let all = Kind::ALL.map(Kind::name);
    let never: Vec<&str> = all.into_iter().filter(|name| !answered.contains(name)).collect();
    // These need a run, and tokens that skip.
    assert_eq!(never, ["spikes"]);
    for name in ["gates", "pools", "lanes", "skips", "streams", "surgery", "rescue"] {
        assert!(refused.contains(name), "{name} answers for all");
    }
}

#[test]
fn every_policy_has_its_depth_connectivity() {
    for residual in ResidualConfig::all() {
        let kind = residual.about().kind;
        let decoder = restless(kind);
        let found = looked(
            &decoder,
            &samples(6, 9),
            &Options { only: vec![Kind::Connectivity], ..Options::default() },
        );
        let found = found.unwrap();
        let summary = found.summary.connectivity.unwrap();
        assert_eq!((summary.weights.len(), summary.unexplained.len()), (7, 7), "{kind}");
        // The first reader has the embedding alone, whatever is done with it.
        assert!(summary.weights[0][0].is_some(), "{kind}: {:?}", summary.weights[0]);
        for (reader, unexplained) in summary.unexplained.iter().enumerate() {
            assert!(
                unexplained.is_some_and(|share| share < 0.9),
                "{kind} {reader}: {unexplained:?}"
            );
            let told = summary.weights[reader].iter().flatten().count();
            assert!(told > reader / 2, "{kind}: {told} of {} weights at {reader}", reader + 1);
        }
        let shares = found.figures.iter().find(|figure| figure.name == "connectivity-share");
        let Marks::Heat { values, .. } = &shares.unwrap().marks else { panic!("{kind}") };
        for (row, unexplained) in values.iter().rev().zip(&summary.unexplained) {
            let all: f64 = row.iter().flatten().sum();
            assert_close(all + unexplained.unwrap(), 1.0, 1e-6);
        }
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
