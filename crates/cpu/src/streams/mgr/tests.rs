//! Against a plain f64 reference, and the oracles G1 to G11 of Multi-Gate Residuals.

mod reference;
mod sizes;
mod skipping;

use super::layout::Numbers;
use super::saved::{Quota, Writes};
use super::*;
use crate::streams::{Gradient, Stream};
use reference::{Chain, JunctionParams, Random, dot, narrow};

const GATES: [Gate; 2] = [Gate::Independent, Gate::Competitive];
const INVERSION: Memory = Memory::Inversion { share: 0.01 };

fn settings(width: usize, streams: usize, gate: Gate) -> Settings {
    Settings { width, eps: 1e-6, streams, gate, memory: INVERSION, skip: None }
}

/// What the kernel makes of a chain: outputs, and the gradients of `sum_k forms_k . output_k`.
struct Run {
    outputs: Vec<Vec<f32>>,
    gradients: Vec<Gradient>,
    /// The stream that is left after the backward pass, `[tokens, width]`.
    first_stream: Vec<f32>,
}

fn forward(chain: &Chain, keep: bool) -> (Mgr, Vec<Vec<f32>>) {
    let mut mgr = Mgr::new(chain.settings.clone(), chain.junctions.len(), keep);
    let outputs = chain.rows().into_iter().zip(chain.params());
    let outputs = outputs.map(|(write, params)| mgr.forward(write, &params)).collect();
    (mgr, outputs)
}

fn run(chain: &Chain, forms: &[Vec<f64>]) -> Run {
    let (mut mgr, outputs) = forward(chain, true);
    let back = forms.iter().zip(chain.params()).rev();
    let mut gradients: Vec<_> =
        back.map(|(form, params)| mgr.backward(&narrow(form), &params)).collect();
    gradients.reverse();
    let slots = mgr.policy.shape.slots * mgr.policy.shape.width;
    let first = |streams: &[f32]| streams[..mgr.policy.shape.width].to_vec();
    let first_stream = mgr.state[0].chunks_exact(slots).flat_map(first).collect();
    Run { outputs, gradients, first_stream }
}

fn forms(chain: &Chain) -> Vec<Vec<f64>> {
    let mut random = Random(99);
    let form = |write: &Vec<f64>| write.iter().map(|_| random.normal() as f32 as f64).collect();
    chain.writes.iter().map(form).collect()
}

/// By how much the two differ, compared to the length of the second.
fn error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let square = |x: f64| x * x;
    let difference = got.iter().zip(want).map(|(a, b)| square(f64::from(*a) - f64::from(*b)));
    let length = want.iter().map(|b| square(f64::from(*b))).sum::<f64>();
    let error = (difference.sum::<f64>() / length.max(1e-30)).sqrt();
    assert!(error.is_finite(), "{got:?} is not {want:?}");
    error
}

/// The largest error of any gradient.
fn gradient_error(got: &Run, want: &Run) -> f64 {
    let pairs = got.gradients.iter().zip(&want.gradients);
    pairs
        .map(|(a, b)| error(&a.write, &b.write).max(error(&a.params, &b.params)))
        .fold(0.0, f64::max)
}

#[track_caller]
fn assert_near(got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let distance = (f64::from(*got) - want).abs();
        assert!(distance <= tolerance * want.abs().max(1.0), "element {i}: {got} is not {want}");
    }
}

#[test]
fn outputs_are_those_of_the_reference() {
    for gate in GATES {
        for streams in [1, 2, 3, 4, 5, 8, 20] {
            for (width, tokens) in [(1, 2), (5, 3), (37, 70), (64, 33)] {
                let chain = Chain::random(settings(width, streams, gate), 11, tokens, 1);
                let (_, outputs) = forward(&chain, true);
                for (got, want) in outputs.iter().zip(chain.outputs()) {
                    assert_near(got, &want, 2e-5);
                }
            }
        }
    }
}

