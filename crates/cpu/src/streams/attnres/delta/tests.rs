use super::*;
use crate::streams::attnres::tests::pool_in_heads;
use crate::streams::reference::{Case, rms};

const EPS: f32 = 0.1;

/// The embedding, read by the first sub-layer, and then writes of which those marked end a block.
fn junctions(ends: &[bool], gate: bool) -> Vec<DeltaJunction> {
    let first =
        DeltaJunction { joins: false, closes: true, pools: false, query: false, gate: false };
    let mut finished = 0;
    let mut all = vec![first];
    for (i, &closes) in ends.iter().enumerate() {
        finished += usize::from(closes);
        let out = i + 1 == ends.len();
        all.push(DeltaJunction {
            joins: i > 0 && !ends[i - 1],
            closes: closes && !out,
            pools: !out,
            query: !out && finished > 0,
            gate: gate && !out,
        });
    }
    all
}

/// Blocks of one; of three, two and one; one that never ends; and a pool of the embedding alone at once.
fn all() -> Vec<Vec<DeltaJunction>> {
    let ends: [&[bool]; 3] = [&[true; 5], &[false, false, true, false, true, true], &[false; 3]];
    let mut all: Vec<_> =
        [false, true].iter().flat_map(|&gate| ends.map(|ends| junctions(ends, gate))).collect();
    let mut cut = junctions(ends[1], true);
    cut[0] = DeltaJunction { pools: true, query: true, gate: true, ..cut[0] };
    all.push(cut);
    all
}

fn case(tokens: usize, width: usize, junctions: &[DeltaJunction]) -> Case {
    let params: Vec<_> = junctions.iter().map(|junction| junction.params(width)).collect();
    Case::random(tokens, width, &params)
}

fn add(sum: &mut [f64], write: &[f64]) {
    for (sum, write) in sum.iter_mut().zip(write) {
        *sum += write;
    }
}

fn reference(
    junctions: &[DeltaJunction],
    heads: usize,
    writes: &[Vec<f64>],
    params: &[Vec<f64>],
) -> Vec<Vec<f64>> {
    let (eps, width) = (f64::from(EPS), writes[0].len());
    let (mut stream, mut open) = (vec![0.0; width], vec![0.0; width]);
    let mut sources: Vec<Vec<f64>> = Vec::new();
    let mut outputs = Vec::new();
    for ((junction, write), params) in junctions.iter().zip(writes).zip(params) {
        if !junction.joins {
            open = vec![0.0; width];
        }
        add(&mut stream, write);
        add(&mut open, write);
        if junction.closes {
            sources.push(open.clone());
        }
        let (before, gain) = params.split_at(params.len() - width);
        let (gate, query) = before.split_at(usize::from(junction.gate));
        let query = if junction.query { query.to_vec() } else { vec![0.0; width] };
        let mut h = stream.clone();
        if junction.pools {
            let gate = gate.first().copied().unwrap_or(1.0);
            let pool = pool_in_heads(&sources, &query, heads, eps);
            add(&mut h, &pool.iter().map(|x| gate * x).collect::<Vec<_>>());
        }
        outputs.push(rms(&h, gain, eps));
    }
    outputs
}

#[test]
fn outputs_and_gradients_are_those_of_the_reference() {
    for junctions in all() {
        for (heads, tokens, width) in [(1, 1, 1), (1, 3, 5), (1, 33, 64), (3, 40, 57), (2, 5, 4)] {
            let stream = DeltaAttnRes::new(width, heads, EPS, junctions.clone(), true);
            let reference = |writes: &[Vec<f64>], params: &[Vec<f64>]| {
                super::tests::reference(&junctions, heads, writes, params)
            };
            case(tokens, width, &junctions).check(stream, &reference);
        }
    }
}

#[test]
fn the_laws_of_streams_hold() {
    for junctions in all() {
        for heads in [1, 3] {
            case(70, 39, &junctions)
                .check_laws(|keep| DeltaAttnRes::new(39, heads, EPS, junctions.clone(), keep));
        }
    }
}

#[test]
fn closed_gates_leave_the_stream_alone() {
    let (shut, width) = (junctions(&[true; 4], true), 5);
    let mut case = case(3, width, &shut);
    for (params, junction) in case.params.iter_mut().zip(&shut).filter(|(_, step)| step.gate) {
        params[0] = 0.0;
        assert_eq!(params.len(), junction.params(width));
    }
    let outputs = case.forward(&mut DeltaAttnRes::new(width, 1, EPS, shut, false));
    let mut stream = vec![0.0f64; width];
    for ((output, write), params) in outputs.iter().zip(&case.writes).zip(&case.params) {
        add(&mut stream, &write[..width].iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
        let gain: Vec<f64> =
            params[params.len() - width..].iter().map(|&gain| f64::from(gain)).collect();
        for (got, want) in output.iter().zip(rms(&stream, &gain, f64::from(EPS))) {
            assert!((f64::from(*got) - want).abs() < 1e-6, "{got} and {want}");
        }
    }
}

#[test]
fn writes_that_are_blocks_are_kept_without_a_copy_and_let_go_on_the_way_back() {
    let single = junctions(&[true; 4], false);
    let case = case(3, 5, &single);
    let writes: Vec<Arc<Vec<f32>>> = case.writes.iter().map(|f| Arc::new(f.clone())).collect();
    let mut stream = DeltaAttnRes::new(5, 1, EPS, single, true);
    for (write, params) in writes.iter().zip(&case.params) {
        stream.forward(write.clone(), params);
        assert_eq!(Arc::strong_count(write), 2);
    }
    case.backward(&mut stream);
    // The last write belongs to no source; it stays with the open block.
    assert!(writes[..4].iter().all(|write| Arc::strong_count(write) == 1));
}
