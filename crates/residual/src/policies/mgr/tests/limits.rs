//! Where it becomes another policy.

use super::*;
use crate::policies::attnres::AttentionResidualsConfig;
use crate::policies::highway::{HighwayConfig, HighwayGate};

#[test]
fn zero_queries_read_the_mean_of_the_streams() {
    let dimensions = dimensions(4, 3);
    for config in [competitive(3), independent(3)] {
        // Queries alone are as they start.
        let policy = chosen(&config, &dimensions, |name, shape| {
            (!name.ends_with("pool.weight")).then(|| drawn(name, shape))
        });
        let recorder = seen(&policy, &dimensions, &[Signal::Streams, Signal::Reading]);
        let mean = |site| at(&recorder, site, Signal::Streams).mean_dim(2);
        for site in 1..6 {
            assert_close(at(&recorder, site, Signal::Reading), mean(site - 1), 1e-6);
        }
        assert_close(recorder.get(Place::Out, Signal::Reading).unwrap(), mean(5), 1e-6);
    }
}

#[test]
fn one_independent_stream_is_a_scalar_highway() {
    let dimensions = dimensions(8, 3);
    let highway = HighwayConfig { gate: HighwayGate::Scalar };
    // Both policies name their gates alike, so they draw the same weights.
    let highway = traverse(&random(&highway, &dimensions), tokens(8), &dimensions);
    let one = traverse(&random(&independent(1), &dimensions), tokens(8), &dimensions);
    assert_close(one, highway, 1e-5);
}

/// Full AttnRes with the queries that [`sharp`] gives MGR.
fn attention_residuals(dimensions: &Dimensions) -> impl Residual {
    let kappa = (dimensions.width as f32).sqrt().recip();
    chosen(&AttentionResidualsConfig::default(), dimensions, |name, shape| {
        if name.ends_with("key_norm") {
            return None;
        }
        match name.strip_suffix("query") {
            Some(place) => sharp(&format!("{place}pool.weight"), shape)
                .map(|query| query.iter().map(|q| q * kappa).collect()),
            None => sharp(name, shape),
        }
    })
}

/// As [`drawn`], with queries so long that their scale matters.
fn sharp(name: &str, shape: &[usize]) -> Option<Vec<f32>> {
    let scale = if name.ends_with("pool.weight") { 6.0 } else { 1.0 };
    Some(drawn(name, shape).iter().map(|value| value * scale).collect())
}

#[test]
fn streams_that_are_never_full_are_attention_residuals() {
    let dimensions = dimensions(8, 3);
    let expected = traverse(&attention_residuals(&dimensions), tokens(8), &dimensions);
    for config in [competitive(7), competitive(20), independent(7)] {
        let policy = chosen(&config, &dimensions, sharp);
        let out = traverse(&policy, tokens(8), &dimensions);
        assert_close(out, expected.clone(), 1e-5);
    }
}

#[test]
fn readers_are_attention_residuals_until_the_first_gate_has_written() {
    let dimensions = dimensions(8, 3);
    let full = seen(&attention_residuals(&dimensions), &dimensions, &[Signal::Reading]);
    let policy = chosen(&competitive(4), &dimensions, sharp);
    let few = seen(&policy, &dimensions, &[Signal::Reading]);
    for site in 0..4 {
        let expected = at(&full, site, Signal::Reading);
        assert_close(at(&few, site, Signal::Reading), expected, 1e-5);
    }
    let (few, full) = (at(&few, 4, Signal::Reading), at(&full, 4, Signal::Reading));
    assert!(lengths(few - full).iter().all(|&length| length > 1e-3));
}
