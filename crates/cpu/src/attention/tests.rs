use super::*;
use crate::precision::Precision;
use crate::testing::{assert_close, assert_gradient, noise};
use crate::work::counted;

#[derive(Clone)]
pub(super) struct Case {
    pub(super) time: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) dim: usize,
    pub(super) window: Option<u32>,
    cos: Vec<f32>,
    sin: Vec<f32>,
    pub(super) joined: Vec<f32>,
    pub(super) query_gain: Vec<f32>,
    pub(super) key_gain: Vec<f32>,
    slot_count: usize,
    pub(super) slot_keys: Vec<f32>,
    pub(super) slot_values: Vec<f32>,
}

const EPS: f32 = 1e-6;

pub(super) fn case(
    sequences: usize,
    time: usize,
    heads: [usize; 2],
    dim: usize,
    norms: bool,
) -> Case {
    let [heads, kv_heads] = heads;
    let angles: Vec<f32> = (0..time * dim / 2)
        .map(|i| (i / (dim / 2)) as f32 * 0.3f32.powi((i % (dim / 2)) as i32))
        .collect();
    let gains = |name: &str| noise(name, if norms { dim } else { 0 });
    Case {
        time,
        heads,
        kv_heads,
        dim,
        window: None,
        cos: angles.iter().map(|a| a.cos()).collect(),
        sin: angles.iter().map(|a| a.sin()).collect(),
        joined: noise("joined", sequences * time * (heads + 2 * kv_heads) * dim),
        query_gain: gains("query").iter().map(|g| 2.0 + g).collect(),
        key_gain: gains("key").iter().map(|g| 2.0 + g).collect(),
        slot_count: 0,
        slot_keys: Vec::new(),
        slot_values: Vec::new(),
    }
}

impl Case {
    pub(super) fn with_slots(mut self, count: usize) -> Self {
        let width = (self.heads + 2 * self.kv_heads) * self.dim;
        let length = self.joined.len() / width * count * self.kv_heads * self.dim;
        self.slot_count = count;
        self.slot_keys = noise("slot keys", length).iter().map(|k| 2.0 * k).collect();
        self.slot_values = noise("slot values", length);
        self
    }

    pub(super) fn slots(&self) -> Slots<'_> {
        Slots { count: self.slot_count, keys: &self.slot_keys, values: &self.slot_values }
    }

    pub(super) fn backward(&self, d: &[f32], output: &Output) -> Gradient {
        let Output { mixed, log_sums } = output;
        backward(d, &self.joined, mixed, log_sums, &self.shape(), &self.slots(), Precision::F32)
    }

    pub(super) fn forward(&self) -> Output {
        forward(&self.joined, &self.shape(), &self.slots(), Precision::F32)
    }
}

impl Case {
    pub(super) fn shape(&self) -> Shape<'_> {
        let norms = (!self.query_gain.is_empty()).then_some(HeadNorms {
            query: &self.query_gain,
            key: &self.key_gain,
            eps: EPS,
        });
        Shape {
            time: self.time,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.dim,
            cos: &self.cos,
            sin: &self.sin,
            norms,
            window: self.window,
        }
    }

    /// A head of a token in f64, normalised with `gain` and rotated.
    fn head(&self, token: usize, index: usize, gain: Option<&[f32]>) -> Vec<f64> {
        let width = (self.heads + 2 * self.kv_heads) * self.dim;
        let at = token * width + index * self.dim;
        let mut x: Vec<f64> =
            self.joined[at..at + self.dim].iter().map(|x| f64::from(*x)).collect();
        let Some(gain) = gain else { return x };
        if !gain.is_empty() {
            let square = x.iter().map(|x| x * x).sum::<f64>() / self.dim as f64;
            let inverse = 1.0 / (square + f64::from(EPS)).sqrt();
            x.iter_mut().zip(gain).for_each(|(x, g)| *x *= inverse * f64::from(*g));
        }
        let (half, t) = (self.dim / 2, token % self.time);
        let turn = |j: usize| {
            let at = t * half + j % half;
            (f64::from(self.cos[at]), f64::from(self.sin[at]))
        };
        (0..self.dim)
            .map(|j| match turn(j) {
                (cos, sin) if j < half => x[j] * cos - x[j + half] * sin,
                (cos, sin) => x[j] * cos + x[j - half] * sin,
            })
            .collect()
    }

    pub(super) fn tokens(&self) -> usize {
        self.joined.len() / ((self.heads + 2 * self.kv_heads) * self.dim)
    }

    fn reference(&self) -> Vec<f64> {
        self.routed_reference(&vec![true; self.tokens()], Keys::All)
    }

    /// What the tokens that run mix.
    pub(super) fn routed_reference(&self, runs: &[bool], keys: Keys) -> Vec<f64> {
        let mut mixed = Vec::new();
        for token in (0..self.tokens()).filter(|token| runs[*token]) {
            let sequence = token / self.time * self.time;
            let reach = self.window.map_or(self.time, |window| window as usize);
            let start = sequence.max((token + 1).saturating_sub(reach));
            for head in 0..self.heads {
                let kv = head / (self.heads / self.kv_heads);
                let q = self.head(token, head, Some(&self.query_gain));
                let score = |k: &[f64]| {
                    let dot: f64 = q.iter().zip(k).map(|(q, k)| q * k).sum();
                    (dot / (self.dim as f64).sqrt()).exp()
                };
                let slot = |from: &[f32], s: usize| -> Vec<f64> {
                    let at = ((token * self.slot_count + s) * self.kv_heads + kv) * self.dim;
                    from[at..at + self.dim].iter().map(|x| f64::from(*x)).collect()
                };
                let mut weighted: Vec<(f64, Vec<f64>)> = (start..=token)
                    .filter(|key| keys == Keys::All || runs[*key])
                    .map(|key| {
                        let k = self.head(key, self.heads + kv, Some(&self.key_gain));
                        (score(&k), self.head(key, self.heads + self.kv_heads + kv, None))
                    })
                    .collect();
                for s in 0..self.slot_count {
                    weighted.push((score(&slot(&self.slot_keys, s)), slot(&self.slot_values, s)));
                }
                let sum: f64 = weighted.iter().map(|(weight, _)| weight).sum();
                for j in 0..self.dim {
                    mixed.push(weighted.iter().map(|(weight, v)| weight / sum * v[j]).sum());
                }
            }
        }
        mixed
    }
}