#[test]
fn every_gradient_agrees_with_central_differences() {
    const STEP: f64 = 1e-5;
    for gate in GATES {
        for (streams, memory) in
            [(1, INVERSION), (3, INVERSION), (3, Memory::Exact), (9, INVERSION)]
        {
            let settings = Settings { memory, ..settings(5, streams, gate) };
            let chain = Chain::random(settings, 7, 2, 2);
            let forms = forms(&chain);
            let got = run(&chain, &forms);
            let slope = |nudge: &dyn Fn(&mut Chain, f64)| {
                let at = |step: f64| {
                    let mut chain = chain.clone();
                    nudge(&mut chain, step);
                    chain.loss(&forms)
                };
                (at(STEP) - at(-STEP)) / (2.0 * STEP)
            };
            for (k, got) in got.gradients.iter().enumerate() {
                let writes: Vec<f64> =
                    (0..10).map(|i| slope(&|c, step| c.writes[k][i] += step)).collect();
                assert_near(&got.write, &writes, 1e-4);
                let along = |i: usize| {
                    slope(&|c, step| {
                        *c.junctions[k].parts_mut().into_iter().flatten().nth(i).unwrap() += step
                    })
                };
                let params: Vec<f64> = (0..got.params.len()).map(along).collect();
                assert_near(&got.params, &params, 1e-4);
            }
        }
    }
}

#[test]
fn gradients_over_several_tiles_agree_with_differences_along_random_directions() {
    const STEP: f64 = 1e-6;
    for (gate, streams, width) in [
        (GATES[0], 4, 37),
        (GATES[1], 8, 37),
        (GATES[1], 2, 64),
        (GATES[0], 1, 35),
        (GATES[1], 30, 9),
    ] {
        let chain = Chain::random(settings(width, streams, gate), 12, 70, 3);
        let forms = forms(&chain);
        let got = run(&chain, &forms);
        let mut random = Random(4);
        let wide = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        for (k, got) in got.gradients.iter().enumerate() {
            let direction: Vec<f64> = got.write.iter().map(|_| random.normal()).collect();
            let at = |step: f64| {
                let mut chain = chain.clone();
                for (w, d) in chain.writes[k].iter_mut().zip(&direction) {
                    *w += step * d;
                }
                chain.loss(&forms)
            };
            let slope = (at(STEP) - at(-STEP)) / (2.0 * STEP);
            let length = dot(&wide(&got.write), &wide(&got.write)).sqrt();
            assert!(
                (dot(&wide(&got.write), &direction) - slope).abs() < 1e-4 * length,
                "write {k}"
            );

            let direction: Vec<f64> = got.params.iter().map(|_| random.normal()).collect();
            let at = |step: f64| {
                let mut chain = chain.clone();
                let params = chain.junctions[k].parts_mut().into_iter().flatten();
                params.zip(&direction).for_each(|(p, d)| *p += step * d);
                chain.loss(&forms)
            };
            let slope = (at(STEP) - at(-STEP)) / (2.0 * STEP);
            let length = dot(&wide(&got.params), &wide(&got.params)).sqrt();
            assert!(
                (dot(&wide(&got.params), &direction) - slope).abs() < 1e-4 * length,
                "params {k}"
            );
        }
    }
}

#[test]
fn without_a_backward_pass_nothing_is_kept_and_outputs_are_the_same() {
    let chain = Chain::random(settings(37, 4, Gate::Competitive), 9, 70, 5);
    let ((kept, with), (bare, without)) = (forward(&chain, true), forward(&chain, false));
    assert_eq!(with, without);
    assert_eq!((kept.levels.len(), bare.levels.len()), (9, 1));
    assert!(bare.levels[0].kept.iter().all(|saved| saved.iter(37).count() == 0));
}

#[test]
fn the_laws_of_streams_hold() {
    // Gates are about 0.05, so that some tokens skip.
    let threshold = Skip { shrink: 0.5, ..Skip::hard(vec![0.088; 7]) };
    for gate in GATES {
        for (streams, skip) in [(1, None), (3, None), (20, None), (3, Some(threshold.clone()))] {
            let settings = Settings { skip, ..settings(37, streams, gate) };
            let chain = Chain::random(settings.clone(), 8, 70, 21);
            chain.case().check_laws(|keep| Mgr::new(settings.clone(), 8, keep));
        }
    }
}

