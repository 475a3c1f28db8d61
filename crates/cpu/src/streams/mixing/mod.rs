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
//! ([`MixingKind`]); each comes in forms ([`MixingForm`]): without mixing, with other read-outs, with reads by
//! the weights that the site before found, with streams that start as scaled embeddings.
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
//! and of the last junction: `gain [width]`, with a gated read-out also `bias [n], weight [n, n width]`. Where
//! streams start scaled, those of the first junction end with `scale [n, width]`. With the identity as mixer
//! there is no `res`, no logit of it and no weight of that.
//!
//! - `res` is indexed `[source, target]`, as in the paper on Hyper-Connections.
//! - Weights are transposed: one row of inputs for each output, in the order pre, post, res. Scales
//!   (mHC) and the gain of the norm (dynamic HC) are multiplied in by the caller.
//! - Dynamic: with `q_i = rms(H_i) weight^T`, `pre_i += mix_scale tanh(q_i0)`,
//!   `post_i += post_scale tanh(q_i1)`, `res[i][j] += mix_scale tanh(q_i(2+j))`.
//! - Sinkhorn: with `q = rms(vec(H)) weight^T + bias`, over all n width values, `pre` is the sigmoid of
//!   the first n, `post` twice that of the next n, `res` (here `[target, source]`) is made of the rest.
//!   [`MixingGates`] say what is added, and by what `post` is multiplied instead of two.
//! - Permutations: the same, but `res = sum_k softmax(rest)_k P_k` over the permutations in
//!   lexicographic order, `P_k[i][permutation_k(i)] = 1`.
//!
//! # What is kept
//!
//! Of each junction the streams after its write, what the sub-layer wrote to them (shared), and for each
//! token the logits, the inverse norms and the weights; of the last one the sum of the streams. What streams start
//! scaled from is kept, too.

mod block;
mod close;
mod lanes;
mod permutations;
mod projection;
mod sinkhorn;
mod tile;
mod weights;
mod wide_projection;

#[cfg(test)]
mod tests;

use super::driver::{Backward, Carried, Forward, Parts, Policy};
use super::tiles::split;
use crate::gemm::{Packed, View};
use crate::linear::FEW;
use crate::precision::Precision;
use tile::{Params, Room};
use weights::Shape;

/// How the weights of a site are found, and what is done with them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixingForm {
    /// How the weights are found.
    pub kind: MixingKind,
    /// Whether streams are not mixed, `H'_i = H_i + post_i f`: then the kind finds `pre` and `post` alone.
    pub identity: bool,
    /// What becomes of the sigmoids of the kinds that find weights from all streams.
    pub gates: MixingGates,
    /// How the streams become what the head is given.
    pub readout: MixingReadOut,
    /// Whether each stream starts as the embedding times a scale of its own, feature by feature.
    pub stream_scale: bool,
}

/// `pre = sigmoid + epsilon`, `post = post_multiplier sigmoid + post_epsilon`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixingGates {
    /// Added to `pre`, to the weights of a gated read-out, and to what Sinkhorn divides and divides by.
    pub epsilon: f32,
    /// The largest `post`.
    pub post_multiplier: f32,
    /// Added to `post`.
    pub post_epsilon: f32,
}

/// How the streams become what the head is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MixingReadOut {
    /// `sum_i H_i`.
    Sum,
    /// Their mean.
    Mean,
    /// `sum_i pre_i H_i`, with weights of its own.
    Gated,
    /// The same with the weights that the last site found. All other readers, too, read with the weights that the
    /// site before them found, and the first reads stream 0 (single pass).
    HandedOn,
}

impl From<MixingKind> for MixingForm {
    /// The paper's form.
    fn from(kind: MixingKind) -> Self {
        let gates = MixingGates { epsilon: 0.0, post_multiplier: 2.0, post_epsilon: 0.0 };
        Self { kind, identity: false, gates, readout: MixingReadOut::Sum, stream_scale: false }
    }
}

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
        form: impl Into<MixingForm>,
        streams: usize,
        width: usize,
        eps: f32,
        sites: usize,
        keep: bool,
    ) -> Self {
        assert!(streams > 0 && width > 0, "there are {streams} streams of {width} features");
        let form = form.into();
        let gated = matches!(form.kind, MixingKind::Sinkhorn { .. } | MixingKind::Permutations);
        assert!(
            gated || form.readout != MixingReadOut::Gated,
            "{form:?} has no gates to read with"
        );
        let shape = Shape::of_site(form, streams, width);
        let readout = Shape::of_readout(form, streams, width);
        Self::by(Mixed { shape, readout, form, eps, sites }, keep)
    }
}