#[test]
fn every_form_computes_its_definition() {
    for (sequences, time, heads, dim, norms) in [
        (1, 1, [1, 1], 2, false),
        (2, 5, [2, 2], 4, false),
        (2, 70, [4, 2], 6, false),
        (1, 70, [3, 1], 10, true),
        (1, 300, [1, 1], 4, false),
    ] {
        let case = case(sequences, time, heads, dim, norms);
        let want: Vec<f32> = case.reference().iter().map(|x| *x as f32).collect();
        assert_close(&case.forward().mixed, &want, 1e-5);
    }
}

#[test]
fn gradients_are_the_slopes_of_the_definition() {
    for (time, heads, norms) in [(3, [2, 1], false), (4, [2, 2], true), (70, [1, 1], false)] {
        let case = case(2, time, heads, 4, norms);
        let output = case.forward();
        let d = noise("d", output.mixed.len());
        let gradient = case.backward(&d, &output);
        let loss = |case: &Case| -> f64 {
            case.reference().iter().zip(&d).map(|(x, d)| x * f64::from(*d)).sum()
        };
        assert_gradient(
            "joined",
            &gradient.joined,
            &case,
            |case: &mut Case| &mut case.joined,
            loss,
        );
        if norms {
            let got = &gradient.query_gain;
            assert_gradient("query", got, &case, |case: &mut Case| &mut case.query_gain, loss);
            let got = &gradient.key_gain;
            assert_gradient("key", got, &case, |case: &mut Case| &mut case.key_gain, loss);
        }
    }
}

#[test]
fn a_window_ends_what_a_token_sees_before_it() {
    // With 300 tokens and a window of 5, late queries see the second key tile alone.
    for (time, heads, norms, window) in [
        (6, [2, 1], true, 1),
        (70, [2, 2], false, 20),
        (300, [1, 1], false, 5),
        (9, [1, 1], true, 99),
    ] {
        let mut case = case(2, time, heads, 4, norms);
        case.window = Some(window);
        let want: Vec<f32> = case.reference().iter().map(|x| *x as f32).collect();
        let output = case.forward();
        assert_close(&output.mixed, &want, 1e-5);
        let d = noise("d", output.mixed.len());
        let gradient = case.backward(&d, &output);
        let loss = |case: &Case| -> f64 {
            case.reference().iter().zip(&d).map(|(x, d)| x * f64::from(*d)).sum()
        };
        let got = &gradient.joined;
        assert_gradient("joined", got, &case, |case: &mut Case| &mut case.joined, loss);
    }
}

#[test]
fn depth_slots_join_the_softmax_of_their_token() {
    for (time, heads, count) in [(3, [2, 1], 1), (5, [2, 2], 3), (60, [1, 1], 2)] {
        let case = case(2, time, heads, 4, false).with_slots(count);
        let want: Vec<f32> = case.reference().iter().map(|x| *x as f32).collect();
        let output = case.forward();
        assert_close(&output.mixed, &want, 1e-5);
        let d = noise("d", output.mixed.len());
        let gradient = case.backward(&d, &output);
        let loss = |case: &Case| -> f64 {
            case.reference().iter().zip(&d).map(|(x, d)| x * f64::from(*d)).sum()
        };
        let (keys, values) = (&gradient.slot_keys, &gradient.slot_values);
        assert_gradient(
            "joined",
            &gradient.joined,
            &case,
            |case: &mut Case| &mut case.joined,
            loss,
        );
        assert_gradient("keys", keys, &case, |case: &mut Case| &mut case.slot_keys, loss);
        assert_gradient("values", values, &case, |case: &mut Case| &mut case.slot_values, loss);
    }
}

#[test]
fn gradients_over_several_key_tiles_agree_with_those_of_a_plain_sum() {
    // Three hundred tokens need two key tiles; only late queries see the second one.
    let case = case(1, 300, [1, 1], 4, false);
    let output = case.forward();
    let d = noise("d", output.mixed.len());
    let gradient = case.backward(&d, &output);
    let loss = |case: &Case| -> f64 {
        case.reference().iter().zip(&d).map(|(x, d)| x * f64::from(*d)).sum()
    };
    assert_gradient("joined", &gradient.joined, &case, |case: &mut Case| &mut case.joined, loss);
}

#[test]
fn a_value_that_is_no_number_is_not_hidden() {
    let mut case = case(1, 8, [1, 1], 4, false);
    case.joined[0] = f32::NAN;
    let mixed = case.forward().mixed;
    assert!(mixed[..4].iter().all(|x| x.is_nan()));
}

#[test]
fn work_counts_the_keys_that_are_seen() {
    for (sequences, time, slots) in [(1, 70, 0), (3, 300, 2)] {
        let case = case(sequences, time, [4, 2], 6, false).with_slots(slots);
        let (output, forward) = counted(|| case.forward());
        let pairs = sequences * (time * (time + 1) / 2 + time * slots);
        assert_eq!(forward, (4 * 4 * 6 * pairs) as u64);
        let (_, backward) = counted(|| case.backward(&output.mixed, &output));
        assert_eq!(backward, 2 * forward);
    }
}
