//! Products of every kernel against a reference in f64 that rounds operands as the definition says.
//!
//! A sum in f32 may fall on the other side of a border than one in f64, and then the next product rounds it elsewhere. That
//! is seldom, so errors are compared in the mean: what is not rounded at all, or twice, is far beyond the bounds.

use hadal_cpu::Precision::{self, Bf16, Bf16x3, F32};
use hadal_cpu::attention::{self, Shape, Slots};
use hadal_cpu::linear::{self, Weight};
use hadal_cpu::mlp::{self, Mlp};
use hadal_cpu::{bf16, loss, split, splitmix};

/// Numbers between -1 and 1.
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let number = |i: u64| splitmix::finalise(splitmix::STEP.wrapping_mul(seed * 1_000_003 + i + 1));
    (0..count as u64).map(|i| (number(i) >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|x| f64::from(*x)).collect()
}

fn transposed<T: Copy>(a: &[T], columns: usize) -> Vec<T> {
    let rows = a.len() / columns;
    (0..a.len()).map(|i| a[i % rows * columns + i / rows]).collect()
}

/// The product of two operands.
fn term(a: f64, b: f64, precision: Precision) -> f64 {
    let (a, b) = (a as f32, b as f32);
    match precision {
        F32 => f64::from(a) * f64::from(b),
        Bf16 => f64::from(bf16(a)) * f64::from(bf16(b)),
        Bf16x3 => {
            let ([a1, a2, a3], [b1, b2, b3]) = (split(a).map(f64::from), split(b).map(f64::from));
            a3 * b1 + a2 * b2 + a1 * b3 + a2 * b1 + a1 * b2 + a1 * b1
        }
    }
}

/// `[m, k] x [n, k]^T`
fn times(a: &[f64], b: &[f64], k: usize, precision: Precision) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| term(*a, *b, precision)).sum();
    a.chunks(k).flat_map(|a| b.chunks(k).map(move |b| dot(a, b))).collect()
}

/// `[m, k] x [k, n]`
fn by_columns(a: &[f64], b: &[f64], k: usize, n: usize, precision: Precision) -> Vec<f64> {
    times(a, &transposed(b, n), k, precision)
}

/// `[k, m]^T x [k, n]`
fn by_rows(a: &[f64], b: &[f64], m: usize, n: usize, precision: Precision) -> Vec<f64> {
    by_columns(&transposed(a, m), b, a.len() / m, n, precision)
}

/// The error of a whole, relative to what is wanted.
fn error(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>();
    let off = square(&mut got.iter().zip(want).map(|(got, want)| f64::from(*got) - want));
    (off / square(&mut want.iter().copied())).sqrt()
}

/// Holds what a kernel computes to the reference, and makes sure that the reference itself could tell.
#[track_caller]
fn assert_is(name: &str, precision: Precision, got: &[f32], want: impl Fn(Precision) -> Vec<f64>) {
    let [own, exact] = [precision, F32].map(|precision| error(got, &want(precision)));
    let bound = if precision == Bf16 { 2e-4 } else { 2e-6 };
    assert!(own < bound, "{name}, {precision}: {own:e} from the definition");
    match precision {
        Bf16 => assert!(exact > 4.0 * bound, "{name}: as if nothing were rounded ({exact:e})"),
        _ => assert!(exact < bound, "{name}, {precision}: {exact:e} from the exact product"),
    }
}

#[test]
fn projections_and_their_gradients_are_those_of_the_definition() {
    // Edges everywhere, several blocks of depth, and factors that f32 would read in place or pack.
    for (tokens, inputs, outs) in
        [(9, 5, [3, 4]), (300, 37, [19, 40]), (70, 300, [6, 48]), (31, 512, [320, 208])]
    {
        let (x, width) = (noise(1, tokens * inputs), outs[0] + outs[1]);
        let weights = outs.map(|out| noise(out as u64, out * inputs));
        let views = weights.each_ref().map(|weight| Weight::new(weight, inputs));
        let dy = noise(3, tokens * width);
        let (wide_x, wide_w, wide_dy) = (wide(&x), wide(&weights.concat()), wide(&dy));
        for precision in [Bf16, Bf16x3] {
            let y = linear::forward(&x, inputs, &views, precision);
            assert_is("y", precision, &y, |p| times(&wide_x, &wide_w, inputs, p));
            let gradient = linear::backward(&dy, &x, inputs, &views, precision);
            assert_is("dx", precision, &gradient.x, |p| {
                by_columns(&wide_dy, &wide_w, width, inputs, p)
            });
            let dw = gradient.weights.concat();
            assert_is("dw", precision, &dw, |p| by_rows(&wide_dy, &wide_x, width, inputs, p));
        }
    }
}

