//! Blocks that hang on each other, that change places, and that affine maps stand in for.

use super::*;
use crate::diagnose::causal::Handed;
use crate::diagnose::exchange::Exchange;
use burn::tensor::{Tensor, TensorData};
use hadal_model::Pass;
use hadal_residual::{Place, Recorder, Signal, Site};
use hadal_train::quality::mean_loss;

/// Parameters of the policy that differ from token to token and from place to place.
fn random(kind: &str, blocks: usize) -> Decoder {
    model(&config(kind, blocks), |name, shape| {
        let around = if name.contains("norm") { 1.0 } else { 0.0 };
        let drawn = || normal(name, 7, shape.iter().product(), 0.3).into_iter();
        name.starts_with("residual.").then(|| drawn().map(|x| x + around).collect())
    })
}

/// A model in which one block writes nothing.
fn with_a_silent_block(kind: &str, blocks: usize, silent: usize) -> Decoder {
    model(&config(kind, blocks), |name, shape| {
        let outputs =
            ["attn.o.weight", "mlp.down.weight"].map(|rest| format!("layers.{silent}.{rest}"));
        outputs.contains(&name.to_owned()).then(|| vec![0.0; shape.iter().product()])
    })
}

fn handed(decoder: &Decoder, batch: &Batch, absent: &[Site]) -> Handed {
    Handed::of(&decoder.valid(), batch, Variant::without(absent)).unwrap()
}

fn block(block: usize) -> [Site; 2] {
    [Site::new(2 * block), Site::new(2 * block + 1)]
}

fn recorded(decoder: &Decoder, batch: &Batch, signal: Signal) -> Recorder {
    let mut probe = Recorder::of(&[signal]);
    let pass = Pass { probe: Some(&mut probe), ..Pass::default() };
    decoder.valid().logits(&batch.input, pass).unwrap();
    probe
}

fn at(seen: &Recorder, place: Place, signal: Signal) -> Values {
    Values::of(seen.get(place, signal).unwrap()).unwrap()
}

#[test]
fn one_stream_hands_on_what_the_next_attention_reads() {
    let batch = batch(2, 5);
    for kind in ["prenorm", "postnorm", "denseformer", "attnres", "attnres:delta=true", "nag"] {
        let decoder = random(kind, 3);
        let seen = recorded(&decoder, &batch, Signal::Reading);
        let handed = handed(&decoder, &batch, &[]);
        for boundary in 0..3 {
            let reading = at(&seen, Place::Site(Site::new(2 * boundary)), Signal::Reading);
            assert_eq!(handed.at(boundary), Some(&reading), "{kind} {boundary}");
        }
        assert_eq!(handed.at(3), Some(&at(&seen, Place::Out, Signal::Reading)), "{kind}");
    }
}

#[test]
fn streams_are_handed_on_side_by_side() {
    let batch = batch(2, 5);
    for kind in ["hc:streams=3", "mhc:streams=3", "gr:streams=3", "ddl:channels=3", "siamese"] {
        let decoder = random(kind, 2);
        let seen = recorded(&decoder, &batch, Signal::Streams);
        let whole = handed(&decoder, &batch, &[]);
        for boundary in 1..3 {
            let streams = at(&seen, Place::Site(Site::new(2 * boundary - 1)), Signal::Streams);
            assert_eq!(whole.at(boundary), Some(&streams), "{kind} {boundary}");
        }
        let start = whole.at(0).unwrap();
        assert_eq!(start.row(3, 0), start.row(3, start.streams() - 1), "{kind}: copies");
        // A block that is left out is the identity.
        let without = handed(&decoder, &batch, &block(0));
        assert_eq!(without.at(1), without.at(0), "{kind}");
        assert_ne!(without.at(2), whole.at(2), "{kind}");
    }
}

#[test]
fn inside_a_block_of_sources_its_running_sum_is_handed_on() {
    let (decoder, batch) = (random("attnres:block_size=4", 3), batch(2, 5));
    let handed = handed(&decoder, &batch, &[]);
    let seen = recorded(&decoder, &batch, Signal::Write);
    let writes = [0, 1].map(|site| at(&seen, Place::Site(Site::new(site)), Signal::Write));
    for token in 0..10 {
        let sum: Vec<f64> = (writes[0].token(token).iter().zip(writes[1].token(token)))
            .map(|(a, b)| a + b)
            .collect();
        let found = handed.at(1).unwrap().token(token);
        found.iter().zip(sum).for_each(|(a, b)| assert_close(*a, b, 1e-5));
    }
    // Behind the block, what is read.
    let reading = recorded(&decoder, &batch, Signal::Reading);
    let reading = at(&reading, Place::Site(Site::new(4)), Signal::Reading);
    assert_eq!(handed.at(2), Some(&reading));
}

