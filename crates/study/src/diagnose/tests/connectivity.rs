//! The matrix of weights from depth to depth, against what policies say that it is.

use super::*;
use crate::diagnose::connectivity::Connectivity;
use hadal_model::Pass;
use hadal_residual::{Place, Recorder, Signal, Site};

fn connected(decoder: &Decoder, batch: &Batch) -> (Connectivity, ConnectivitySummary) {
    let found = seen(decoder, batch, Connectivity::new("kind", decoder.config().n_layers));
    let mut summary = Summary::default();
    found.tell(&mut summary);
    (found, summary.connectivity.unwrap())
}

/// Everything that a traversal shows of these.
fn recorded(decoder: &Decoder, batch: &Batch, signals: &[Signal]) -> Recorder {
    let mut probe = Recorder::of(signals);
    let pass = Pass { probe: Some(&mut probe), ..Pass::default() };
    decoder.valid().logits(&batch.input, pass).unwrap();
    probe
}

fn at(seen: &Recorder, place: Place, signal: Signal) -> Values {
    Values::of(seen.get(place, signal).unwrap()).unwrap()
}

fn place(index: usize, sites: usize) -> Place {
    if index < sites { Place::Site(Site::new(index)) } else { Place::Out }
}

#[test]
fn prenorm_reads_everything_with_weight_one() {
    // Twelve blocks have more outputs than there are channels.
    for (kind, blocks) in [("prenorm", 3), ("lns", 2), ("prenorm", 12)] {
        let decoder = model(&config(kind, blocks), |_, _| None);
        let (_, ConnectivitySummary { weights, unexplained }) = connected(&decoder, &batch(6, 9));
        assert_eq!(weights.len(), 2 * blocks + 1);
        for (reader, row) in weights.iter().enumerate() {
            assert_eq!(row.len(), reader + 1);
            row.iter().for_each(|weight| assert_close(weight.unwrap(), 1.0, 1e-4));
            assert!(unexplained[reader].unwrap() < 1e-9, "{kind}: {unexplained:?}");
        }
    }
}

#[test]
fn two_streams_have_the_weights_of_the_spec() {
    let decoder = model(&config("hc:streams=2,dynamic=false", 1), |name, _| {
        Some(match name {
            "residual.0.pre" => vec![0.6, 0.4],
            "residual.1.pre" => vec![0.3, 0.9],
            "residual.0.post" => vec![1.2, 0.5],
            "residual.1.post" => vec![0.7, 1.1],
            "residual.0.res" => vec![0.9, 0.1, 0.1, 0.9],
            "residual.1.res" => vec![0.6, 0.4, 0.4, 0.6],
            _ => return None,
        })
    });
    let (_, ConnectivitySummary { weights, unexplained }) = connected(&decoder, &batch(3, 5));
    let expected = [vec![1.0], vec![1.2, 0.81], vec![2.0, 1.7, 1.8]];
    for (row, expected) in weights.iter().zip(expected) {
        assert_eq!(row.len(), expected.len());
        row.iter().zip(expected).for_each(|(c, e)| assert_close(c.unwrap(), e, 1e-5));
    }
    assert!(unexplained.iter().all(|share| share.unwrap() < 1e-9), "{unexplained:?}");
}

/// Random parameters of the policy, so that weights differ from token to token.
fn random(kind: &str, blocks: usize) -> Decoder {
    model(&config(kind, blocks), |name, shape| {
        let count = shape.iter().product();
        let around = if name.contains("norm") { 1.0 } else { 0.0 };
        let drawn = || normal(name, 7, count, 0.4).into_iter().map(|x| x + around).collect();
        name.starts_with("residual.").then(drawn)
    })
}

#[test]
fn attention_residuals_read_with_their_softmax() {
    let (decoder, batch) = (random("attnres", 2), batch(3, 5));
    let (found, summary) = connected(&decoder, &batch);
    let seen = recorded(&decoder, &batch, &[Signal::PoolWeights]);
    for reader in 1..=4 {
        let alpha = at(&seen, place(reader, 4), Signal::PoolWeights);
        for source in 0..=reader {
            let mean = alpha.rows(source).map(|row| f64::from(row[0])).sum::<f64>() / 15.0;
            assert_close(found.weight(reader, source).unwrap(), mean, 1e-4);
        }
        assert!(summary.unexplained[reader].unwrap() < 1e-9);
    }
}

/// The outputs of blocks are sums of what came before: the spec's recursion, from the weights that are shown.
#[test]
fn averages_of_blocks_read_their_sources_with_the_weights_that_are_shown() {
    for kind in ["mudd:ways=1", "denseformer"] {
        let (decoder, batch) = (random(kind, 2), batch(3, 5));
        let (found, summary) = connected(&decoder, &batch);
        assert!(summary.most_unexplained() < 1e-9, "{kind}: {:?}", summary.unexplained);
        let seen = recorded(&decoder, &batch, &[Signal::PoolWeights]);
        // The first average is a X_0 + b X_1, and X_1 the embedding and both outputs of the first block.
        let Some(weights) = seen.get(place(2, 4), Signal::PoolWeights) else {
            assert_eq!(kind, "denseformer");
            continue;
        };
        let weights = Values::of(weights).unwrap();
        let mean =
            |source: usize| weights.rows(source).map(|row| f64::from(row[0])).sum::<f64>() / 15.0;
        for reader in [2, 3] {
            for source in [1, 2] {
                assert_close(found.weight(reader, source).unwrap(), mean(1), 1e-4);
            }
            assert_close(found.weight(reader, 0).unwrap(), mean(0) + mean(1), 1e-4);
        }
    }
}

