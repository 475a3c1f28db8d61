//! Holding a [`Stream`] against a policy written in f64 for a single token.

use super::{Gradient, Stream};
use crate::rows::Rows;
use crate::simd::use_portable;
use crate::testing::{assert_close, noise};
use std::sync::Arc;

/// The answers at all junctions, from the writes and the parameters at all junctions.
pub(crate) type Reference<'a> = &'a dyn Fn(&[Vec<f64>], &[Vec<f64>]) -> Vec<Vec<f64>>;

/// Inputs of all junctions of a stream.
pub(crate) struct Case {
    pub(crate) tokens: usize,
    pub(crate) width: usize,
    pub(crate) writes: Vec<Vec<f32>>,
    pub(crate) params: Vec<Vec<f32>>,
    pub(crate) d_inputs: Vec<Vec<f32>>,
}

impl Case {
    /// Random inputs for a stream with so many parameters at its junctions: gains around one.
    pub(crate) fn random(tokens: usize, width: usize, params: &[usize]) -> Self {
        let rows = |name: &str| {
            let row = |junction| noise(&format!("{name} {junction}"), tokens * width);
            (0..params.len()).map(row).collect()
        };
        let gains = params.iter().enumerate().map(|(junction, &length)| {
            noise(&format!("gain {junction}"), length).iter().map(|gain| 1.0 + 0.5 * gain).collect()
        });
        Self {
            tokens,
            width,
            writes: rows("write"),
            params: gains.collect(),
            d_inputs: rows("gradient"),
        }
    }

    pub(crate) fn forward(&self, stream: &mut dyn Stream) -> Vec<Vec<f32>> {
        let write = |write: &Vec<f32>| -> Rows { Arc::new(write.clone()) };
        let inputs = self.writes.iter().zip(&self.params);
        inputs.map(|(f, params)| stream.forward(write(f), params)).collect()
    }

    /// In the order of the junctions.
    pub(crate) fn backward(&self, stream: &mut dyn Stream) -> Vec<Gradient> {
        let inputs = self.d_inputs.iter().zip(&self.params).rev();
        let mut gradients: Vec<_> = inputs.map(|(d, params)| stream.backward(d, params)).collect();
        gradients.reverse();
        gradients
    }

    /// Checks answers and all gradients of `stream` against the reference and its differences.
    #[track_caller]
    pub(crate) fn check(&self, mut stream: impl Stream, reference: Reference<'_>) {
        let answers = self.forward(&mut stream);
        let gradients = self.backward(&mut stream);
        for (junction, want) in self.expected_answers(reference).iter().enumerate() {
            assert_close(&answers[junction], want, 2e-6);
        }
        for (junction, want) in self.expected_write_gradients(reference).iter().enumerate() {
            assert_close(&gradients[junction].write, want, 1e-5);
        }
        for (junction, want) in self.expected_param_gradients(reference).iter().enumerate() {
            assert_close(&gradients[junction].params, want, 1e-5);
        }
    }

    /// Checks that the form for any CPU and the best one agree.
    #[track_caller]
    pub(crate) fn check_forms<S: Stream>(&self, stream: impl Fn() -> S) {
        let run = |portable: bool| {
            use_portable(portable);
            let mut stream = stream();
            (self.forward(&mut stream), self.backward(&mut stream))
        };
        let ((plain, d_plain), (best, d_best)) = (run(true), run(false));
        for junction in 0..plain.len() {
            assert_close(&best[junction], &plain[junction], 1e-6);
            assert_close(&d_best[junction].write, &d_plain[junction].write, 1e-5);
            assert_close(&d_best[junction].params, &d_plain[junction].params, 1e-5);
        }
    }

