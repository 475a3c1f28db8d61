//! Streams that are mixed: Hyper-Connections, mHC and mHC-lite.
//!
//! A token has n streams `H_i`, n copies of its embedding to begin with. Each sub-layer has a site, which
//! finds weights `pre`, `post` and `res` for every token from its streams:
//!
//! ```text
//! h = sum_i pre_i H_i                       the sub-layer is given rms(h) * gain and writes f
//! H'_i = sum_j res_ij H_j + post_i f
//! out = sum_i H_i                           the head is given rms(out) * gain
//! ```
//!
//! with `rms(x) = x / sqrt(mean(x^2) + eps)`. A junction finishes the previous site's write, finds the
//! weights of the next site and reads. How weights are found is what the kinds differ in
//! ([`MixingKind`]).
//!
//! # Parameters
//!
//! Of a junction that leads to a sub-layer, one after the other; matrices row by row:
//!
//! ```text
//! Static         gain [width], pre [n], post [n], res [n, n]
//! Dynamic        gain [width], pre [n], post [n], res [n, n], mix_scale [1], post_scale [1],
//!                weight [2 + n, width]
//! Sinkhorn       gain [width], bias [2 n + n n], weight [2 n + n n, n width]
//! Permutations   gain [width], bias [2 n + n!], weight [2 n + n!, n width]
//! ```
//!
//! and of the last junction: `gain [width]`.
//!
//! - `res` is indexed `[source, target]`, as in the paper on Hyper-Connections.
//! - Weights are transposed: one row of inputs for each output, in the order pre, post, res. Scales
//!   (mHC) and the gain of the norm (dynamic HC) are multiplied in by the caller.
//! - Dynamic: with `q_i = rms(H_i) weight^T`, `pre_i += mix_scale tanh(q_i0)`,
//!   `post_i += post_scale tanh(q_i1)`, `res[i][j] += mix_scale tanh(q_i(2+j))`.
//! - Sinkhorn: with `q = rms(vec(H)) weight^T + bias`, over all n width values, `pre` is the sigmoid of
//!   the first n, `post` twice that of the next n, `res` (here `[target, source]`) is made of the rest.
//! - Permutations: the same, but `res = sum_k softmax(rest)_k P_k` over the permutations in
//!   lexicographic order, `P_k[i][permutation_k(i)] = 1`.
//!
//! # What is kept
//!
//! Of each junction the streams after its write, what the sub-layer wrote to them (shared), and for each
//! token the logits, the inverse norms and the weights; of the last one the sum of the streams.

mod block;
mod lanes;
mod permutations;
mod projection;
mod sinkhorn;
mod tile;
mod weights;

#[cfg(test)]
mod tests;

use super::driver::{Backward, Carried, Forward, Parts, Policy};
use super::tiles::split;
use tile::{Params, Room};
use weights::Shape;

/// How the weights of a site are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MixingKind {
    /// They are parameters (static Hyper-Connections).
    Static,
    /// Parameters, and a bounded function of each stream (dynamic Hyper-Connections).
    Dynamic,
    /// Functions of all streams; `res` is made doubly stochastic by iteration (mHC).
    Sinkhorn {
        /// Rounds of column and row normalisation.
        iterations: usize,
    },
    /// Functions of all streams; `res` is a mixture of permutations (mHC-lite).
    Permutations,
}

/// n streams, mixed at every sub-layer.
pub type Mixing = Carried<Mixed>;

impl Mixing {
    /// `streams` streams of `width` features, past `sites` sub-layers. Without `keep` there is no way
    /// back.
    pub fn new(
        kind: MixingKind,
        streams: usize,
        width: usize,
        eps: f32,
        sites: usize,
        keep: bool,
    ) -> Self {
        assert!(streams > 0 && width > 0, "there are {streams} streams of {width} features");
        Self::by(Mixed { shape: Shape::new(kind, streams, width), eps, sites }, keep)
    }
}

/// The policy of [`Mixing`].
#[derive(Debug)]
pub struct Mixed {
    shape: Shape,
    eps: f32,
    sites: usize,
}

// SAFETY: streams, outputs and `d_write` are written token by token, what sites find of their tokens before it is read.
unsafe impl Policy for Mixed {
    type Params<'a> = Params<&'a [f32]>;
    type Kept = ();
    type Scratch = Room;
    /// A partial sum is as large as the parameters.
    const TILES_PER_SUM: usize = 4;
    /// With AVX-512 the compiler gathers the elements of small matrices, which takes longer than to load them one by one.
    const NARROW: bool = true;

    fn width(&self) -> usize {
        self.shape.width
    }

    fn junctions(&self) -> usize {
        self.sites + 1
    }

    fn params(&self, junction: usize) -> usize {
        self.lengths(junction).iter().sum()
    }

    fn split<'a>(&self, junction: usize, params: &'a [f32]) -> Params<&'a [f32]> {
        let [gain, small, projection] = split(params, self.lengths(junction));
        Params { gain, small, projection }
    }

    /// The streams, the logits without the bias, `r` of the rows that were projected, and the weights; at the last
    /// junction the sum of the streams.
    fn record(&self, junction: usize) -> Parts {
        let shape = &self.shape;
        if junction == self.sites {
            return [shape.width, 0, 0, 0];
        }
        [shape.state(), shape.logits(), shape.rows(), shape.weights()]
    }

    fn in_place(&self, junction: usize) -> bool {
        (1..self.sites).contains(&junction)
    }

    fn gradient(&self) -> Parts {
        [self.shape.state(), 0, 0, 0]
    }

    /// What the sub-layers wrote.
    fn keeps_write(&self, junction: usize) -> bool {
        junction > 0
    }

    #[inline(always)]
    fn forward(&self, params: &Params<&[f32]>, tile: Forward<'_, ()>, room: &mut Room) {
        if tile.junction < self.sites {
            self.read(params, tile, room);
        } else {
            self.close(params.gain, tile, room);
        }
    }

    #[inline(always)]
    fn backward(&self, params: &Params<&[f32]>, tile: Backward<'_, ()>, room: &mut Room) {
        if tile.junction < self.sites {
            self.read_backward(params, tile, room);
        } else {
            self.close_backward(params.gain, tile, room);
        }
    }
}

impl Mixed {
    /// Of a junction's parameters: the gain, those that act on logits and weights, those that make logits of streams.
    fn lengths(&self, junction: usize) -> [usize; 3] {
        let shape = &self.shape;
        if junction == self.sites {
            return [shape.width, 0, 0];
        }
        [shape.width, shape.small(), shape.projection()]
    }
}
