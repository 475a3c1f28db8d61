//! NAG, the norm-agnostic stream: direction and magnitude travel in separate lanes.
//!
//! The state of a token is its direction `r`, `[d]`, of unit mean square, and the logarithm `s` of the
//! norm that an ordinary stream would have.
//!
//! - Junction 0 takes the embedding e: `n = max(sqrt(mean(e^2)), 1e-18)`, `r = e / n`,
//!   `s = ln n + log_gain`.
//! - Junction k turns r by the write f of site k - 1, whose gain g was set one junction earlier:
//!   `c = f - mean(f)`, `q = c - (c.r / r.r) r`, `u = q / sqrt(mean(q^2) + 1e-12)`,
//!   `r' = rms(r + g u)`, `s' = s + ln(1 + g^2) / 2`. Of tokens that skip site k - 1, r and s stay.
//! - If site k follows, r is the answer and sets that site's gain:
//!   `g = alpha max(S, 1e-6)^beta`, `S = sum_i share_i sigmoid(w_i.r + b_i)`. From `|g|` a [`Skip`] decides
//!   whether the token skips the site, and what is taken off the gain if it does not.
//! - After the last site the answer is `r exp(s) / d`.
//!
//! # Parameters of a junction
//!
//! `[log_gain: 1]` at junction 0 only, then, at every junction but the last, with C directions,
//! `[w: C d] [b: C] [share: C] [beta: 1] [alpha: 1]` of the site that follows.
//!
//! # What is kept
//!
//! Of a junction the write (shared), the direction before it, five numbers per token that tell the
//! turn, and C open gates and three numbers per token that tell the gain. u and r' are computed again:
//! that is cheaper than to fetch them from memory.

mod backward;
mod modulator;
mod product;
mod rotation;
#[cfg(test)]
mod tests;
mod walk;

use super::tiles::TILE;
use super::{DecodeStream, Gradient, Skip, Stream};
use crate::route::Route;
use crate::rows::{Rows, filled};
use crate::team::{each_of, results_of};
use crate::work;
use backward::{Back, Scratch, TileGradient};
use modulator::{Gain, Modulator, Order};
use rotation::Turn;
use std::ops::Range;
use walk::NagWalk;

/// Tokens that share one partial sum of the parameters' gradients. The directions are as large as a
/// tile, so one sum per tile would double the memory traffic.
const TOKENS_PER_SUM: usize = 4 * TILE;

/// The norm-agnostic stream.
#[derive(Debug)]
pub struct Nag {
    width: usize,
    sites: usize,
    directions: usize,
    skip: Option<Skip>,
    keep: bool,
    /// The junction that comes next on the way forward.
    junction: usize,
    lanes: Lanes,
    /// A direction lane that is no longer needed, to be overwritten by the next.
    spare: Vec<f32>,
    /// What is kept of each junction so far, in order, if there is a way back.
    arrivals: Vec<Arrival>,
    /// How the gain of each site so far was set, in order; of the last one only, if there is no way
    /// back.
    modulations: Vec<Modulation>,
    /// Who runs the next site.
    route: Option<Route>,
    d_lanes: Lanes,
    /// Of the gains of the site that was last gone back through.
    d_gains: Vec<f32>,
}

/// The two lanes, or their gradients.
#[derive(Debug, Default)]
struct Lanes {
    /// `[tokens, width]`
    direction: Vec<f32>,
    /// `[tokens]`
    log_norm: Vec<f32>,
}

/// How directions came to a junction.
#[derive(Debug)]
struct Arrival {
    /// The directions before, `[tokens, width]`; empty at junction 0.
    before: Vec<f32>,
    origin: Origin,
}

/// What a direction can be computed from again, given the one before it.
#[derive(Debug)]
enum Origin {
    Embedding { embedding: Rows, norms: Vec<f32> },
    Turn { write: Rows, turns: Vec<Turn> },
}

#[derive(Debug)]
struct Modulation {
    /// `[tokens, directions]`
    open: Vec<f32>,
    /// `[tokens]`
    gains: Vec<Gain>,
}

