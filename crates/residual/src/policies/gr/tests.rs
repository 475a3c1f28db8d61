use super::*;
use crate::policies::prenorm::PreNormConfig;
use crate::probe::Recorder;
use crate::testing::{
    assert_close, assert_gradients, assert_near, assert_streams_can_be_renamed,
    assert_tokens_are_independent, chosen, dimensions, drawn, fresh, normal, random, traverse,
    values, watched,
};
use burn::tensor::Device;

fn config(streams: usize, rank: usize) -> GatedResidualConfig {
    GatedResidualConfig { streams, rank: Some(rank), ..Default::default() }
}

fn skipping(threshold: f64) -> GatedResidualConfig {
    GatedResidualConfig { skip_threshold: Some(Thresholds::One(threshold)), ..config(3, 2) }
}

#[test]
fn open_gates_and_equal_gains_are_prenorm_with_half_of_the_gain() {
    let dimensions = dimensions(8, 3);
    let embedding = normal("embedding", [2, 3, 8]);
    let gamma = |place: &str| drawn(&format!("gamma of {place}"), &[8]);
    let gr = chosen(&config(3, 2), &dimensions, |name, shape| {
        let (_, rest) = name.split_once('.')?;
        let (place, part) = rest.split_once('.')?;
        match part {
            "gamma" => Some(gamma(place).repeat(3)),
            "read_up" | "write" => Some(vec![0.0; shape.iter().product()]),
            _ => Some(drawn(name, shape)),
        }
    });
    let prenorm = chosen(&PreNormConfig::default(), &dimensions, |name, _| {
        let place = match name.split('.').collect::<Vec<_>>()[..] {
            ["layers", block, half, "weight"] => {
                let block: usize = block.parse().unwrap();
                (2 * block + usize::from(half == "mlp_norm")).to_string()
            }
            _ => "out".to_owned(),
        };
        Some(gamma(&place).iter().map(|gamma| (1.0 + gamma) / 2.0).collect())
    });
    let expected = traverse(&prenorm, embedding.clone(), &dimensions);
    assert_close(traverse(&gr, embedding, &dimensions), expected, 1e-5);
}

/// Random parameters with the streams renamed: the new stream i is the old `order[i]`.
fn renamed(order: [usize; 3], dimensions: &Dimensions) -> GatedResidual {
    let d = dimensions.width;
    chosen(&config(3, 5), dimensions, |name, shape| {
        let drawn = drawn(name, shape);
        // Rows of features, stream by stream.
        let columns = |row: &[f32]| order.map(|i| row[i * d..(i + 1) * d].to_vec()).concat();
        Some(match name.rsplit('.').next() {
            Some("gamma") => columns(&drawn),
            Some("read_down") => drawn.chunks(3 * d).flat_map(columns).collect(),
            Some("read_up") => order.map(|i| drawn[i * d * 5..(i + 1) * d * 5].to_vec()).concat(),
            _ => order.map(|i| columns(&drawn[i * 3 * d..(i + 1) * 3 * d])).concat(),
        })
    })
}

#[test]
fn renaming_the_streams_renames_the_state_and_nothing_else() {
    assert_streams_can_be_renamed(renamed);
}

