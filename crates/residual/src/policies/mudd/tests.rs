//! Averages of each token's own, against denseformer, prenorm, worked numbers and what probes see.

use super::*;
use crate::policies::denseformer::DenseFormerConfig;
use crate::policies::prenorm::PreNormConfig;
use crate::probe::Recorder;
use crate::testing::{
    Stand, assert_close, assert_gradients, assert_near, assert_tokens_are_independent, chosen,
    dimensions, drawn, fresh, normal, random, random_norms, traverse, values, watched, watching,
};
use burn::tensor::Device;

fn config(ways: usize, norms: bool) -> MuddConfig {
    MuddConfig { ways, norms }
}

const FORMS: [(usize, bool); 4] = [(1, false), (4, false), (1, true), (4, true)];

fn token(x: [f32; 2]) -> Tensor<3> {
    Tensor::from_floats([[x]], &Device::flex())
}

fn zeros(shape: &[usize]) -> Vec<f32> {
    vec![0.0; shape.iter().product()]
}

#[test]
fn the_start_is_prenorm() {
    let dimensions = dimensions(8, 3);
    let embedding = normal("embedding", [2, 3, 8]);
    let plain = chosen(&PreNormConfig::default(), &dimensions, random_norms);
    let mut before = Recorder::of(&[Signal::Reading]);
    let expected = watched(&plain, embedding.clone(), &dimensions, &mut before);
    for (ways, norms) in FORMS {
        let policy = chosen(&config(ways, norms), &dimensions, random_norms);
        let mut seen = Recorder::of(&[Signal::Reading, Signal::Ways]);
        let out = watched(&policy, embedding.clone(), &dimensions, &mut seen);
        let place = Place::Site(Site::new(2));
        let [reading, stream] =
            [&seen, &before].map(|seen| seen.get(place, Signal::Reading).unwrap());
        assert_close(reading.clone(), stream, 1e-6);
        match seen.get(place, Signal::Ways) {
            None => assert_eq!(ways, 1),
            // Keys, values and the residual are what the queries are.
            Some(others) => assert_close(others.clone(), reading.expand(others.dims()), 1e-6),
        }
        // The stand is no attention: it does something else with three inputs.
        if ways == 1 {
            assert_close(out, expected.clone(), 1e-6);
        }
    }
}

#[test]
fn one_way_without_weights_of_the_tokens_is_denseformer() {
    let dimensions = dimensions(8, 3);
    let embedding = normal("embedding", [2, 3, 8]);
    let mudd = chosen(&config(1, false), &dimensions, |name, shape| match name.ends_with(".up") {
        true => Some(zeros(shape)),
        false => Some(drawn(name, shape)),
    });
    let dense = random(&DenseFormerConfig {}, &dimensions);
    let expected = traverse(&dense, embedding.clone(), &dimensions);
    assert_close(traverse(&mudd, embedding.clone(), &dimensions), expected.clone(), 1e-6);
    // Not for want of a difference.
    let other = traverse(&random(&config(1, false), &dimensions), embedding, &dimensions);
    let apart = values((other - expected).abs().max())[0];
    assert!(apart > 0.01, "{apart}");
}

#[test]
fn the_worked_case_gives_its_numbers() {
    // One block of width two: X_0 = (3, 4), X_1 = (4, 3), rms(X_1) = X_1 / sqrt 12.5.
    let policy = chosen(&config(1, false), &Dimensions::new(2, 1, 0.0), |name, _| match name {
        "residual.block.1.weights" => Some(vec![0.5, 2.0]),
        "residual.block.1.down" => Some(vec![1.0, 0.0, 1.0, -1.0]),
        "residual.block.1.up" => Some(vec![1.0, 2.0, 0.0, -1.0]),
        _ => None,
    });
    let mut state = policy.open(token([3.0, 4.0]));
    for (site, write) in [(0, [1.0, 0.0]), (1, [0.0, -1.0])] {
        state = policy.write(Site::new(site), state, (), token(write), &mut Traversal::default());
    }
    // gelu(1.1313708) = 0.9854811, gelu(0.2828427) = 0.1729163.
    let weights = [0.5 + 0.985_481_1 + 2.0 * 0.172_916_3, 2.0 - 0.172_916_3];
    assert_near(&values(state.weights.clone().unwrap()), &weights, 1e-6);
    let out = [3.0 * weights[0] + 4.0 * weights[1], 4.0 * weights[0] + 3.0 * weights[1]];
    assert_near(&values(state.x), &out, 1e-6);
}

