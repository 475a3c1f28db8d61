//! Whatever lengths safe functions are given, they answer with numbers that were computed, or not at all.

use hadal_cpu::Precision::F32;
use hadal_cpu::attention::{self, HeadNorms, Shape, Slots};
use hadal_cpu::linear::{self, Weight};
use hadal_cpu::mlp::{self, Mlp};
use hadal_cpu::muon::{Muon, Polynomials};
use hadal_cpu::streams::{
    Additive, AdditiveStep, AttnRes, AttnResJunction, Mixing, MixingKind, Nag, Siamese, Stream, mgr,
};
use hadal_cpu::{Route, loss, norm};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

#[track_caller]
fn refused<R>(name: &str, call: impl FnOnce() -> R) {
    assert!(catch_unwind(AssertUnwindSafe(call)).is_err(), "{name} was answered");
}

fn ones(count: usize) -> Vec<f32> {
    vec![1.0; count]
}

#[test]
fn no_tokens_give_gradients_of_zero() {
    let weights = ones(20 * 5);
    let gradient = linear::backward(&[], &[], 5, &[Weight::new(&weights, 5)], F32);
    assert_eq!(gradient.weights, [vec![0.0; 100]]);
    for gate in [None, Some(weights.as_slice())] {
        let mlp = Mlp { width: 5, hidden: 20, up: &weights, gate, down: &weights };
        let output = mlp::forward(&[], &mlp, F32);
        let gradient = mlp::backward(&[], &[], &output.hidden, &output.gate, &mlp, F32);
        assert_eq!([gradient.up, gradient.down], [vec![0.0; 100], vec![0.0; 100]]);
    }
    let loss = loss::cross_entropy(&[], &weights, 5, &[], &[], true, F32);
    assert_eq!((loss.value, loss.head), (0.0, vec![0.0; 100]));
}

#[test]
fn a_network_without_hidden_values_gives_zero() {
    let mlp = Mlp { width: 5, hidden: 0, up: &[], gate: None, down: &[] };
    for tokens in [3, 30] {
        let x = ones(5 * tokens);
        let answer = catch_unwind(|| mlp::forward(&x, &mlp, F32).y);
        assert!(answer.is_err() || answer.is_ok_and(|y| y.iter().all(|&y| y == 0.0)));
    }
}

#[test]
fn norms_refuse_parts_of_rows() {
    refused("a part of a row", || norm::forward(&ones(7), &ones(5), 1e-6));
    refused("no width", || norm::forward(&[], &[], 1e-6));
    refused("a part of a gradient", || norm::backward(&ones(5), &ones(10), &ones(5), 1e-6));
    refused("a part of a row, on the way back", || {
        norm::backward(&ones(7), &ones(7), &ones(5), 1e-6)
    });
}

#[test]
fn products_refuse_parts_of_rows_and_of_weights() {
    let weights = ones(16 * 5);
    let weight = [Weight::new(&weights, 5)];
    let short = [Weight { values: &weights[5..], out: 16 }];
    for tokens in [1, 20] {
        let x = ones(tokens * 5 + 2);
        refused("a part of a row", || linear::forward(&x, 5, &weight, F32));
        refused("a part of a weight", || linear::forward(&x[2..], 5, &short, F32));
        let dy = ones(tokens * 16);
        refused("a part of a gradient", || linear::backward(&dy[1..], &x[2..], 5, &weight, F32));
        refused("a part of a row, on the way back", || linear::backward(&dy, &x, 5, &weight, F32));
    }
}

