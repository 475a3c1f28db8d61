//! Averages over the outputs of all blocks: DenseFormer and MUDDFormer.
//!
//! Sub-layers add to a stream `x`. Behind block i, whose output is `X_i = x`, the sources `S_0 .. S_i` are averaged:
//!
//! ```text
//! S_j = X_j                                   or source_norm_j rms(X_j), with norms
//! A = weights                                 [ways, i + 1]
//! A += up gelu(down rms(X_i))                 where weights depend on the token; with norms, down reads weight_norm rms(X_i)
//! way_w = sum_j A[w, j] S_j                   with norms X_i + it, and the last way X_i + out_norm rms(it)
//! ```
//!
//! The last way is the new `x`. Four ways are the inputs of queries, keys and values of the next attention, then `x`; with
//! one way, or where that attention is absent, the next sub-layer reads `x`. Every reader has a norm:
//! `output = gain rms(h)`, three side by side before an attention with inputs of its own.
//!
//! # Parameters of a junction
//! `[weights][down][up][source_norm][weight_norm][out_norm][gains: width for each input]`, those that it has. Junction 0 has
//! the norm of the embedding as a source, and no others of these.
//!
//! # What is kept
//! The sources of a token stand side by side in the state, where a token's averages find all of them in the cache, and so do
//! their gradients on the way back. A junction keeps the stream, what queries, keys and values were made of, and a few
//! numbers for each token.

mod backward;
mod forward;
mod gelu;

use super::driver::{Backward, Carried, Forward, Parts, Policy};
use super::tiles::{split, split_mut};

/// What all junctions of a [`Dense`] have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DenseSettings {
    /// Features of the stream.
    pub width: usize,
    /// Added to mean squares.
    pub eps: f32,
    /// Whether weights depend on the token.
    pub dynamic: bool,
    /// Whether sources and averages are normalised.
    pub norms: bool,
}

/// What is special about one junction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DenseJunction {
    /// Averages of the block that ends here; 0 if none does, as at the first junction.
    pub ways: usize,
    /// Whether the first three of four ways are what an attention makes queries, keys and values of.
    pub apart: bool,
}

impl DenseJunction {
    fn inputs(self) -> usize {
        if self.apart { KINDS } else { 1 }
    }
}

/// Query, key and value.
const KINDS: usize = 3;

/// A stream and the outputs of the blocks behind it.
pub type Dense = Carried<Averaging>;

impl Dense {
    /// Past these junctions. Without `keep` there is no way back.
    ///
    /// # Panics
    /// If a block ends before the first sub-layer, or an attention has inputs of its own without four ways.
    pub fn new(settings: DenseSettings, junctions: Vec<DenseJunction>, keep: bool) -> Self {
        assert!(settings.width > 0, "a stream has at least one feature");
        assert!(junctions.first().is_none_or(|first| first.ways == 0), "no block ends at first");
        assert!(junctions.iter().all(|each| !each.apart || each.ways == 4), "inputs are averages");
        let mut sources = 1;
        let counts = junctions.iter().map(|junction| {
            sources += usize::from(junction.ways > 0);
            sources
        });
        let counts = counts.collect();
        Self::by(Averaging { settings, junctions, counts, sources }, keep)
    }
}

/// The policy of [`Dense`].
#[derive(Debug)]
pub struct Averaging {
    settings: DenseSettings,
    junctions: Vec<DenseJunction>,
    /// Sources behind each junction.
    counts: Vec<usize>,
    /// Sources behind the last one.
    sources: usize,
}

/// The parameters of a junction; empty where it has none.
#[derive(Debug)]
pub struct Params<'a> {
    /// `[ways, sources]`
    weights: &'a [f32],
    /// `[ways sources, width]`
    down: &'a [f32],
    /// `[ways sources, ways sources]`
    up: &'a [f32],
    source_norm: &'a [f32],
    weight_norm: &'a [f32],
    out_norm: &'a [f32],
    /// `[inputs, width]`
    gains: &'a [f32],
}

/// Working memory for a tile.
#[derive(Debug, Default)]
pub struct Scratch {
    /// `[tokens, width]`
    rows: Vec<f32>,
    d_rows: Vec<f32>,
    /// `[tokens, ways sources]`
    hidden: Vec<f32>,
    d_weights: Vec<f32>,
    /// `[ways, width]`
    ways: Vec<f32>,
    /// Of hidden units, with their slopes.
    units: Vec<(f32, f32)>,
}