/// Everything that a network computes.
struct Network {
    y: Vec<f64>,
    dx: Vec<f64>,
    up: Vec<f64>,
    gate: Vec<f64>,
    down: Vec<f64>,
}

fn network(x: &[f32], dy: &[f32], mlp: &Mlp, p: Precision) -> Network {
    let Mlp { width, hidden, .. } = *mlp;
    let [x, dy, up, down] = [x, dy, mlp.up, mlp.down].map(wide);
    let u = times(&x, &up, width, p);
    let dh = by_columns(&dy, &down, width, hidden, p);
    let input = |d: &[f64], weight: &[f64]| by_columns(d, weight, hidden, width, p);
    let Some(gate) = mlp.gate.map(wide) else {
        let a: Vec<f64> = u.iter().map(|u| u.max(0.0).powi(2)).collect();
        let du: Vec<f64> = dh.iter().zip(&a).map(|(d, a)| d * 2.0 * a.sqrt()).collect();
        return Network {
            y: times(&a, &down, hidden, p),
            dx: input(&du, &up),
            up: by_rows(&du, &x, hidden, width, p),
            gate: Vec::new(),
            down: by_rows(&dy, &a, width, hidden, p),
        };
    };
    let g = times(&x, &gate, width, p);
    let sigmoid: Vec<f64> = g.iter().map(|g| 1.0 / (1.0 + (-g).exp())).collect();
    let each = |f: &dyn Fn(usize) -> f64| -> Vec<f64> { (0..u.len()).map(f).collect() };
    let product = each(&|i| u[i] * g[i] * sigmoid[i]);
    let du = each(&|i| dh[i] * g[i] * sigmoid[i]);
    let dg = each(&|i| dh[i] * u[i] * sigmoid[i] * (1.0 + g[i] * (1.0 - sigmoid[i])));
    let dx = input(&du, &up).iter().zip(input(&dg, &gate)).map(|(a, b)| a + b).collect();
    Network {
        y: times(&product, &down, hidden, p),
        dx,
        up: by_rows(&du, &x, hidden, width, p),
        gate: by_rows(&dg, &x, hidden, width, p),
        down: by_rows(&dy, &product, width, hidden, p),
    }
}

#[test]
fn networks_and_their_gradients_are_those_of_the_definition() {
    // More than a block of rows, and more than a block of depth.
    for (tokens, width, hidden) in [(9, 6, 7), (280, 20, 33), (40, 24, 270)] {
        let matrix = |seed: u64| noise(seed, width * hidden);
        let (up, gate, down) = (matrix(1), matrix(2), matrix(3));
        let (x, dy) = (noise(4, tokens * width), noise(5, tokens * width));
        for gate in [None, Some(gate.as_slice())] {
            let mlp = Mlp { width, hidden, up: &up, gate, down: &down };
            for precision in [Bf16, Bf16x3] {
                let out = mlp::forward(&x, &mlp, precision);
                let d = mlp::backward(&dy, &x, &out.hidden, &out.gate, &mlp, precision);
                let of = |field: fn(Network) -> Vec<f64>| {
                    let (x, dy, mlp) = (&x, &dy, &mlp);
                    move |p| field(network(x, dy, mlp, p))
                };
                assert_is("y", precision, &out.y, of(|n| n.y));
                assert_is("dx", precision, &d.x, of(|n| n.dx));
                assert_is("up", precision, &d.up, of(|n| n.up));
                assert_is("down", precision, &d.down, of(|n| n.down));
                if gate.is_some() {
                    assert_is("gate", precision, &d.gate, of(|n| n.gate));
                }
            }
        }
    }
}

