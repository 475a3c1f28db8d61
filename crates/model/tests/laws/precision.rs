//! Rounded products: what three parts lose is nothing, what one part loses is little, and a pass leaves nothing behind.

use crate::fused::{Named, TOLERANCE, assert_same, decoder, learn, name};
use crate::support::{configs, skips, with_policy};
use hadal_kernels::{plainly, with_precision};
use hadal_model::Precision::{self, Bf16, Bf16x3, F32};
use hadal_model::{Decoder, ModelConfig, Pass};

/// Of the largest gradient: eight bits of operands through three blocks.
const BF16_TOLERANCE: f32 = 0.1;

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

#[test]
fn one_part_is_close_to_f32_and_not_the_same() {
    for config in without_skipping() {
        let decoder = decoder(&config);
        let (want, got) = (in_precision(&decoder, F32), in_precision(&decoder, Bf16));
        assert_same(&got, &want, BF16_TOLERANCE, &name(&config));
        assert_ne!(got[""], want[""], "{}: nothing was rounded", name(&config));
    }
}

/// The mean error of all gradients, relative to their size.
fn error(got: &Named, want: &Named) -> f32 {
    let pairs = want.iter().flat_map(|(name, want)| got[name].iter().zip(want));
    let (off, all) = pairs.fold((0.0, 0.0), |(off, all), (got, want)| {
        (off + (got - want).powi(2), all + want.powi(2))
    });
    (off / all).sqrt()
}

/// Losses of both paths round the same operands. Gradients do not: the plain path multiplies them as they come.
#[test]
fn the_plain_path_rounds_what_the_fused_one_does() {
    for config in without_skipping() {
        let decoder = decoder(&config);
        let [fused, exact] = [Bf16, F32].map(|precision| in_precision(&decoder, precision));
        let plain = plainly(|| in_precision(&decoder, Bf16));
        let loss = |named: &Named| named[""][0];
        let (apart, rounding) = (loss(&fused) - loss(&plain), loss(&exact) - loss(&plain));
        let what = name(&config);
        // What falls on the other side of a border is seldom, but losses may agree by chance too.
        assert!(apart.abs() <= 1e-4 + 0.5 * rounding.abs(), "{what}: {apart} of {rounding}");
        let (apart, rounding) = (error(&fused, &plain), error(&exact, &plain));
        assert!(apart < 0.02 && rounding > 1e-4, "{what}: {apart} of {rounding}");
    }
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