#[test]
fn what_is_not_a_number_stays_with_its_token() {
    for gate in GATES {
        for bad in [f64::NAN, f64::INFINITY] {
            let clean = Chain::random(settings(12, 3, gate), 7, 40, 8);
            let forms = forms(&clean);
            let mut chain = clean.clone();
            chain.writes[4][35 * 12 + 7] = bad;
            let (clean, got) = (run(&clean, &forms), run(&chain, &forms));
            for k in 0..7 {
                let before = 0..35 * 12;
                assert_eq!(got.outputs[k][before.clone()], clean.outputs[k][before.clone()]);
                let write = |run: &Run| run.gradients[k].write[before.clone()].to_vec();
                // Which rows are saved in the token's tile may differ, so not to the last bit.
                assert!(error(&write(&got), &write(&clean)) < 1e-6);
                let output = &got.outputs[k][35 * 12..36 * 12];
                assert_eq!(
                    output.iter().all(|x| !x.is_finite()),
                    k >= 4,
                    "junction {k}: {output:?}"
                );
            }
            assert!(got.gradients[5].params.iter().any(|x| x.is_nan()));
        }
    }
}

#[test]
fn inversion_agrees_with_copies_over_forty_junctions() {
    for gate in GATES {
        for streams in [1, 2, 4, 8, 50] {
            let inverted = Chain::random(settings(37, streams, gate), 40, 70, 9);
            let mut exact = inverted.clone();
            exact.settings.memory = Memory::Exact;
            let forms = forms(&exact);
            let (inverted, exact) = (run(&inverted, &forms), run(&exact, &forms));
            assert_eq!(inverted.outputs, exact.outputs);
            let error = gradient_error(&inverted, &exact);
            assert!(error < 1e-5, "{gate:?}, {streams} streams: {error}");
        }
    }
}

#[test]
fn saving_every_row_is_exact() {
    let mut chain = Chain::random(settings(37, 4, Gate::Competitive), 20, 70, 10);
    chain.settings.memory = Memory::Inversion { share: 1.0 };
    let forms = forms(&chain);
    let all = run(&chain, &forms);
    chain.settings.memory = Memory::Exact;
    let exact = run(&chain, &forms);
    assert_eq!(gradient_error(&all, &exact), 0.0);
    assert_eq!(all.first_stream, narrow(&chain.writes[0]));
}

#[test]
fn narrow_gates_can_be_undone_with_hardly_a_saved_row() {
    for gate in GATES {
        let mut chain = Chain::random(settings(64, 4, gate), 21, 33, 11);
        chain.settings.memory = Memory::Inversion { share: 0.0 };
        let (mgr, _) = forward(&chain, true);
        let saved = mgr.levels.iter().flat_map(|level| &level.kept);
        let rows: usize = saved.map(|saved| saved.iter(64).count()).sum();
        assert!(rows <= 2, "{rows} of 2244");
        let forms = forms(&chain);
        let inverted = run(&chain, &forms);
        assert!(error(&inverted.first_stream, &narrow(&chain.writes[0])) < 1e-6);
        chain.settings.memory = Memory::Exact;
        assert!(gradient_error(&inverted, &run(&chain, &forms)) < 1e-5);
    }
}

#[test]
fn gates_that_open_wide_are_undone_with_saved_rows() {
    for gate in GATES {
        for logit in [0.0, 3.0, 30.0, 90.0] {
            let mut chain = Chain::random(settings(37, 3, gate), 24, 70, 12);
            chain.settings.memory = Memory::Inversion { share: 0.0 };
            for (k, params) in chain.junctions.iter_mut().enumerate().skip(3) {
                let stream = k % 3 + usize::from(gate == Gate::Competitive);
                params.b[stream] = logit + if gate == Gate::Competitive { 3.0 } else { 0.0 };
            }
            let forms = forms(&chain);
            let inverted = run(&chain, &forms);
            chain.settings.memory = Memory::Exact;
            let error = gradient_error(&inverted, &run(&chain, &forms));
            assert!(error < 3e-5, "{gate:?} at {logit}: {error}");
        }
    }
}

#[test]
fn tiles_save_the_share_of_all_rows() {
    let chain = Chain::random(settings(5, 4, Gate::Competitive), 7, 300, 13);
    let (mgr, _) = forward(&chain, true);
    for (k, level) in mgr.levels.iter().enumerate() {
        let rows: usize = level.kept.iter().map(|saved| saved.iter(5).count()).sum();
        assert_eq!(rows, if k < 4 { 0 } else { 12 }, "junction {k}");
    }
}