#[test]
fn networks_refuse_parts_of_rows_and_of_matrices() {
    let matrix = ones(20 * 5);
    let mlp = Mlp { width: 5, hidden: 20, up: &matrix, gate: None, down: &matrix };
    let x = ones(12 * 5);
    let output = mlp::forward(&x, &mlp, F32);
    let backward =
        |dy: &[f32], x: &[f32]| mlp::backward(dy, x, &output.hidden, &output.gate, &mlp, F32);
    refused("a part of a row", || mlp::forward(&x[1..], &mlp, F32));
    refused("a part of a matrix", || mlp::forward(&x, &Mlp { up: &matrix[5..], ..mlp }, F32));
    refused("a part of a gradient", || backward(&x[1..], &x));
    refused("more gradient than rows", || backward(&ones(13 * 5), &x));
    refused("a part of a row, on the way back", || backward(&x[1..], &x[1..]));
}

#[test]
fn losses_refuse_tokens_without_target_or_share() {
    let of = |hidden: usize, targets: usize, shares: usize| {
        let (hidden, head) = (ones(hidden), ones(7 * 4));
        loss::cross_entropy(&hidden, &head, 4, &vec![0; targets], &ones(shares), true, F32)
    };
    assert!(of(12, 3, 3).hidden.iter().all(|d| d.is_finite()));
    refused("fewer targets", || of(12, 2, 3));
    refused("fewer shares", || of(12, 3, 2));
    refused("a part of a row", || of(13, 3, 3));
}

#[test]
fn attention_refuses_heads_that_are_not_whole() {
    let table = ones(64);
    let shape = |heads, kv_heads, head_dim| Shape {
        time: 4,
        heads,
        kv_heads,
        head_dim,
        cos: &table,
        sin: &table,
        norms: None::<HeadNorms>,
        window: None,
    };
    let joined = ones(4 * 3 * 6 * 4);
    let forward = |count: usize, shape: &Shape| {
        attention::forward(&joined[..count], shape, &Slots::default(), F32).mixed
    };
    assert!(forward(4 * 8 * 4, &shape(4, 2, 4)).iter().all(|x| x.is_finite()));
    refused("heads that do not share", || forward(4 * 7 * 4, &shape(3, 2, 4)));
    refused("heads without halves", || forward(4 * 3 * 3, &shape(1, 1, 3)));
    refused("a part of a sequence", || forward(3 * 8 * 4, &shape(4, 2, 4)));
    refused("a part of a row", || forward(4 * 8 * 4 + 1, &shape(4, 2, 4)));
    let route = Route::of([true, false, true, true]).unwrap();
    refused("routed heads without halves", || {
        let (queries, key_values) = (ones(3 * 3), ones(3 * 6));
        let keys = attention::Keys::Running;
        let (shape, slots) = (shape(1, 1, 3), Slots::default());
        attention::forward_routed(&queries, &key_values, &shape, &slots, &route, keys, F32)
    });
    refused("rows of more tokens", || route.gather(&ones(12), 2));
    refused("rows of fewer tokens", || route.scatter(&ones(4), 2));
}

#[test]
fn optimisers_refuse_other_shapes() {
    let polynomials = Polynomials { margin: 1.0, coefficients: &[[3.0, -4.0, 1.9]] };
    refused("a part of a matrix", || polynomials.orthogonalise(ones(11), [3, 4]));
    refused("a part of a tall matrix", || polynomials.orthogonalise(ones(11), [4, 3]));
    let rule = Muon { momentum: 0.9, keep: 1.0, size: 0.1, polynomials };
    let step = |values: usize, first: usize, gradient: usize| {
        rule.step(&mut ones(values), &mut ones(first), &ones(gradient), [3, 4])
    };
    step(12, 12, 12);
    refused("fewer gradients", || step(12, 12, 11));
    refused("fewer means", || step(12, 11, 12));
    refused("fewer values", || step(11, 12, 12));
}

/// A stream of three junctions and width 4, and how many parameters each of them takes.
type Made = (Box<dyn Stream>, Vec<usize>);