#[test]
fn the_members_of_a_block_share_its_softmax_weight() {
    let (decoder, batch) = (random("attnres:blocks=1", 2), batch(3, 5));
    let (_, summary) = connected(&decoder, &batch);
    let head = &summary.weights[4];
    for source in 2..5 {
        assert_close(head[source].unwrap(), head[1].unwrap(), 1e-4);
    }
    assert!((head[0].unwrap() - head[1].unwrap()).abs() > 1e-2, "{head:?}");
}

/// The spec's recursion, token by token, from what is shown of the weights.
#[test]
fn hyper_connections_read_with_the_product_of_their_mixers() {
    for kind in ["hc:streams=3", "mhc:streams=3", "mhc_lite:streams=3"] {
        let (decoder, batch) = (random(kind, 2), batch(3, 5));
        let (found, summary) = connected(&decoder, &batch);
        let seen =
            recorded(&decoder, &batch, &[Signal::PoolWeights, Signal::Mixing, Signal::Gates]);
        let (n, sites, tokens) = (3, 4, 15);
        let mut sums = vec![vec![0.0; sites + 1]; sites + 1];
        for token in 0..tokens {
            // How much of each source each stream holds.
            let mut held = vec![vec![1.0; n]];
            for (reader, sums) in sums.iter_mut().enumerate() {
                let here = place(reader, sites);
                let pre: Vec<f64> = match reader == sites {
                    true => vec![1.0; n],
                    false => {
                        let pre = at(&seen, here, Signal::PoolWeights);
                        (0..n).map(|i| pre.row(token, i)[0].into()).collect()
                    }
                };
                for (source, held) in held.iter().enumerate() {
                    let read: f64 = pre.iter().zip(held).map(|(a, b)| a * b).sum();
                    sums[source] += read / f64::from(tokens as u32);
                }
                if reader == sites {
                    continue;
                }
                let mixing = at(&seen, here, Signal::Mixing);
                for held in &mut held {
                    *held = (0..n)
                        .map(|i| {
                            let row = mixing.row(token, i).iter().zip(&*held);
                            row.map(|(&r, h)| f64::from(r) * h).sum()
                        })
                        .collect();
                }
                let post = at(&seen, here, Signal::Gates);
                held.push((0..n).map(|i| post.row(token, i)[0].into()).collect());
            }
        }
        for (reader, sums) in sums.iter().enumerate() {
            for (source, &sum) in sums[..=reader].iter().enumerate() {
                let weight = found.weight(reader, source).unwrap();
                assert_close(weight, sum, 2e-4);
            }
            assert!(summary.unexplained[reader].unwrap() < 1e-9, "{kind}: {summary:?}");
        }
    }
}

#[test]
fn gates_by_channel_leave_something_unexplained_and_say_so() {
    let (_, scalar) = connected(&random("highway:gate=scalar", 2), &batch(3, 5));
    assert!(scalar.most_unexplained() < 1e-9, "{:?}", scalar.unexplained);
    let (found, vector) = connected(&random("highway:gate=vector", 2), &batch(3, 5));
    assert!(vector.most_unexplained() > 1e-4, "{:?}", vector.unexplained);
    let figures = found.figures();
    let names: Vec<&str> = figures.iter().map(|figure| figure.name.as_str()).collect();
    assert_eq!(names, ["connectivity", "connectivity-share", "connectivity-unexplained"]);
    assert!(figures[0].caption.contains("unexplained"), "{}", figures[0].caption);
    assert!(vector.sentence().unwrap().contains("weighted by channel"));
}

/// `x' = (x + y) / rms(x + y)` with gains of one: a number for each token.
#[test]
fn a_norm_behind_the_sum_makes_old_sources_smaller() {
    let (_, found) = connected(&model(&config("postnorm", 3), |_, _| None), &batch(3, 5));
    assert!(found.most_unexplained() < 1e-9, "{:?}", found.unexplained);
    let head: Vec<f64> = found.weights.last().unwrap().iter().map(|c| c.unwrap()).collect();
    // The embedding and the first output pass the same norms, the first of which may make both larger.
    assert_close(head[0], head[1], 1e-4);
    assert!(head[2] < head[4] && head[4] < head[6], "{head:?}");
}

#[test]
fn tokens_that_skip_a_sub_layer_do_not_read_it() {
    for kind in ["mod", "mgr:skip_threshold=0.3"] {
        let decoder = model(&config(kind, 3), |_, _| None);
        let (_, found) = connected(&decoder, &batch(6, 9));
        assert!(found.most_unexplained() < 1e-8, "{kind}: {:?}", found.unexplained);
    }
}

#[test]
fn shares_of_a_row_add_up_to_what_is_explained() {
    let (found, _) = connected(&random("mhc", 2), &batch(3, 5));
    let figures = found.figures();
    let hadal_report::figure::Marks::Heat { values, .. } = &figures[1].marks else { panic!() };
    for row in values {
        assert_close(row.iter().copied().flatten().sum(), 1.0, 1e-9);
    }
    // Readers from the top: the first one, which has one source, is the last row.
    assert_eq!(values.last().unwrap().iter().flatten().count(), 1);
    assert_eq!(figures[0].y.categories[0], "out");
    assert_eq!(figures[0].x.categories[..3], ["emb", "0a", "0m"]);
}
