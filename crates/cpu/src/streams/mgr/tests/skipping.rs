//! Skipped sites: against the reference, and what skipped tokens must not do to others.

use super::*;

const JUNCTIONS: usize = 8;
const WIDTH: usize = 5;
const STREAMS: usize = 3;
const MEMORIES: [Memory; 3] = [INVERSION, Memory::Exact, Memory::Inversion { share: 0.0 }];

fn hard(threshold: f32) -> Skip {
    Skip::hard(vec![threshold; JUNCTIONS - 1])
}

/// Some tokens, of which some skip: gates are about 0.05.
fn chain(gate: Gate, tokens: usize, skip: Option<Skip>) -> Chain {
    let settings = Settings { skip, ..settings(WIDTH, STREAMS, gate) };
    Chain::random(settings, JUNCTIONS, tokens, 21)
}

/// About half of the tokens of [`chain`] have a widest gate that is smaller.
const THRESHOLD: f32 = 0.088;

/// Which tokens run each site.
fn decisions(chain: &Chain) -> Vec<Vec<bool>> {
    let mut mgr = Mgr::new(chain.settings.clone(), JUNCTIONS, false);
    let all = || vec![true; chain.tokens()];
    let inputs = chain.rows().into_iter().zip(chain.params());
    let mut ran: Vec<_> = inputs
        .map(|(write, params)| {
            mgr.forward(write, &params);
            mgr.route().map_or_else(all, |route| route.decisions())
        })
        .collect();
    assert_eq!(ran.pop(), Some(all()), "there is no site after the last junction");
    ran
}

/// The same chain with the rows of these tokens only, in this order.
fn only(chain: &Chain, tokens: &[usize]) -> Chain {
    let pick = |rows: &Vec<f64>| {
        let row = |&token: &usize| rows[token * WIDTH..(token + 1) * WIDTH].to_vec();
        tokens.iter().flat_map(row).collect()
    };
    Chain { writes: chain.writes.iter().map(pick).collect(), ..chain.clone() }
}

