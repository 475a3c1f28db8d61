//! Rounded products: what three parts lose is nothing, what one part loses is little, and a pass leaves nothing behind.

use crate::fused::{Named, TOLERANCE, assert_same, decoder, learn, name};
use crate::support::{configs, skips, with_policy};
use hadal_kernels::{plainly, with_precision};
use hadal_model::Precision::{self, Bf16, Bf16x3, F32};
use hadal_model::{Decoder, ModelConfig, Pass};

fn in_precision(decoder: &Decoder, precision: Precision) -> Named {
    learn(decoder, Pass { precision, ..Pass::default() })
}

#[test]
fn three_parts_are_as_good_as_f32() {
    for config in configs() {
        let decoder = decoder(&config);
        let want = in_precision(&decoder, F32);
        assert_same(&in_precision(&decoder, Bf16x3), &want, TOLERANCE, &name(&config));
        let plain = plainly(|| in_precision(&decoder, Bf16x3));
        assert_same(&plain, &want, TOLERANCE, &format!("plain {}", name(&config)));
    }
}

/// Without skipping: where rounding moves a gate across its threshold, another model is computed.
fn without_skipping() -> impl Iterator<Item = ModelConfig> {
    configs().into_iter().filter(|config| !skips(config))
}

/// The mean error of all gradients, relative to their size.
fn error(got: &Named, want: &Named) -> f32 {
    let pairs = want.iter().flat_map(|(name, want)| got[name].iter().zip(want));
    let (off, all) = pairs.fold((0.0, 0.0), |(off, all), (got, want)| {
        (off + (got - want).powi(2), all + want.powi(2))
    });
    (off / all).sqrt()
}

#[test]
fn one_part_is_close_to_f32_and_not_the_same() {
    for config in without_skipping() {
        let decoder = decoder(&config);
        let error = error(&in_precision(&decoder, Bf16), &in_precision(&decoder, F32));
        assert!((1e-4..0.3).contains(&error), "{}: {error}", name(&config));
    }
}

/// Both paths round the same operands, so losses are the same; but a sum in another order may fall on the other side of a
/// border. Gradients are not: the plain path multiplies them as they come.
#[test]
fn the_plain_path_rounds_what_the_fused_one_does() {
    let (mut same, mut all) = (0, 0);
    for config in without_skipping() {
        let decoder = decoder(&config);
        let fused = in_precision(&decoder, Bf16);
        let plain = plainly(|| in_precision(&decoder, Bf16));
        let apart = (fused[""][0] - plain[""][0]).abs();
        assert!(apart < 5e-3, "{}: losses are {apart} apart", name(&config));
        let error = error(&fused, &plain);
        assert!(error < 0.03, "{}: gradients are {error} apart", name(&config));
        (same, all) = (same + usize::from(apart < 1e-5), all + 1);
    }
    assert!(10 * same > 9 * all, "only {same} of {all} losses are the same");
}

#[test]
fn a_pass_has_its_own_precision_and_leaves_none_behind() {
    for policy in ["prenorm", "mgr:streams=2", "nag"] {
        let decoder = decoder(&with_policy(policy));
        let exact = in_precision(&decoder, F32);
        let rounded = in_precision(&decoder, Bf16);
        assert_same(&in_precision(&decoder, F32), &exact, 0.0, policy);
        // Backward passes come after the pass, in whatever scope that is.
        let inside = with_precision(Bf16x3, || in_precision(&decoder, F32));
        assert_same(&inside, &exact, 0.0, policy);
        let inside = with_precision(Bf16x3, || in_precision(&decoder, Bf16));
        assert_same(&inside, &rounded, 0.0, policy);
        assert_ne!(rounded, exact);
    }
}
