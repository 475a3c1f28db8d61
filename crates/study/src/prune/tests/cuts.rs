//! Models in memory without some of their parts.

use super::*;
use crate::prune::map::Renumbering;
use crate::prune::own::cut_model;
use hadal_model::{AttentionBias, DepthKv, SlidingWindow, ValueResidual};
use hadal_residual::ResidualConfig;

/// Which policies can be cut in a file, and whether the logits then agree to the bit.
#[test]
fn a_cut_is_written_only_where_it_computes_the_same() {
    let cut = |residual: &ResidualConfig, parts: &[Part]| {
        let config = config(&residual.to_string(), 6);
        let decoder = model(&config, plain);
        let map = Renumbering::new(6, parts).unwrap();
        match cut_model(&decoder, &map) {
            Ok((cut, exact)) => {
                let (expected, found) = (without(&decoder, parts), logits(&cut));
                if exact {
                    assert_eq!(found, expected, "{residual}");
                    return "exact";
                }
                for (found, expected) in found.iter().zip(&expected) {
                    let most = 1e-4 * expected.abs().max(1.0);
                    assert!(
                        (found - expected).abs() < most,
                        "{residual}: {found} is not {expected}"
                    );
                }
                "rounded"
            }
            Err(PruneError::NotWritable { .. }) => "refused",
            Err(error) => panic!("{residual}: {error}"),
        }
    };
    let outcomes = |parts: &[Part]| -> Vec<(&'static str, &'static str)> {
        let all = ResidualConfig::all();
        all.iter().map(|residual| (residual.about().kind, cut(residual, parts))).collect()
    };
    let whole = outcomes(&[Part::Block(4), Part::Block(3)]);
    // What a block computes may depend on its number, which the cut model remembers; DenseFormer and MUDDFormer average
    // over all earlier blocks.
    for (kind, outcome) in &whole {
        let averages = matches!(*kind, "denseformer" | "mudd");
        let expected = if averages { "refused" } else { "exact" };
        assert_eq!(*outcome, expected, "{kind}");
    }
    // What l mod n chose was chosen at the start: a form's parameters follow their sub-layers. In a single pass, the
    // readers behind a cut read with what the last sub-layer before it found.
    for form in ["hc:identity=true", "deepseek_v4", "deepseek_v4_1_flash:stream_scale=true", "hy4"]
    {
        let parts = [Part::Block(4), Part::Block(3), Part::Block(0)];
        assert_eq!(cut(&form.parse().unwrap(), &parts), "exact", "{form}");
    }
    // A half that returns zero equals an absent one where streams are sums, and nowhere else.
    let halves = outcomes(&[Part::Mlp(4)]);
    for (kind, expected) in
        [("prenorm", "exact"), ("lns", "exact"), ("postnorm", "refused"), ("mgr", "refused")]
    {
        assert!(halves.contains(&(kind, expected)), "{kind}: {halves:?}");
    }
}

#[test]
fn a_block_that_fills_streams_is_refused_with_the_policys_reason() {
    let decoder = model(&config("mgr:streams=4", 6), plain);
    let map = Renumbering::new(6, &[Part::Block(1)]).unwrap();
    let error = cut_model(&decoder, &map).unwrap_err().to_string();
    assert!(
        error.contains("attention of block 1 must stay: it fills one of the streams"),
        "{error}"
    );
    assert!(error.contains("--without"));
    let refused = scores(&decoder).of(Part::Block(0)).unwrap().refused.clone();
    assert!(refused.unwrap().contains("fills one of the streams"));
}

#[test]
fn what_depends_on_depth_survives_one_cut_after_another() {
    for kind in [
        "lns",
        "deepnorm",
        "mixln:post_fraction=0.5",
        "siamese",
        "mod:capacity=0.5",
        "keel",
        "sandwich:scaled=true,block_scale=true",
        "lambdas:backout=true",
    ] {
        let decoder = model(&config(kind, 6), plain);
        let map = |blocks, block| Renumbering::new(blocks, &[Part::Block(block)]).unwrap();
        let (once, _) = cut_model(&decoder, &map(6, 1)).unwrap();
        let (twice, exact) = cut_model(&once, &map(5, 2)).unwrap();
        assert!(exact, "{kind}");
        assert_eq!(twice.config().removed_blocks, [1, 3], "{kind}");
        let parts = [Part::Block(1), Part::Block(3)];
        assert_eq!(logits(&twice), without(&decoder, &parts), "{kind}");
    }
}

