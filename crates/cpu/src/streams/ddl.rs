//! Deep Delta Learning: each write replaces what the state holds along its direction.
//!
//! A token has n channels `X_j` of d features, n copies of its embedding to begin with. A site that writes `f` gives a
//! direction `k = f / sqrt(|f|^2 + 1e-10)`, along which the state moves from what it holds towards a target:
//!
//! ```text
//! h = sum_j read_j * X_j          with one channel h = X        r = 1 / sqrt(mean(h^2) + eps)
//! output = r h gain
//! beta = 2 sigmoid(r w . h + b)   v_j = 4 sigmoid(t_j . h + c_j), or r t_j . h
//! u_j = v_j - k . X_j             X'_j = X_j + beta u_j k
//! ```
//!
//! A junction finishes the write of the site before it, then reads for the next one, or for the head.
//!
//! # Parameters of a junction
//! `[gain: d] [w: d] [b: 1] [t: n, d] [c: n] [read: n, d]`: `c` only with sigmoid targets, `read` only with several
//! channels, and at the last junction `gain` and `read` alone. What is multiplied with the normalised reading, `w` and
//! linear `t`, has the gain in it already.
//!
//! # What is kept
//! The channels are changed in place and taken back in place, for `X_j = X'_j - (beta u_j / |f|) f` is known from u, which
//! is kept; beta itself need not be invertible, and is 1 at the start. Of each junction the write is kept (shared), and for
//! each token n targets, n differences u and [`Lane`]. [`DdlSettings::exact`] copies the channels instead.
//!
//! # The way back
//! With `G = dX'`, `p_j = G_j . k` and `1/|f|` for the inverse root:
//!
//! ```text
//! dX_j = G_j - beta p_j k        dv_j = beta p_j        dbeta = sum_j p_j u_j
//! dk = beta sum_j (u_j G_j - p_j X_j)                   df = (dk - (k . dk) k) / |f|
//! k . dk = beta sum_j p_j (2 u_j - v_j)
//! ```

mod backward;
mod forward;
#[cfg(test)]
mod tests;

use super::Skip;
use super::driver::{Backward, Carried, Forward, Parts, Policy};
use super::tiles::split;
use crate::simd::exp;

/// Where a channel moves to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// `4 sigmoid(t . h + c)`, from what was read as it is.
    Sigmoid,
    /// `t . rms(h) gain`.
    Linear,
}

/// Settings of [`Ddl`].
#[derive(Clone, Debug, PartialEq)]
pub struct DdlSettings {
    /// Features of a token.
    pub width: usize,
    /// Channels of each feature.
    pub channels: usize,
    /// Where they move to.
    pub target: Target,
    /// Added to mean squares.
    pub eps: f32,
    /// Whether channels are copied for the way back, instead of being taken back.
    pub exact: bool,
    /// Which tokens skip a site; without it none does.
    pub skip: Option<Skip>,
}

/// Channels that writes correct.
pub type Ddl = Carried<DeltaChannels>;

impl Ddl {
    /// Channels past `sites` sub-layers, thus with `sites + 1` junctions. Without `keep` there is no way back.
    pub fn new(settings: DdlSettings, sites: usize, keep: bool) -> Self {
        let DdlSettings { width, channels, .. } = settings;
        assert!(width > 0 && channels > 0, "{channels} channels of {width} features");
        let rules = settings.skip.as_ref().map_or(sites, |skip| skip.thresholds.len());
        assert_eq!(rules, sites, "thresholds, one for each site");
        let exact = settings.exact && keep;
        Self::by(DeltaChannels { settings: DdlSettings { exact, ..settings }, sites }, keep)
    }
}

/// The policy of [`Ddl`].
#[derive(Debug)]
pub struct DeltaChannels {
    settings: DdlSettings,
    sites: usize,
}

/// Numbers that a junction leaves of each token.
struct Lane;

impl Lane {
    const LENGTH: usize = 4;
    /// Inverse RMS of what was read.
    const NORM: usize = 0;
    /// `r w . h`.
    const SCORE: usize = 1;
    /// beta, with which the site writes.
    const BETA: usize = 2;
    /// `1/|f|` of the write before; zero where there was none.
    const INVERSE: usize = 3;
}

