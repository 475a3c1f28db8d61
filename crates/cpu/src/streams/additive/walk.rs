//! [`Additive`] for one token at a time.

use super::{Additive, Before, ForwardTile, go_forward};
use crate::streams::Walk;

#[derive(Debug)]
pub(super) struct AdditiveWalk {
    stream: Additive,
    sum: Vec<f32>,
    /// Becomes the sum.
    next: Vec<f32>,
    /// Of the sum, if it is normalised.
    inverse_rms: [f32; 1],
    /// Of the norm after the sum, if there is one.
    gain: Vec<f32>,
}

impl AdditiveWalk {
    pub(super) fn new(stream: Additive) -> Self {
        let row = || vec![0.0; stream.width];
        Self { sum: row(), next: row(), inverse_rms: [0.0], gain: row(), stream }
    }
}

impl Walk for AdditiveWalk {
    fn step(&mut self, junction: usize, write: &[f32], params: &[f32], answer: &mut [f32]) -> bool {
        let Self { stream: Additive { width, eps, steps, .. }, sum, next, inverse_rms, gain } =
            self;
        let step = steps[junction];
        assert_eq!(params.len(), step.params(*width), "gains of junction {junction}");
        let norms = step.norms(params, *width);
        let [mut post_inverse_rms, mut pre_inverse_rms] = [[0.0]; 2];
        let before = junction.checked_sub(1).map(|before| Before {
            sum,
            norm: steps[before].post.then_some((&inverse_rms[..], gain.as_slice())),
        });
        let tile = ForwardTile {
            before,
            write,
            sum: next,
            answer,
            post_inverse_rms: &mut post_inverse_rms,
            pre_inverse_rms: &mut pre_inverse_rms,
        };
        go_forward(tile, step.skip, norms, *width, *eps);
        if junction == 0 {
            next.copy_from_slice(write);
        }
        std::mem::swap(sum, next);
        *inverse_rms = post_inverse_rms;
        if let Some(post) = norms.post {
            gain.copy_from_slice(post);
        }
        true
    }
}