#[test]
fn numbers_of_blocks_are_cut_with_them() {
    for kind in ["lambdas", "sandwich:block_scale=true,embed_norm=true", "lambdas:backout=true"] {
        // Numbers that start alike would not show which of them stayed.
        let decoder = model(&config(kind, 6), |name, values| {
            plain(name, values);
            let number: Option<f32> =
                name.strip_prefix("residual.block.").and_then(|rest| rest[..1].parse().ok());
            if let Some(number) = number {
                values.iter_mut().for_each(|value| *value += 0.1 * number);
            }
        });
        for parts in
            [vec![Part::Block(0)], vec![Part::Block(2), Part::Block(3)], vec![Part::Block(5)]]
        {
            let (cut, exact) = cut_model(&decoder, &Renumbering::new(6, &parts).unwrap()).unwrap();
            assert!(exact, "{kind} without {parts:?}");
            assert_eq!(logits(&cut), without(&decoder, &parts), "{kind} without {parts:?}");
        }
    }
}

#[test]
fn thresholds_of_single_sub_layers_are_cut_with_them() {
    let thresholds = "nag:directions=3,skip_threshold=[0.0,0.01,0.02,0.03,0.04,0.05,0.06,0.07]";
    let decoder = model(&config(thresholds, 4), plain);
    let map = Renumbering::new(4, &[Part::Block(1)]).unwrap();
    let (cut, _) = cut_model(&decoder, &map).unwrap();
    let expected: ResidualConfig =
        "nag:directions=3,skip_threshold=[0.0,0.01,0.04,0.05,0.06,0.07]".parse().unwrap();
    assert_eq!(cut.config().residual, expected);
}

#[test]
fn windows_and_biases_follow_their_blocks() {
    let window = |blocks: &[usize]| SlidingWindow { size: 3, blocks: Some(blocks.to_vec()) };
    let whole = ModelConfig {
        attention_bias: Some(AttentionBias::All),
        mlp_bias: true,
        sliding_window: Some(window(&[0, 2, 3])),
        ..config("prenorm", 4)
    };
    let decoder = model(&whole, plain);
    for (parts, expected) in [
        (vec![Part::Block(1)], Some(window(&[0, 1, 2]))),
        (vec![Part::Block(2), Part::Attention(1), Part::Mlp(3)], Some(window(&[0, 2]))),
        (vec![Part::Block(0), Part::Block(2), Part::Block(3)], None),
    ] {
        let map = Renumbering::new(4, &parts).unwrap();
        let (cut, exact) = cut_model(&decoder, &map).unwrap();
        assert_eq!(cut.config().sliding_window, expected, "{parts:?}");
        assert!(exact, "{parts:?}");
        assert_eq!(logits(&cut), without(&decoder, &parts), "{parts:?}");
    }
}

/// Without the first block, the values of the next one take the place of its own.
#[test]
fn the_first_block_can_go_with_its_values_but_its_attention_alone_cannot() {
    for depth_kv in [DepthKv::None, DepthKv::AttentionMlp] {
        for value_residual in [ValueResidual::Fixed, ValueResidual::Learned] {
            for residual in ["prenorm", "gr:streams=2", "mod:capacity=0.5,every=3"] {
                let whole = ModelConfig { depth_kv, value_residual, ..config(residual, 6) };
                if whole.check().is_err() {
                    continue;
                }
                let decoder = model(&whole, plain);
                for parts in [vec![Part::Block(0)], vec![Part::Block(0), Part::Block(3)]] {
                    let map = Renumbering::new(6, &parts).unwrap();
                    let (cut, exact) = cut_model(&decoder, &map).unwrap();
                    assert!(exact, "{residual} without {parts:?}");
                    assert_eq!(logits(&cut), without(&decoder, &parts), "{residual} {parts:?}");
                }
            }
            let decoder =
                model(&ModelConfig { depth_kv, value_residual, ..config("prenorm", 4) }, plain);
            let map = Renumbering::new(4, &[Part::Block(0), Part::Attention(1)]).unwrap();
            let error = cut_model(&decoder, &map).unwrap_err().to_string();
            assert!(error.contains("attention of block 1 must stay"), "{error}");
            assert!(error.contains("value_residual"), "{error}");
        }
    }
}