#[test]
fn the_widest_gates_and_those_that_drifted_are_saved() {
    let gates = [0.1, 0.3, 0.2, 0.3, 0.0, 0.05];
    let streams = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let chosen = |quota, sizes: [f32; 3], drift: &mut [f32]| {
        // Two streams of three tokens, which all are of size one half.
        let writes = Writes { gates: &gates, inverse_rms: &[2.0; 6], sizes: &sizes };
        let saved = Saved::choose(quota, writes, drift, &streams, 1);
        saved.iter(1).map(|(row, values)| (row, values[0])).collect::<Vec<_>>()
    };
    let small = [0.5; 3];
    let mut drift = [0.0, 0.0, 0.0, 0.0, 0.0, 31.0];
    let four = [(1, 2.0), (2, 3.0), (3, 4.0), (5, 6.0)];
    assert_eq!(chosen(Quota::Widest(3), small, &mut drift), four);
    assert_eq!(drift, [2.0 / 0.9, 0.0, 0.0, 0.0, 2.0, 0.0]);
    assert_eq!(chosen(Quota::Widest(1), small, &mut [0.0; 6]), [(1, 2.0)]);
    assert_eq!(chosen(Quota::Everything, small, &mut [0.0; 6]).len(), 6);
    assert!(chosen(Quota::Widest(0), small, &mut [0.0; 6]).is_empty());
    // A drift that was small enough for a row as small as the earlier ones is too much for a larger one.
    assert_eq!(chosen(Quota::Widest(0), small, &mut [0.0, 0.0, 30.0, 0.0, 0.0, 0.0]), [(2, 3.0)]);
    // The first token's second stream grows by 0.3 * 40 / 0.7 / 0.5 times; the third token has a gate of 0.
    assert_eq!(chosen(Quota::Widest(0), [40.0, 0.5, 40.0], &mut [0.0; 6]), [(1, 2.0)]);
    assert_eq!(chosen(Quota::Widest(0), [f32::NAN, 0.5, 0.5], &mut [0.0; 6]).len(), 2);
}

/// A junction that gates, after streams were appended as they are.
fn one_write(gate: Gate, streams: &[&[f64]], f: &[f64], params: JunctionParams) -> Chain {
    let width = f.len();
    let plain = JunctionParams { gain: vec![1.0; width], ..Default::default() };
    let append = JunctionParams { w2: vec![0.0; width], ..plain.clone() };
    let mut junctions = vec![append; streams.len()];
    junctions[0] = plain;
    junctions.push(params);
    let writes = streams.iter().chain(&[f]).map(|write| write.to_vec()).collect();
    Chain { settings: settings(width, streams.len(), gate), writes, junctions }
}

#[test]
fn the_worked_case_gives_its_numbers() {
    let kappa = 0.5f64.sqrt();
    for (gate, b, beta, moved, h) in [
        (
            Gate::Competitive,
            vec![2.0, 0.1, -0.1],
            [0.11640968, 0.06969067],
            [0.94179516, 1.59256611, -0.89546399, 0.36061866],
            [-0.10566107, 0.89020954],
        ),
        (
            Gate::Independent,
            vec![-2.0, -1.5],
            [0.11458685, 0.13496312],
            [0.94270658, 1.59894604, -0.79755532, 0.23007376],
            [-0.03002320, 0.83380670],
        ),
    ] {
        let params = JunctionParams {
            w1: vec![0.3 * kappa, -0.2 * kappa],
            b,
            w2: vec![-0.4 * kappa, 0.6 * kappa],
            gain: vec![1.0, 2.0],
        };
        let chain = one_write(gate, &[&[1.0, 2.0], &[-1.0, 0.5]], &[0.5, -1.5], params);
        let (mut mgr, outputs) = forward(&chain, true);
        assert_near(&mgr.state[0], &moved, 1e-6);
        let r = 1.0 / ((h[0] * h[0] + h[1] * h[1]) / 2.0 + 1e-6f64).sqrt();
        assert_near(&outputs[2], &[h[0] * r, 2.0 * h[1] * r], 1e-6);
        let junction = mgr.policy.shape.junction(2);
        let numbers = Numbers::split(&mut mgr.levels[2].record[0], junction);
        assert_near(numbers.gate_scores, &[-0.04472135, -0.35777059], 1e-6);
        assert_near(numbers.gates, &beta, 1e-6);
    }
}