#[test]
fn gelu_is_exact() {
    let x = Tensor::<1>::from_floats([-2.0, -0.5, 0.0, 1.0, 3.0], &Device::flex());
    let expected = [-0.045_500_264, -0.154_268_77, 0.0, 0.841_344_7, 2.995_950_3];
    assert_near(&values(gelu(x.reshape([1, 1, 5]))), &expected, 1e-6);
}

#[test]
fn ways_are_averages_of_what_the_blocks_produced_under_the_weights_that_are_shown() {
    let dimensions = dimensions(8, 3);
    for ways in [1, 4] {
        let policy = random(&config(ways, false), &dimensions);
        let embedding = normal("embedding", [2, 3, 8]);
        let mut seen =
            Recorder::of(&[Signal::Reading, Signal::Ways, Signal::Write, Signal::PoolWeights]);
        watched(&policy, embedding.clone(), &dimensions, &mut seen);
        let at = |place, signal| seen.get(place, signal);
        let mut produced = vec![embedding.clone()];
        let mut stream = embedding;
        for block in 0..3 {
            for site in [2 * block, 2 * block + 1].map(Site::new) {
                let place = Place::Site(site);
                let write: Tensor<3> = at(place, Signal::Write).unwrap().squeeze_dim(2);
                stream = stream + write;
            }
            produced.push(stream.clone());
            let next = if block == 2 { Place::Out } else { Place::Site(Site::new(2 * block + 2)) };
            let weights: Tensor<3> = at(next, Signal::PoolWeights).unwrap().squeeze_dim(3);
            let all = policy.ends[block].weigh(stream, policy.eps);
            let average = |first: usize| {
                let parts = produced.iter().enumerate();
                let parts = parts.map(|(j, x)| x.clone() * all.clone().narrow(2, first + j, 1));
                parts.reduce(|sum, part| sum + part).unwrap()
            };
            assert_close(weights, all.clone().narrow(2, 0, block + 2), 1e-6);
            assert_close(at(next, Signal::Reading).unwrap().squeeze_dim(2), average(0), 1e-6);
            stream = match at(next, Signal::Ways) {
                None => {
                    assert!(ways == 1 || block == 2);
                    average(0)
                }
                Some(others) => {
                    for way in 0..3 {
                        let shown: Tensor<3> = others.clone().narrow(2, way, 1).squeeze_dim(2);
                        assert_close(shown, average((way + 1) * (block + 2)), 1e-6);
                    }
                    others.narrow(2, 2, 1).squeeze_dim(2)
                }
            };
        }
    }
}

#[test]
fn norms_are_where_they_belong() {
    // One block of width two. The last way alone is normalised: X_1 + out_norm rms(sum).
    let policy = chosen(&config(4, true), &Dimensions::new(2, 1, 0.0), |name, shape| match name {
        "residual.block.0.source_norm" => Some(vec![2.0, 1.0]),
        "residual.block.1.source_norm" => Some(vec![1.0, -1.0]),
        "residual.block.1.out_norm" => Some(vec![10.0, 1.0]),
        "residual.block.1.weights" => Some(vec![1.0, 3.0]),
        "residual.block.1.up" => Some(zeros(shape)),
        _ => None,
    });
    let mut state = policy.open(token([1.0, 1.0]));
    for (site, write) in [(0, [6.0, 0.0]), (1, [0.0, 0.0])] {
        state = policy.write(Site::new(site), state, (), token(write), &mut Traversal::default());
    }
    // Sources (2, 1) and (7, -1) / 5; sum (6.2, 0.4), whose root mean square is 4.3931765.
    let root = ((6.2f32 * 6.2 + 0.4 * 0.4) / 2.0).sqrt();
    assert_near(&values(state.x), &[7.0 + 62.0 / root, 1.0 + 0.4 / root], 1e-6);
}

