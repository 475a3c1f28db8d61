//! The same chain of junctions, written down as plainly as possible in f64.

use crate::rows::Rows;
use crate::streams::mgr::{Gate, Settings};
use crate::streams::reference::Case;
use std::sync::Arc;

/// Writes and parameters of all junctions.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    pub(super) settings: Settings,
    /// `[tokens, width]` for each junction.
    pub(super) writes: Vec<Vec<f64>>,
    pub(super) junctions: Vec<JunctionParams>,
}

/// A junction's parameters; w1 and w2 with `1/sqrt(d)` taken in.
#[derive(Clone, Debug, Default)]
pub(super) struct JunctionParams {
    pub(super) w1: Vec<f64>,
    pub(super) b: Vec<f64>,
    pub(super) w2: Vec<f64>,
    pub(super) gain: Vec<f64>,
}

/// What a token's traversal shows.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// What every junction outputs.
    pub(super) outputs: Vec<Vec<f64>>,
    /// The gates of every junction; none where it appends.
    pub(super) gates: Vec<Vec<f64>>,
    /// The streams at the end.
    pub(super) streams: Vec<Vec<f64>>,
}

impl Chain {
    /// The same for the laws of all streams.
    pub(super) fn case(&self) -> Case {
        let writes: Vec<_> = self.writes.iter().map(|write| narrow(write)).collect();
        let (tokens, width) = (self.tokens(), self.settings.width);
        Case { tokens, width, d_outputs: writes.clone(), writes, params: self.params() }
    }

    /// Everything drawn from a seed: gates of about 0.05, queries that matter.
    pub(super) fn random(settings: Settings, junctions: usize, tokens: usize, seed: u64) -> Self {
        let Settings { width, streams, gate, .. } = settings;
        let mut random = Random(seed);
        let mut writes = Vec::new();
        let mut all = Vec::new();
        for k in 0..junctions {
            let size = 0.5 + k as f64 % 3.0;
            writes.push((0..tokens * width).map(|_| size * random.normal()).collect());
            let mut params = JunctionParams::default();
            let query = 1.0 / (width as f64).sqrt();
            if k >= streams {
                params.w1 = (0..width).map(|_| query * random.normal()).collect();
                params.b = (0..streams).map(|_| 0.3 * random.normal()).collect();
                match gate {
                    Gate::Independent => params.b.iter_mut().for_each(|b| *b -= 3.0),
                    Gate::Competitive => params.b.insert(0, 3.0),
                }
            }
            if k > 0 {
                params.w2 = (0..width).map(|_| query * random.normal()).collect();
            }
            params.gain = (0..width).map(|_| 1.0 + 0.3 * random.normal()).collect();
            all.push(params);
        }
        let mut chain = Self { settings, writes, junctions: all };
        chain.round();
        chain
    }

    /// Makes all values those that f32 can hold, so that both sides compute with the same ones.
    fn round(&mut self) {
        let params = self.junctions.iter_mut().flat_map(|p| p.parts_mut());
        for value in self.writes.iter_mut().chain(params).flatten() {
            *value = f64::from(*value as f32);
        }
    }

    pub(super) fn tokens(&self) -> usize {
        self.writes[0].len() / self.settings.width
    }

    /// The writes as the kernel takes them.
    pub(super) fn rows(&self) -> Vec<Rows> {
        self.writes.iter().map(|write| Arc::new(narrow(write)) as Rows).collect()
    }

    /// The parameters in the kernel's layout.
    pub(super) fn params(&self) -> Vec<Vec<f32>> {
        let nothing = JunctionParams::default();
        let flat = |(k, p): (usize, &JunctionParams)| {
            let next = self.junctions.get(k + 1).filter(|_| self.settings.skip.is_some());
            let next = next.unwrap_or(&nothing);
            narrow(&[&p.w1[..], &p.b, &p.w2, &p.gain, &next.w1, &next.b].concat())
        };
        self.junctions.iter().enumerate().map(flat).collect()
    }

