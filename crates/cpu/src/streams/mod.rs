//! What a residual policy does between two sub-layers, fused into one pass over the tokens.
//!
//! A forward pass is a chain of junctions. Junction 0 takes the embedding and returns what the first
//! sub-layer is given; junction k takes the write of the k-th sub-layer and returns what the next one,
//! or finally the head, is given. The depth state never leaves the [`Stream`], so it is updated in
//! place, and what the backward pass needs is kept in the form that is cheapest for the policy.

mod additive;
mod attnres;
mod ddl;
mod decision;
mod dense;
mod driver;
mod footprint;
mod gr;
pub mod mgr;
mod mixing;
mod nag;
#[cfg(test)]
mod reference;
mod siamese;
mod skip;
mod tiles;

pub use additive::{Additive, AdditiveStep};
pub use attnres::{AttnRes, AttnResJunction, DeltaAttnRes, DeltaJunction};
pub use ddl::{Ddl, DdlSettings, Target};
pub use dense::{Dense, DenseJunction, DenseSettings};
pub use footprint::{Footprint, Held};
pub use gr::{Gr, GrSettings};
pub use mixing::{Mixing, MixingForm, MixingGates, MixingKind, MixingReadOut};
pub use nag::Nag;
pub use siamese::Siamese;
pub use skip::Skip;

use crate::route::Route;
use crate::rows::Rows;
use std::fmt::Debug;

/// What a junction gives back to what it was computed from.
#[derive(Debug)]
pub struct Gradient {
    /// Of the write, `[tokens, width]`.
    pub write: Vec<f32>,
    /// Of the parameters, in the layout in which they were given.
    pub params: Vec<f32>,
}

/// A depth state and how it is carried past the sub-layers.
///
/// Junctions are gone through forward in order, then, if the stream was told to keep what that takes,
/// backward in reverse order; each time exactly once.
pub trait Stream: Debug + Send {
    /// Goes through the next junction: `write` is `[tokens, width]`. So is the output, unless the attention that is
    /// given it has inputs of its own for queries, keys and values; then they stand side by side in a token's row.
    fn forward(&mut self, write: Rows, params: &[f32]) -> Vec<f32>;

    /// Goes back through the last junction that was not gone back through yet: `d_output` is the
    /// gradient of what [`Stream::forward`] returned there, `params` are the same again.
    fn backward(&mut self, d_output: &[f32], params: &[f32]) -> Gradient;

    /// Which tokens run the sub-layer that was given the last output; `None` for all of them. What the next
    /// junction is given as the write of a skipped token has no meaning.
    fn route(&self) -> Option<Route> {
        None
    }

    /// What all junctions of the stream hold of each token, if it keeps what the way back takes.
    fn footprint(&self) -> Footprint;

    /// The same junctions for one token at a time. What the stream has seen is forgotten.
    fn decode(self: Box<Self>) -> Box<dyn DecodeStream>;
}

/// The inference form of a [`Stream`]: one token at a time, forward only, no allocation.
pub trait DecodeStream: Debug + Send {
    /// How many rows of the width stand side by side in a junction's output.
    fn inputs(&self, _junction: usize) -> usize {
        1
    }

    /// Goes through a junction: `write` is one row, and `output` as many as [`DecodeStream::inputs`] says. Each token goes through all of them in order, from
    /// the first on. Says whether it runs the sub-layer that is given the output; if not, what the next junction
    /// is given as its write has no meaning.
    fn step(&mut self, junction: usize, write: &[f32], params: &[f32], output: &mut [f32]) -> bool;
}
