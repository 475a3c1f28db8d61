//! What a gain is made of, and its gradients.

use super::*;

/// The modulation of a single site with `alpha = 1`.
fn modulation(bias: [f32; 2], mix: [f32; 2], sharpness: f32) -> f32 {
    let config = NormAgnosticConfig { directions: 2, ..Default::default() };
    let policy = chosen(&config, &dimensions(2, 1), |name, _| match name {
        "residual.0.alpha" => Some(vec![1.0]),
        "residual.0.directions" => Some(vec![1.0, 0.0, 0.0, -1.0]),
        "residual.0.bias" => Some(bias.to_vec()),
        "residual.0.mix" => Some(mix.to_vec()),
        "residual.0.sharpness" => Some(vec![sharpness]),
        _ => None,
    });
    values(policy.sites[0].gain(Tensor::ones([1, 1, 2], &Device::flex())))[0]
}

#[test]
fn the_modulation_is_a_power_of_a_mean_of_sigmoids() {
    // The directions see 1 and -1. Sigmoids 1/2 and 3/4, weighed 1/4 and 3/4.
    let (bias, mix) = ([-1.0, 1.0 + 3f32.ln()], [0.0, 3f32.ln()]);
    let found = modulation(bias, mix, UNIT_SHARPNESS as f32);
    assert!((found - 0.6875).abs() < 1e-6, "{found}");
    let squared = (2f32.exp() - 1.0).ln();
    let found = modulation(bias, mix, squared);
    assert!((found - 0.6875 * 0.6875).abs() < 1e-6, "{found}");
}

#[test]
fn a_vanishing_power_opens_every_gate() {
    assert!((modulation([-6.0, -4.0], [0.0, 0.0], -30.0) - 1.0).abs() < 1e-6);
}

#[test]
fn a_closed_gate_is_held_at_the_floor() {
    let found = modulation([-200.0, -200.0], [0.0, 0.0], UNIT_SHARPNESS as f32);
    assert!((found / 1e-6 - 1.0).abs() < 1e-4, "{found}");
}

#[test]
fn modulations_lie_between_zero_and_one() {
    let dimensions = dimensions(16, 4);
    let policy = random(&dense(), &dimensions);
    let mut seen = Recorder::of(&[Signal::Gain]);
    watched(&policy, normal("embedding", [4, 8, 16]), &dimensions, &mut seen);
    for (site, gains) in policy.sites.iter().zip(all(&seen, Signal::Gain)) {
        let modulations = values(gains / site.alpha.val().unsqueeze());
        assert!(modulations.iter().all(|m| 0.0 < *m && *m < 1.0), "{modulations:?}");
    }
}

/// Everything a sub-layer's turn depends on: log gain, alpha, sharpness, bias, mix, directions
/// and embedding.
type Point = [Vec<f64>; 7];

/// The first sub-layer in double precision: `towards . r' + 0.7 s'`.
fn weighed_lanes(point: &Point, matrix: &[f64], towards: &[f64]) -> f64 {
    let [log_gain, alpha, sharpness, bias, mix, directions, embedding] = point;
    let d = embedding.len();
    let norm = length(embedding) / (d as f64).sqrt();
    let r: Vec<f64> = embedding.iter().map(|e| e / norm).collect();
    let column = |j| (0..d).map(move |i| matrix[i * d + j]).collect::<Vec<_>>();
    let f: Vec<f64> = (0..d).map(|j| dot(&r, &column(j)).tanh()).collect();
    let mean = f.iter().sum::<f64>() / d as f64;
    let c: Vec<f64> = f.iter().map(|f| f - mean).collect();
    let along = dot(&c, &r) / dot(&r, &r);
    let q: Vec<f64> = c.iter().zip(&r).map(|(c, r)| c - along * r).collect();
    let total: f64 = mix.iter().map(|mix| mix.exp()).sum();
    let opening =
        |(w, (b, mix)): (&[f64], (&f64, &f64))| mix.exp() / total / (1.0 + (-dot(w, &r) - b).exp());
    let open: f64 = directions.chunks(d).zip(bias.iter().zip(mix)).map(opening).sum();
    let gain = alpha[0] * open.powf((1.0 + sharpness[0].exp()).ln());
    let turn = gain * (d as f64).sqrt() / length(&q);
    let turned: Vec<f64> = r.iter().zip(&q).map(|(r, q)| r + turn * q).collect();
    let grown = (1.0 + gain * gain).sqrt();
    dot(towards, &turned) / grown + 0.7 * (norm.ln() + log_gain[0] + grown.ln())
}

