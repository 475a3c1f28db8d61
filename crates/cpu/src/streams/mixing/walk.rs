//! [`Mixing`] for one token at a time.

use super::Mixing;
use super::tile::{Close, Forward, Params, Room, close, forward};
use crate::streams::DecodeStream;

#[derive(Debug)]
pub(super) struct MixingWalk {
    stream: Mixing,
    streams: Vec<f32>,
    logits: Vec<f32>,
    inverse_rms: Vec<f32>,
    /// Those of the site that writes next.
    weights: Vec<f32>,
    /// Become the weights of the site behind it.
    next: Vec<f32>,
    /// The sum of the streams.
    out: Vec<f32>,
    room: Room,
}

impl MixingWalk {
    pub(super) fn new(stream: Mixing) -> Self {
        let shape = &stream.shape;
        let room = |length: usize| vec![0.0; length];
        Self {
            streams: room(shape.state()),
            logits: room(shape.logits()),
            inverse_rms: room(shape.rows()),
            weights: room(shape.weights()),
            next: room(shape.weights()),
            out: room(shape.width),
            room: Room::default(),
            stream,
        }
    }
}

impl DecodeStream for MixingWalk {
    fn step(&mut self, junction: usize, write: &[f32], params: &[f32], answer: &mut [f32]) -> bool {
        let Self { stream, streams, logits, inverse_rms, weights, next, out, room } = self;
        assert_eq!(params.len(), stream.params(junction), "parameters of junction {junction}");
        let (shape, eps) = (&stream.shape, stream.eps);
        let mixing = if junction > 0 { weights.as_slice() } else { &[] };
        if junction == stream.sites {
            close(
                crate::simd::Form::best(),
                Close { streams, mixing, write, out, answer },
                shape,
                params,
                eps,
                room,
            );
            return true;
        }
        let tile = Forward {
            streams,
            before: None,
            mixing,
            write,
            logits,
            inverse_rms,
            weights: next,
            answer,
        };
        forward(crate::simd::Form::best(), tile, shape, &Params::of(params, shape), eps, room);
        std::mem::swap(weights, next);
        true
    }
}
