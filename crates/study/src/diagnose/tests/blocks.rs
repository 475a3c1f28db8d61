//! Hand-made blocks, activations and heads with known answers.

use super::*;
use hadal_report::figure::Marks;

fn zeros(shape: &[usize]) -> Option<Vec<f32>> {
    Some(vec![0.0; shape.iter().product()])
}

/// Whether the parameter is the output projection of one of a block's sub-layers.
fn is_output_of(block: usize, name: &str) -> bool {
    ["attn.o", "mlp.down"].iter().any(|part| name == format!("layers.{block}.{part}.weight"))
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
