use super::*;
use crate::streams::reference::{Case, rms};

/// Large, so that little cancels where the width is one.
const EPS: f32 = 0.1;

/// The embedding and then writes of which those marked join the source before them.
fn junctions(joins: &[bool]) -> Vec<AttnResJunction> {
    let first = AttnResJunction { joins: false, query: false, apart: false };
    let write = |&joins| AttnResJunction { joins, query: true, apart: false };
    std::iter::once(first).chain(joins.iter().map(write)).collect()
}

fn full() -> Vec<AttnResJunction> {
    junctions(&[false; 5])
}

/// Blocks of three, two and one.
fn blocks() -> Vec<AttnResJunction> {
    junctions(&[false, true, true, false, true, false])
}

/// Everything but the embedding in one block, which ends with the last write.
fn one_block() -> Vec<AttnResJunction> {
    junctions(&[false, true, true])
}

/// Queries where only the embedding is there, and readers of several sources without one.
fn odd_queries() -> Vec<AttnResJunction> {
    let mut junctions = junctions(&[false, false, true, false, true]);
    for (junction, query) in [(0, true), (2, false), (5, false)] {
        junctions[junction].query = query;
    }
    junctions
}

/// Readers with three pools, behind writes that join and writes that do not.
fn three_pools() -> Vec<AttnResJunction> {
    let mut junctions = junctions(&[false, true, false, true, true]);
    for junction in [2, 3, 4] {
        junctions[junction].apart = true;
    }
    junctions
}

fn all() -> [Vec<AttnResJunction>; 5] {
    [full(), blocks(), one_block(), odd_queries(), three_pools()]
}

fn case(tokens: usize, width: usize, junctions: &[AttnResJunction]) -> Case {
    let params: Vec<_> = junctions.iter().map(|junction| junction.params(width)).collect();
    let inputs = junctions.iter().map(AttnResJunction::inputs).collect();
    Case::random(tokens, width, &params).with_inputs(inputs)
}

/// The sources after the writes so far, each the sum of its block.
fn sources(junctions: &[AttnResJunction], writes: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut blocks: Vec<Vec<&Vec<f64>>> = Vec::new();
    for (junction, write) in junctions.iter().zip(writes) {
        if !junction.joins {
            blocks.push(Vec::new());
        }
        blocks.last_mut().unwrap().push(write);
    }
    let sum = |block: Vec<&Vec<f64>>| {
        (0..block[0].len()).map(|j| block.iter().map(|write| write[j]).sum()).collect()
    };
    blocks.into_iter().map(sum).collect()
}

/// How a stream pools: its heads, and whether values are normalised.
const POOLS: [(usize, bool); 3] = [(1, false), (1, true), (3, false)];

/// The pool of every head over its own channels.
pub(in crate::streams) fn pool_in_heads(
    sources: &[Vec<f64>],
    query: &[f64],
    heads: usize,
    eps: f64,
) -> Vec<f64> {
    let (width, group) = (query.len(), query.len() / heads);
    let ones = vec![1.0; width];
    let keys: Vec<_> = sources.iter().map(|source| rms(source, &ones, eps)).collect();
    let mut pooled = vec![0.0; width];
    for channels in (0..heads).map(|head| head * group..(head + 1) * group) {
        let score = |key: &Vec<f64>| channels.clone().map(|j| key[j] * query[j]).sum::<f64>().exp();
        let shares: Vec<f64> = keys.iter().map(score).collect();
        let total: f64 = shares.iter().sum();
        for j in channels {
            let parts = sources.iter().zip(&shares).map(|(source, share)| source[j] * share);
            pooled[j] = parts.sum::<f64>() / total;
        }
    }
    pooled
}

fn pool(sources: &[Vec<f64>], query: &[f64], eps: f64) -> Vec<f64> {
    let ones = vec![1.0; query.len()];
    let score = |source: &Vec<f64>| -> f64 {
        rms(source, &ones, eps).iter().zip(query).map(|(key, q)| key * q).sum()
    };
    let shares: Vec<f64> = sources.iter().map(|source| score(source).exp()).collect();
    let total: f64 = shares.iter().sum();
    (0..query.len())
        .map(|j| sources.iter().zip(&shares).map(|(source, share)| source[j] * share / total).sum())
        .collect()
}

fn pool_normed(sources: &[Vec<f64>], query: &[f64], eps: f64) -> Vec<f64> {
    let ones = vec![1.0; query.len()];
    let values: Vec<_> = sources.iter().map(|source| rms(source, &ones, eps)).collect();
    let score = |value: &Vec<f64>| value.iter().zip(query).map(|(v, q)| v * q).sum::<f64>().exp();
    let total: f64 = values.iter().map(score).sum();
    let channel = |j: usize| values.iter().map(|value| score(value) / total * value[j]).sum();
    (0..query.len()).map(channel).collect()
}