#[test]
fn zero_queries_open_all_gates_alike_and_read_the_mean() {
    let rows = [[1.0, 2.0, 3.0], [-1.0, 0.5, 4.0], [0.0, 1.0, -2.0], [2.0, 2.0, -1.0]];
    let streams: Vec<&[f64]> = rows.iter().map(|row| &row[..]).collect();
    // Of the paper's base model: 1/X with X = e^3 + 1, and as printed 1/(1 + X - n).
    let logit = 2.838232;
    for (gate, b, beta) in [
        (Gate::Competitive, vec![logit, 0.0, 0.0, 0.0, 0.0], 0.04742587),
        (Gate::Independent, vec![-logit; 4], 0.055293),
    ] {
        let (w1, w2) = (vec![0.0; 3], vec![0.0; 3]);
        let params = JunctionParams { w1, b, w2, gain: vec![1.0; 3] };
        let f = [1.0, -3.0, 2.0];
        let chain = one_write(gate, &streams, &f, params);
        let (mut mgr, outputs) = forward(&chain, true);
        let numbers = Numbers::split(&mut mgr.levels[4].record[0], mgr.policy.shape.junction(4));
        assert_near(numbers.gates, &[beta; 4], 1e-6);
        let mean = |j: usize| rows.iter().map(|row| row[j]).sum::<f64>() / 4.0;
        let h: Vec<f64> = (0..3).map(|j| mean(j) + beta * (f[j] - mean(j))).collect();
        let r = 1.0 / (dot(&h, &h) / 3.0 + 1e-6).sqrt();
        assert_near(&outputs[4], &h.iter().map(|h| h * r).collect::<Vec<_>>(), 1e-5);
    }
}

#[test]
fn closed_gates_leave_the_streams_as_they_are() {
    for gate in GATES {
        let mut chain = Chain::random(settings(16, 4, gate), 9, 33, 14);
        for params in &mut chain.junctions[4..] {
            match gate {
                Gate::Independent => params.b.fill(-80.0),
                Gate::Competitive => params.b[0] = 200.0,
            }
        }
        let (mgr, _) = forward(&chain, true);
        let appended = &chain.writes[..4];
        for (token, streams) in mgr.state[0].chunks_exact(4 * 16).enumerate() {
            for (stream, write) in streams.chunks_exact(16).zip(appended) {
                assert_eq!(stream, narrow(&write[token * 16..(token + 1) * 16]));
            }
        }
    }
}

#[test]
fn no_stream_outgrows_the_largest_write() {
    for gate in GATES {
        let mut chain = Chain::random(settings(16, 4, gate), 20, 33, 15);
        for params in &mut chain.junctions[4..] {
            params.b[0] = 0.0;
        }
        let (mgr, _) = forward(&chain, true);
        let length = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>().sqrt();
        for (token, streams) in mgr.state[0].chunks_exact(4 * 16).enumerate() {
            let writes = chain.rows();
            let writes = writes.iter().map(|w| length(&w.values()[token * 16..(token + 1) * 16]));
            let largest = writes.fold(0.0, f32::max);
            assert!(streams.chunks_exact(16).all(|s| length(s) <= largest * (1.0 + 1e-5)));
        }
    }
}

#[test]
fn the_order_of_streams_does_not_matter() {
    for gate in GATES {
        let chain = Chain::random(settings(16, 4, gate), 9, 5, 16);
        let mut turned = chain.clone();
        turned.writes[..4].rotate_left(1);
        for params in &mut turned.junctions[4..] {
            let first = params.b.len() - 4;
            params.b[first..].rotate_left(1);
        }
        let ((_, outputs), (_, turned)) = (forward(&chain, true), forward(&turned, true));
        for k in 4..9 {
            assert!(error(&turned[k], &outputs[k]) < 1e-6);
        }
    }
}

#[test]
fn a_token_is_outputed_the_same_alone_and_among_others() {
    let chain = Chain::random(settings(37, 4, Gate::Competitive), 9, 70, 17);
    let (_, outputs) = forward(&chain, false);
    let alone = Chain {
        writes: chain.writes.iter().map(|write| write[66 * 37..67 * 37].to_vec()).collect(),
        ..chain
    };
    let (_, alone) = forward(&alone, false);
    for (outputs, alone) in outputs.iter().zip(alone) {
        assert_eq!(outputs[66 * 37..67 * 37], alone);
    }
}

#[test]
fn a_junction_says_how_many_parameters_it_takes() {
    for gate in GATES {
        let chain = Chain::random(settings(5, 3, gate), 6, 1, 18);
        let mgr = Mgr::new(chain.settings.clone(), 6, true);
        for (k, params) in chain.params().iter().enumerate() {
            assert_eq!(mgr.params(k), params.len(), "junction {k}");
        }
    }
}
