mod skipping;

use super::super::reference::Case;
use super::*;
use crate::streams::Stream;
use crate::streams::tiles::TILE;
use crate::testing::{assert_close, noise};
use std::sync::Arc;

/// Sites of the streams under test: enough to have one between two others.
const SITES: usize = 3;

/// About half of the gains of the modulators below are smaller than this.
const THRESHOLD: f32 = 0.36;

/// Parameters of the modulator of a site.
fn modulator_params(site: usize, directions: usize, width: usize) -> Vec<f32> {
    let part = |name: &str, length: usize, scale: f32, centre: f32| {
        let values = noise(&format!("{name} {site}"), length);
        values.into_iter().map(move |value| centre + scale * value)
    };
    let weights = part("directions", directions * width, 2.0 / (width as f32).sqrt(), 0.0);
    let bias = part("bias", directions, 0.5, 0.0);
    let share = part("share", directions, 0.3 / directions as f32, 1.0 / directions as f32);
    let (beta, alpha) = (1.3 + 0.2 * site as f32, 0.9 + 0.13 * site as f32);
    weights.chain(bias).chain(share).chain([beta, alpha]).collect()
}

fn case(tokens: usize, width: usize, directions: usize) -> Case {
    let params: Vec<Vec<f32>> = (0..=SITES)
        .map(|junction| {
            let log_gain = (junction == 0).then_some(0.3);
            let site = (junction < SITES).then(|| modulator_params(junction, directions, width));
            log_gain.into_iter().chain(site.into_iter().flatten()).collect()
        })
        .collect();
    let lengths: Vec<usize> = params.iter().map(Vec::len).collect();
    Case { params, ..Case::random(tokens, width, &lengths) }
}

fn stream(width: usize, directions: usize, threshold: Option<f32>) -> Nag {
    Nag::new(width, SITES, directions, threshold.map(hard), true)
}

