use super::*;
use crate::probe::Recorder;
use crate::testing::{
    assert_close, assert_gradients, assert_near, assert_tokens_are_independent, chosen, dimensions,
    drawn, fresh, normal, random, traverse, values, watched,
};
use burn::tensor::Device;

fn config(channels: usize, target: TargetKind) -> DeepDeltaConfig {
    DeepDeltaConfig { channels, target, ..Default::default() }
}

fn forms() -> [DeepDeltaConfig; 4] {
    [
        config(1, TargetKind::Sigmoid),
        config(1, TargetKind::Linear),
        config(3, TargetKind::Sigmoid),
        config(3, TargetKind::Linear),
    ]
}

/// The rows of the last axis, in double precision.
fn rows<const D: usize>(tensor: Tensor<D>) -> Vec<Vec<f64>> {
    let width = tensor.dims()[D - 1];
    let wide: Vec<f64> = values(tensor).into_iter().map(f64::from).collect();
    wide.chunks(width).map(<[f64]>::to_vec).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn along_its_direction_a_write_leads_to_the_target_and_elsewhere_nothing_changes() {
    let dimensions = dimensions(8, 1);
    let site = Site::new(0);
    for config in forms() {
        let n = config.channels;
        let policy = random(&config, &dimensions);
        let before = normal("state", [2, 3, n, 8]);
        let write = normal("write", [2, 3, 8]);
        let aim = policy.read(site, &before, &mut Traversal::default()).ticket;
        let (betas, targets) = (rows(aim.opening.gates.clone()), rows(aim.targets.clone()));
        let after =
            policy.write(site, before.clone(), aim, write.clone(), &mut Traversal::default());
        let (before, after) = (rows(before), rows(after));
        for (t, f) in rows(write).iter().enumerate() {
            let length = dot(f, f).sqrt();
            let k: Vec<f64> = f.iter().map(|f| f / length).collect();
            let beta = betas[t][0];
            assert!((0.0..2.0).contains(&beta));
            for j in 0..n {
                let (x, y) = (&before[t * n + j], &after[t * n + j]);
                let want = (1.0 - beta) * dot(&k, x) + beta * targets[t][j];
                assert!((dot(&k, y) - want).abs() < 1e-5);
                // What is left when the direction is taken out.
                let off = |x: &[f64]| -> Vec<f64> {
                    x.iter().zip(&k).map(|(value, k)| value - dot(x, &k_of(f)) * k).collect()
                };
                let gone =
                    off(x).iter().zip(off(y)).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
                assert!(gone < 1e-5, "{gone}");
            }
        }
    }
}

fn k_of(f: &[f64]) -> Vec<f64> {
    let length = dot(f, f).sqrt();
    f.iter().map(|f| f / length).collect()
}

#[test]
fn the_skip_has_the_eigenvalues_one_and_one_minus_beta() {
    let site = Site::new(0);
    for bias in [-2.0f32, 0.0, 1.0, 30.0] {
        let beta = 2.0 / (1.0 + f64::from(-bias).exp());
        // Targets of zero leave the skip alone.
        let policy = chosen(&config(1, TargetKind::Linear), &dimensions(6, 1), |name, shape| {
            Some(match name.rsplit('.').next() {
                Some("beta_bias") => vec![bias],
                Some("beta_weight" | "target_weight") => vec![0.0; shape.iter().product()],
                _ => drawn(name, shape),
            })
        });
        let write = normal("write", [1, 1, 6]);
        let f = rows(write.clone()).remove(0);
        let other = rows(normal("other", [1, 1, 6])).remove(0);
        let along = dot(&other, &f) / dot(&f, &f);
        let orthogonal: Vec<f64> = other.iter().zip(&f).map(|(x, f)| x - along * f).collect();
        for (vector, eigenvalue) in [(&f, 1.0 - beta), (&orthogonal, 1.0)] {
            let numbers: Vec<f32> = vector.iter().map(|x| *x as f32).collect();
            let state = Tensor::<1>::from_floats(numbers.as_slice(), &Device::flex());
            let state: Tensor<4> = state.reshape([1, 1, 1, 6]);
            let aim = policy.read(site, &state, &mut Traversal::default()).ticket;
            let after = policy.write(site, state, aim, write.clone(), &mut Traversal::default());
            let expected: Vec<f32> = vector.iter().map(|x| (eigenvalue * x) as f32).collect();
            for (found, expected) in values(after).iter().zip(&expected) {
                assert!((found - expected).abs() < 2e-6, "beta {beta}: {found} is not {expected}");
            }
        }
    }
}

#[test]
fn closed_gates_leave_the_embedding() {
    let dimensions = dimensions(8, 3);
    let embedding = normal("embedding", [2, 3, 8]);
    for config in forms() {
        let policy = chosen(&config, &dimensions, |name, shape| {
            Some(match name.rsplit('.').next() {
                Some("beta_bias") => vec![-80.0],
                Some("read") => vec![1.0 / 3.0; shape.iter().product()],
                _ => drawn(name, shape),
            })
        });
        let found = traverse(&policy, embedding.clone(), &dimensions);
        let gain = Tensor::<1>::from_floats(drawn("norm.weight", &[8]).as_slice(), &Device::flex());
        let expected = rms(embedding.clone(), 1e-6) * gain.unsqueeze();
        assert_close(found, expected, 1e-5);
    }
}

#[test]
fn equal_channels_are_one() {
    let dimensions = dimensions(8, 3);
    let embedding = normal("embedding", [2, 3, 8]);
    for target in [TargetKind::Sigmoid, TargetKind::Linear] {
        let one = random(&config(1, target), &dimensions);
        let four = chosen(&config(4, target), &dimensions, |name, shape| {
            Some(match name.rsplit('.').next() {
                Some("read") => vec![0.25; shape.iter().product()],
                Some("target_weight") => drawn(name, &[1, 8]).repeat(4),
                Some("target_bias") => drawn(name, &[1]).repeat(4),
                _ => drawn(name, shape),
            })
        });
        let expected = traverse(&one, embedding.clone(), &dimensions);
        assert_close(traverse(&four, embedding.clone(), &dimensions), expected, 1e-5);
    }
}

#[test]
fn one_token_is_corrected_as_by_hand() {
    let policy = chosen(&config(2, TargetKind::Sigmoid), &dimensions(2, 1), |name, _| match name {
        "layers.0.attn_norm.weight" => Some(vec![2.0, 0.5]),
        "residual.0.beta_weight" => Some(vec![0.3, -0.4]),
        "residual.0.beta_bias" => Some(vec![0.2]),
        "residual.0.target_weight" => Some(vec![0.1, -0.2, 0.3, 0.4]),
        "residual.0.target_bias" => Some(vec![0.5, -1.0]),
        // By feature, then by channel.
        "residual.0.read" => Some(vec![1.0, 2.0, -1.0, 0.5]),
        _ => None,
    });
    let state = Tensor::from_floats([[[[3.0, 4.0], [1.0, -1.0]]]], &Device::flex());
    let site = Site::new(0);
    let Read { input, ticket, .. } = policy.read(site, &state, &mut Traversal::default());
    // (1 3 + 2 1, -1 4 + 0.5 (-1)).
    let h = [5.0f32, -4.5];
    let r = 1.0 / ((25.0f32 + 20.25) / 2.0).sqrt();
    let c = [2.0 * r * h[0], 0.5 * r * h[1]];
    assert_near(&values(input), &c, 1e-6);
    let open = |x: f32| 1.0 / (1.0 + (-x).exp());
    let beta = 2.0 * open(0.3 * c[0] - 0.4 * c[1] + 0.2);
    let v = [4.0 * open(0.1 * h[0] - 0.2 * h[1] + 0.5), 4.0 * open(0.3 * h[0] + 0.4 * h[1] - 1.0)];
    assert_near(&values(ticket.opening.gates.clone()), &[beta], 1e-6);
    assert_near(&values(ticket.targets.clone()), &v, 1e-6);
    let output = Tensor::from_floats([[[6.0, 8.0]]], &Device::flex());
    let after = policy.write(site, state, ticket, output, &mut Traversal::default());
    let k = [0.6f32, 0.8];
    let step = [beta * (v[0] - 5.0), beta * (v[1] + 0.2)];
    let expected =
        [3.0 + step[0] * k[0], 4.0 + step[0] * k[1], 1.0 + step[1] * k[0], -1.0 + step[1] * k[1]];
    assert_near(&values(after), &expected, 2e-6);
}

#[test]
fn gates_start_around_one_and_the_read_is_a_mean() {
    let dimensions = dimensions(32, 2);
    let mut seen = Recorder::of(&[Signal::Gates, Signal::PoolWeights]);
    let policy = fresh(&config(4, TargetKind::Sigmoid), &dimensions);
    watched(&policy, normal("embedding", [4, 8, 32]), &dimensions, &mut seen);
    let all = |signal: Signal| -> Vec<f32> {
        let of = seen.seen.iter().filter(|(_, kind, _)| *kind == signal);
        of.flat_map(|(_, _, value)| values(value.clone())).collect()
    };
    let betas = all(Signal::Gates);
    let mean = betas.iter().sum::<f32>() / betas.len() as f32;
    assert!((mean - 1.0).abs() < 0.3, "{mean}");
    assert!(all(Signal::PoolWeights).iter().all(|weight| *weight == 0.25));
}

#[test]
fn gradients_are_slopes() {
    for config in forms() {
        assert_gradients(&config, &dimensions(4, 1));
    }
}

#[test]
fn tokens_are_independent() {
    let dimensions = dimensions(8, 2);
    for config in forms() {
        assert_tokens_are_independent(&random(&config, &dimensions), &dimensions);
    }
}

fn skipping(threshold: f64) -> DeepDeltaConfig {
    let skip_threshold = Some(Thresholds::One(threshold));
    DeepDeltaConfig { skip_threshold, ..config(3, TargetKind::Linear) }
}

#[test]
fn exactly_the_tokens_whose_gate_is_small_skip() {
    let dimensions = dimensions(8, 1);
    let embedding = normal("embedding", [2, 4, 8]);
    let first = Place::Site(Site::new(0));
    let gates = |config: &DeepDeltaConfig, signal| {
        let mut seen = Recorder::of(&[signal]);
        watched(&random(config, &dimensions), embedding.clone(), &dimensions, &mut seen);
        values(seen.get(first, signal).unwrap())
    };
    let betas = gates(&config(3, TargetKind::Linear), Signal::Gates);
    for threshold in betas.clone() {
        let skipped = gates(&skipping(f64::from(threshold)), Signal::Skipped);
        let expected: Vec<f32> =
            betas.iter().map(|beta| if *beta < threshold { 1.0 } else { 0.0 }).collect();
        assert_eq!(skipped, expected);
    }
}

#[test]
fn where_everybody_skips_the_head_reads_the_embedding_and_where_nobody_does_no_bit_changes() {
    let dimensions = dimensions(8, 2);
    let embedding = normal("embedding", [2, 3, 8]);
    let policy = random(&skipping(9.0), &dimensions);
    let expected = policy.close(policy.open(embedding.clone()), &mut Traversal::default());
    assert_close(traverse(&policy, embedding.clone(), &dimensions), expected, 1e-6);
    let run =
        |config| values(traverse(&random(&config, &dimensions), embedding.clone(), &dimensions));
    assert_eq!(run(skipping(0.0)), run(config(3, TargetKind::Linear)));
}

#[test]
fn what_makes_no_model_is_refused_by_name() {
    for channels in [0, 65] {
        let error = config(channels, TargetKind::Linear).check(&dimensions(8, 1)).unwrap_err();
        assert!(error.to_string().contains(&format!("channels is {channels}")), "{error}");
    }
    assert!(skipping(f64::NAN).check(&dimensions(8, 1)).is_err());
}

#[test]
fn the_read_does_not_decay() {
    let update =
        |part: &str| DeepDeltaConfig::default().update(&format!("residual.1.{part}"), &[4, 4]);
    assert_eq!([update("read"), update("target_weight")], [Update::Plain, Update::Decayed]);
}
