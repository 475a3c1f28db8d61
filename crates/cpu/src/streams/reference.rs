//! Holding a [`Stream`] against a policy written in f64 for a single token.

use super::driver::{Carried, Policy};
use super::{AttnRes, DeltaAttnRes, Gradient, Stream};
use crate::rows::Rows;
use crate::simd::Form;
use crate::testing::{assert_close, noise};
use std::sync::Arc;

/// The outputs at all junctions, from the writes and the parameters at all junctions.
pub(crate) type Reference<'a> = &'a dyn Fn(&Lists, &Lists) -> Vec<Vec<f64>>;
/// Writes, or parameters, of each junction.
pub(crate) type Lists = [Vec<f64>];

/// A stream whose kernels have forms.
pub(crate) trait Formed: Stream + Sized + 'static {
    fn in_form(self, form: Form) -> Self;
}

impl<P: Policy> Formed for Carried<P> {
    fn in_form(self, form: Form) -> Self {
        Carried::in_form(self, form)
    }
}

impl Formed for AttnRes {
    fn in_form(self, form: Form) -> Self {
        AttnRes::in_form(self, form)
    }
}

impl Formed for DeltaAttnRes {
    fn in_form(self, form: Form) -> Self {
        DeltaAttnRes::in_form(self, form)
    }
}