/// What an attention without norms and rotation mixes, and the gradient of its projections.
fn attended(
    joined: &[f64],
    d: &[f64],
    time: usize,
    [heads, kv_heads, dim]: [usize; 3],
    p: Precision,
) -> (Vec<f64>, Vec<f64>) {
    let (row, width, group) = ((heads + 2 * kv_heads) * dim, heads * dim, heads / kv_heads);
    let (mut mixed, mut gradient) =
        (vec![0.0; joined.len() / row * width], vec![0.0; joined.len()]);
    let scale = 1.0 / (dim as f64).sqrt();
    let dot = |a: &[f64], b: &[f64]| times(a, b, dim, p)[0];
    for first in (0..joined.len() / row).step_by(time) {
        for head in 0..heads {
            let (key_at, value_at) =
                (width + head / group * dim, width + (kv_heads + head / group) * dim);
            let at = |t: usize, column: usize| (first + t) * row + column;
            let part = |t: usize, column: usize| &joined[at(t, column)..][..dim];
            for t in 0..time {
                let query = part(t, head * dim);
                let scores: Vec<f64> =
                    (0..=t).map(|s| dot(query, part(s, key_at)) * scale).collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let out_at = (first + t) * width + head * dim;
                let d = &d[out_at..][..dim];
                for (s, weight) in weights.iter().enumerate() {
                    for (j, value) in part(s, value_at).iter().enumerate() {
                        mixed[out_at + j] += term(*weight, *value, p) / sum;
                    }
                }
                let along: f64 = (0..dim).map(|j| d[j] * mixed[out_at + j]).sum();
                for (s, weight) in weights.iter().enumerate() {
                    let share = weight / sum;
                    let d_score = share * (dot(d, part(s, value_at)) - along) * scale;
                    for j in 0..dim {
                        gradient[at(t, head * dim + j)] += term(d_score, part(s, key_at)[j], p);
                        gradient[at(s, key_at + j)] += term(d_score, query[j], p);
                        gradient[at(s, value_at + j)] += term(share, d[j], p);
                    }
                }
            }
        }
    }
    (mixed, gradient)
}

#[test]
fn attention_and_its_gradient_are_those_of_the_definition() {
    for (sequences, time, sizes) in [(2, 9, [2, 1, 4]), (1, 70, [4, 2, 6]), (1, 200, [1, 1, 16])] {
        let [heads, kv_heads, head_dim] = sizes;
        let (cos, sin) = (vec![1.0; time * head_dim / 2], vec![0.0; time * head_dim / 2]);
        let (cos, sin, norms, window) = (&cos[..], &sin[..], None, None);
        let shape = Shape { time, heads, kv_heads, head_dim, cos, sin, norms, window };
        let count = sequences * time * (heads + 2 * kv_heads) * head_dim;
        // Large enough that weights differ.
        let joined: Vec<f32> = noise(7, count).iter().map(|x| 2.0 * x).collect();
        let d = noise(8, sequences * time * heads * head_dim);
        for precision in [Bf16, Bf16x3] {
            let slots = Slots::default();
            let out = attention::forward(&joined, &shape, &slots, precision);
            let gradient = attention::backward(
                &d,
                &joined,
                &out.mixed,
                &out.log_sums,
                &shape,
                &slots,
                precision,
            );
            let want = |p| attended(&wide(&joined), &wide(&d), time, sizes, p);
            assert_is("mixed", precision, &out.mixed, |p| want(p).0);
            assert_is("joined", precision, &gradient.joined, |p| want(p).1);
        }
    }
}

#[test]
fn the_head_and_its_gradients_are_those_of_the_definition() {
    for (tokens, vocabulary, width) in [(9, 7, 6), (90, 300, 20)] {
        let (hidden, head) = (noise(1, tokens * width), noise(2, vocabulary * width));
        let targets: Vec<u32> = (0..tokens as u32).map(|t| t * 7 % vocabulary as u32).collect();
        let shares: Vec<f32> = (0..tokens).map(|t| (t % 3) as f32 / tokens as f32).collect();
        let want = |p| {
            let logits = times(&wide(&hidden), &wide(&head), width, p);
            let (mut value, mut d) = (0.0, Vec::new());
            let rows = logits.chunks(vocabulary).zip(targets.iter().zip(&shares));
            for (logits, (&target, &share)) in rows {
                let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
                let share = f64::from(share);
                value += share * (sum.ln() - logits[target as usize]);
                let is = |v: usize| if v == target as usize { 1.0 } else { 0.0 };
                d.extend((0..vocabulary).map(|v| share * (logits[v].exp() / sum - is(v))));
            }
            let of_hidden = by_columns(&d, &wide(&head), vocabulary, width, p);
            (value, of_hidden, by_rows(&d, &wide(&hidden), vocabulary, width, p))
        };
        for precision in [Bf16, Bf16x3] {
            let of = |gradients| {
                loss::cross_entropy(&hidden, &head, width, &targets, &shares, gradients, precision)
            };
            let (loss, own) = (of(true), want(precision));
            assert!(
                (f64::from(loss.value) - own.0).abs() < 2e-6,
                "{} is not {}",
                loss.value,
                own.0
            );
            assert_eq!(of(false).value, loss.value);
            assert_is("hidden", precision, &loss.hidden, |p| want(p).1);
            assert_is("head", precision, &loss.head, |p| want(p).2);
        }
    }
}