fn caused(decoder: &Decoder, batch: &Batch) -> (Causal, CausalSummary) {
    let found = seen(decoder, batch, Causal::new(decoder.config().n_layers));
    let mut summary = Summary::default();
    found.tell(&mut summary);
    (found, summary.causal.unwrap())
}

/// The formula, once more and otherwise: from readings of passes with a block absent.
#[test]
fn causal_scores_are_those_of_the_formula() {
    let (decoder, batch) = (random("prenorm", 4), batch(3, 5));
    let (found, _) = caused(&decoder, &batch);
    let readings = |absent: &[Site]| -> Vec<Vec<f32>> {
        let mut probe = Recorder::of(&[Signal::Reading]);
        let pass = Pass { probe: Some(&mut probe), absent, ..Pass::default() };
        decoder.valid().logits(&batch.input, pass).unwrap();
        let boundary = |i: usize| match i {
            4 => Place::Out,
            i => Place::Site(Site::new(2 * i)),
        };
        // A block that is absent hands on what it was given, which the next one reads.
        let read = |i: usize| {
            probe
                .get(boundary(i), Signal::Reading)
                .or_else(|| probe.get(boundary(i + 1), Signal::Reading))
        };
        (0..=4).map(|i| read(i).unwrap().try_into_vec_as().unwrap()).collect()
    };
    let whole = readings(&[]);
    let width = decoder.config().d_model;
    let norms = |values: Vec<f64>| -> f64 {
        values.chunks(width).map(|token| token.iter().map(|x| x * x).sum::<f64>().sqrt()).sum()
    };
    for s in 0..4 {
        let without = readings(&block(s));
        for l in s + 1..4 {
            let step = |z: &[Vec<f32>], i: usize| f64::from(z[l + 1][i]) - f64::from(z[l][i]);
            let all = 0..whole[0].len();
            let moved = all.clone().map(|i| step(&whole, i) - step(&without, i)).collect();
            let expected = norms(moved) / norms(all.map(|i| step(&whole, i)).collect());
            assert_close(found.score(s, l).unwrap(), expected, 1e-4);
            assert!(expected > 0.01, "{s} {l}: {expected}");
        }
        assert_eq!(found.score(s, s), None);
    }
}

#[test]
fn nothing_hangs_on_a_block_that_writes_nothing() {
    for kind in ["prenorm", "hc:dynamic=false"] {
        let (found, summary) = caused(&with_a_silent_block(kind, 4, 1), &batch(3, 5));
        for later in 2..4 {
            assert_close(found.score(1, later).unwrap(), 0.0, 1e-6);
        }
        // It adds nothing itself, so nobody can say how much of it hangs on another one.
        assert_eq!(found.score(0, 1), None, "{kind}");
        assert!(found.score(0, 2).unwrap() > 1e-3, "{kind}: {summary:?}");
    }
}

#[test]
fn what_cannot_be_left_out_is_named() {
    let (found, summary) = caused(&random("mgr:streams=3", 3), &batch(3, 5));
    assert_eq!(summary.refused[0].0, 0);
    assert!(summary.refused[0].1.len() > 10, "{:?}", summary.refused);
    assert!(summary.scores[0].iter().all(Option::is_none) && found.score(1, 2).is_some());
    assert!(found.figures()[0].caption.contains("block 0: "), "{}", found.figures()[0].caption);
}

#[test]
fn the_share_counts_pairs_in_the_last_three_quarters() {
    let above = |a: usize, b: usize| Some(if a < 2 || b == 7 { 1.0 } else { 0.0 });
    // Six blocks make 15 pairs, five of them with the last block.
    assert_eq!(causal::share_above(0.5, 8, above), Some(5.0 / 15.0));
    assert_eq!(causal::share_above(1.0, 8, above), Some(0.0));
    assert_eq!(causal::share_above(0.5, 1, above), None);
}

fn permuted(decoder: &Decoder, batch: &Batch) -> PermutationSummary {
    let mut summary = Summary::default();
    seen(decoder, batch, Permutation::new(decoder)).tell(&mut summary);
    summary.permutation.unwrap()
}

fn loss(decoder: &Decoder, batch: &Batch) -> f64 {
    mean_loss(&decoder.valid(), batch, Pass::default()).unwrap()
}

/// A model with the values of another one under other names.
fn renamed(of: &Decoder, name_of: impl Fn(&str) -> String) -> Decoder {
    let values: std::collections::HashMap<String, Vec<f32>> = of.parameters().into_iter().collect();
    let mut stored = |name: &str, _: &[usize]| values.get(&name_of(name)).cloned();
    Decoder::stored(of.config(), &mut stored, &Device::flex().autodiff()).unwrap()
}