#[test]
fn a_stream_is_the_embedding_and_a_weighted_sum_of_writes_whose_shares_add_up_to_what_is_read() {
    let dimensions = dimensions(8, 3);
    let policy = random(&config(3, 5), &dimensions);
    let embedding = normal("embedding", [2, 3, 8]);
    let mut seen = Recorder::of(&[Signal::Streams, Signal::Write, Signal::Gates, Signal::Reading]);
    watched(&policy, embedding.clone(), &dimensions, &mut seen);
    // (write, its gates) of the embedding and of every sub-layer so far.
    let embedding = embedding.unsqueeze_dim::<4>(2);
    let mut written = vec![(embedding.clone(), Tensor::ones([2, 3, 3, 1], &Device::flex()))];
    let places = dimensions.each_site().map(Place::Site).chain([Place::Out]);
    for place in places {
        let state = written
            .iter()
            .map(|(write, gates)| write.clone() * gates.clone())
            .reduce(|sum, part| sum + part)
            .unwrap();
        let reader = match place {
            Place::Site(site) => &policy.sites[site.index],
            Place::Out => &policy.out,
        };
        // What is read is a linear function of the streams once gates and norms are known.
        let open = reader.find(&state, policy.eps).open;
        let inverse = hadal_kernels::inverse_rms(state, policy.eps);
        let weight = open * inverse * (reader.gamma.val() + 1.0).unsqueeze();
        let share = |(write, gates): &(Tensor<4>, Tensor<4>)| {
            (weight.clone() * write.clone() * gates.clone()).mean_dim(2)
        };
        let sum = written.iter().map(share).reduce(|sum, part| sum + part).unwrap();
        assert_close(sum, seen.get(place, Signal::Reading).unwrap(), 1e-5);
        if let Place::Site(_) = place {
            let found = |signal| seen.get(place, signal).unwrap();
            written.push((found(Signal::Write), found(Signal::Gates)));
            let state = written.iter().map(|(write, gates)| write.clone() * gates.clone());
            let state = state.reduce(|sum, part| sum + part).unwrap();
            assert_close(found(Signal::Streams), state, 1e-5);
        }
    }
}

#[test]
fn one_token_is_read_and_written_as_by_hand() {
    let policy = chosen(&config(2, 1), &dimensions(2, 1), |name, _| match name {
        "residual.0.gamma" => Some(vec![0.5, 0.0, -0.5, 1.0]),
        "residual.0.read_down" => Some(vec![0.3, -0.2, 0.4, 0.1]),
        "residual.0.read_up" => Some(vec![1.0, -2.0, 0.5, 3.0]),
        "residual.0.write" => Some(vec![0.7, 0.1, -0.3, 0.2, -0.6, 0.9, 0.0, 0.4]),
        _ => None,
    });
    let streams = Tensor::from_floats([[[[3.0, 4.0], [1.0, -1.0]]]], &Device::flex());
    let Read { input, ticket, .. } = policy.read(Site::new(0), &streams, &mut Traversal::default());
    let root = 12.5f32.sqrt();
    let v = [1.5 * 3.0 / root, 4.0 / root, 0.5, -2.0];
    let open = |x: f32| 1.0 / (1.0 + (-x).exp());
    let dot = |w: [f32; 4]| (0..4).map(|i| w[i] * v[i]).sum::<f32>() / 2.0;
    let z = dot([0.3, -0.2, 0.4, 0.1]);
    let a = z * open(z);
    let g = [1.0, -2.0, 0.5, 3.0].map(|up: f32| open(up * a));
    let h = [(g[0] * v[0] + g[2] * v[2]) / 2.0, (g[1] * v[1] + g[3] * v[3]) / 2.0];
    assert_near(&values(input), &h, 2e-6);
    let s = [[0.7, 0.1, -0.3, 0.2], [-0.6, 0.9, 0.0, 0.4]].map(|w| 2.0 * open(dot(w)));
    assert_near(&values(ticket.gates.clone()), &s, 2e-6);
    let output = Tensor::from_floats([[[10.0, 20.0]]], &Device::flex());
    let after = policy.write(Site::new(0), streams, ticket, output, &mut Traversal::default());
    let expected = [3.0 + 10.0 * s[0], 4.0 + 20.0 * s[0], 1.0 + 10.0 * s[1], -1.0 + 20.0 * s[1]];
    assert_near(&values(after), &expected, 2e-6);
}