    /// Checks that tokens one by one get the same answers, bit for bit, as each has as a batch of its own.
    #[track_caller]
    pub(crate) fn check_walk<S: Stream + 'static>(&self, stream: impl Fn() -> S) {
        let walk_all = || {
            let mut walk = Box::new(stream()).walk();
            (0..self.tokens).all(|token| {
                let alone = self.alone(token);
                let (mut stream, mut runs) = (stream(), true);
                alone.writes.iter().zip(&alone.params).enumerate().all(|(junction, (f, params))| {
                    // What is written by who does not run has no meaning.
                    let f = if runs { f.clone() } else { vec![f32::NAN; f.len()] };
                    let mut answer = vec![f32::NAN; self.width];
                    runs = walk.step(junction, &f, params, &mut answer);
                    let want = stream.forward(Arc::new(f), params);
                    answer == want && runs == stream.route().is_none()
                })
            })
        };
        // Another test may switch the form of the kernels between the two; not every time.
        assert!((0..20).any(|_| walk_all()));
    }

    /// The same inputs of one token alone.
    fn alone(&self, token: usize) -> Self {
        let row = |rows: &Vec<f32>| rows[token * self.width..][..self.width].to_vec();
        Self {
            tokens: 1,
            width: self.width,
            writes: self.writes.iter().map(row).collect(),
            params: self.params.clone(),
            d_inputs: self.d_inputs.iter().map(row).collect(),
        }
    }

    /// Checks that results are the same, bit for bit, with one thread and with three.
    pub(crate) fn check_threads<S: Stream>(&self, stream: impl Fn() -> S + Send + Sync) {
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut stream = stream();
                let answers = self.forward(&mut stream);
                let gradients = self.backward(&mut stream).into_iter();
                (answers, gradients.map(|d| (d.write, d.params)).collect::<Vec<_>>())
            })
        };
        // Another test may switch the form of the kernels between the two runs; not every time.
        assert!((0..20).any(|_| run(1) == run(3)));
    }

    /// Checks that a stream that keeps nothing answers the same.
    #[track_caller]
    pub(crate) fn check_inference(&self, mut keeping: impl Stream, mut other: impl Stream) {
        let (want, got) = (self.forward(&mut keeping), self.forward(&mut other));
        for (got, want) in got.iter().zip(&want) {
            assert_close(got, want, 1e-6);
        }
    }

    fn token(&self, rows: &[Vec<f32>], token: usize) -> Vec<Vec<f64>> {
        let row = token * self.width..(token + 1) * self.width;
        rows.iter().map(|rows| wide(&rows[row.clone()])).collect()
    }

    fn expected_answers(&self, reference: Reference<'_>) -> Vec<Vec<f32>> {
        let params: Vec<_> = self.params.iter().map(|params| wide(params)).collect();
        let mut answers = vec![Vec::new(); self.writes.len()];
        for token in 0..self.tokens {
            let writes = self.token(&self.writes, token);
            for (all, one) in answers.iter_mut().zip(reference(&writes, &params)) {
                all.extend(one.iter().map(|&value| value as f32));
            }
        }
        answers
    }

    /// What the gradients are of: the answers, weighted by `d_inputs`.
    fn loss(&self, answers: &[Vec<f64>], token: usize) -> f64 {
        let weights = self.token(&self.d_inputs, token);
        let products = weights.iter().flatten().zip(answers.iter().flatten());
        products.map(|(weight, answer)| weight * answer).sum()
    }

    fn expected_write_gradients(&self, reference: Reference<'_>) -> Vec<Vec<f32>> {
        let params: Vec<_> = self.params.iter().map(|params| wide(params)).collect();
        let mut gradients = vec![Vec::new(); self.writes.len()];
        for token in 0..self.tokens {
            let mut writes = self.token(&self.writes, token);
            for (junction, gradient) in gradients.iter_mut().enumerate() {
                for j in 0..self.width {
                    let difference = central_difference(&mut writes, junction, j, |writes| {
                        self.loss(&reference(writes, &params), token)
                    });
                    gradient.push(difference as f32);
                }
            }
        }
        gradients
    }

    fn expected_param_gradients(&self, reference: Reference<'_>) -> Vec<Vec<f32>> {
        let mut params: Vec<_> = self.params.iter().map(|params| wide(params)).collect();
        let mut gradients = vec![Vec::new(); self.writes.len()];
        for (junction, gradient) in gradients.iter_mut().enumerate() {
            for j in 0..params[junction].len() {
                let difference = central_difference(&mut params, junction, j, |params| {
                    let loss = |token| {
                        self.loss(&reference(&self.token(&self.writes, token), params), token)
                    };
                    (0..self.tokens).map(loss).sum()
                });
                gradient.push(difference as f32);
            }
        }
        gradients
    }
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

fn central_difference(
    inputs: &mut [Vec<f64>],
    junction: usize,
    j: usize,
    loss: impl Fn(&[Vec<f64>]) -> f64,
) -> f64 {
    const STEP: f64 = 1e-5;
    let value = inputs[junction][j];
    inputs[junction][j] = value + STEP;
    let above = loss(inputs);
    inputs[junction][j] = value - STEP;
    let below = loss(inputs);
    inputs[junction][j] = value;
    (above - below) / (2.0 * STEP)
}

/// `v / sqrt(mean(v^2) + eps) * gain`.
pub(crate) fn rms(v: &[f64], gain: &[f64], eps: f64) -> Vec<f64> {
    let root = (v.iter().map(|v| v * v).sum::<f64>() / v.len() as f64 + eps).sqrt();
    v.iter().zip(gain).map(|(v, gain)| v / root * gain).collect()
}