/// Inputs of all junctions of a stream.
pub(crate) struct Case {
    pub(crate) tokens: usize,
    pub(crate) width: usize,
    pub(crate) writes: Vec<Vec<f32>>,
    pub(crate) params: Vec<Vec<f32>>,
    pub(crate) d_outputs: Vec<Vec<f32>>,
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
            d_outputs: rows("gradient"),
        }
    }

    /// The same for a stream of whose outputs some hold several rows side by side.
    pub(crate) fn with_inputs(mut self, inputs: Vec<usize>) -> Self {
        for (junction, (rows, inputs)) in self.d_outputs.iter_mut().zip(&inputs).enumerate() {
            *rows = noise(&format!("gradient {junction}"), self.tokens * self.width * inputs);
        }
        self
    }

    pub(crate) fn forward(&self, stream: &mut dyn Stream) -> Vec<Vec<f32>> {
        let write = |write: &Vec<f32>| -> Rows { Arc::new(write.clone()) };
        let inputs = self.writes.iter().zip(&self.params);
        inputs.map(|(f, params)| stream.forward(write(f), params)).collect()
    }

    /// In the order of the junctions.
    pub(crate) fn backward(&self, stream: &mut dyn Stream) -> Vec<Gradient> {
        let inputs = self.d_outputs.iter().zip(&self.params).rev();
        let mut gradients: Vec<_> = inputs.map(|(d, params)| stream.backward(d, params)).collect();
        gradients.reverse();
        gradients
    }

    /// Checks outputs and all gradients of `stream` against the reference and its differences.
    #[track_caller]
    pub(crate) fn check(&self, mut stream: impl Stream, reference: Reference<'_>) {
        let outputs = self.forward(&mut stream);
        let gradients = self.backward(&mut stream);
        for (junction, want) in self.expected_outputs(reference).iter().enumerate() {
            assert_close(&outputs[junction], want, 2e-6);
        }
        for (junction, want) in self.expected_write_gradients(reference).iter().enumerate() {
            assert_close(&gradients[junction].write, want, 1e-5);
        }
        for (junction, want) in self.expected_param_gradients(reference).iter().enumerate() {
            assert_close(&gradients[junction].params, want, 1e-5);
        }
    }

    /// Checks what holds for every stream: forms, threads and keeping nothing make no difference, single tokens get the
    /// same outputs, and what is not a number stays with its token.
    #[track_caller]
    pub(crate) fn check_laws<S: Formed>(&self, stream: impl Fn(bool) -> S + Sync) {
        self.check_forms(|| stream(true));
        self.check_threads(|| stream(true));
        self.check_inference(stream(true), stream(false));
        self.check_decode(|| stream(false));
        self.check_spoilt(|| stream(true));
    }

    /// Checks that all forms agree with the one for any CPU.
    #[track_caller]
    pub(crate) fn check_forms<S: Formed>(&self, stream: impl Fn() -> S) {
        let run = |form: Form| {
            let mut stream = stream().in_form(form);
            (self.forward(&mut stream), self.backward(&mut stream))
        };
        let (plain, d_plain) = run(Form::Portable);
        for (out, d) in Form::all().into_iter().map(run) {
            for junction in 0..plain.len() {
                assert_close(&out[junction], &plain[junction], 1e-6);
                assert_close(&d[junction].write, &d_plain[junction].write, 1e-5);
                assert_close(&d[junction].params, &d_plain[junction].params, 1e-5);
            }
        }
    }

    /// Checks that tokens one by one get the same outputs, bit for bit, as each has as a batch of its own.
    #[track_caller]
    pub(crate) fn check_decode<S: Stream + 'static>(&self, stream: impl Fn() -> S) {
        let mut decode = Box::new(stream()).decode();
        for token in 0..self.tokens.min(20) {
            let alone = self.only(&[token]);
            let (mut stream, mut runs) = (stream(), true);
            for (junction, (f, params)) in alone.writes.iter().zip(&alone.params).enumerate() {
                // What a token writes that does not run has no meaning.
                let f = if runs { f.clone() } else { vec![f32::NAN; f.len()] };
                let mut output = vec![f32::NAN; self.d_outputs[junction].len() / self.tokens];
                runs = decode.step(junction, &f, params, &mut output);
                let want = stream.forward(Arc::new(f), params);
                assert_eq!(output, want, "token {token} at junction {junction}");
                assert_eq!(runs, stream.route().is_none());
            }
        }
    }

    /// Checks that a write that is not a number, or too large for a sum of squares, spoils no other token, and is seen from
    /// then on.
    #[track_caller]
    fn check_spoilt<S: Stream>(&self, stream: impl Fn() -> S) {
        let at = 1;
        let mut probe = stream();
        probe.forward(Arc::new(self.writes[0].clone()), &self.params[0]);
        let runs = probe.route().map_or_else(|| vec![true; self.tokens], |route| route.decisions());
        let spoilt = runs.iter().rposition(|&runs| runs).expect("a token that runs");
        for poison in [f32::NAN, f32::INFINITY, 1e30] {
            let mut case = self.only(&(0..self.tokens).collect::<Vec<_>>());
            case.writes[at][spoilt * self.width + self.width / 2] = poison;
            let mut stream = stream();
            let outputs = case.forward(&mut stream);
            let gradients = case.backward(&mut stream);
            for rows in outputs[at..].iter().chain([&gradients[at].write]) {
                for (token, row) in rows.chunks(rows.len() / self.tokens).enumerate() {
                    assert_eq!(row.iter().all(|value| value.is_finite()), token != spoilt);
                }
            }
        }
    }

    /// The same inputs of these tokens alone, in this order.
    pub(crate) fn only(&self, tokens: &[usize]) -> Self {
        let pick = |rows: &Vec<f32>| {
            let each = rows.len() / self.tokens;
            let row = |&token: &usize| rows[token * each..][..each].to_vec();
            tokens.iter().flat_map(row).collect()
        };
        Self {
            tokens: tokens.len(),
            width: self.width,
            writes: self.writes.iter().map(pick).collect(),
            params: self.params.clone(),
            d_outputs: self.d_outputs.iter().map(pick).collect(),
        }
    }

    /// Checks that results are the same, bit for bit, with one thread and with three.
    #[track_caller]
    pub(crate) fn check_threads<S: Stream>(&self, stream: impl Fn() -> S + Sync) {
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut stream = stream();
                let outputs = self.forward(&mut stream);
                let gradients = self.backward(&mut stream).into_iter();
                (outputs, gradients.map(|d| (d.write, d.params)).collect::<Vec<_>>())
            })
        };
        assert_eq!(run(1), run(3));
    }

    /// Checks that a stream that keeps nothing outputs the same.
    #[track_caller]
    pub(crate) fn check_inference(&self, mut keeping: impl Stream, mut other: impl Stream) {
        assert_eq!(self.forward(&mut other), self.forward(&mut keeping));
    }

    fn token(&self, rows: &[Vec<f32>], token: usize) -> Vec<Vec<f64>> {
        let row = |rows: &Vec<f32>| {
            let each = rows.len() / self.tokens;
            wide(&rows[token * each..][..each])
        };
        rows.iter().map(row).collect()
    }

    fn expected_outputs(&self, reference: Reference<'_>) -> Vec<Vec<f32>> {
        let params: Vec<_> = self.params.iter().map(|params| wide(params)).collect();
        let mut outputs = vec![Vec::new(); self.writes.len()];
        for token in 0..self.tokens {
            let writes = self.token(&self.writes, token);
            for (all, one) in outputs.iter_mut().zip(reference(&writes, &params)) {
                all.extend(one.iter().map(|&value| value as f32));
            }
        }
        outputs
    }

    /// What the gradients are of: the outputs, weighted by `d_outputs`.
    fn loss(&self, outputs: &[Vec<f64>], token: usize) -> f64 {
        let weights = self.token(&self.d_outputs, token);
        let products = weights.iter().flatten().zip(outputs.iter().flatten());
        products.map(|(weight, output)| weight * output).sum()
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
