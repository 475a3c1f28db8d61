//! Multi-Gate Residuals: n streams, gated writes, attention-pooled reads. arXiv 2605.23259.
//!
//! Junction 0 makes the embedding the first stream, and the next n-1 writes are appended as they are.
//! From then on every stream moves towards the write `f` by its own gate,
//!
//! ```text
//! u_i = w1 . rms(s_i)      beta = gate(u, b)      s'_i = s_i + beta_i (f - s_i)
//! independent: beta_i = 1 / (1 + exp(-u_i - b_i))
//! competitive: beta_i = exp(u_i + b_i) / (exp(b_0) + sum_j exp(u_j + b_j))
//! ```
//!
//! and after every write the next reader is given
//!
//! ```text
//! v_i = w2 . rms(s'_i)     alpha = softmax(v)     h = sum_i alpha_i s'_i     output = gain rms(h)
//! ```
//!
//! except that the reader of junction 0 is given `gain rms(embedding)`. `rms(x) = x / sqrt(mean(x^2) +
//! eps)`.
//!
//! # Parameters of a junction
//!
//! Those of width d carry the policy's `1/sqrt(d)` already. In this order, without gaps:
//!
//! | part | length | present |
//! |---|---|---|
//! | w1 | d | where the junction gates: from junction n on |
//! | b | n, or n+1 (b_0 first) if competitive | where the junction gates |
//! | w2 | d | everywhere but at junction 0 |
//! | gain | d | everywhere |
//! | w1, b of the next junction | as above | where tokens may skip the site in between |
//!
//! # Skipping
//!
//! The gates of a write depend on nothing but the streams that its site reads, so with a [`Skip`] they are
//! opened one junction earlier, by the last part of that junction's parameters, and handed on. A token
//! whose widest gate `b = max_i beta_i` is below the threshold skips the site: its streams stay as they
//! are, which moves stream i by `beta_i |f - s_i|` less. A token that runs writes with `beta_i (b - t) / b`, where t
//! is what the rule takes off. Where streams are still appended no token skips. The gradient of w1 and b is
//! that of the junction that writes; of the last part it is zero.
//!
//! # Backward
//!
//! The streams exist once, `[tokens, n, d]`, and are taken back in place: an append by dropping the last
//! stream, a gated write by `s_i = s'_i + beta_i / (1 - beta_i) (s'_i - f)`. That needs the write and the
//! gates, and where gates are wide open it would lose digits, so `saved` keeps some rows as they were.
//! With `g = dh` and `G_i = ds'_i`,
//!
//! ```text
//! dv_i = alpha_i (g . s'_i - g . h)       G_i += alpha_i g + r'_i dv_i (w2 - rms(s'_i) v_i / d)
//! dbeta_i = G_i . (f - s_i)               df = sum_i beta_i G_i
//! ds_i = (1 - beta_i) G_i + r_i du_i (w1 - rms(s_i) u_i / d)
//! dw1 = sum_i du_i rms(s_i)               dw2 = sum_i dv_i rms(s'_i)
//! ```
//!
//! with `r = 1 / sqrt(mean(s^2) + eps)`, and du as in `gate`. G replaces the gradient of the streams in
//! place, too.

mod backward;
mod forward;
mod gate;
mod layout;
mod saved;
mod sums;
#[cfg(test)]
mod tests;

pub use gate::Gate;
pub use saved::Memory;

use super::Skip;
use super::driver::{Backward, Carried, Forward, Parts, Policy};
use layout::{Params, Shape};
use saved::Saved;

/// Settings of [`Mgr`].
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Features of a token.
    pub width: usize,
    /// What is added to a mean of squares.
    pub eps: f32,
    /// Number of streams when all are there.
    pub streams: usize,
    /// How gates relate to each other.
    pub gate: Gate,
    /// How the backward pass gets back what the forward pass overwrote.
    pub memory: Memory,
    /// Which tokens skip which sub-layers, in the order in which the stream goes past them.
    pub skip: Option<Skip>,
}

/// n streams and how they are carried past the sub-layers.
pub type Mgr = Carried<MultiGate>;

impl Mgr {
    /// No streams yet. There will be `junctions` junctions, one more than sub-layers; without `keep` they
    /// keep nothing for a backward pass.
    pub fn new(settings: Settings, junctions: usize, keep: bool) -> Self {
        let Settings { width, eps, streams, gate, memory, skip } = settings;
        assert!(width > 0 && streams > 0, "{streams} streams of width {width} hold nothing");
        let sites = junctions.saturating_sub(1);
        let rules = skip.as_ref().map_or(sites, |skip| skip.thresholds.len());
        assert_eq!(rules, sites, "thresholds, one for each site");
        let slots = streams.min(junctions);
        let shape = Shape { width, eps, streams, slots, gate, junctions, skips: skip.is_some() };
        Self::by(MultiGate { shape, memory, skip }, keep)
    }
}

/// The policy of [`Mgr`].
#[derive(Debug)]
pub struct MultiGate {
    shape: Shape,
    memory: Memory,
    skip: Option<Skip>,
}

// SAFETY: outputs, records and `d_write` are written token by token. A stream of the state is written when it is appended,
// and not read before.
unsafe impl Policy for MultiGate {
    type Params<'a> = Params<'a>;
    type Kept = Saved;
    type Scratch = ();

    fn width(&self) -> usize {
        self.shape.width
    }

    fn junctions(&self) -> usize {
        self.shape.junctions
    }

    fn params(&self, junction: usize) -> usize {
        self.shape.lengths(self.shape.junction(junction)).iter().sum()
    }

    fn split<'a>(&self, junction: usize, params: &'a [f32]) -> Params<'a> {
        Params::split(params, &self.shape, self.shape.junction(junction))
    }

    /// The streams, `r` of each, and how far [`saved`] let errors grow.
    fn state(&self) -> Parts {
        let Shape { slots, width, .. } = self.shape;
        [slots * width, slots, slots, 0]
    }

    /// [`Numbers`](layout::Numbers), then scores and gates of the next write where the junction opens them.
    fn record(&self, junction: usize) -> Parts {
        let junction = self.shape.junction(junction);
        let next = if junction.decides { self.shape.slots } else { 0 };
        [junction.numbers(), next, next, 0]
    }

    fn gradient(&self) -> Parts {
        [self.shape.slots * self.shape.width, 0, 0, 0]
    }

    fn keeps_write(&self, junction: usize) -> bool {
        self.shape.junction(junction).gates
    }

    /// The rows that are copied. How many more drift too far is known when the gates are.
    fn kept(&self, junction: usize) -> f64 {
        let Shape { slots, width, .. } = self.shape;
        match self.memory {
            _ if !self.shape.junction(junction).gates => 0.0,
            Memory::Exact => (slots * (width + 1)) as f64,
            Memory::Inversion { share } => share * (slots * (width + 1)) as f64,
        }
    }

    fn decides(&self, junction: usize) -> bool {
        self.shape.junction(junction).decides
    }

    #[inline(always)]
    fn forward(&self, params: &Params<'_>, tile: Forward<'_, Saved>, (): &mut ()) {
        self.forward_tile(params, tile);
    }

    #[inline(always)]
    fn backward(&self, params: &Params<'_>, tile: Backward<'_, Saved>, (): &mut ()) {
        self.backward_tile(params, tile);
    }
}
