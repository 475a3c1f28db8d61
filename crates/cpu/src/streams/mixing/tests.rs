use super::*;
use crate::streams::Stream;
use crate::streams::reference::{Case, rms};
use crate::streams::tiles::TILE;
use crate::testing::{assert_close, noise};
use std::sync::Arc;

/// So large that readings near zero do not make the outputs ill-conditioned.
const EPS: f32 = 0.1;
/// Enough to have a site between two others.
const SITES: usize = 3;
const ROUNDS: usize = 4;
/// Tokens that share a partial sum.
const PART: usize = 4 * TILE;

const KINDS: [MixingKind; 4] = [
    MixingKind::Static,
    MixingKind::Dynamic,
    MixingKind::Sinkhorn { iterations: ROUNDS },
    MixingKind::Permutations,
];
const SINKHORN: MixingKind = KINDS[2];

/// So large that it is seen.
const GATES: MixingGates = MixingGates { epsilon: 0.05, post_multiplier: 1.5, post_epsilon: 0.02 };

/// The kinds as their papers have them, and every part of a form with every kind that has it.
fn forms() -> Vec<MixingForm> {
    let mut forms: Vec<MixingForm> = KINDS.into_iter().map(MixingForm::from).collect();
    for kind in [MixingKind::Static, MixingKind::Dynamic] {
        for (identity, stream_scale) in [(true, false), (false, true), (true, true)] {
            forms.push(MixingForm { identity, stream_scale, ..kind.into() });
        }
    }
    for kind in [SINKHORN, MixingKind::Permutations] {
        let gated = MixingForm { gates: GATES, ..kind.into() };
        forms.push(gated);
        for readout in [MixingReadOut::Mean, MixingReadOut::Gated, MixingReadOut::HandedOn] {
            forms.push(MixingForm { readout, ..gated });
            forms.push(MixingForm { readout, identity: true, stream_scale: true, ..gated });
        }
    }
    forms.push(MixingForm { stream_scale: true, ..SINKHORN.into() });
    forms.push(MixingForm { identity: true, ..SINKHORN.into() });
    let handed_on = MixingReadOut::HandedOn;
    forms.push(MixingForm { readout: handed_on, stream_scale: true, ..SINKHORN.into() });
    forms
}

fn stream(form: MixingForm, n: usize, width: usize, keep: bool) -> Mixing {
    Mixing::new(form, n, width, EPS, SITES, keep)
}

fn case(form: MixingForm, n: usize, width: usize, tokens: usize) -> Case {
    let stream = stream(form, n, width, true);
    let lengths: Vec<usize> = (0..=SITES).map(|junction| stream.params(junction)).collect();
    let mut case = Case::random(tokens, width, &lengths);
    for (junction, params) in case.params.iter_mut().enumerate() {
        // Gains and the scales of streams are away from zero; everything else is on both sides of it, and such that
        // logits are about one.
        let [_, small, projection, _] = stream.policy.lengths(junction);
        params[width..][..small + projection].iter_mut().for_each(|p| *p = 2.0 * (*p - 0.8));
        let scale = 1.5 / (stream.policy.shape.inputs() as f32).sqrt();
        params[width + small..][..projection].iter_mut().for_each(|p| *p *= scale);
    }
    case
}