    /// What all tokens are outputed, `[tokens, width]` for each junction.
    pub(super) fn outputs(&self) -> Vec<Vec<f64>> {
        let mut outputs = vec![Vec::new(); self.junctions.len()];
        for token in 0..self.tokens() {
            for (all, one) in outputs.iter_mut().zip(self.traverse(token).outputs) {
                all.extend(one);
            }
        }
        outputs
    }

    /// Carries one token past all junctions.
    pub(super) fn traverse(&self, token: usize) -> Seen {
        let Settings { width, eps, streams: n, gate, .. } = self.settings;
        let rms = |x: &[f64]| {
            let mean = x.iter().map(|x| x * x).sum::<f64>() / width as f64;
            x.iter().map(|x| x / (mean + f64::from(eps)).sqrt()).collect::<Vec<f64>>()
        };
        let scores = |w: &[f64], streams: &[Vec<f64>]| {
            streams.iter().map(|s| dot(w, &rms(s))).collect::<Vec<f64>>()
        };
        let mut seen = Seen::default();
        let mut streams: Vec<Vec<f64>> = Vec::new();
        for (k, (write, p)) in self.writes.iter().zip(&self.junctions).enumerate() {
            let f = &write[token * width..(token + 1) * width];
            let mut gates = Vec::new();
            if streams.len() < n {
                streams.push(f.to_vec());
            } else {
                let u = scores(&p.w1, &streams);
                gates = match gate {
                    Gate::Independent => {
                        u.iter().zip(&p.b).map(|(u, b)| 1.0 / (1.0 + (-u - b).exp())).collect()
                    }
                    Gate::Competitive => {
                        let e: Vec<f64> =
                            u.iter().zip(&p.b[1..]).map(|(u, b)| (u + b).exp()).collect();
                        let sum = p.b[0].exp() + e.iter().sum::<f64>();
                        e.iter().map(|e| e / sum).collect()
                    }
                };
                let share = self.share(k - 1, &gates);
                for (stream, beta) in streams.iter_mut().zip(&gates) {
                    for (s, f) in stream.iter_mut().zip(f).filter(|_| share > 0.0) {
                        *s += share * beta * (f - *s);
                    }
                }
            }
            let h = if p.w2.is_empty() {
                streams[0].clone()
            } else {
                let e: Vec<f64> = scores(&p.w2, &streams).iter().map(|v| v.exp()).collect();
                let sum: f64 = e.iter().sum();
                (0..width)
                    .map(|j| streams.iter().zip(&e).map(|(s, e)| e / sum * s[j]).sum())
                    .collect()
            };
            seen.outputs.push(rms(&h).iter().zip(&p.gain).map(|(h, gain)| h * gain).collect());
            seen.gates.push(gates);
        }
        seen.streams = streams;
        seen
    }

    /// What share of its gates a token writes with after a site: zero if it skips.
    fn share(&self, site: usize, gates: &[f64]) -> f64 {
        let Some(skip) = &self.settings.skip else { return 1.0 };
        let (threshold, shrink) = (f64::from(skip.thresholds[site]), f64::from(skip.shrink));
        let widest = gates.iter().copied().fold(0.0, f64::max);
        if widest < threshold { 0.0 } else { (widest - shrink * threshold) / widest }
    }

    /// `sum_k forms_k . output_k`.
    pub(super) fn loss(&self, forms: &[Vec<f64>]) -> f64 {
        self.outputs().iter().zip(forms).map(|(output, form)| dot(output, form)).sum()
    }
}

impl JunctionParams {
    /// In the kernel's order.
    pub(super) fn parts_mut(&mut self) -> [&mut Vec<f64>; 4] {
        [&mut self.w1, &mut self.b, &mut self.w2, &mut self.gain]
    }
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub(super) fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&value| value as f32).collect()
}

/// A small generator, so that the crate needs no other for its tests.
pub(super) struct Random(pub(super) u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mixed = (self.0 ^ (self.0 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        ((mixed ^ (mixed >> 33)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Nearly normal: the sum of twelve.
    pub(super) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}
