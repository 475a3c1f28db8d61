//! Writes that are much larger than the streams: inversion has to recover what was there before them.

use super::*;

const WIDTH: usize = 64;
const STREAMS: usize = 3;
const JUNCTIONS: usize = 40;
/// Of a recovered stream, and of a gradient.
const TOLERANCE: f64 = 1e-4;

/// A chain of 40 junctions with gates of `beta`, in which the writes `at` some junctions are `times` as large.
fn chain(gate: Gate, beta: f64, times: f64, elements: usize, at: &[usize]) -> Chain {
    let mut settings = settings(WIDTH, STREAMS, gate);
    settings.memory = Memory::Inversion { share: 0.0 };
    let mut chain = Chain::random(settings, JUNCTIONS, 5, 31);
    let logit = f64::from((1.0 / beta - 1.0).ln() as f32);
    for params in &mut chain.junctions[STREAMS..] {
        params.w1.fill(0.0);
        params.b = match gate {
            Gate::Independent => vec![-logit; STREAMS],
            // The first stream's alone.
            Gate::Competitive => vec![logit, 0.0, -30.0, -30.0],
        };
    }
    for &at in at {
        for row in chain.writes[at].chunks_exact_mut(WIDTH) {
            row[7..7 + elements].iter_mut().for_each(|x| *x = f64::from((*x * times) as f32));
        }
    }
    chain
}

/// The largest error of any stream that the way back recovers, relative to the stream.
fn recovery_error(chain: &Chain, forms: &[Vec<f64>]) -> f64 {
    let params = chain.params();
    let mut mgr = Mgr::new(chain.settings.clone(), JUNCTIONS, true);
    let mut before = Vec::new();
    for (write, params) in chain.rows().into_iter().zip(&params) {
        before.push(mgr.state[0].clone());
        mgr.forward(write, params);
    }
    let mut worst = 0f64;
    for k in (STREAMS..JUNCTIONS).rev() {
        mgr.backward(&narrow(&forms[k]), &params[k]);
        let rows = mgr.state[0].chunks_exact(WIDTH).zip(before[k].chunks_exact(WIDTH));
        worst = rows.map(|(got, want)| error(got, want)).fold(worst, f64::max);
    }
    worst
}

/// Everything that is checked of one chain.
fn check(name: &str, mut chain: Chain) {
    let forms = forms(&chain);
    let recovery = recovery_error(&chain, &forms);
    let inverted = run(&chain, &forms);
    chain.settings.memory = Memory::Exact;
    let gradient = gradient_error(&inverted, &run(&chain, &forms));
    assert!(
        recovery < TOLERANCE && gradient < TOLERANCE,
        "{name}: streams are off by {recovery:.1e}, gradients by {gradient:.1e}"
    );
}

#[test]
fn a_write_of_any_size_can_be_undone() {
    for gate in GATES {
        for beta in [0.05, 0.2, 0.5] {
            for times in [1.0, 1e2, 1e3, 1e4, 1e5, 1e6] {
                for (elements, at) in [(57, 6), (57, 30), (1, 6), (1, 30)] {
                    let name = format!("{gate:?} {beta}, {elements} elements x {times} at {at}");
                    check(&name, chain(gate, beta, times, elements, &[at]));
                }
            }
        }
    }
}

#[test]
fn streams_that_grow_and_shrink_again_and_again_can_be_undone() {
    for gate in GATES {
        for beta in [0.05, 0.2, 0.5] {
            for times in [30.0, 1e3, 1e5] {
                let name = format!("{gate:?} {beta}, x {times}");
                check(&name, chain(gate, beta, times, 57, &[5, 9, 16, 17, 31]));
            }
        }
    }
}

/// Each write larger than the one before, as in a trained model: no single one stands out.
#[test]
fn streams_that_grow_with_every_write_can_be_undone() {
    for gate in GATES {
        for growth in [1.1f64, 1.3, 2.0] {
            let mut chain = chain(gate, 0.2, 1.0, 57, &[]);
            for (k, write) in chain.writes.iter_mut().enumerate() {
                let size = growth.powi(k as i32);
                write.iter_mut().for_each(|x| *x = f64::from((*x * size) as f32));
            }
            check(&format!("{gate:?}, x {growth} each"), chain);
        }
    }
}

/// A huge write costs the rows that it goes to once, and the ordinary ones after it nothing.
#[test]
fn rows_are_kept_only_where_streams_grow() {
    let rows_kept = |chain: &Chain| -> Vec<usize> {
        let (mgr, _) = forward(chain, true);
        let rows = |saved: &Saved| saved.iter(WIDTH).count();
        mgr.levels.iter().map(|level| level.kept.iter().map(rows).sum()).collect()
    };
    let ordinary = chain(Gate::Independent, 0.05, 1.0, 57, &[]);
    let surge = chain(Gate::Independent, 0.05, 1e4, 57, &[20]);
    // All streams of the five tokens.
    let (ordinary, surge) = (rows_kept(&ordinary), rows_kept(&surge));
    assert!(ordinary.iter().sum::<usize>() <= 10, "{ordinary:?}");
    assert_eq!(surge[20], 5 * STREAMS);
    assert!(surge.iter().sum::<usize>() <= 10 + 5 * STREAMS, "{surge:?}");
}
