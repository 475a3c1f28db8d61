//! [`Nag`] for one token at a time.

use super::Nag;
use super::modulator::{Gain, decide, modulate};
use super::rotation::{Turn, enter, read_out, turn};
use crate::streams::DecodeStream;
use crate::work;

#[derive(Debug)]
pub(super) struct NagWalk {
    stream: Nag,
    direction: Vec<f32>,
    /// Becomes the direction.
    next: Vec<f32>,
    log_norm: [f32; 1],
    /// The open gates from which the gain comes.
    open: Vec<f32>,
    gain: [Gain; 1],
}

impl NagWalk {
    pub(super) fn new(stream: Nag) -> Self {
        let row = || vec![0.0; stream.width];
        let (direction, next, open) = (row(), row(), vec![0.0; stream.directions]);
        Self { direction, next, log_norm: [0.0], open, gain: [Gain::default()], stream }
    }
}

impl DecodeStream for NagWalk {
    fn step(&mut self, junction: usize, write: &[f32], params: &[f32], answer: &mut [f32]) -> bool {
        let Self { stream, direction, next, log_norm, open, gain } = self;
        let (log_gain, modulator) = stream.parse(junction, params);
        if junction == 0 {
            enter(crate::simd::Form::best(), next, log_norm, &mut [0.0], write, log_gain);
        } else {
            turn(
                crate::simd::Form::best(),
                next,
                log_norm,
                &mut [Turn::default()],
                write,
                direction,
                gain,
            );
        }
        std::mem::swap(direction, next);
        let Some(modulator) = modulator else {
            read_out(crate::simd::Form::best(), answer, direction, log_norm);
            return true;
        };
        work::add(2 * stream.directions * stream.width);
        modulate(
            crate::simd::Form::best(),
            gain,
            open,
            direction,
            modulator,
            &modulator.layout(1, stream.order()),
        );
        if let Some(skip) = &stream.skip {
            decide(gain, skip, junction, 0);
        }
        answer.copy_from_slice(direction);
        gain[0].runs
    }
}