/// The same threshold everywhere.
fn hard(threshold: f32) -> Skip {
    Skip::hard(vec![threshold; SITES])
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn product(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The gain that the modulator with these parameters gives a direction.
fn gain(r: &[f64], params: &[f64], directions: usize) -> f64 {
    let (d, c) = (r.len(), directions);
    let modulation: f64 = (0..c)
        .map(|i| {
            let argument = product(&params[i * d..(i + 1) * d], r) + params[c * d + i];
            params[c * d + c + i] / (1.0 + (-argument).exp())
        })
        .sum();
    params[c * d + 2 * c + 1] * modulation.max(1e-6).powf(params[c * d + 2 * c])
}

/// What may be skipped, in the reference's own words.
#[derive(Clone, Copy)]
struct Limit {
    threshold: f64,
    /// Share of the threshold by which the gains of the others are smaller.
    shrink: f64,
}

impl Limit {
    const NONE: Self = Self { threshold: 0.0, shrink: 0.0 };
}

/// The outputs for one token, the equations taken at their word, and the gains.
fn outputs(
    writes: &[Vec<f64>],
    params: &[Vec<f64>],
    directions: usize,
    limit: Limit,
) -> (Vec<Vec<f64>>, Vec<f64>) {
    let width = writes[0].len();
    let norm = product(&writes[0], &writes[0]) / width as f64;
    let mut r: Vec<f64> = writes[0].iter().map(|e| e / norm.sqrt()).collect();
    let mut s = norm.sqrt().ln() + params[0][0];
    let (mut outputs, mut gains) = (Vec::new(), Vec::new());
    for (site, f) in writes[1..].iter().enumerate() {
        outputs.push(r.clone());
        let g = gain(&r, &params[site][usize::from(site == 0)..], directions);
        gains.push(g);
        if g.abs() < limit.threshold {
            continue;
        }
        let g = g - g.signum() * limit.shrink * limit.threshold;
        let centre = mean(f);
        let c: Vec<f64> = f.iter().map(|f| f - centre).collect();
        let along = product(&c, &r) / product(&r, &r);
        let q: Vec<f64> = c.iter().zip(&r).map(|(c, r)| c - along * r).collect();
        let size = (product(&q, &q) / width as f64 + 1e-12).sqrt();
        let v: Vec<f64> = r.iter().zip(&q).map(|(r, q)| r + g * q / size).collect();
        let size = (product(&v, &v) / width as f64).sqrt();
        r = v.iter().map(|v| v / size).collect();
        s += 0.5 * (1.0 + g * g).ln();
    }
    outputs.push(r.iter().map(|r| r * s.exp() / width as f64).collect());
    (outputs, gains)
}

fn check(case: &Case, directions: usize) {
    case.check(stream(case.width, directions, None), &|writes, params| {
        outputs(writes, params, directions, Limit::NONE).0
    });
}

#[test]
fn one_token_agrees_with_the_equations() {
    check(&case(1, 5, 1), 1);
    check(&case(1, 64, 4), 4);
}

#[test]
fn odd_widths_and_several_tiles_agree_with_the_equations() {
    check(&case(70, 5, 3), 3);
    check(&case(70, 37, 9), 9);
}

#[test]
fn several_sums_of_parameter_gradients_agree_with_the_equations() {
    check(&case(4 * TILE + 3, 18, 4), 4);
}

#[test]
fn gains_of_either_sign_agree_with_the_equations() {
    let mut case = case(9, 16, 3);
    *case.params[1].last_mut().unwrap() = -0.7;
    *case.params[2].last_mut().unwrap() = 0.0;
    check(&case, 3);
}

#[test]
fn a_gain_at_the_threshold_does_not_skip() {
    let mut case = case(2, 5, 1);
    // max(S, 1e-6)^0 = 1, thus g = alpha.
    for params in &mut case.params[..SITES] {
        let length = params.len();
        params[length - 2..].copy_from_slice(&[0.0, -0.5]);
    }
    let at = |threshold| case.forward(&mut stream(5, 1, threshold));
    assert_eq!(at(Some(0.5)), at(None));
    let above = at(Some(0.500_001));
    assert_eq!(above[0], above[SITES - 1]);
}

#[test]
fn a_closed_modulator_keeps_its_floor() {
    let (width, directions) = (18, 3);
    let mut case = case(5, width, directions);
    let bias = directions * width..directions * (width + 1);
    case.params[1][bias].fill(-40.0);
    // Else the floor would be too low to see what it does.
    case.params[1][directions * (width + 2)] = 0.2;
    check(&case, directions);
    let d_params = {
        let mut stream = stream(width, directions, None);
        case.forward(&mut stream);
        case.backward(&mut stream).swap_remove(1).params
    };
    let (gates, scalars) = d_params.split_at(directions * (width + 2));
    assert!(gates.iter().all(|&d| d == 0.0) && scalars.iter().all(|&d| d != 0.0));
}

#[test]
fn a_stream_without_sites_scales_the_embedding_back() {
    let case = Case { params: vec![vec![0.7]], ..Case::random(3, 5, &[1]) };
    case.check(Nag::new(5, 0, 2, None, true), &|writes, params| {
        vec![writes[0].iter().map(|e| e * params[0][0].exp() / 5.0).collect()]
    });
}

#[test]
fn width_one_has_nowhere_to_turn() {
    let case = case(3, 1, 2);
    let mut stream = stream(1, 2, None);
    for (junction, output) in case.forward(&mut stream).iter().enumerate() {
        for (output, e) in output.iter().zip(&case.writes[0]) {
            assert!(junction == SITES || *output == e.signum());
        }
    }
    let gradients = case.backward(&mut stream);
    assert!(gradients[1..].iter().all(|d| d.write.iter().all(|&d| d == 0.0)));
    assert!(gradients.iter().all(|d| d.params.iter().all(|d| d.is_finite())));
}

#[test]
fn directions_keep_their_length() {
    let case = case(40, 37, 4);
    let outputs = case.forward(&mut stream(37, 4, None));
    for row in outputs[SITES - 1].chunks(37) {
        let square: f32 = row.iter().map(|r| r * r).sum();
        assert!((square / 37.0 - 1.0).abs() < 1e-6);
    }
}

#[test]
fn a_large_common_part_of_a_write_has_no_effect() {
    let plain = case(4, 32, 2);
    let shifted = {
        let mut case = case(4, 32, 2);
        // Exact in f32, so that only the kernel could lose digits.
        for write in &mut case.writes[1..] {
            write.iter_mut().for_each(|f| *f = (*f * 64.0).round() / 64.0 + 1024.0);
        }
        case
    };
    let rounded = Case {
        writes: (plain.writes.iter().enumerate())
            .map(|(junction, write)| {
                let round = |f: &f32| if junction == 0 { *f } else { (f * 64.0).round() / 64.0 };
                write.iter().map(round).collect()
            })
            .collect(),
        ..plain
    };
    let (want, got) =
        (rounded.forward(&mut stream(32, 2, None)), shifted.forward(&mut stream(32, 2, None)));
    for (got, want) in got.iter().zip(&want) {
        assert_close(got, want, 1e-4);
    }
}

#[test]
fn the_laws_of_streams_hold() {
    for (threshold, shrink) in [(None, 0.0), (Some(THRESHOLD), 0.0), (Some(THRESHOLD), 1.0)] {
        let skip = threshold.map(|threshold| Skip { shrink, ..hard(threshold) });
        let case = case(3 * 4 * TILE + 5, 37, 9);
        case.check_laws(|keep| Nag::new(37, SITES, 9, skip.clone(), keep));
    }
}

#[test]
fn a_token_alone_has_the_output_that_it_has_among_others() {
    let all = case(35, 37, 9);
    let outputs = all.forward(&mut stream(37, 9, None));
    for token in [0, 31, 34] {
        let row = token * 37..(token + 1) * 37;
        let writes = all.writes.iter().map(|write| write[row.clone()].to_vec()).collect();
        let one = Case { writes, ..case(1, 37, 9) };
        for (one, all) in one.forward(&mut stream(37, 9, None)).iter().zip(&outputs) {
            assert_close(one, &all[row.clone()], 1e-6);
        }
    }
}

#[test]
fn what_is_not_a_number_stays_so_and_spoils_its_token_only() {
    let clean = case(40, 16, 4);
    for bad in [f32::NAN, f32::INFINITY] {
        for junction in 0..=SITES {
            let mut case = case(40, 16, 4);
            case.writes[junction][33 * 16 + 2] = bad;
            let mut stream = stream(16, 4, None);
            let outputs = case.forward(&mut stream);
            let (spoilt, other) = outputs[SITES].split_at(34 * 16);
            assert!(spoilt[33 * 16..].iter().any(|x| !x.is_finite()), "{bad} at {junction}");
            assert!(spoilt[..33 * 16].iter().chain(other).all(|x| x.is_finite()));
            let gradients = case.backward(&mut stream);
            assert!(gradients[0].write[..33 * 16].iter().all(|x| x.is_finite()));
        }
    }
    let mut nan_params = clean;
    nan_params.params[1][0] = f32::NAN;
    // A gain that is not a number is not small either.
    let outputs = nan_params.forward(&mut stream(16, 4, Some(THRESHOLD)));
    assert!(outputs[SITES].iter().all(|x| x.is_nan()));
}

#[test]
#[should_panic(expected = "kept")]
fn without_keeping_there_is_no_way_back() {
    let mut stream = Nag::new(2, 0, 1, None, false);
    stream.forward(Arc::new(vec![1.0, 2.0]), &[0.0]);
    stream.backward(&[1.0, 1.0], &[0.0]);
}