/// How many parameters a junction has that do more than decide.
fn own(chain: &Chain, junction: usize) -> usize {
    let JunctionParams { w1, b, w2, gain } = &chain.junctions[junction];
    [w1, b, w2, gain].map(Vec::len).iter().sum()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Everything that comes out, to the bit, without the gradient of what only decides.
fn outcome(chain: &Chain) -> Vec<Vec<u32>> {
    let run = run(chain, &forms(chain));
    let gradients = run.gradients.iter().enumerate().flat_map(|(k, d)| {
        let count = own(chain, k);
        assert!(d.params[count..].iter().all(|&d| d == 0.0));
        [bits(&d.write), bits(&d.params[..count])]
    });
    run.outputs.iter().map(|output| bits(output)).chain(gradients).collect()
}

#[test]
fn outputs_and_gradients_agree_with_the_reference_where_some_skip() {
    const STEP: f64 = 1e-5;
    for (gate, shrink) in GATES.iter().flat_map(|&gate| [0.0, 0.5, 1.0].map(|s| (gate, s))) {
        let mut chain = chain(gate, 6, Some(Skip { shrink, ..hard(THRESHOLD) }));
        let threshold = f64::from(THRESHOLD);
        let (mut running, mut skipping) = (0, 0);
        let ran = decisions(&chain);
        for token in 0..chain.tokens() {
            let seen = chain.traverse(token);
            for (k, gates) in seen.gates.iter().enumerate().skip(STREAMS) {
                let widest = gates.iter().copied().fold(0.0, f64::max);
                assert!((widest - threshold).abs() > 5e-6, "differences would step over it");
                let runs = &ran[k - 1];
                assert_eq!(runs[token], widest > threshold);
                if widest > threshold { running += 1 } else { skipping += 1 }
            }
        }
        assert!(running > 5 && skipping > 5, "{running} run, {skipping} skip");
        for memory in MEMORIES {
            chain.settings.memory = memory;
            let forms = forms(&chain);
            let got = run(&chain, &forms);
            for (got, want) in got.outputs.iter().zip(chain.outputs()) {
                assert_near(got, &want, 2e-5);
            }
            let slope = |nudge: &dyn Fn(&mut Chain, f64)| {
                let at = |step: f64| {
                    let mut chain = chain.clone();
                    nudge(&mut chain, step);
                    chain.loss(&forms)
                };
                (at(STEP) - at(-STEP)) / (2.0 * STEP)
            };
            for (k, got) in got.gradients.iter().enumerate() {
                let along = |i: usize| slope(&|c, step| c.writes[k][i] += step);
                let writes: Vec<f64> = (0..got.write.len()).map(along).collect();
                assert_near(&got.write, &writes, 1e-4);
                let own = own(&chain, k);
                let along = |i: usize| {
                    slope(&|c, step| {
                        *c.junctions[k].parts_mut().into_iter().flatten().nth(i).unwrap() += step
                    })
                };
                let params: Vec<f64> = (0..own).map(along).collect();
                assert_near(&got.params[..own], &params, 1e-4);
                assert!(got.params[own..].iter().all(|&d| d == 0.0), "what only decides");
            }
        }
    }
}

#[test]
fn thresholds_of_zero_change_no_bit() {
    for (gate, memory) in GATES.iter().flat_map(|&gate| MEMORIES.map(|memory| (gate, memory))) {
        let mut dense = chain(gate, 70, None);
        dense.settings.memory = memory;
        let mut skipping = dense.clone();
        skipping.settings.skip = Some(Skip { shrink: 1.0, ..hard(0.0) });
        assert_eq!(outcome(&skipping), outcome(&dense));
        assert!(decisions(&skipping).iter().flatten().all(|&runs| runs));
    }
}

#[test]
fn who_skips_everything_keeps_the_streams_that_were_filled() {
    for gate in GATES {
        let chain = chain(gate, 40, Some(hard(9.0)));
        let ran = decisions(&chain);
        for (site, ran) in ran.iter().enumerate() {
            let fills = site + 1 < STREAMS;
            assert!(ran.iter().all(|&runs| runs == fills), "site {site}");
        }
        let (mgr, _) = forward(&chain, true);
        for (token, streams) in mgr.state[0].chunks_exact(STREAMS * WIDTH).enumerate() {
            for (stream, write) in streams.chunks_exact(WIDTH).zip(&chain.writes) {
                let row = narrow(&write[token * WIDTH..(token + 1) * WIDTH]);
                assert_eq!(bits(stream), bits(&row));
            }
        }
    }
}

#[test]
fn streams_that_are_never_full_are_never_skipped() {
    let settings = Settings { skip: Some(Skip::hard(vec![9.0; 3])), ..settings(5, 4, GATES[0]) };
    let chain = Chain::random(settings, 4, 3, 22);
    let mut dense = chain.clone();
    dense.settings.skip = None;
    assert_eq!(chain.params(), dense.params());
    assert_eq!(forward(&chain, false).1, forward(&dense, false).1);
}

#[test]
fn a_skip_costs_each_stream_its_gate_times_the_way_to_the_write() {
    let streams: [&[f64]; 2] = [&[1.0, 2.0, -1.0], &[-1.0, 0.5, 3.0]];
    let f = [0.5, -1.5, 2.0];
    for gate in GATES {
        let b = if gate == Gate::Competitive { vec![2.0, 0.1, -0.1] } else { vec![-2.0, -1.5] };
        let (w1, w2) = (vec![0.3, -0.2, 0.1], vec![-0.4, 0.6, 0.2]);
        let params = JunctionParams { w1, b, w2, gain: vec![1.0; 3] };
        let dense = one_write(gate, &streams, &f, params);
        let mut skipping = dense.clone();
        skipping.settings.skip = Some(Skip::hard(vec![0.0, 0.5]));
        let gates = &dense.traverse(0).gates[2];
        let (moved, stayed) = (
            forward(&dense, false).0.state[0].clone(),
            forward(&skipping, false).0.state[0].clone(),
        );
        for (i, (moved, stayed)) in moved.chunks(3).zip(stayed.chunks(3)).enumerate() {
            assert_eq!(stayed, narrow(streams[i]));
            let length = |x: &dyn Fn(usize) -> f64| (0..3).map(|j| x(j) * x(j)).sum::<f64>().sqrt();
            let lost = length(&|j| f64::from(moved[j]) - f64::from(stayed[j]));
            let bound = gates[i] * length(&|j| f[j] - streams[i][j]);
            assert!((lost / bound - 1.0).abs() < 1e-5, "stream {i}: {lost} is not {bound}");
        }
    }
}

#[test]
fn the_forced_write_with_all_of_their_gates() {
    for gate in GATES {
        let dense = chain(gate, 70, None);
        let mut forced = dense.clone();
        let share = vec![1.0; JUNCTIONS - 1];
        forced.settings.skip = Some(Skip { forced: share, shrink: 1.0, ..hard(9.0) });
        assert_eq!(outcome(&forced), outcome(&dense));

        let mut share = vec![0.0; JUNCTIONS - 1];
        share[STREAMS - 1] = 0.5;
        let skip = Skip { forced: share, seed: 5, ..hard(9.0) };
        forced.settings.skip = Some(skip.clone());
        let ran = decisions(&forced);
        let asked = (0..70).map(|token| skip.runs(STREAMS - 1, token, 0.0)).collect::<Vec<_>>();
        assert_eq!(ran[STREAMS - 1], asked);
        let running = ran[STREAMS - 1].iter().filter(|&&runs| runs).count();
        assert!(running > 15 && running < 55, "{running} of 70");
        let (dense, forced) = (forward(&dense, false).1, forward(&forced, false).1);
        for (token, &runs) in ran[STREAMS - 1].iter().enumerate() {
            let row = token * WIDTH..(token + 1) * WIDTH;
            assert_eq!(forced[STREAMS][row.clone()] == dense[STREAMS][row], runs);
        }
    }
}

#[test]
fn writes_of_the_skipped_are_not_looked_at_and_get_nothing_back() {
    for (gate, memory) in GATES.iter().flat_map(|&gate| MEMORIES.map(|memory| (gate, memory))) {
        let mut clean = chain(gate, 70, Some(Skip { shrink: 1.0, ..hard(THRESHOLD) }));
        clean.settings.memory = memory;
        let ran = decisions(&clean);
        let mut spoilt = clean.clone();
        for (site, ran) in ran.iter().enumerate() {
            for token in (0..70).filter(|&token| !ran[token]) {
                spoilt.writes[site + 1][token * WIDTH..(token + 1) * WIDTH].fill(f64::NAN);
            }
        }
        assert_eq!(outcome(&spoilt), outcome(&clean));
        let gradients = run(&spoilt, &forms(&spoilt)).gradients;
        for (site, ran) in ran.iter().enumerate() {
            for (row, runs) in gradients[site + 1].write.chunks(WIDTH).zip(ran) {
                assert_eq!(row.iter().any(|&d| d != 0.0), *runs);
            }
        }
    }
}

#[test]
fn a_site_that_nobody_runs_gives_its_gate_nothing() {
    for gate in GATES {
        let mut skip = hard(0.0);
        skip.thresholds[4] = 9.0;
        let chain = chain(gate, 40, Some(skip));
        let gradients = run(&chain, &forms(&chain)).gradients;
        let gate = |k: usize| {
            let count = chain.junctions[k].w1.len() + chain.junctions[k].b.len();
            gradients[k].params[..count].iter().any(|&d| d != 0.0)
        };
        assert_eq!([4, 5, 6].map(gate), [true, false, true]);
    }
}

#[test]
fn inversion_agrees_with_copies_where_many_skip() {
    for (gate, shrink) in [(GATES[0], 1.0), (GATES[1], 0.0)] {
        let skip = Skip { shrink, ..Skip::hard(vec![0.07; 39]) };
        let settings = Settings { skip: Some(skip), ..settings(37, 4, gate) };
        let mut chain = Chain::random(settings, 40, 70, 23);
        let forms = forms(&chain);
        let inverted = run(&chain, &forms);
        chain.settings.memory = Memory::Exact;
        let exact = run(&chain, &forms);
        assert_eq!(inverted.outputs, exact.outputs);
        let error = gradient_error(&inverted, &exact);
        assert!(error < 1e-5, "{gate:?}: {error}");
        assert_eq!(exact.first_stream, narrow(&chain.writes[0]));
    }
}

#[test]
fn neither_order_nor_company_changes_a_decision() {
    for gate in GATES {
        let all = chain(gate, 70, Some(hard(THRESHOLD)));
        let ran = decisions(&all);
        assert!(ran[STREAMS].contains(&true) && ran[STREAMS].contains(&false));
        let backwards: Vec<usize> = (0..70).rev().collect();
        for tokens in [&backwards[..], &[66, 3], &[33], &[69]] {
            let some = decisions(&only(&all, tokens));
            for (some, all) in some.iter().zip(&ran) {
                let want: Vec<bool> = tokens.iter().map(|&token| all[token]).collect();
                assert_eq!(*some, want);
            }
        }
    }
}

#[test]
fn a_junction_that_decides_takes_the_gate_of_the_next_one() {
    for gate in GATES {
        let chain = chain(gate, 1, Some(hard(0.1)));
        let mgr = Mgr::new(chain.settings.clone(), JUNCTIONS, true);
        let (width, biases) = (WIDTH, STREAMS + usize::from(gate == Gate::Competitive));
        for (k, params) in chain.params().iter().enumerate() {
            assert_eq!(mgr.params(k), params.len(), "junction {k}");
            let next = if (STREAMS - 1..JUNCTIONS - 1).contains(&k) { width + biases } else { 0 };
            assert_eq!(params.len(), own(&chain, k) + next, "junction {k}");
        }
    }
}
