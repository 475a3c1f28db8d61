//! [`Siamese`] for one token at a time.

use super::{Before, ForwardTile, Gains, NORMS, Siamese, go_forward};
use crate::streams::Walk;
use std::mem::swap;

#[derive(Debug)]
pub(super) struct SiameseWalk {
    stream: Siamese,
    x: Vec<f32>,
    y: Vec<f32>,
    /// Become the two streams.
    next_x: Vec<f32>,
    next_y: Vec<f32>,
    inverse_rms: [f32; NORMS],
    post_gain: Vec<f32>,
}

impl SiameseWalk {
    pub(super) fn new(stream: Siamese) -> Self {
        let row = || vec![0.0; stream.width];
        let ([x, y], [next_x, next_y]) = ([row(), row()], [row(), row()]);
        Self { x, y, next_x, next_y, inverse_rms: [0.0; NORMS], post_gain: row(), stream }
    }
}

impl Walk for SiameseWalk {
    fn step(&mut self, junction: usize, write: &[f32], params: &[f32], answer: &mut [f32]) -> bool {
        let (width, eps) = (self.stream.width, self.stream.eps);
        assert_eq!(params.len(), NORMS * width, "gains of junction {junction}");
        let gains = Gains::new(params, width);
        let mut inverse_rms = [0.0; NORMS];
        let before = Before {
            x: &self.x,
            y: &self.y,
            inverse_rms: &self.inverse_rms,
            post_gain: &self.post_gain,
        };
        let tile = ForwardTile {
            before: (junction > 0).then_some(before),
            write,
            x: &mut self.next_x,
            y: &mut self.next_y,
            answer,
            inverse_rms: &mut inverse_rms,
        };
        go_forward(tile, self.stream.write_scale(junction), gains, width, eps);
        if junction == 0 {
            self.next_x.copy_from_slice(write);
            self.next_y.copy_from_slice(write);
        }
        swap(&mut self.x, &mut self.next_x);
        swap(&mut self.y, &mut self.next_y);
        self.inverse_rms = inverse_rms;
        self.post_gain.copy_from_slice(gains.post);
        true
    }
}