impl Nag {
    /// A stream past `sites` sub-layers, thus with `sites + 1` junctions, where each site has a
    /// modulator of `directions` directions. `skip` says which tokens are not turned; without it all are.
    /// With `keep` false there is no way back.
    pub fn new(
        width: usize,
        sites: usize,
        directions: usize,
        skip: Option<Skip>,
        keep: bool,
    ) -> Self {
        assert!(width > 0, "a direction needs at least one element");
        assert!(directions > 0, "a modulator needs at least one direction");
        let rules = skip.as_ref().map_or(sites, |skip| skip.thresholds.len());
        assert_eq!(rules, sites, "thresholds, one for each site");
        Self {
            width,
            sites,
            directions,
            skip,
            keep,
            junction: 0,
            lanes: Lanes::default(),
            spare: Vec::new(),
            arrivals: Vec::new(),
            modulations: Vec::new(),
            route: None,
            d_lanes: Lanes::default(),
            d_gains: Vec::new(),
        }
    }

    /// Lets a tile of directions arrive, then depart, before the next tile is touched. `arrive` is
    /// given the numbers of the tile's tokens; it writes their directions and log norms, and notes for
    /// each how that was done. Without a modulator the directions depart to the head.
    fn pass<Note: Send>(
        &self,
        lanes: &mut Lanes,
        notes: &mut [Note],
        answer: &mut [f32],
        modulator: Option<Modulator>,
        arrive: impl Fn(Range<usize>, &mut [f32], &mut [f32], &mut [Note]) + Sync,
    ) -> Option<Modulation> {
        let (width, count, tokens) = (self.width, self.directions, notes.len());
        let tiles = (lanes.direction.chunks_mut(TILE * width))
            .zip(lanes.log_norm.chunks_mut(TILE))
            .zip(notes.chunks_mut(TILE))
            .zip(answer.chunks_mut(TILE * width))
            .enumerate();
        let Some(modulator) = modulator else {
            each_of(tiles, |(tile, (((direction, log_norm), notes), answer))| {
                let first = tile * TILE;
                arrive(first..first + notes.len(), direction, log_norm, notes);
                rotation::read_out(crate::simd::Form::best(), answer, direction, log_norm);
            });
            return None;
        };
        let layout = modulator.layout(tokens, self.order());
        let mut modulation =
            Modulation { open: room(tokens * count), gains: vec![Gain::default(); tokens] };
        let gates = modulation.open.chunks_mut(TILE * count).zip(modulation.gains.chunks_mut(TILE));
        each_of(tiles.zip(gates), |((tile, (lanes, answer)), (open, gains))| {
            let ((direction, log_norm), notes) = lanes;
            let first = tile * TILE;
            arrive(first..first + notes.len(), direction, log_norm, notes);
            modulator::modulate(
                crate::simd::Form::best(),
                gains,
                open,
                direction,
                modulator,
                &layout,
            );
            if let Some(skip) = &self.skip {
                modulator::decide(gains, skip, self.junction, first);
            }
            answer.copy_from_slice(direction);
        });
        Some(modulation)
    }

    fn order(&self) -> Order {
        match &self.skip {
            Some(skip) if skip.skips() => Order::AlwaysTheSame,
            _ => Order::Fastest,
        }
    }

    /// The gain that only junction 0 has, and the modulator that only the last one lacks.
    fn parse<'a>(&self, junction: usize, params: &'a [f32]) -> (f32, Option<Modulator<'a>>) {
        let (log_gain, rest) = params.split_at(usize::from(junction == 0));
        let modulator =
            (junction < self.sites).then(|| Modulator::new(rest, self.directions, self.width));
        (log_gain.first().copied().unwrap_or_default(), modulator)
    }
}