fn stream(
    width: usize,
    junctions: &[AttnResJunction],
    (heads, normed): (usize, bool),
    keep: bool,
) -> AttnRes {
    let stream = AttnRes::new(width, EPS, junctions.to_vec(), keep).with_heads(heads);
    if normed { stream.normed() } else { stream }
}

fn reference(
    junctions: &[AttnResJunction],
    (heads, normed): (usize, bool),
    writes: &[Vec<f64>],
    params: &[Vec<f64>],
) -> Vec<Vec<f64>> {
    let eps = f64::from(EPS);
    let output = |k: usize| {
        let width = writes[k].len();
        let (queries, gains) = params[k].split_at(params[k].len() - junctions[k].inputs() * width);
        let sources = sources(junctions, &writes[..=k]);
        let pool = |(at, gain): (usize, &[f64])| {
            let asked = match junctions[k].query {
                true => queries[at * width..(at + 1) * width].to_vec(),
                false => vec![0.0; width],
            };
            let pooled = match heads {
                // Keys and values are the same; a norm of normalised keys would count epsilon twice.
                1 if normed && junctions[k].query => pool_normed(&sources, &asked, eps),
                1 => pool(&sources, &asked, eps),
                _ => pool_in_heads(&sources, &asked, heads, eps),
            };
            rms(&pooled, gain, eps)
        };
        gains.chunks(width).enumerate().flat_map(pool).collect()
    };
    (0..writes.len()).map(output).collect()
}

#[test]
fn outputs_and_gradients_are_those_of_the_reference() {
    for junctions in all() {
        for (tokens, width) in [(1, 1), (3, 5), (70, 37), (33, 64)] {
            check((1, false), tokens, width, &junctions);
            // A norm of normalised values of one channel leaves nothing but rounding.
            if width > 1 {
                check((1, true), tokens, width, &junctions);
            }
        }
        // One channel a head; groups of sixteen and a rest; whole chunks of columns.
        for (heads, tokens, width) in [(3, 3, 3), (3, 40, 57), (2, 33, 128)] {
            check((heads, false), tokens, width, &junctions);
        }
    }
}

#[track_caller]
fn check(pools: (usize, bool), tokens: usize, width: usize, junctions: &[AttnResJunction]) {
    let reference = |writes: &[Vec<f64>], params: &[Vec<f64>]| {
        super::tests::reference(junctions, pools, writes, params)
    };
    case(tokens, width, junctions).check(stream(width, junctions, pools, true), &reference);
}

#[test]
fn the_worked_case_gives_its_numbers() {
    let mut stream = AttnRes::new(2, 1e-6, junctions(&[false, false]), false);
    let (query, gain) = ([0.7, -0.3], [1.0, 1.0]);
    let params = [query, gain].concat();
    stream.forward(Arc::new(vec![1.0, 2.0]), &gain);
    stream.forward(Arc::new(vec![-1.0, 0.5]), &params);
    let output = stream.forward(Arc::new(vec![0.5, -1.5]), &params);
    let h = [0.506_021_86f32, -0.222_127_62];
    let root = ((h[0] * h[0] + h[1] * h[1]) / 2.0).sqrt();
    assert!((output[0] - h[0] / root).abs() < 1e-5 && (output[1] - h[1] / root).abs() < 1e-5);
}

#[test]
fn the_laws_of_streams_hold() {
    for junctions in all() {
        for pools in POOLS {
            case(70, 39, &junctions).check_laws(|keep| stream(39, &junctions, pools, keep));
        }
    }
}

#[test]
fn only_the_sources_stay_where_nothing_is_kept() {
    let mut stream = AttnRes::new(5, EPS, blocks(), false);
    case(3, 5, &blocks()).forward(&mut stream);
    assert_eq!(stream.sources.len(), 4);
    assert!(stream.outgrown.is_empty() && stream.readings.is_empty());
}

#[test]
fn writes_are_kept_without_a_copy_and_let_go_on_the_way_back() {
    let case = case(3, 5, &full());
    let writes: Vec<Arc<Vec<f32>>> = case.writes.iter().map(|f| Arc::new(f.clone())).collect();
    let mut stream = AttnRes::new(5, EPS, full(), true);
    for (write, params) in writes.iter().zip(&case.params) {
        stream.forward(write.clone(), params);
        assert_eq!(Arc::strong_count(write), 2);
    }
    case.backward(&mut stream);
    assert!(writes.iter().all(|write| Arc::strong_count(write) == 1));
}

#[test]
fn a_query_over_one_source_has_no_slope() {
    let junctions = odd_queries();
    let case = case(40, 37, &junctions);
    let mut stream = AttnRes::new(37, EPS, junctions, true);
    case.forward(&mut stream);
    let gradient = &case.backward(&mut stream)[0].params;
    assert!(gradient[..37].iter().all(|&slope| slope == 0.0));
    assert!(gradient[37..].iter().all(|&slope| slope != 0.0));
}