#[test]
fn gates_start_in_the_middle_and_streams_alike() {
    let dimensions = dimensions(32, 2);
    let policy = fresh(&GatedResidualConfig::default(), &dimensions);
    assert_eq!(policy.out.read_down.dims(), [4, 128]);
    let mut seen = Recorder::of(&[Signal::Gates, Signal::PoolWeights]);
    watched(&policy, normal("embedding", [2, 3, 32]), &dimensions, &mut seen);
    let initial = GatedResidualConfig::default().initial_gates(&dimensions);
    for (_, signal, value) in seen.seen {
        let start = match signal {
            Signal::Gates => initial[1].values[0],
            // A share of the mean.
            _ => initial[0].values[0] / 4.0,
        };
        for value in values(value) {
            assert!((f64::from(value) / start - 1.0).abs() < 0.25, "{signal:?} is {value}");
        }
    }
}

#[test]
fn gradients_are_slopes() {
    assert_gradients(&config(2, 3), &dimensions(4, 1));
    assert_gradients(&config(1, 1), &dimensions(3, 1));
}

#[test]
fn tokens_are_independent() {
    let dimensions = dimensions(8, 2);
    assert_tokens_are_independent(&random(&config(3, 2), &dimensions), &dimensions);
}

#[test]
fn where_everybody_skips_the_head_reads_copies_of_the_embedding() {
    let dimensions = dimensions(8, 2);
    let policy = random(&skipping(9.0), &dimensions);
    let embedding = normal("embedding", [2, 3, 8]);
    let expected = policy.close(policy.open(embedding.clone()), &mut Traversal::default());
    assert_close(traverse(&policy, embedding, &dimensions), expected, 1e-6);
}

#[test]
fn a_threshold_of_zero_changes_no_bit() {
    let dimensions = dimensions(8, 2);
    let embedding = normal("embedding", [2, 3, 8]);
    let run =
        |config| values(traverse(&random(&config, &dimensions), embedding.clone(), &dimensions));
    assert_eq!(run(skipping(0.0)), run(config(3, 2)));
}

#[test]
fn exactly_the_tokens_whose_gates_are_all_small_skip() {
    let dimensions = dimensions(8, 1);
    let embedding = normal("embedding", [2, 4, 8]);
    let signals = [Signal::Gates, Signal::Skipped];
    let first = Place::Site(Site::new(0));
    let mut seen = Recorder::of(&signals);
    watched(&random(&config(3, 2), &dimensions), embedding.clone(), &dimensions, &mut seen);
    let gates = values(seen.get(first, Signal::Gates).unwrap());
    let widest: Vec<f32> =
        gates.chunks(3).map(|gates| gates.iter().copied().fold(0.0, f32::max)).collect();
    for threshold in widest.clone() {
        let mut seen = Recorder::of(&signals);
        let policy = random(&skipping(f64::from(threshold)), &dimensions);
        watched(&policy, embedding.clone(), &dimensions, &mut seen);
        let skipped = values(seen.get(first, Signal::Skipped).unwrap());
        let expected: Vec<f32> =
            widest.iter().map(|gate| if *gate < threshold { 1.0 } else { 0.0 }).collect();
        assert_eq!(skipped, expected);
    }
}

#[test]
fn what_makes_no_model_is_refused_by_name() {
    let refused = |config: GatedResidualConfig, width| {
        config.check(&dimensions(width, 2)).unwrap_err().to_string()
    };
    assert!(refused(config(0, 1), 8).contains("streams is 0"));
    assert!(refused(config(65, 1), 8).contains("streams is 65"));
    assert!(refused(config(2, 0), 8).contains("rank is 0, but it must be between 1 and 16"));
    assert!(refused(config(2, 17), 8).contains("rank is 17"));
    let small = refused(GatedResidualConfig::default(), 7);
    assert!(small.contains("the width is 7") && small.contains("set rank"), "{small}");
    assert!(refused(skipping(-1.0), 8).contains("skip_threshold is -1"));
    assert!(config(2, 16).check(&dimensions(8, 2)).is_ok());
}

#[test]
fn gains_do_not_decay_and_matrices_do() {
    let update =
        |part: &str| GatedResidualConfig::default().update(&format!("residual.1.{part}"), &[4, 4]);
    assert_eq!(update("gamma"), Update::Plain);
    assert_eq!([update("read_down"), update("read_up"), update("write")], [Update::Decayed; 3]);
}