#[test]
fn ways_but_the_last_are_added_to_what_the_block_produced() {
    let dimensions = dimensions(8, 2);
    let policy = random(&config(4, true), &dimensions);
    let mut state = policy.open(normal("embedding", [1, 2, 8]));
    for site in 0..2 {
        let write = normal(&format!("write {site}"), [1, 2, 8]);
        state = policy.write(Site::new(site), state, (), write, &mut Traversal::default());
    }
    let produced = normal("embedding", [1, 2, 8])
        + normal("write 0", [1, 2, 8])
        + normal("write 1", [1, 2, 8]);
    let weights = policy.ends[0].weigh(produced.clone(), policy.eps);
    let sum = |way: usize| {
        let part = |j: usize| state.sources[j].clone() * weights.clone().narrow(2, 2 * way + j, 1);
        part(0) + part(1)
    };
    let apart = state.apart.clone().unwrap();
    for (way, found) in apart.into_iter().enumerate() {
        assert_close(found, produced.clone() + sum(way), 1e-6);
    }
    let out = policy.ends[0].norms.as_ref().unwrap().out.val();
    let last = produced + rms(sum(3), policy.eps) * out.unsqueeze();
    assert_close(state.x, last, 1e-6);
}

#[test]
fn the_mlp_reads_the_residual_way_and_its_attention() {
    let dimensions = dimensions(8, 2);
    let policy = random(&config(4, false), &dimensions);
    let mut seen = Recorder::of(&[Signal::Reading, Signal::Ways, Signal::Write]);
    watched(&policy, normal("embedding", [2, 3, 8]), &dimensions, &mut seen);
    let at = |site, signal| seen.get(Place::Site(Site::new(site)), signal).unwrap();
    let residual = at(2, Signal::Ways).narrow(2, 2, 1);
    assert_close(at(3, Signal::Reading), residual + at(2, Signal::Write), 1e-6);
}

#[test]
fn a_block_ends_where_it_ends_and_an_absent_attention_takes_its_inputs_along() {
    let dimensions = dimensions(8, 3);
    for (ways, norms) in FORMS {
        let policy = random(&config(ways, norms), &dimensions);
        let embedding = normal("embedding", [2, 3, 8]);
        for absent in [&[1][..], &[2], &[2, 3], &[0, 1, 2, 3, 4, 5]] {
            let mut seen = Recorder::of(&[Signal::PoolWeights]);
            let mut layers = Stand::without(&dimensions, absent);
            policy.traverse(embedding.clone(), &mut layers, &mut watching(&mut seen));
            // All blocks have ended before the read-out.
            let out = seen.get(Place::Out, Signal::PoolWeights).unwrap();
            assert_eq!(out.dims()[2], 4);
        }
        let state = policy.open(embedding);
        let state =
            [0, 1].into_iter().fold(state, |state, site| policy.without(Site::new(site), state));
        assert_eq!(state.apart.is_some(), ways == 4);
        assert!(policy.without(Site::new(2), state).apart.is_none());
    }
}

#[test]
fn tokens_are_independent() {
    for (ways, norms) in FORMS {
        let dimensions = dimensions(8, 3);
        assert_tokens_are_independent(&random(&config(ways, norms), &dimensions), &dimensions);
    }
}

#[test]
fn gradients_agree_with_central_differences() {
    for (ways, norms) in FORMS {
        assert_gradients(&config(ways, norms), &dimensions(4, 2));
    }
}

#[test]
fn ways_other_than_one_and_four_are_refused() {
    for ways in [0, 2, 3, 5] {
        let error = config(ways, false).check(&dimensions(4, 2)).unwrap_err().to_string();
        assert!(error.contains(&format!("ways is {ways}")), "{error}");
    }
}

#[test]
fn the_fixed_weights_do_not_decay() {
    let config = MuddConfig::default();
    assert_eq!(config.update("residual.block.2.weights", &[4, 3]), Update::Plain);
    assert_eq!(config.update("residual.block.2.down", &[12, 8]), Update::Decayed);
}

#[test]
fn the_last_block_has_one_way_and_the_first_attention_no_norms_of_its_own() {
    let policy = fresh(&config(4, true), &dimensions(8, 3));
    let ways: Vec<usize> = policy.ends.iter().map(BlockEnd::ways).collect();
    assert_eq!(ways, [4, 4, 1]);
    assert_eq!(policy.apart.len(), 2);
}