/// A name, and what makes it.
type Maker = (&'static str, fn() -> Made);

fn streams() -> Vec<Maker> {
    fn carried(stream: impl Stream + 'static, params: impl Fn(usize) -> usize) -> Made {
        (Box::new(stream), (0..3).map(params).collect())
    }
    let additive = || {
        let step = AdditiveStep { pre: Some(1.0), ..AdditiveStep::default() };
        carried(Additive::new(4, 1e-6, vec![step; 3], true), |_| 4)
    };
    let siamese = || carried(Siamese::new(4, 1e-6, vec![1.0; 2], true), |_| 12);
    let nag = || {
        let stream = Nag::new(4, 2, 1, None, true);
        let params: Vec<_> = (0..3).map(|junction| stream.params(junction)).collect();
        carried(stream, |junction| params[junction])
    };
    let mgr = || {
        let (gate, memory) = (mgr::Gate::Independent, mgr::Memory::Inversion { share: 0.0 });
        let settings = mgr::Settings { width: 4, eps: 1e-6, streams: 2, gate, memory, skip: None };
        let stream = mgr::Mgr::new(settings, 3, true);
        let params: Vec<_> = (0..3).map(|junction| stream.params(junction)).collect();
        carried(stream, |junction| params[junction])
    };
    let mixing = || {
        let stream = Mixing::new(MixingKind::Sinkhorn { iterations: 2 }, 2, 4, 1e-6, 2, true);
        let params: Vec<_> = (0..3).map(|junction| stream.params(junction)).collect();
        carried(stream, |junction| params[junction])
    };
    let attnres = || {
        let junction = AttnResJunction { joins: false, query: true, apart: false };
        let first = AttnResJunction { joins: false, query: false, apart: false };
        let block = AttnResJunction { joins: true, query: true, apart: false };
        let junctions = vec![first, junction, block];
        carried(AttnRes::new(4, 1e-6, junctions, true), |at| if at == 0 { 4 } else { 8 })
    };
    vec![
        ("additive", additive),
        ("siamese", siamese),
        ("nag", nag),
        ("mgr", mgr),
        ("mixing", mixing),
        ("attnres", attnres),
    ]
}

#[test]
fn streams_refuse_another_number_of_tokens_and_another_order() {
    for (name, new) in streams() {
        let forward = |stream: &mut dyn Stream, values: usize, params: usize| {
            stream.forward(Arc::new(ones(values)), &ones(params))
        };
        let gone = |junctions: usize| {
            let (mut stream, params) = new();
            for params in &params[..junctions] {
                forward(&mut *stream, 40 * 4, *params);
            }
            (stream, params)
        };
        for values in [40 * 4 + 1, 40 * 4 - 1, 8 * 4, 72 * 4] {
            for junction in 1..3 {
                let (mut stream, params) = gone(junction);
                refused(&format!("{name}, {values} values at {junction}"), || {
                    forward(&mut *stream, values, params[junction])
                });
            }
            let (mut stream, params) = gone(3);
            refused(&format!("{name}, a gradient of {values}"), || {
                stream.backward(&ones(values), &ones(params[2]))
            });
        }
        let (mut stream, params) = new();
        refused(&format!("{name}, a part of a row"), || forward(&mut *stream, 41, params[0]));

        // Back by one junction, then forward again.
        let (mut stream, params) = gone(3);
        stream.backward(&ones(40 * 4), &ones(params[2]));
        refused(&format!("{name}, forward again"), || forward(&mut *stream, 40 * 4, params[2]));

        // All the way back, then once more with other tokens.
        let (mut stream, params) = gone(3);
        for params in params.iter().rev() {
            stream.backward(&ones(40 * 4), &ones(*params));
        }
        for params in &params {
            forward(&mut *stream, 72 * 4, *params);
        }
        for params in params.iter().rev() {
            let gradient = stream.backward(&ones(72 * 4), &ones(*params));
            assert_eq!(gradient.write.len(), 72 * 4);
            assert!(gradient.write.iter().all(|d| d.is_finite()), "{name}");
        }
    }
}
