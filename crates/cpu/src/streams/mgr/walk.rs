//! [`Mgr`](super::Mgr) for one token at a time.

use super::decision::Rule;
use super::forward::{append, lerp, read, score};
use super::layout::{Junction, Numbers, Params, Shape};
use crate::streams::{DecodeStream, Skip};

#[derive(Debug)]
pub(super) struct MgrWalk {
    shape: Shape,
    skip: Option<Skip>,
    token: Token,
}

/// The streams of a token and what is known of them.
#[derive(Debug)]
struct Token {
    /// `[slots, width]`
    streams: Vec<f32>,
    inverse_rms: Vec<f32>,
    numbers: Vec<f32>,
    /// Of the next write, if the junction before opened its gates.
    next_scores: Vec<f32>,
    next_gates: Vec<f32>,
    /// Whether there will be that write.
    runs: bool,
}

impl MgrWalk {
    pub(super) fn new(shape: Shape, skip: Option<Skip>) -> Self {
        let row = || vec![0.0; shape.slots];
        let numbers = (0..shape.junctions).map(|index| shape.junction(index).numbers()).max();
        let token = Token {
            streams: vec![0.0; shape.slots * shape.width],
            inverse_rms: row(),
            numbers: vec![0.0; numbers.unwrap_or_default()],
            next_scores: row(),
            next_gates: row(),
            runs: true,
        };
        Self { shape, skip, token }
    }
}

impl DecodeStream for MgrWalk {
    fn step(&mut self, index: usize, write: &[f32], params: &[f32], answer: &mut [f32]) -> bool {
        let Self { shape, skip, token } = self;
        let junction = shape.junction(index);
        let params = Params::split(params, shape, junction);
        let rule = Rule::of(skip, junction, index);
        let opened = index > 0 && shape.junction(index - 1).decides;
        step(
            crate::simd::Form::best(),
            shape,
            junction,
            params,
            rule,
            opened,
            write,
            token,
            answer,
        );
        token.runs
    }
}

simd! {
    /// Writes, then reads: what a tile does, for its only token.
    fn step(
        shape: &Shape,
        junction: Junction,
        params: Params<'_>,
        rule: Option<Rule<'_>>,
        opened: bool,
        write: &[f32],
        token: &mut Token,
        answer: &mut [f32],
    ) {
        let Token { streams, inverse_rms, numbers, next_scores, next_gates, runs } = token;
        let streams = &mut streams[..junction.after * shape.width];
        let mut numbers = Numbers::split(numbers, junction);
        if !junction.gates {
            append(shape, params, write, streams, inverse_rms, &mut numbers);
        } else if !*runs {
            score(params.pool_query, streams, inverse_rms, numbers.scores);
        } else {
            if opened {
                numbers.gates.copy_from_slice(next_gates);
            } else {
                score(params.gate_query, streams, inverse_rms, numbers.gate_scores);
                shape.gate.open(numbers.gate_scores, params.gate_bias, numbers.gates);
            }
            lerp(shape, params, write, streams, inverse_rms, &mut numbers);
        }
        read(shape, junction, params, streams, numbers, answer);
        *runs = match rule {
            None => true,
            Some(rule) => {
                score(params.next_query, streams, inverse_rms, next_scores);
                shape.gate.open(next_scores, params.next_bias, next_gates);
                rule.decide(0, next_gates)
            }
        };
    }
}