/// One token in f64: straight from the definitions, with logarithms where the kernel has none.
fn reference(
    form: MixingForm,
    n: usize,
    writes: &[Vec<f64>],
    params: &[Vec<f64>],
) -> Vec<Vec<f64>> {
    let width = writes[0].len();
    let eps = f64::from(EPS);
    let weighted = |weights: &[f64], streams: &[Vec<f64>]| -> Vec<f64> {
        (0..width).map(|f| (0..n).map(|i| weights[i] * streams[i][f]).sum()).collect()
    };
    let mut streams = vec![writes[0].clone(); n];
    let scales = if form.stream_scale { n * width } else { 0 };
    let (first, scale) = params[0].split_at(params[0].len() - scales);
    for (stream, scale) in streams.iter_mut().zip(scale.chunks(width)) {
        stream.iter_mut().zip(scale).for_each(|(x, scale)| *x *= scale);
    }
    let mut outputs = Vec::new();
    let mut handed_on: Vec<f64> = (0..n).map(|i| f64::from(u8::from(i == 0))).collect();
    for (site, write) in writes[1..].iter().enumerate() {
        let all = if site == 0 { first } else { &params[site][..] };
        let (gain, rest) = all.split_at(width);
        let (pre, post, res) = site_weights(form, &streams, rest, eps);
        let used = match form.readout {
            MixingReadOut::HandedOn => std::mem::replace(&mut handed_on, pre),
            _ => pre,
        };
        outputs.push(rms(&weighted(&used, &streams), gain, eps));
        streams = (0..n)
            .map(|i| {
                let feature = |f: usize| {
                    let mixed: f64 = (0..n).map(|j| res[i][j] * streams[j][f]).sum();
                    mixed + post[i] * write[f]
                };
                (0..width).map(feature).collect()
            })
            .collect();
    }
    let last = if writes.len() == 1 { first } else { &params[writes.len() - 1][..] };
    let (gain, rest) = last.split_at(width);
    let out = match form.readout {
        MixingReadOut::Sum => vec![1.0; n],
        MixingReadOut::Mean => vec![1.0 / n as f64; n],
        MixingReadOut::HandedOn => handed_on,
        MixingReadOut::Gated => {
            let logits = logits(&streams, rest, n, eps);
            logits.iter().map(|x| sigmoid(*x) + f64::from(form.gates.epsilon)).collect()
        }
    };
    outputs.push(rms(&weighted(&out, &streams), gain, eps));
    outputs
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `bias + weight rms(vec(streams))`.
fn logits(streams: &[Vec<f64>], params: &[f64], count: usize, eps: f64) -> Vec<f64> {
    let all = streams.concat();
    let normed = rms(&all, &vec![1.0; all.len()], eps);
    let (bias, weight) = params.split_at(count);
    assert_eq!(weight.len(), count * all.len());
    weight.chunks(all.len()).zip(bias).map(|(weight, bias)| bias + dot(&normed, weight)).collect()
}

/// `pre`, `post` and `res` as `[target][source]`.
fn site_weights(
    form: MixingForm,
    streams: &[Vec<f64>],
    params: &[f64],
    eps: f64,
) -> (Vec<f64>, Vec<f64>, Vec<Vec<f64>>) {
    let (n, width) = (streams.len(), streams[0].len());
    let identity = || -> Vec<Vec<f64>> {
        (0..n).map(|i| (0..n).map(|j| f64::from(u8::from(i == j))).collect()).collect()
    };
    match form.kind {
        MixingKind::Static | MixingKind::Dynamic => {
            let mut pre = params[..n].to_vec();
            let mut post = params[n..2 * n].to_vec();
            let mut res: Vec<Vec<f64>> = match form.identity {
                true => identity(),
                false => {
                    (0..n).map(|j| (0..n).map(|i| params[2 * n + i * n + j]).collect()).collect()
                }
            };
            if form.kind == MixingKind::Dynamic {
                let constants = 2 * n + if form.identity { 0 } else { n * n };
                let (scales, weight) = params[constants..].split_at(2);
                for i in 0..n {
                    let normed = rms(&streams[i], &vec![1.0; width], eps);
                    let along = |o: usize| dot(&normed, &weight[o * width..][..width]).tanh();
                    pre[i] += scales[0] * along(0);
                    post[i] += scales[1] * along(1);
                    for (j, row) in res.iter_mut().enumerate().filter(|_| !form.identity) {
                        row[i] += scales[0] * along(2 + j);
                    }
                }
            }
            (pre, post, res)
        }
        MixingKind::Sinkhorn { .. } | MixingKind::Permutations => {
            let logits = logits(streams, params, params.len() / (n * width + 1), eps);
            let MixingGates { epsilon, post_multiplier, post_epsilon } = form.gates;
            let [epsilon, multiplier, added] =
                [epsilon, post_multiplier, post_epsilon].map(f64::from);
            let pre = logits[..n].iter().map(|x| sigmoid(*x) + epsilon).collect();
            let post = logits[n..2 * n].iter().map(|x| multiplier * sigmoid(*x) + added).collect();
            let res = match form.kind {
                _ if form.identity => identity(),
                MixingKind::Sinkhorn { iterations } if epsilon > 0.0 => {
                    deepseek_sinkhorn(&logits[2 * n..], n, iterations, epsilon)
                }
                MixingKind::Sinkhorn { iterations } => {
                    log_sinkhorn(&logits[2 * n..], n, iterations)
                }
                _ => birkhoff(&logits[2 * n..], n),
            };
            (pre, post, res)
        }
    }
}

/// As the published code writes it: transposed, with the softmax over the last index and columns last.
fn deepseek_sinkhorn(logits: &[f64], n: usize, iterations: usize, epsilon: f64) -> Vec<Vec<f64>> {
    let mut comb: Vec<Vec<f64>> =
        (0..n).map(|j| (0..n).map(|i| logits[i * n + j].exp()).collect()).collect();
    let divide_rows = |comb: &mut Vec<Vec<f64>>, added: f64| {
        for row in comb {
            let sum = row.iter().sum::<f64>() + added;
            row.iter_mut().for_each(|x| *x /= sum);
        }
    };
    let divide_columns = |comb: &mut Vec<Vec<f64>>| {
        for i in 0..n {
            let sum = comb.iter().map(|row| row[i]).sum::<f64>() + epsilon;
            comb.iter_mut().for_each(|row| row[i] /= sum);
        }
    };
    divide_rows(&mut comb, 0.0);
    comb.iter_mut().flatten().for_each(|x| *x += epsilon);
    divide_columns(&mut comb);
    for _ in 1..iterations {
        divide_rows(&mut comb, epsilon);
        divide_columns(&mut comb);
    }
    (0..n).map(|i| (0..n).map(|j| comb[j][i]).collect()).collect()
}

fn log_sinkhorn(logits: &[f64], n: usize, iterations: usize) -> Vec<Vec<f64>> {
    let mut log: Vec<Vec<f64>> = logits.chunks(n).map(<[f64]>::to_vec).collect();
    let log_sum = |values: Vec<f64>| {
        let largest = values.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
        values.iter().map(|v| (v - largest).exp()).sum::<f64>().ln() + largest
    };
    for _ in 0..iterations {
        for j in 0..n {
            let sum = log_sum(log.iter().map(|row| row[j]).collect());
            log.iter_mut().for_each(|row| row[j] -= sum);
        }
        for row in &mut log {
            let sum = log_sum(row.clone());
            row.iter_mut().for_each(|x| *x -= sum);
        }
    }
    log.iter().map(|row| row.iter().map(|x| x.exp()).collect()).collect()
}

/// Counts in base n, and skips what is no permutation: another way to lexicographic order.
fn birkhoff(logits: &[f64], n: usize) -> Vec<Vec<f64>> {
    let digits = |k: usize| (0..n).map(|i| k / n.pow((n - 1 - i) as u32) % n).collect::<Vec<_>>();
    let all = (0..n.pow(n as u32)).map(digits);
    let all = all.filter(|p| (0..n).all(|i| p.contains(&i))).collect::<Vec<_>>();
    assert_eq!(all.len(), logits.len());
    let total: f64 = logits.iter().map(|x| x.exp()).sum();
    let mut res = vec![vec![0.0; n]; n];
    for (permutation, logit) in all.iter().zip(logits) {
        for (target, &source) in permutation.iter().enumerate() {
            res[target][source] += logit.exp() / total;
        }
    }
    res
}

fn check(form: MixingForm, n: usize, width: usize, tokens: usize) {
    case(form, n, width, tokens)
        .check(stream(form, n, width, true), &|writes, params| reference(form, n, writes, params));
}

#[test]
fn one_token_of_every_form_is_that_of_the_definition() {
    for form in forms() {
        for n in [1, 2, 3, 4] {
            check(form, n, 5, 1);
        }
    }
}

#[test]
fn several_tiles_are_those_of_the_definition() {
    for form in forms() {
        check(form, 3, 5, 70);
    }
}

#[test]
fn widths_around_those_of_blocks_are_those_of_the_definition() {
    for form in forms() {
        for width in [1, 16, 37] {
            check(form, 2, width, 3);
        }
    }
}

#[test]
fn more_streams_than_a_block_has_rows_are_those_of_the_definition() {
    for form in forms().into_iter().filter(|form| form.kind != MixingKind::Permutations) {
        check(form, 5, 8, 2);
    }
}

#[test]
fn several_partial_sums_are_those_of_the_definition() {
    for form in forms() {
        check(form, 2, 2, 2 * PART + 9);
    }
}

#[test]
fn buffers_are_wholly_written_when_they_are_used_again() {
    // The second pass finds the first one's buffers; in tests they come back as NaN.
    let form = MixingForm::from(MixingKind::Dynamic);
    let case = case(form, 3, 7, 50);
    let run = || {
        let mut stream = stream(form, 3, 7, true);
        let outputs = case.forward(&mut stream);
        (outputs.concat(), case.backward(&mut stream).remove(0).write)
    };
    let (first, second) = (run(), run());
    assert_close(&second.0, &first.0, 1e-6);
    assert_close(&second.1, &first.1, 1e-5);
}

#[test]
fn the_laws_of_streams_hold() {
    for form in forms() {
        case(form, 4, 37, 2 * PART + 9).check_laws(|keep| stream(form, 4, 37, keep));
    }
}

#[test]
fn without_a_sub_layer_the_copies_are_summed() {
    let mut stream = Mixing::new(MixingKind::Dynamic, 3, 4, EPS, 0, true);
    let (write, gain) = (noise("write", 8), noise("gain", 4));
    let output = stream.forward(Arc::new(write.clone()), &gain);
    let mut want = Vec::new();
    for row in write.chunks(4) {
        let out: Vec<f64> = row.iter().map(|x| 3.0 * f64::from(*x)).collect();
        let gain: Vec<f64> = gain.iter().map(|x| f64::from(*x)).collect();
        want.extend(rms(&out, &gain, f64::from(EPS)).iter().map(|x| *x as f32));
    }
    assert_close(&output, &want, 1e-6);
    let gradient = stream.backward(&[1.0; 8], &gain);
    assert_eq!((gradient.write.len(), gradient.params.len()), (8, 4));
    assert!(gradient.write.iter().all(|x| x.is_finite()));
}

/// The weights that a site with these mixing logits finds, and the gradient of the logits for one of
/// `d_res`.
fn site_of_logits(
    form: impl Into<MixingForm>,
    n: usize,
    logits: &[f32],
    d_res: &[f32],
) -> (Vec<f32>, Vec<f32>) {
    let shape = Shape::of_site(form.into(), n, 1);
    let mut bias = vec![0.0; 2 * n];
    bias.extend_from_slice(logits);
    let zeros = vec![0.0; shape.logits()];
    let mut found = vec![0.0; shape.weights()];
    weights::find(&shape, &mut found, &zeros, &bias, &mut Vec::new());
    let res = |matrix: &[f32]| -> Vec<f32> {
        matrix.chunks(n + 1).take(n).flat_map(|row| row[..n].to_vec()).collect()
    };
    let mut d_found = vec![0.0; shape.weights()];
    for (row, d) in d_found.chunks_mut(n + 1).zip(d_res.chunks(n)) {
        row[..n].copy_from_slice(d);
    }
    let (mut d_logits, mut d_bias) = (zeros.clone(), zeros.clone());
    weights::find_backward(&shape, &mut d_logits, &mut d_bias, &d_found, &zeros, &bias);
    assert_close(&d_bias, &d_logits, 1e-6);
    (res(&found), d_logits.split_off(2 * n))
}

#[test]
fn many_rounds_agree_with_logarithms() {
    let kind = MixingKind::Sinkhorn { iterations: 20 };
    for (n, size) in [(2, 8.0), (4, 1.0), (4, 8.0), (8, 4.0), (4, 30.0)] {
        let logits: Vec<f32> = noise("logits", n * n).iter().map(|x| size * x).collect();
        let d_res = noise("gradient", n * n);
        let (res, d_logits) = site_of_logits(kind, n, &logits, &d_res);
        let loss = |logits: &[f64]| -> (Vec<f32>, f64) {
            let res = log_sinkhorn(logits, n, 20).concat();
            let loss = res.iter().zip(&d_res).map(|(r, d)| r * f64::from(*d)).sum();
            (res.iter().map(|r| *r as f32).collect(), loss)
        };
        let wide: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
        assert_close(&res, &loss(&wide).0, 1e-5);
        let slope = |k: usize| {
            let at = |step: f64| {
                let mut moved = wide.clone();
                moved[k] += step;
                loss(&moved).1
            };
            ((at(1e-5) - at(-1e-5)) / 2e-5) as f32
        };
        assert_close(&d_logits, &(0..n * n).map(slope).collect::<Vec<_>>(), 1e-4);
    }
}

#[test]
fn huge_logits_stay_finite() {
    for (logits, want) in [
        ([1000.0, -1000.0, -1000.0, 1000.0], Some([1.0, 0.0, 0.0, 1.0])),
        ([80.0, 80.0, -80.0, -80.0], Some([0.5; 4])),
        ([1000.0, 1000.0, 1000.0, 1000.0], Some([0.5; 4])),
        ([1000.0, 1000.0, -1000.0, 0.0], None),
        ([1000.0, -1000.0, 1000.0, -1000.0], Some([0.5; 4])),
    ] {
        let kind = MixingKind::Sinkhorn { iterations: 20 };
        let (res, d_logits) = site_of_logits(kind, 2, &logits, &[1.0, -2.0, 3.0, 0.5]);
        assert!(res.iter().chain(&d_logits).all(|x| x.is_finite()), "{res:?} {d_logits:?}");
        assert_close(&[res[0] + res[1], res[2] + res[3]], &[1.0; 2], 1e-6);
        if let Some(want) = want {
            assert_close(&res, &want, 1e-6);
        }
    }
    let logits = [1000.0, -1000.0];
    let (res, d_logits) = site_of_logits(MixingKind::Permutations, 2, &logits, &[1.0; 4]);
    assert_close(&res, &[1.0, 0.0, 0.0, 1.0], 1e-6);
    assert!(d_logits.iter().all(|x| x.is_finite()));
}

/// The spec's logits [[1, 0], [-1, 2]]: diagonal and off-diagonal.
#[test]
fn sinkhorn_with_an_epsilon_gives_the_numbers_of_the_spec() {
    for (iterations, epsilon, diagonal, elsewhere) in [
        (1, 0.0, 0.880_797_1, 0.119_202_92),
        (1, 0.01, 0.864_851_53, 0.125_439_73),
        (3, 0.01, 0.864_597_16, 0.125_402_84),
        (20, 1e-6, 0.880_795_4, 0.119_203_56),
    ] {
        let kind = MixingKind::Sinkhorn { iterations };
        let form = MixingForm { gates: MixingGates { epsilon, ..GATES }, ..kind.into() };
        let (res, _) = site_of_logits(form, 2, &[1.0, 0.0, -1.0, 2.0], &[0.0; 4]);
        assert_close(&res, &[diagonal, elsewhere, elsewhere, diagonal], 5e-7);
    }
}

#[test]
fn without_a_sub_layer_the_forms_read_what_streams_start_with() {
    let (write, d_output) = (noise("write", 8), noise("gradient", 8));
    for form in forms().into_iter().filter(|form| form.stream_scale) {
        let stream = || Mixing::new(form, 3, 4, EPS, 0, true);
        let params: Vec<f32> =
            noise("params", stream().params(0)).iter().map(|p| 1.0 + 0.4 * p).collect();
        let case = Case {
            tokens: 2,
            width: 4,
            writes: vec![write.clone()],
            params: vec![params],
            d_outputs: vec![d_output.clone()],
        };
        case.check(stream(), &|writes, params| reference(form, 3, writes, params));
    }
}

#[test]
fn a_row_far_below_the_others_still_has_a_gradient() {
    // Only its own elements compete in it: d res_10 / d logit_10 is that of a softmax of two, halved by
    // the columns' share.
    let kind = MixingKind::Sinkhorn { iterations: 20 };
    let gradient =
        |low: f32| site_of_logits(kind, 2, &[0.0, 0.0, low, low], &[0.0, 0.0, 1.0, 0.0]).1[2];
    assert_close(&[gradient(-160.0)], &[gradient(-60.0)], 1e-4);
    assert!(gradient(-160.0) > 0.1);
}

#[test]
fn one_token_at_a_time_gets_the_same_outputs() {
    for form in forms() {
        for n in [1, 3, 4] {
            case(form, n, 37, 3).check_decode(|| stream(form, n, 37, false));
        }
    }
}
