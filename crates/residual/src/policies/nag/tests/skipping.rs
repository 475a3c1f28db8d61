//! Tokens whose gain is small skip a sub-layer: oracles M1 to M8.

use super::*;

/// A threshold that about half of the tokens and sub-layers fall below.
fn median_gain(policy: &NormAgnostic, embedding: Tensor<3>, dimensions: &Dimensions) -> f64 {
    let mut seen = Recorder::of(&[Signal::Gain]);
    watched(policy, embedding, dimensions, &mut seen);
    let mut gains: Vec<f32> =
        all(&seen, Signal::Gain).into_iter().flat_map(|gain| values(gain.abs())).collect();
    gains.sort_by(f32::total_cmp);
    f64::from(gains[gains.len() / 2])
}

#[test]
fn a_threshold_of_zero_changes_no_bit() {
    let dimensions = dimensions(16, 4);
    let embedding = centred([2, 3, 16]);
    let without = traverse(&random(&dense(), &dimensions), embedding.clone(), &dimensions);
    let zero = traverse(&random(&skipping(0.0), &dimensions), embedding, &dimensions);
    assert_eq!(values(zero), values(without));
}

#[test]
fn a_huge_threshold_reads_out_the_entry() {
    let dimensions = dimensions(16, 4);
    let policy = random(&skipping(1e9), &dimensions);
    let embedding = centred([2, 3, 16]);
    let entry = policy.close(policy.open(embedding.clone()), &mut Traversal::default());
    assert_close(traverse(&policy, embedding, &dimensions), entry, 1e-6);
}

#[test]
fn exactly_the_tokens_below_the_threshold_skip_the_first_sub_layer() {
    let dimensions = dimensions(16, 1);
    let embedding = centred([2, 4, 16]);
    let dense = random(&dense(), &dimensions);
    let gains = values(dense.sites[0].gain(dense.open(embedding.clone()).direction).abs());
    let mut sorted = gains.clone();
    sorted.sort_by(f32::total_cmp);
    for (below, threshold) in sorted.into_iter().enumerate() {
        let policy = random(&skipping(f64::from(threshold)), &dimensions);
        let mut seen = Recorder::of(&[Signal::Skipped]);
        watched(&policy, embedding.clone(), &dimensions, &mut seen);
        let skipped = values(seen.get(Place::Site(Site::new(0)), Signal::Skipped).unwrap());
        let expected: Vec<f32> =
            gains.iter().map(|gain| if *gain < threshold { 1.0 } else { 0.0 }).collect();
        assert_eq!(skipped, expected);
        assert_eq!(skipped.iter().sum::<f32>(), below as f32);
    }
}

#[test]
fn a_strong_turn_the_other_way_is_no_reason_to_skip() {
    let policy = chosen(&skipping(0.1), &dimensions(8, 1), |name, _| {
        (name == "residual.0.alpha").then(|| vec![-1.0])
    });
    let lanes = policy.open(centred([1, 2, 8]));
    let Turn { gain, skipped } =
        policy.read(Site::new(0), &lanes, &mut Traversal::default()).ticket;
    assert!(values(gain).iter().all(|gain| *gain < -0.4));
    assert!(skipped.is_none());
}

#[test]
fn a_skip_loses_the_arc_tangent_of_the_gain() {
    let dimensions = dimensions(16, 1);
    let (embedding, write) = (centred([2, 3, 16]), normal("write", [2, 3, 16]));
    let dense = random(&dense(), &dimensions);
    let gains = values(dense.sites[0].gain(dense.open(embedding.clone()).direction));
    let turned = after_one(&dense, embedding.clone(), write.clone());
    let stayed = after_one(&random(&skipping(1e9), &dimensions), embedding, write);
    let lost = values(turned.log_norm - stayed.log_norm);
    let pairs = rows(turned.direction).into_iter().zip(rows(stayed.direction));
    for (((turned, stayed), gain), lost) in pairs.zip(gains).zip(lost) {
        assert!((angle(&turned, &stayed) - f64::from(gain.abs().atan())).abs() < 2e-6);
        assert!((lost - 0.5 * (1.0 + gain * gain).ln()).abs() < 1e-6);
    }
}

#[test]
fn skipped_tokens_are_bit_exact_copies_and_the_others_move() {
    let dimensions = dimensions(16, 4);
    let embedding = centred([2, 5, 16]);
    let threshold = median_gain(&random(&dense(), &dimensions), embedding.clone(), &dimensions);
    let policy = random(&skipping(threshold), &dimensions);
    let mut seen = Recorder::of(&[Signal::Reading, Signal::LogNorm, Signal::Skipped]);
    watched(&policy, embedding.clone(), &dimensions, &mut seen);

    let directions = all(&seen, Signal::Reading);
    let mut log_norm = values(policy.open(embedding).log_norm);
    let (mut copies, mut moves) = (0, 0);
    for (l, skipped) in all(&seen, Signal::Skipped).into_iter().enumerate() {
        let (before, after) = (rows(directions[l].clone()), rows(directions[l + 1].clone()));
        let grown = values(seen.get(Place::Site(Site::new(l)), Signal::LogNorm).unwrap());
        for (t, skipped) in values(skipped).into_iter().enumerate() {
            if skipped == 1.0 {
                copies += 1;
                assert_eq!(before[t], after[t]);
                assert_eq!(log_norm[t], grown[t]);
            } else {
                moves += 1;
                assert_ne!(before[t], after[t]);
                assert!(log_norm[t] < grown[t]);
            }
        }
        log_norm = grown;
    }
    assert!(copies > 10 && moves > 10, "{copies} copies, {moves} moves");
}

#[test]
fn the_order_of_the_batch_decides_nothing() {
    let dimensions = dimensions(16, 4);
    let embedding = centred([3, 4, 16]);
    let threshold = median_gain(&random(&dense(), &dimensions), embedding.clone(), &dimensions);
    let policy = random(&skipping(threshold), &dimensions);
    let decisions = |embedding: Tensor<3>| {
        let mut seen = Recorder::of(&[Signal::Skipped]);
        watched(&policy, embedding, &dimensions, &mut seen);
        all(&seen, Signal::Skipped)
    };
    let shuffled = [2, 0, 1].map(|row| embedding.clone().narrow(0, row, 1)).to_vec();
    let after = decisions(Tensor::cat(shuffled, 0));
    for (before, after) in decisions(embedding).into_iter().zip(after) {
        for (place, row) in [2, 0, 1].into_iter().enumerate() {
            let before = values(before.clone().narrow(0, row, 1));
            assert_eq!(values(after.clone().narrow(0, place, 1)), before);
        }
    }
}

#[test]
fn a_skipped_sub_layer_learns_nothing() {
    let dimensions = dimensions(16, 1);
    let policy = trainable(&skipping(1e9), &dimensions);
    let out = traverse(&policy, centred([2, 3, 16]), &dimensions);
    let gradients = (out * normal("towards", [2, 3, 16])).sum().backward();
    assert_ne!(values(policy.log_gain.val().grad(&gradients).unwrap()), [0.0]);
    for site in &policy.sites {
        let alpha = site.alpha.val().grad(&gradients).map(values);
        assert!(alpha.is_none_or(|gradient| gradient == [0.0]));
    }
}