/// A junction's parameters, or their gradients; all empty but `gain` and `read` at the last one.
#[derive(Debug)]
pub struct Params<T> {
    gain: T,
    beta_weight: T,
    beta_bias: T,
    target_weight: T,
    target_bias: T,
    read: T,
}

/// Working memory.
#[derive(Debug, Default)]
pub struct Room {
    /// A row that was read, and its gradient.
    h: Vec<f32>,
    d_h: Vec<f32>,
    /// Gradients of the targets' logits, then what each channel takes of a write.
    numbers: Vec<f32>,
}

// SAFETY: forward writes state, records and outputs token by token, and backward every row of `d_write`.
unsafe impl Policy for DeltaChannels {
    type Params<'a> = Params<&'a [f32]>;
    type Kept = ();
    type Scratch = Room;
    /// With several channels a partial sum is as large as a part of a tile.
    const TILES_PER_SUM: usize = 4;

    fn width(&self) -> usize {
        self.settings.width
    }

    fn junctions(&self) -> usize {
        self.sites + 1
    }

    fn params(&self, junction: usize) -> usize {
        self.lengths(junction).iter().sum()
    }

    fn split<'a>(&self, junction: usize, params: &'a [f32]) -> Params<&'a [f32]> {
        Params::of(split(params, self.lengths(junction)))
    }

    /// The channels if they are copied, [`Lane`], the targets where a site follows, and the differences to the targets
    /// before.
    fn record(&self, junction: usize) -> Parts {
        let n = self.settings.channels;
        let copies = if self.settings.exact { self.wide() } else { 0 };
        let targets = if junction < self.sites { n } else { 0 };
        [copies, Lane::LENGTH, targets, n]
    }

    /// The channels.
    fn state(&self) -> Parts {
        [self.wide(), 0, 0, 0]
    }

    /// Of the channels, of beta and of the targets.
    fn gradient(&self) -> Parts {
        [self.wide(), 1, self.settings.channels, 0]
    }

    fn keeps_write(&self, junction: usize) -> bool {
        junction > 0
    }

    fn decides(&self, junction: usize) -> bool {
        self.settings.skip.is_some() && junction < self.sites
    }

    #[inline(always)]
    fn forward(&self, params: &Params<&[f32]>, tile: Forward<'_, ()>, _: &mut Room) {
        self.forward_tile(params, tile);
    }

    #[inline(always)]
    fn backward(&self, params: &Params<&[f32]>, tile: Backward<'_, ()>, room: &mut Room) {
        self.backward_tile(params, tile, room);
    }
}

impl<T> Params<T> {
    fn of([gain, beta_weight, beta_bias, target_weight, target_bias, read]: [T; 6]) -> Self {
        Self { gain, beta_weight, beta_bias, target_weight, target_bias, read }
    }
}

impl DeltaChannels {
    /// Features of all channels.
    fn wide(&self) -> usize {
        self.settings.channels * self.settings.width
    }

    /// Of a junction's parameters.
    fn lengths(&self, junction: usize) -> [usize; 6] {
        let DdlSettings { width, channels: n, target, .. } = self.settings;
        let read = if n > 1 { n * width } else { 0 };
        if junction == self.sites {
            return [width, 0, 0, 0, 0, read];
        }
        let bias = if target == Target::Sigmoid { n } else { 0 };
        [width, width, 1, n * width, bias, read]
    }
}

/// Added to the square of a write's length.
const DIRECTION_EPS: f32 = 1e-10;

/// `2 sigmoid(x)`.
#[inline(always)]
fn gate(x: f32) -> f32 {
    2.0 / (1.0 + exp(-x))
}

/// `h = sum_j read_j * X_j`.
#[inline(always)]
fn read_channels(h: &mut [f32], channels: &[f32], read: &[f32]) {
    let width = h.len();
    h.fill(0.0);
    for (x, read) in channels.chunks_exact(width).zip(read.chunks_exact(width)) {
        for ((h, x), read) in h.iter_mut().zip(x).zip(read) {
            *h += read * x;
        }
    }
}