#[test]
fn gradients_of_a_sub_layer_are_its_slopes() {
    const WIDTH: usize = 6;
    let dimensions = dimensions(WIDTH, 1);
    let policy = trainable(&dense(), &dimensions);
    let embedding = centred([1, 1, WIDTH]).autodiff().require_grad();
    let towards = normal("towards", [1, 1, WIDTH]);

    let site = Site::new(0);
    let lanes = policy.open(embedding.clone());
    let Read { input, ticket, .. } = policy.read(site, &lanes, &mut Traversal::default());
    let output = Stand::new(&dimensions).run(site, input, None);
    let after = policy.write(site, lanes, ticket, output, &mut Traversal::default());
    let loss = (after.direction * towards.clone()).sum() + (after.log_norm * 0.7).sum();

    let gate = &policy.sites[0];
    let flat = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<_>>();
    let mut point: Point = [
        flat(values(policy.log_gain.val())),
        flat(values(gate.alpha.val())),
        flat(values(gate.sharpness.val())),
        flat(values(gate.bias.val())),
        flat(values(gate.mix.val())),
        flat(values(gate.directions.val())),
        flat(values(embedding.clone())),
    ];
    let towards = flat(values(towards));
    let matrix = flat(values(normal("stand.0", [WIDTH, WIDTH])));
    let matrix: Vec<f64> = matrix.iter().map(|w| w / (WIDTH as f64).sqrt()).collect();
    let value = weighed_lanes(&point, &matrix, &towards);
    assert!((f64::from(values(loss.clone())[0]) - value).abs() < 1e-5);

    let gradients = loss.backward();
    let found = [
        values(policy.log_gain.val().grad(&gradients).unwrap()),
        values(gate.alpha.val().grad(&gradients).unwrap()),
        values(gate.sharpness.val().grad(&gradients).unwrap()),
        values(gate.bias.val().grad(&gradients).unwrap()),
        values(gate.mix.val().grad(&gradients).unwrap()),
        values(gate.directions.val().grad(&gradients).unwrap()),
        values(embedding.grad(&gradients).unwrap()),
    ];
    // The slopes come from double precision, so the tolerance is that of an f32 backward pass.
    const STEP: f64 = 1e-5;
    for (part, found) in found.iter().enumerate() {
        let slopes: Vec<f32> = (0..found.len())
            .map(|i| {
                let start = point[part][i];
                point[part][i] = start + STEP;
                let above = weighed_lanes(&point, &matrix, &towards);
                point[part][i] = start - STEP;
                let below = weighed_lanes(&point, &matrix, &towards);
                point[part][i] = start;
                ((above - below) / (2.0 * STEP)) as f32
            })
            .collect();
        assert_near(found, &slopes, 1e-4);
    }
}

#[test]
fn gradients_reach_every_gate_at_the_start() {
    let dimensions = dimensions(16, 4);
    let mut weights = Weights::fresh(7, &Device::flex().autodiff());
    let policy = dense().init(&dimensions, &mut weights);
    let out = traverse(&policy, centred([2, 3, 16]), &dimensions);
    let gradients = (out * normal("towards", [2, 3, 16])).sum().backward();
    let reached = |gradient: Vec<f32>| {
        gradient.iter().all(|g| g.is_finite()) && gradient.iter().any(|g| *g != 0.0)
    };
    assert!(reached(values(policy.log_gain.val().grad(&gradients).unwrap())));
    for (l, site) in policy.sites.iter().enumerate() {
        for (name, gradient) in [
            ("alpha", values(site.alpha.val().grad(&gradients).unwrap())),
            ("directions", values(site.directions.val().grad(&gradients).unwrap())),
            ("bias", values(site.bias.val().grad(&gradients).unwrap())),
            ("mix", values(site.mix.val().grad(&gradients).unwrap())),
            ("sharpness", values(site.sharpness.val().grad(&gradients).unwrap())),
        ] {
            assert!(reached(gradient), "{name} of sub-layer {l}");
        }
    }
}