/// The policy of [`Mixing`].
#[derive(Debug)]
pub struct Mixed {
    shape: Shape,
    /// What a gated read-out finds.
    readout: Shape,
    form: MixingForm,
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
        let [gain, small, projection, scale] = split(params, self.lengths(junction));
        Params { gain, small, projection, scale, forth: None, back: None }
    }

    fn prepare(&self, params: &mut Params<&[f32]>, tokens: usize) {
        // Packing reads and writes all of the weights, which pays when they are used many times.
        if tokens > FEW
            && let Some((inputs, outputs)) = self.wide_rows(params)
        {
            let weight = [(View::transposed(params.projection, inputs), outputs)];
            params.forth = Packed::all(&[(&weight[..], inputs)], Precision::F32).pop();
        }
    }

    fn prepare_backward(&self, params: &mut Params<&[f32]>) {
        if let Some((inputs, outputs)) = self.wide_rows(params) {
            let weight = [(View::rows(params.projection, inputs), inputs)];
            params.back = Packed::all(&[(&weight[..], outputs)], Precision::F32).pop();
        }
    }

    /// The streams, the logits without the bias, `r` of the rows that were projected, and the weights; at the last
    /// junction the sum of the streams, unless it finds weights of its own.
    fn record(&self, junction: usize) -> Parts {
        match self.reader(junction) {
            None => [self.shape.width, 0, 0, 0],
            Some(shape) => [shape.state(), shape.logits(), shape.rows(), shape.weights()],
        }
    }

    fn in_place(&self, junction: usize) -> bool {
        junction > 0 && self.reader(junction).is_some()
    }

    /// Of the streams, and of the weights that a site hands on.
    fn gradient(&self) -> Parts {
        [self.shape.state(), if self.hands_on() { self.shape.n } else { 0 }, 0, 0]
    }

    /// What the sub-layers wrote, and what streams start scaled from.
    fn keeps_write(&self, junction: usize) -> bool {
        junction > 0 || self.form.stream_scale
    }

    #[inline(always)]
    fn forward(&self, params: &Params<&[f32]>, tile: Forward<'_, ()>, room: &mut Room) {
        match self.reader(tile.junction) {
            Some(shape) => self.read(shape, params, tile, room),
            None => self.close(params, tile, room),
        }
    }

    #[inline(always)]
    fn backward(&self, params: &Params<&[f32]>, tile: Backward<'_, ()>, room: &mut Room) {
        match self.reader(tile.junction) {
            Some(shape) => self.read_backward(shape, params, tile, room),
            None => self.close_backward(params, tile, room),
        }
    }
}

impl Mixed {
    /// What a junction finds, unless it is the last and finds nothing.
    fn reader(&self, junction: usize) -> Option<&Shape> {
        match junction < self.sites {
            true => Some(&self.shape),
            false => (self.form.readout == MixingReadOut::Gated).then_some(&self.readout),
        }
    }

    /// Whether a site reads with the weights that the one before found.
    fn hands_on(&self) -> bool {
        self.form.readout == MixingReadOut::HandedOn
    }

    /// Inputs and outputs of a projection of all streams of a token at once: a product like others. One of single streams
    /// has too few outputs for that.
    fn wide_rows(&self, params: &Params<&[f32]>) -> Option<(usize, usize)> {
        let of_all = self.form.kind != MixingKind::Dynamic && self.shape.rows() == 1;
        let is_wide = of_all && !params.projection.is_empty();
        is_wide.then(|| (self.shape.inputs(), params.projection.len() / self.shape.inputs()))
    }

    /// Of a junction's parameters: the gain, those that act on logits and weights, those that make logits of streams,
    /// and the scales that streams start with.
    fn lengths(&self, junction: usize) -> [usize; 4] {
        let scale = if junction == 0 && self.form.stream_scale { self.shape.state() } else { 0 };
        let (small, projection) =
            self.reader(junction).map_or((0, 0), |shape| (shape.small(), shape.projection()));
        [self.shape.width, small, projection, scale]
    }
}