#[test]
fn few_tokens_are_not_rounded() {
    let (inputs, out) = (40, 24);
    let (w, v) = (noise(1, inputs * out), noise(2, inputs * out));
    let weight = [Weight::new(&w, inputs)];
    let mlp = Mlp { width: inputs, hidden: out, up: &w, gate: None, down: &v };
    for tokens in [1, 8, 9] {
        let (x, dy) = (noise(3, tokens * inputs), noise(4, tokens * out));
        let dx = noise(5, tokens * inputs);
        let [plain, rounded] = [F32, Bf16].map(|precision| {
            let y = linear::forward(&x, inputs, &weight, precision);
            let gradient = linear::backward(&dy, &x, inputs, &weight, precision);
            let out = mlp::forward(&x, &mlp, precision);
            let d = mlp::backward(&dx, &x, &out.hidden, &out.gate, &mlp, precision);
            let (targets, shares) = (vec![0; tokens], vec![1.0; tokens]);
            let loss = loss::cross_entropy(&x, &w, inputs, &targets, &shares, true, precision);
            [y, gradient.x, gradient.weights.concat(), out.y, d.x, d.up, d.down, loss.hidden]
        });
        for (plain, rounded) in plain.iter().zip(&rounded) {
            assert_eq!(plain == rounded, tokens <= 8, "{tokens} tokens");
        }
    }
}

#[test]
fn threads_change_no_bit() {
    let (tokens, width, hidden) = (300, 40, 70);
    let (up, down) = (noise(1, width * hidden), noise(2, width * hidden));
    let (x, dy) = (noise(4, tokens * width), noise(5, tokens * width));
    let mlp = Mlp { width, hidden, up: &up, gate: None, down: &down };
    for precision in [Bf16, Bf16x3] {
        let results = [1, 2, 3].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let out = mlp::forward(&x, &mlp, precision);
                let d = mlp::backward(&dy, &x, &out.hidden, &out.gate, &mlp, precision);
                let gradient = linear::backward(
                    &dy,
                    &x,
                    width,
                    &[Weight::new(&up[..width * width], width)],
                    precision,
                );
                [out.y, d.x, d.up, d.down, gradient.x, gradient.weights.concat()]
            })
        });
        assert!(results.iter().all(|result| *result == results[0]), "{precision}");
    }
}

#[test]
fn what_is_not_a_number_is_not_hidden() {
    let (tokens, inputs) = (12, 20);
    let w = noise(1, inputs * inputs);
    for bad in [f32::NAN, f32::INFINITY, f32::MAX] {
        for precision in [Bf16, Bf16x3] {
            let mut x = noise(2, tokens * inputs);
            x[3] = bad;
            let y = linear::forward(&x, inputs, &[Weight::new(&w, inputs)], precision);
            let (first, rest) = y.split_at(inputs);
            assert!(first.iter().all(|y| !y.is_finite()), "{bad} in {precision}: {first:?}");
            assert!(rest.iter().all(|y| y.is_finite()), "{bad} in {precision}");
        }
    }
}

#[test]
fn nothing_stays_nothing() {
    for precision in [Bf16, Bf16x3] {
        let weights = vec![1.0; 20 * 5];
        let gradient = linear::backward(&[], &[], 5, &[Weight::new(&weights, 5)], precision);
        assert_eq!(gradient.weights, [vec![0.0; 100]]);
        let x = vec![1.0; 5 * 30];
        for gate in [None, Some(&[][..])] {
            let mlp = Mlp { width: 5, hidden: 0, up: &[], gate, down: &[] };
            let out = mlp::forward(&x, &mlp, precision);
            assert_eq!(out.y, vec![0.0; 150]);
            let d = mlp::backward(&x, &x, &out.hidden, &out.gate, &mlp, precision);
            assert_eq!(d.x, vec![0.0; 150]);
        }
    }
}