#[test]
fn exchanged_blocks_are_a_model_with_the_blocks_exchanged() {
    let batch = batch(3, 7);
    // With hyper-connections the policy's own parameters travel, too.
    for kind in ["prenorm", "hc", "gr", "highway"] {
        let decoder = random(kind, 3);
        let other = renamed(&decoder, |name| {
            let words: Vec<&str> = name.split('.').collect();
            let to = match (words[0], words.get(1).copied()) {
                ("layers", Some("0")) => "2",
                ("layers", Some("2")) => "0",
                ("residual", Some("0")) => "4",
                ("residual", Some("1")) => "5",
                ("residual", Some("4")) => "0",
                ("residual", Some("5")) => "1",
                _ => return name.to_owned(),
            };
            [&[words[0], to], &words[2..]].concat().join(".")
        });
        let found = permuted(&decoder, &batch);
        let whole = loss(&decoder, &batch);
        let expected = (loss(&other, &batch) - whole).abs() / whole;
        assert_close(found.scores[0][2].unwrap(), expected, 1e-6);
        assert!(expected > 1e-5, "{kind}: {expected}");
        // The copy is as it was after each pair: all of them once more say the same.
        assert_eq!(permuted(&decoder, &batch), found, "{kind}");
        assert!(found.refused.is_empty(), "{kind}: {:?}", found.refused);
    }
}

#[test]
fn a_factor_by_depth_travels_with_its_block() {
    let batch = batch(3, 7);
    let lns = random("lns", 3);
    let folded: std::collections::HashMap<String, Vec<f32>> = (lns.parameters().into_iter())
        .map(|(name, values)| {
            let block =
                name.strip_prefix("layers.").and_then(|n| n.split('.').next()?.parse::<f32>().ok());
            let scale = match block.filter(|_| name.contains("norm")) {
                Some(block) => 1.0 / (block + 1.0).sqrt(),
                None => 1.0,
            };
            (name, values.into_iter().map(|x| scale * x).collect())
        })
        .collect();
    let mut stored = |name: &str, _: &[usize]| folded.get(name).cloned();
    let plain = Decoder::stored(&config("prenorm", 3), &mut stored, &Device::flex().autodiff());
    let (a, b) = (permuted(&lns, &batch), permuted(&plain.unwrap(), &batch));
    for (i, j) in [(0, 1), (0, 2), (1, 2)] {
        let (a, b) = (a.scores[i][j].unwrap(), b.scores[i][j].unwrap());
        assert!((a - b).abs() < 1e-5, "{i} {j}: {a} {b}");
        assert!(b > 1e-4, "{i} {j}: {b}");
    }
}

#[test]
fn queries_that_read_a_block_travel_with_it() {
    let decoder = random("attnres", 3);
    let exchange = Exchange::of(&decoder);
    let names = exchange.names(0, 2).unwrap();
    for pair in [
        ("residual.1.query", "residual.5.query"),
        ("residual.2.query", "residual.out.query"),
        ("residual.2.key_norm", "residual.out.key_norm"),
        ("layers.0.attn_norm.weight", "layers.2.attn_norm.weight"),
        ("layers.0.mlp.down.weight", "layers.2.mlp.down.weight"),
    ] {
        assert!(names.contains(&(pair.0.into(), pair.1.into())), "{pair:?} of {names:?}");
    }
    assert!(names.iter().all(|(name, _)| !name.contains("residual.3")), "{names:?}");
}

#[test]
fn equal_blocks_change_places_unnoticed() {
    let decoder = model(&config("prenorm", 3), |name, shape| {
        let rest = name.strip_prefix("layers.")?.split_once('.')?.1;
        (shape.len() == 2).then(|| normal(rest, 3, shape.iter().product(), 0.3))
    });
    let found = permuted(&decoder, &batch(3, 5));
    assert!(found.scores.iter().flatten().flatten().all(|score| *score == 0.0), "{found:?}");
    assert_eq!((found.share, found.scores[0].iter().flatten().count()), (Some(0.0), 2));
}

#[test]
fn blocks_that_cannot_change_places_are_refused_with_the_reason() {
    for (kind, pair, reason) in [
        ("mixln", (0, 1), "behind the sum"),
        ("mgr:streams=3", (0, 2), "has nothing in the place of residual."),
        ("mod", (0, 1), "has nothing in the place of residual.1."),
        ("attnres:delta=true", (0, 3), "has nothing in the place of residual.2."),
    ] {
        let decoder = random(kind, 4);
        let found = permuted(&decoder, &batch(2, 5));
        let refused = found.refused.iter().find(|(i, j, _)| (*i, *j) == pair);
        let (.., why) = refused.unwrap_or_else(|| panic!("{kind}: {:?}", found.refused));
        assert!(why.contains(reason), "{kind}: {why}");
        assert_eq!(found.scores[pair.0][pair.1], None);
    }
    // One of two blocks is postnorm, the other prenorm.
    let mut summary = Summary::default();
    let half = random("mixln:post_fraction=0.5", 2);
    seen(&half, &batch(2, 5), Permutation::new(&half)).tell(&mut summary);
    assert_eq!((summary.permutation, summary.refused.len()), (None, 1));
    assert!(summary.refused[0].reason.contains("such as 0 and 1: one has its norms"));
    // An average over places stays at its place.
    assert!(permuted(&random("denseformer", 3), &batch(2, 5)).refused.is_empty());
}

