//! The oracles M1, M2 and M4 of skipping, and what skipped tokens must not do to others.

use super::*;
use crate::route::Route;
use crate::streams::reference::Reference;

/// The threshold of [`THRESHOLD`] with a share of it taken off.
fn shrinking(shrink: f32) -> Skip {
    Skip { shrink, ..hard(THRESHOLD) }
}

fn skipping(width: usize, directions: usize, skip: &Skip) -> Nag {
    Nag::new(width, SITES, directions, Some(skip.clone()), true)
}

/// Outputs, and the routes to the sites.
fn routed(case: &Case, stream: &mut Nag) -> (Vec<Vec<f32>>, Vec<Option<Route>>) {
    let inputs = case.writes.iter().zip(&case.params);
    let pass = inputs.map(|(write, params)| {
        let output = stream.forward(Arc::new(write.clone()), params);
        (output, stream.route())
    });
    pass.unzip()
}

/// Which tokens run each site.
fn decisions(case: &Case, skip: &Skip, directions: usize) -> Vec<Vec<bool>> {
    let (_, routes) = routed(case, &mut skipping(case.width, directions, skip));
    let all = || vec![true; case.tokens];
    routes[..SITES].iter().map(|r| r.as_ref().map_or_else(all, Route::decisions)).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Everything that comes out, to the bit.
fn outcome(case: &Case, mut stream: Nag) -> Vec<Vec<u32>> {
    let outputs = case.forward(&mut stream);
    let gradients = case.backward(&mut stream);
    let gradients = gradients.iter().flat_map(|d| [bits(&d.write), bits(&d.params)]);
    outputs.iter().map(|output| bits(output)).chain(gradients).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// The gains of one token, by the reference.
fn gains(case: &Case, token: usize, directions: usize, limit: Limit) -> Vec<f64> {
    let one = case.only(&[token]);
    let writes: Vec<_> = one.writes.iter().map(|write| wide(write)).collect();
    let params: Vec<_> = one.params.iter().map(|params| wide(params)).collect();
    outputs(&writes, &params, directions, limit).1
}

#[test]
fn tokens_below_the_threshold_skip_and_pass_gradients_on() {
    for (shrink, alpha) in [(0.0, 1.0), (1.0, 1.0), (0.5, -1.0)] {
        let mut case = case(40, 20, 9);
        *case.params[1].last_mut().unwrap() *= alpha;
        let limit = Limit { threshold: f64::from(THRESHOLD), shrink };
        let skip = shrinking(shrink as f32);
        let ran = decisions(&case, &skip, 9);
        for token in 0..case.tokens {
            for (site, gain) in gains(&case, token, 9, limit).iter().enumerate() {
                let distance = gain.abs() - limit.threshold;
                assert!(distance.abs() > 2e-5, "differences would step over the threshold");
                let runs = &ran[site];
                assert_eq!(runs[token], distance > 0.0);
            }
        }
        for ran in ran {
            let running = ran.iter().filter(|&&runs| runs).count();
            assert!(running > 0 && running < 40, "{running} tokens run");
        }
        let reference: Reference<'_> = &|writes, params| outputs(writes, params, 9, limit).0;
        case.check(skipping(20, 9, &skip), reference);
    }
}

#[test]
fn thresholds_of_zero_change_no_bit() {
    // Few tokens are multiplied in another way than many.
    for (tokens, shrink) in [(3, 0.0), (70, 0.0), (70, 1.0)] {
        let case = case(tokens, 37, 9);
        let skip = Skip { shrink, ..hard(0.0) };
        assert_eq!(outcome(&case, skipping(37, 9, &skip)), outcome(&case, stream(37, 9, None)));
        let (_, routes) = routed(&case, &mut skipping(37, 9, &skip));
        assert_eq!(routes, vec![None; SITES + 1]);
    }
}

#[test]
fn who_skips_everything_is_read_as_they_entered() {
    let case = case(35, 16, 3);
    let (outputs, routes) = routed(&case, &mut stream(16, 3, Some(1e9)));
    let [sites @ .., out] = &routes[..] else { unreachable!() };
    assert!(sites.iter().all(|route| route.as_ref().is_some_and(Route::is_empty)));
    assert_eq!(*out, None);
    assert!(outputs[1..SITES].iter().all(|output| bits(output) == bits(&outputs[0])));
    // exp(s) r / d with the log gain of 0.3.
    let scaled: Vec<f32> = case.writes[0].iter().map(|e| e * 0.3f32.exp() / 16.0).collect();
    assert_close(&outputs[SITES], &scaled, 1e-6);
}

#[test]
fn one_skip_costs_the_angle_and_the_growth_of_one_turn() {
    let (width, directions, last) = (37, 4, SITES - 1);
    let case = case(9, width, directions);
    let mut skip = hard(0.0);
    skip.thresholds[last] = 1e9;
    let dense = case.forward(&mut stream(width, directions, None));
    let skipped = case.forward(&mut skipping(width, directions, &skip));
    let rows = dense[SITES].chunks(width).zip(skipped[SITES].chunks(width));
    for (token, (dense, skipped)) in rows.enumerate() {
        let g = gains(&case, token, directions, Limit::NONE)[last];
        let (dense, skipped) = (wide(dense), wide(skipped));
        let length = |x: &[f64]| product(x, x).sqrt();
        let cosine = product(&dense, &skipped) / (length(&dense) * length(&skipped));
        assert!((cosine.acos() - g.abs().atan()).abs() < 1e-5, "token {token}");
        let growth = (length(&dense) / length(&skipped)).ln();
        assert!((growth - 0.5 * (1.0 + g * g).ln()).abs() < 1e-5, "token {token}");
    }
}

#[test]
fn the_forced_are_turned_by_all_of_their_gain() {
    let case = case(70, 16, 3);
    let all = Skip { forced: vec![1.0; SITES], shrink: 1.0, ..hard(1e9) };
    assert_eq!(outcome(&case, skipping(16, 3, &all)), outcome(&case, stream(16, 3, None)));

    let some = Skip { forced: vec![0.5, 0.0, 0.0], seed: 5, ..all };
    let ran = decisions(&case, &some, 3);
    assert!(ran[0].iter().enumerate().all(|(token, &runs)| runs == some.runs(0, token, 0.0)));
    let forced = ran[0].iter().filter(|&&runs| runs).count();
    assert!(forced > 15 && forced < 55 && !ran[1].contains(&true), "{forced} of 70");
    let dense = case.forward(&mut stream(16, 3, None));
    let some = case.forward(&mut skipping(16, 3, &some));
    for (token, &runs) in ran[0].iter().enumerate() {
        let row = token * 16..(token + 1) * 16;
        let after = if runs { &dense[1] } else { &dense[0] };
        assert_eq!(some[1][row.clone()], after[row]);
    }
}

#[test]
fn writes_of_the_skipped_are_not_looked_at_and_get_nothing_back() {
    for shrink in [0.0, 1.0] {
        let skip = shrinking(shrink);
        let clean = case(70, 37, 9);
        let ran = decisions(&clean, &skip, 9);
        let mut spoilt = clean.only(&(0..70).collect::<Vec<_>>());
        for (site, ran) in ran.iter().enumerate() {
            for token in (0..70).filter(|&token| !ran[token]) {
                spoilt.writes[site + 1][token * 37..(token + 1) * 37].fill(f32::NAN);
            }
        }
        let want = outcome(&clean, skipping(37, 9, &skip));
        assert_eq!(outcome(&spoilt, skipping(37, 9, &skip)), want);
        let mut stream = skipping(37, 9, &skip);
        spoilt.forward(&mut stream);
        let gradients = spoilt.backward(&mut stream);
        for (site, ran) in ran.iter().enumerate() {
            for (row, runs) in gradients[site + 1].write.chunks(37).zip(ran) {
                assert_eq!(row.iter().any(|&d| d != 0.0), *runs);
            }
        }
    }
}

#[test]
fn a_site_that_nobody_runs_gives_its_modulator_nothing() {
    let case = case(40, 16, 3);
    let mut skip = hard(0.0);
    skip.thresholds[1] = 1e9;
    let mut stream = skipping(16, 3, &skip);
    case.forward(&mut stream);
    let gradients = case.backward(&mut stream);
    assert!(gradients[1].params.iter().all(|&d| d == 0.0));
    assert!(gradients[2].params.iter().any(|&d| d != 0.0));
}

#[test]
fn neither_order_nor_company_changes_a_decision() {
    let (case, skip) = (case(70, 37, 9), hard(THRESHOLD));
    let all = decisions(&case, &skip, 9);
    let backwards: Vec<usize> = (0..70).rev().collect();
    for tokens in [&backwards[..], &[33, 5, 40], &[69]] {
        for (some, all) in decisions(&case.only(tokens), &skip, 9).iter().zip(&all) {
            let want: Vec<bool> = tokens.iter().map(|&token| all[token]).collect();
            assert_eq!(*some, want);
        }
    }
}

#[test]
fn a_token_alone_has_the_gain_that_it_has_among_others_to_the_last_bit() {
    let case = case(70, 37, 9);
    let gains = |case: &Case| {
        let mut stream = skipping(37, 9, &hard(THRESHOLD));
        stream.forward(Arc::new(case.writes[0].clone()), &case.params[0]);
        let lanes = stream.levels[0].record[3].chunks(Lane::LENGTH);
        lanes.map(|lane| lane[Lane::GAIN]).collect::<Vec<f32>>()
    };
    let alone: Vec<f32> = (0..70).flat_map(|token| gains(&case.only(&[token]))).collect();
    assert_eq!(bits(&alone), bits(&gains(&case)));
}

#[test]
#[should_panic(expected = "one for each site")]
fn every_site_needs_a_threshold() {
    Nag::new(2, 2, 1, Some(Skip::hard(vec![0.5])), true);
}