impl Stream for Nag {
    fn forward(&mut self, write: Rows, params: &[f32]) -> Vec<f32> {
        let width = self.width;
        let values = write.values();
        let tokens = values.len() / width;
        let (log_gain, modulator) = self.parse(self.junction, params);
        if modulator.is_some() {
            work::add(2 * self.directions * values.len());
        }
        let mut answer = room(values.len());
        let Lanes { direction: before, log_norm } = std::mem::take(&mut self.lanes);
        let direction = match std::mem::take(&mut self.spare) {
            spare if spare.len() == values.len() => spare,
            _ => room(values.len()),
        };
        let mut after = Lanes { direction, log_norm };

        let (modulation, origin) = if self.junction == 0 {
            after.log_norm = room(tokens);
            let mut norms = room(tokens);
            let arrive = |tokens: Range<usize>, r: &mut [f32], s: &mut [f32], norms: &mut [f32]| {
                rotation::enter(
                    crate::simd::Form::best(),
                    r,
                    s,
                    norms,
                    &values[rows(&tokens, width)],
                    log_gain,
                );
            };
            let modulation = self.pass(&mut after, &mut norms, &mut answer, modulator, arrive);
            (modulation, Origin::Embedding { embedding: write.clone(), norms })
        } else {
            let mut turns = vec![Turn::default(); tokens];
            let gains = &self.modulations.last().expect("a site before this junction").gains;
            let arrive = |tokens: Range<usize>, r: &mut [f32], s: &mut [f32], t: &mut [Turn]| {
                let (f, before) = (&values[rows(&tokens, width)], &before[rows(&tokens, width)]);
                rotation::turn(crate::simd::Form::best(), r, s, t, f, before, &gains[tokens]);
            };
            let modulation = self.pass(&mut after, &mut turns, &mut answer, modulator, arrive);
            (modulation, Origin::Turn { write: write.clone(), turns })
        };

        self.junction += 1;
        self.lanes = after;
        let decided = modulation.as_ref().filter(|_| self.skip.is_some());
        self.route = decided.and_then(|site| Route::of(site.gains.iter().map(|gain| gain.runs)));
        if self.keep {
            self.arrivals.push(Arrival { before, origin });
        } else {
            self.spare = before;
            self.modulations.clear();
        }
        self.modulations.extend(modulation);
        answer
    }

    fn backward(&mut self, d_input: &[f32], params: &[f32]) -> Gradient {
        let Arrival { before, origin } =
            self.arrivals.pop().expect("a junction that was kept for the way back");
        let junction = self.arrivals.len();
        let (width, tokens) = (self.width, d_input.len() / self.width);
        if junction == self.sites {
            // The last directions are computed again, so their place is free.
            let direction = std::mem::take(&mut self.lanes.direction);
            self.d_lanes = Lanes { direction, log_norm: room(tokens) };
            self.d_gains = room(tokens);
        }
        let left = (junction < self.sites).then(|| self.modulations.pop()).flatten();
        let mut d_lanes = std::mem::take(&mut self.d_lanes);
        let mut d_gains = std::mem::take(&mut self.d_gains);
        let mut write = if before.is_empty() { room(d_input.len()) } else { before };
        let back = Back {
            width,
            origin: &origin,
            gains: self.modulations.last().map_or(&[], |modulation| &modulation.gains),
            log_norm: &self.lanes.log_norm,
            left: self.parse(junction, params).1.zip(left.as_ref()),
            d_input,
        };
        let parts = (write.chunks_mut(TOKENS_PER_SUM * width))
            .zip(d_lanes.direction.chunks_mut(TOKENS_PER_SUM * width))
            .zip(d_lanes.log_norm.chunks_mut(TOKENS_PER_SUM))
            .zip(d_gains.chunks_mut(TOKENS_PER_SUM))
            .enumerate();
        let sums = results_of(parts, |(part, (((write, direction), log_norm), gains))| {
            let mut params = vec![0.0; params.len()];
            let mut scratch = Scratch::new(width, self.directions);
            let tiles = (write.chunks_mut(TILE * width))
                .zip(direction.chunks_mut(TILE * width))
                .zip(log_norm.chunks_mut(TILE))
                .zip(gains.chunks_mut(TILE))
                .enumerate();
            for (tile, (((write, direction), log_norm), gains)) in tiles {
                let first = part * TOKENS_PER_SUM + tile * TILE;
                let gradient =
                    TileGradient { write, direction, log_norm, gains, params: &mut params };
                back.tile(first, gradient, &mut scratch);
            }
            params
        });
        self.d_lanes = d_lanes;
        self.d_gains = d_gains;
        Gradient { write, params: add_in_order(sums) }
    }

    fn route(&self) -> Option<Route> {
        self.route.clone()
    }

    fn decode(self: Box<Self>) -> Box<dyn DecodeStream> {
        Box::new(NagWalk::new(*self))
    }
}

/// The elements of some tokens' rows.
fn rows(tokens: &Range<usize>, width: usize) -> Range<usize> {
    tokens.start * width..tokens.end * width
}

/// Room for values that are written before they are read.
fn room(length: usize) -> Vec<f32> {
    filled(length, |_| ())
}

/// The sum of equally long vectors, of which there is at least one.
fn add_in_order(vectors: Vec<Vec<f32>>) -> Vec<f32> {
    let mut vectors = vectors.into_iter();
    let mut sum = vectors.next().unwrap_or_default();
    for vector in vectors {
        for (sum, value) in sum.iter_mut().zip(vector) {
            *sum += value;
        }
    }
    sum
}
