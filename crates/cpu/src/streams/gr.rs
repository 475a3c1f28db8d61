//! Gated Residual: n streams that are only ever added to, read through a gate for each channel.
//!
//! A token has n streams `H_i`, n copies of its embedding to begin with. With `N_i = rms(H_i) gain_i`, each stream by
//! itself, and `v = vec(N)`,
//!
//! ```text
//! z = read_down v / n      q = read_up silu(z)      h = 1/n sum_i sigmoid(q_i) N_i      the output
//! s = 2 sigmoid(write v / n)                        H'_i = H_i + s_i f                  f: what the sub-layer wrote
//! ```
//!
//! A junction finishes the write of the site before it, then reads for the next one, or for the head, which has no `s`.
//!
//! # Parameters of a junction
//! `[gain: n d] [read_down: r, n d] [write: n, n d] [read_up: n d, r]`; the last one has no `write`. `read_down` and
//! `write` lie one behind the other, so that one product does for both.
//!
//! # What is kept
//! The streams are changed in place and taken back in place: `H_i = H'_i - s_i f` costs a pass over what is in the cache
//! anyway. Of each junction the write is kept (shared), and for each token n inverse norms, r + n logits and the n gates it
//! writes with. What the gates of the read make of the logits is computed again. [`GrSettings::exact`] copies the streams
//! instead.
//!
//! # The way back
//! With `G` the sigmoid of q, `a` the silu of z, `e = dh / n` and what later junctions left of `dH` and `ds`:
//!
//! ```text
//! dq_i = e N_i G_i (1 - G_i)      da = read_up^T dq            d(read_up) += dq a^T
//! dz = da silu'(z)                dw = ds s (1 - s / 2)        d(read_down, write) += (dz, dw) v^T / n
//! dv_i = e G_i + (read_down, write)^T (dz, dw) / n             dH_i += r_i (gain_i dv_i - mean(gain_i dv_i r_i H_i) r_i H_i)
//! df = sum_i s_i dH_i             ds_i = f . dH_i              of the write before
//! ```

mod backward;
mod forward;
#[cfg(test)]
mod tests;

use super::Skip;
use super::driver::{Backward, Carried, Forward, Parts, Policy};
use super::tiles::split;
use crate::gemm::{Packed, Scratch, View};
use crate::lent::Lent;
use crate::linear::FEW;
use crate::precision::Precision;
use crate::simd::exp_by;
use std::cell::Cell;

/// Settings of [`Gr`].
#[derive(Clone, Debug, PartialEq)]
pub struct GrSettings {
    /// Features of a token.
    pub width: usize,
    /// Streams of a token.
    pub streams: usize,
    /// Rank of the gate of the read.
    pub rank: usize,
    /// Added to mean squares.
    pub eps: f32,
    /// Whether streams are copied for the way back, instead of being taken back.
    pub exact: bool,
    /// Which tokens skip a site; without it none does.
    pub skip: Option<Skip>,
}

/// n streams that are read through gates.
pub type Gr = Carried<GatedStreams>;

impl Gr {
    /// Streams past `sites` sub-layers, thus with `sites + 1` junctions. Without `keep` there is no way back.
    pub fn new(settings: GrSettings, sites: usize, keep: bool) -> Self {
        let GrSettings { width, streams, rank, .. } = settings;
        assert!(width > 0 && streams > 0 && rank > 0, "{streams} streams of {width}, rank {rank}");
        let rules = settings.skip.as_ref().map_or(sites, |skip| skip.thresholds.len());
        assert_eq!(rules, sites, "thresholds, one for each site");
        let exact = settings.exact && keep;
        Self::by(GatedStreams { settings: GrSettings { exact, ..settings }, sites }, keep)
    }
}

/// The policy of [`Gr`].
#[derive(Debug)]
pub struct GatedStreams {
    settings: GrSettings,
    sites: usize,
}

/// A junction's parameters, and its matrices as products want them.
#[derive(Debug)]
pub struct Params<'a> {
    gain: &'a [f32],
    /// `read_down`, and behind it `write` where a site follows.
    down: &'a [f32],
    up: &'a [f32],
    /// Of the way forward, unless tokens are few.
    forth: Option<Forth>,
    /// Of the way back.
    back: Option<Back>,
}

#[derive(Debug)]
struct Forth {
    /// `[n d, r]`: `write` is multiplied row by row. A token that is near a threshold decides alone as it does among
    /// others, and a panel of few columns would cost as much as a whole one.
    read_down: Packed,
    /// `[r, n d]`
    up: Packed,
}

#[derive(Debug)]
struct Back {
    /// `[r, n d]`
    up: Packed,
    /// `[n d, r]`
    up_turned: Packed,
    /// `[r + n, n d]`
    down_turned: Packed,
}

/// A thread's working memory, which it keeps from junction to junction.
#[derive(Debug)]
pub struct Room(Lent<Memory>);

#[derive(Debug, Default)]
struct Memory {
    /// `[tokens, n d]`: the normalised streams.
    v: Vec<f32>,
    d_v: Vec<f32>,
    /// `[tokens, n d]`: logits of the read's gates, then their gradients.
    q: Vec<f32>,
    /// `[tokens, r]`: what `read_up` is given.
    a: Vec<f32>,
    /// `[tokens, r + n]`
    d_logits: Vec<f32>,
    /// The gates of one token.
    gates: Vec<f32>,
    /// The right factor of a sum over tokens.
    right: Packed,
    scratch: Scratch,
}

