//! The way back through a tile of a junction.

use super::modulator::{self, Gain, Modulator, ModulatorGradient};
use super::{Modulation, Origin, room, rotation, rows};
use crate::streams::tiles::TILE;

/// A junction on the way back.
pub(super) struct Back<'a> {
    pub(super) width: usize,
    pub(super) origin: &'a Origin,
    /// Of the site whose write arrived here; none for the embedding.
    pub(super) gains: &'a [Gain],
    /// After the last junction.
    pub(super) log_norm: &'a [f32],
    /// How the gain of the next site was set; none if the directions left for the head.
    pub(super) left: Option<(Modulator<'a>, &'a Modulation)>,
    pub(super) d_input: &'a [f32],
}

/// The gradients of a tile's tokens, and the sum over tiles for the parameters.
pub(super) struct TileGradient<'a> {
    /// Comes as the direction before the junction if there was one, leaves as the gradient of the write.
    pub(super) write: &'a mut [f32],
    /// Comes as that of the direction after the junction, leaves as that of the one before.
    pub(super) direction: &'a mut [f32],
    pub(super) log_norm: &'a mut [f32],
    /// Come as those of the site after the junction, leave as those of the one before.
    pub(super) gains: &'a mut [f32],
    pub(super) params: &'a mut [f32],
}

/// What one tile after the other is computed in.
pub(super) struct Scratch {
    /// The directions after the junction.
    direction: Vec<f32>,
    /// The unit turning parts of the writes.
    part: Vec<f32>,
    /// Gradients of the gates' arguments.
    d_gates: Vec<f32>,
}

impl Scratch {
    pub(super) fn new(width: usize, directions: usize) -> Self {
        Self {
            direction: room(TILE * width),
            part: room(TILE * width),
            d_gates: room(TILE * directions),
        }
    }
}

impl Back<'_> {
    pub(super) fn tile(&self, first: usize, d: TileGradient, scratch: &mut Scratch) {
        let count = d.log_norm.len();
        let tokens = first..first + count;
        let rows = rows(&tokens, self.width);
        let direction = &mut scratch.direction[..count * self.width];
        let part = &mut scratch.part[..count * self.width];
        match self.origin {
            Origin::Embedding { embedding, norms } => {
                let embedding = &embedding.values()[rows.clone()];
                rotation::enter_again(
                    crate::simd::Form::best(),
                    direction,
                    embedding,
                    &norms[tokens.clone()],
                );
            }
            Origin::Turn { write, turns } => rotation::turn_again(
                crate::simd::Form::best(),
                direction,
                part,
                &write.values()[rows.clone()],
                d.write,
                &self.gains[tokens.clone()],
                &turns[tokens.clone()],
            ),
        }

        let d_input = &self.d_input[rows.clone()];
        let (d_log_gain, d_modulator) =
            d.params.split_at_mut(usize::from(matches!(self.origin, Origin::Embedding { .. })));
        match self.left {
            Some((modulator, Modulation { open, gains })) => {
                let directions = open.len() / gains.len();
                modulator::modulate_back(
                    crate::simd::Form::best(),
                    d.direction,
                    ModulatorGradient::new(d_modulator, directions, self.width),
                    &mut scratch.d_gates[..count * directions],
                    d_input,
                    d.gains,
                    direction,
                    &open[tokens.start * directions..tokens.end * directions],
                    &gains[tokens.clone()],
                    modulator,
                );
            }
            None => {
                let log_norm = &self.log_norm[tokens.clone()];
                rotation::read_out_back(
                    crate::simd::Form::best(),
                    d.direction,
                    d.log_norm,
                    d_input,
                    direction,
                    log_norm,
                );
            }
        }

        match self.origin {
            Origin::Embedding { norms, .. } => {
                d_log_gain[0] += d.log_norm.iter().sum::<f32>();
                let norms = &norms[tokens];
                rotation::enter_back(
                    crate::simd::Form::best(),
                    d.write,
                    d.direction,
                    d.log_norm,
                    direction,
                    norms,
                );
            }
            Origin::Turn { turns, .. } => rotation::turn_back(
                crate::simd::Form::best(),
                d.write,
                d.direction,
                d.gains,
                d.log_norm,
                direction,
                part,
                &self.gains[tokens.clone()],
                &turns[tokens],
            ),
        }
    }
}