/// Where the small numbers of a token are: weights, what gelu was given, the inverse RMS of what the block produced and
/// those of the readers.
#[derive(Clone, Copy)]
struct Small {
    /// Weights of a token.
    weights: usize,
    /// Hidden units.
    hidden: usize,
    inputs: usize,
}

impl Small {
    fn each(self) -> usize {
        self.weights + self.hidden + 1 + self.inputs
    }

    /// Weights, hidden units, the inverse RMS of what the block produced, and those of the readers.
    #[inline(always)]
    fn of(self, row: &[f32]) -> (&[f32], &[f32], f32, &[f32]) {
        let (weights, rest) = row.split_at(self.weights);
        let (hidden, rest) = rest.split_at(self.hidden);
        (weights, hidden, rest[0], &rest[1..])
    }
}

impl Averaging {
    /// Numbers of weights for each token at a junction.
    #[inline(always)]
    fn count(&self, junction: usize) -> usize {
        self.junctions[junction].ways * self.counts[junction]
    }

    fn small(&self, junction: usize) -> Small {
        let weights = self.count(junction);
        Small {
            weights,
            hidden: if self.settings.dynamic { weights } else { 0 },
            inputs: self.junctions[junction].inputs(),
        }
    }

    /// Of weights, down, up, the norms of source, weights and last way, and the gains.
    fn lengths(&self, junction: usize) -> [usize; 7] {
        let DenseSettings { width, dynamic, norms, .. } = self.settings;
        let (ends, weights) = (self.junctions[junction].ways > 0, self.count(junction));
        let norm = |is: bool| if norms && is { width } else { 0 };
        let hidden = if dynamic { weights } else { 0 };
        let inputs = self.junctions[junction].inputs();
        [
            weights,
            hidden * width,
            hidden * hidden,
            norm(ends || junction == 0),
            norm(ends && dynamic),
            norm(ends),
            inputs * width,
        ]
    }
}

// SAFETY: every row of the output and of `d_write` is written, and so is what the record has of it; a source is written in
// the junction that counts it.
unsafe impl Policy for Averaging {
    type Params<'a> = Params<'a>;
    type Kept = ();
    type Scratch = Scratch;
    // Gradients of `down` are as large as a tile.
    const TILES_PER_SUM: usize = 4;

    fn width(&self) -> usize {
        self.settings.width
    }

    fn junctions(&self) -> usize {
        self.junctions.len()
    }

    fn params(&self, junction: usize) -> usize {
        self.lengths(junction).iter().sum()
    }

    fn split<'a>(&self, junction: usize, params: &'a [f32]) -> Params<'a> {
        let [weights, down, up, source_norm, weight_norm, out_norm, gains] =
            split(params, self.lengths(junction));
        Params { weights, down, up, source_norm, weight_norm, out_norm, gains }
    }

    /// The stream, but for the embedding; what queries, keys and values were made of; small numbers; and what the block
    /// produced, if that is not a source.
    fn record(&self, junction: usize) -> Parts {
        let (width, step) = (self.settings.width, self.junctions[junction]);
        [
            if junction == 0 { 0 } else { width },
            if step.apart { KINDS * width } else { 0 },
            self.small(junction).each(),
            if self.settings.norms && step.ways > 0 { width } else { 0 },
        ]
    }

    /// Of the stream and of the sources.
    fn gradient(&self) -> Parts {
        [self.settings.width, self.sources * self.settings.width, 0, 0]
    }

    fn state(&self) -> Parts {
        [self.sources * self.settings.width, 0, 0, 0]
    }

    fn inputs(&self, junction: usize) -> usize {
        self.junctions[junction].inputs()
    }

    fn keeps_write(&self, junction: usize) -> bool {
        junction == 0
    }

    #[inline(always)]
    fn forward(&self, params: &Params<'_>, tile: Forward<'_, ()>, scratch: &mut Scratch) {
        self.go(params, tile, scratch);
    }

    #[inline(always)]
    fn backward(&self, params: &Params<'_>, tile: Backward<'_, ()>, scratch: &mut Scratch) {
        let d_params = tile.d_params;
        let [weights, down, up, source_norm, weight_norm, out_norm, gains] =
            split_mut(d_params, self.lengths(tile.junction));
        let d =
            backward::Gradients { weights, down, up, source_norm, weight_norm, out_norm, gains };
        let tile = Backward { d_params: &mut [], ..tile };
        self.go_back(params, d, tile, scratch);
    }
}

#[cfg(test)]
mod tests;