impl Default for Room {
    fn default() -> Self {
        thread_local!(static HOME: Cell<Memory> = Cell::default());
        Self(Lent::from(&HOME))
    }
}

// SAFETY: forward writes state, records and outputs token by token, and backward every row of `d_write`.
unsafe impl Policy for GatedStreams {
    type Params<'a> = Params<'a>;
    type Kept = ();
    type Scratch = Room;
    /// A partial sum is as large as the matrices: of the order of `d^2`.
    const TILES_PER_SUM: usize = 8;

    fn width(&self) -> usize {
        self.settings.width
    }

    fn junctions(&self) -> usize {
        self.sites + 1
    }

    fn params(&self, junction: usize) -> usize {
        self.lengths(junction).iter().sum()
    }

    fn split<'a>(&self, junction: usize, params: &'a [f32]) -> Params<'a> {
        let [gain, down, up] = split(params, self.lengths(junction));
        Params { gain, down, up, forth: None, back: None }
    }

    /// The streams if they are copied, their inverse norms, the logits, and the gates with which the site writes.
    fn record(&self, junction: usize) -> Parts {
        let n = self.settings.streams;
        let copies = if self.settings.exact { self.wide() } else { 0 };
        [copies, n, self.outputs(junction), if junction < self.sites { n } else { 0 }]
    }

    /// The streams.
    fn state(&self) -> Parts {
        [self.wide(), 0, 0, 0]
    }

    /// Of the streams, and of the gates with which the site writes.
    fn gradient(&self) -> Parts {
        [self.wide(), self.settings.streams, 0, 0]
    }

    fn keeps_write(&self, junction: usize) -> bool {
        junction > 0
    }

    fn decides(&self, junction: usize) -> bool {
        self.settings.skip.is_some() && junction < self.sites
    }

    fn prepare(&self, params: &mut Params<'_>, tokens: usize) {
        // Packing reads and writes all of the matrices, which pays when they are used many times.
        if tokens <= FEW {
            return;
        }
        let (wide, rank) = (self.wide(), self.settings.rank);
        let down = [(View::transposed(&params.down[..rank * wide], wide), rank)];
        let up = [(View::transposed(params.up, rank), wide)];
        let mut packed =
            Packed::all(&[(&down[..], wide), (&up[..], rank)], Precision::F32).into_iter();
        params.forth =
            packed.next().zip(packed.next()).map(|(read_down, up)| Forth { read_down, up });
    }

    fn prepare_backward(&self, params: &mut Params<'_>) {
        let (wide, rank) = (self.wide(), self.settings.rank);
        let up = [(View::transposed(params.up, rank), wide)];
        let up_turned = [(View::rows(params.up, rank), rank)];
        let down_turned = [(View::rows(params.down, wide), wide)];
        let outputs = params.down.len() / wide;
        let factors = [(&up[..], rank), (&up_turned[..], wide), (&down_turned[..], outputs)];
        if let Ok([up, up_turned, down_turned]) =
            <[Packed; 3]>::try_from(Packed::all(&factors, Precision::F32))
        {
            params.back = Some(Back { up, up_turned, down_turned });
        }
    }

    /// The gates with which a site writes: they decide who runs it. Reading is no part of what a model is said to need.
    fn flops(&self, junction: usize) -> usize {
        if junction < self.sites { 2 * self.settings.streams * self.wide() } else { 0 }
    }

    #[inline(always)]
    fn forward(&self, params: &Params<'_>, tile: Forward<'_, ()>, room: &mut Room) {
        self.forward_by::<false>(params, tile, room);
    }

    #[inline(always)]
    fn backward(&self, params: &Params<'_>, tile: Backward<'_, ()>, room: &mut Room) {
        self.backward_by::<false>(params, tile, room);
    }

    #[inline(always)]
    fn forward_by<const FUSED: bool>(
        &self,
        params: &Params<'_>,
        tile: Forward<'_, ()>,
        room: &mut Room,
    ) {
        self.forward_tile::<FUSED>(params, tile, &mut room.0);
    }

    #[inline(always)]
    fn backward_by<const FUSED: bool>(
        &self,
        params: &Params<'_>,
        tile: Backward<'_, ()>,
        room: &mut Room,
    ) {
        self.backward_tile::<FUSED>(params, tile, &mut room.0);
    }
}

impl GatedStreams {
    /// Features of all streams.
    fn wide(&self) -> usize {
        self.settings.streams * self.settings.width
    }

    /// Rows of the matrix that the normalised streams are multiplied with.
    fn outputs(&self, junction: usize) -> usize {
        self.settings.rank + if junction < self.sites { self.settings.streams } else { 0 }
    }

    /// Of a junction's parameters: gains, `read_down` with `write`, `read_up`.
    fn lengths(&self, junction: usize) -> [usize; 3] {
        let wide = self.wide();
        [wide, self.outputs(junction) * wide, wide * self.settings.rank]
    }
}

#[inline(always)]
fn sigmoid<const FUSED: bool>(x: f32) -> f32 {
    1.0 / (1.0 + exp_by::<FUSED>(-x))
}

/// `a = silu(z)` for the logits of the read; others may lie behind each token's.
#[inline(always)]
fn activate<const FUSED: bool>(a: &mut Vec<f32>, logits: &[f32], outputs: usize, rank: usize) {
    a.resize(logits.len() / outputs * rank, 0.0);
    for (a, logits) in a.chunks_exact_mut(rank).zip(logits.chunks_exact(outputs)) {
        for (a, z) in a.iter_mut().zip(logits) {
            *a = z * sigmoid::<FUSED>(*z);
        }
    }
}