fn stood_in(decoder: &Decoder, batch: &Batch) -> (Usefulness, Summary) {
    let found = seen(decoder, batch, Usefulness::new(decoder.config()));
    let mut summary = Summary::default();
    found.tell(&mut summary);
    (found, summary)
}

#[test]
fn a_block_that_writes_a_constant_has_an_affine_stand_in() {
    let config = ModelConfig { mlp_bias: true, ..config("prenorm", 3) };
    let decoder = model(&config, |name, shape| {
        let count = shape.iter().product();
        match name {
            "layers.1.attn.o.weight" | "layers.1.mlp.down.weight" => Some(vec![0.0; count]),
            "layers.1.mlp.down.bias" => Some(normal(name, 3, count, 2.0)),
            _ => None,
        }
    });
    let batch = batch(40, 9);
    let (found, summary) = stood_in(&decoder, &batch);
    assert_close(found.ratio(1).unwrap(), 1.0, 1e-4);
    // It is no block that does nothing.
    let without = Pass { absent: &block(1), ..Pass::default() };
    let without = mean_loss(&decoder.valid(), &batch, without).unwrap();
    assert!((without / loss(&decoder, &batch) - 1.0).abs() > 1e-2);
    let summary = summary.usefulness.unwrap();
    assert_eq!(summary.ratios.len(), 3);
    assert!((summary.ratios[0].unwrap() - 1.0).abs() > 1e-3, "{summary:?}");
    assert!(summary.sentence().contains("of 3 blocks"), "{}", summary.sentence());
    assert_eq!(found.figures()[0].name, "usefulness");
}

/// Writes that are an affine map of the reading are found again, whatever half of the rows is looked at.
#[test]
fn least_squares_find_an_affine_map() {
    let width = ModelConfig::tiny().d_model;
    let (rows, time) = (4, 3 * width);
    let tokens = hadal_model::Tokens::rows(vec![0; rows * time], rows).unwrap();
    let batch = Batch { input: tokens.clone(), target: tokens, scored: Vec::new() };
    let h = normal("h", 5, rows * time * width, 1.0);
    let (matrix, constant) = (normal("m", 6, width * width, 0.5), normal("b", 7, width, 0.5));
    let write = |sign: f32| -> Vec<f32> {
        h.chunks(width)
            .flat_map(|h| {
                (0..width)
                    .map(|i| {
                        let sum: f32 = (0..width).map(|j| h[j] * matrix[j * width + i]).sum();
                        sign * (sum + constant[i])
                    })
                    .collect::<Vec<_>>()
            })
            .collect()
    };
    let values = |data: Vec<f32>| {
        let data = TensorData::new(data, [rows, time, 1, width]);
        Values::of(Tensor::from_data(data, &Device::flex())).unwrap()
    };
    let mut found = Usefulness::new(&config("prenorm", 1));
    found.begin(&batch);
    let (attention, mlp) = (Place::Site(Site::new(0)), Place::Site(Site::new(1)));
    found.see(attention, Signal::Reading, &values(h.clone()));
    found.see(attention, Signal::Write, &values(write(1.0)));
    found.see(mlp, Signal::Write, &values(write(-1.0)));
    let map = found.fitted_map(0).unwrap();
    for i in 0..width {
        for (half, sign) in [(0, 1.0), (width, -1.0)] {
            let entry = |row: usize| f64::from(map[row * 2 * width + half + i]);
            assert!((entry(width) - sign * f64::from(constant[i])).abs() < 1e-4);
            for j in 0..width {
                let expected = sign * f64::from(matrix[j * width + i]);
                assert!((entry(j) - expected).abs() < 1e-4, "{} {expected}", entry(j));
            }
        }
    }
}

#[test]
fn too_few_tokens_are_refused_with_their_number() {
    let (found, summary) = stood_in(&random("prenorm", 2), &batch(2, 5));
    assert!(found.figures().is_empty() && summary.usefulness.is_none());
    let reason = &summary.refused[0].reason;
    assert!(reason.contains("a fit needs"), "{reason}");
    let (_, summary) = stood_in(&random("prenorm", 2), &batch(1, 5));
    assert!(summary.refused[0].reason.contains("there is only one"), "{:?}", summary.refused);
}
