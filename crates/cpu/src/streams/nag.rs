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
//! - If site k follows, r is the output and sets that site's gain:
//!   `g = alpha max(S, 1e-6)^beta`, `S = sum_i share_i sigmoid(w_i.r + b_i)`. From `|g|` a [`Skip`] decides
//!   whether the token skips the site, and what is taken off the gain if it does not.
//! - After the last site the output is `r exp(s) / d`.
//!
//! # Parameters of a junction
//!
//! `[log_gain: 1]` at junction 0 only, then, at every junction but the last, with C directions,
//! `[w: C d] [b: C] [share: C] [beta: 1] [alpha: 1]` of the site that follows.
//!
//! # What is kept
//!
//! Of a junction the write (shared), the direction after it, its five numbers per token that tell the
//! turn, its [`Lane`], and C open gates. The backward pass computes u and r' again: that is cheaper than to fetch them from memory.

mod modulator;
mod product;
mod rotation;
#[cfg(test)]
mod tests;

use super::Skip;
use super::driver::{Backward, Carried, Forward, Parts, Policy};
use modulator::{Layout, Modulator, ModulatorGradient, Order};
use rotation::{Before, Lane, Turn};

/// The norm-agnostic stream.
pub type Nag = Carried<NormAgnostic>;

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
        Self::by(NormAgnostic { width, sites, directions, skip }, keep)
    }
}

/// The policy of [`Nag`].
#[derive(Debug)]
pub struct NormAgnostic {
    width: usize,
    sites: usize,
    directions: usize,
    skip: Option<Skip>,
}

/// A junction's parameters.
#[derive(Debug)]
pub struct Params<'a> {
    /// Of junction 0.
    log_gain: f32,
    /// Of every junction but the last.
    modulator: Option<Modulator<'a>>,
    layout: Layout,
}

/// What one tile after the other is computed in.
#[derive(Debug, Default)]
pub struct Scratch {
    /// The directions after the junction.
    direction: Vec<f32>,
    /// The unit turning parts of the writes.
    part: Vec<f32>,
    /// Gradients of the gates' arguments.
    d_gates: Vec<f32>,
}

// SAFETY: rows and numbers of every token are written before others read them.
unsafe impl Policy for NormAgnostic {
    type Params<'a> = Params<'a>;
    type Kept = ();
    type Scratch = Scratch;
    /// The directions of a modulator are as large as a tile.
    const TILES_PER_SUM: usize = 4;
    /// Directions are computed again, so their place is free.
    const D_WRITE_IN_RECORD: bool = true;

    fn width(&self) -> usize {
        self.width
    }

    fn junctions(&self) -> usize {
        self.sites + 1
    }

    fn params(&self, junction: usize) -> usize {
        let modulator = self.directions * (self.width + 2) + 2;
        usize::from(junction == 0) + if junction < self.sites { modulator } else { 0 }
    }

    fn split<'a>(&self, junction: usize, params: &'a [f32]) -> Params<'a> {
        let (log_gain, rest) = params.split_at(usize::from(junction == 0));
        Params {
            log_gain: log_gain.first().copied().unwrap_or_default(),
            modulator: (junction < self.sites)
                .then(|| Modulator::new(rest, self.directions, self.width)),
            layout: Layout::AsTheyAre,
        }
    }

    /// The directions, [`Turn`], the open gates where there is a modulator, and [`Lane`].
    fn record(&self, junction: usize) -> Parts {
        let open = if junction < self.sites { self.directions } else { 0 };
        [self.width, Turn::LENGTH, open, Lane::LENGTH]
    }

    /// Of the direction, of the log norm, and of the gain of the site that follows.
    fn gradient(&self) -> Parts {
        [self.width, 1, 1, 0]
    }

    fn keeps_write(&self, _: usize) -> bool {
        true
    }

    fn decides(&self, junction: usize) -> bool {
        self.skip.is_some() && junction < self.sites
    }

    fn prepare(&self, params: &mut Params<'_>, tokens: usize) {
        let order = match &self.skip {
            Some(skip) if skip.skips() => Order::AlwaysTheSame,
            _ => Order::Fastest,
        };
        if let Some(modulator) = &params.modulator {
            params.layout = modulator.layout(tokens, order);
        }
    }

    fn flops(&self, junction: usize) -> usize {
        if junction < self.sites { 2 * self.directions * self.width } else { 0 }
    }

    /// Lets the directions arrive, then depart to the next site or to the head.
    #[inline(always)]
    fn forward(&self, params: &Params<'_>, tile: Forward<'_, ()>, _: &mut Scratch) {
        let [direction, turns, open, lanes] = tile.record;
        let (turns, lanes) = (turns.as_chunks_mut().0, lanes.as_chunks_mut().0);
        let [from, _, _, before] = tile.before.record;
        if tile.junction == 0 {
            rotation::enter(direction, turns, lanes, tile.write, params.log_gain);
        } else {
            let before = Before { lanes: before.as_chunks().0, runs: tile.before.runs };
            rotation::turn(direction, turns, lanes, tile.write, from, before);
        }
        let Some(modulator) = &params.modulator else {
            return rotation::read_out(tile.output, direction, lanes);
        };
        modulator::modulate(lanes, open, direction, modulator, &params.layout);
        if let Some(skip) = &self.skip {
            modulator::decide(lanes, tile.runs, skip, tile.junction, tile.first);
        }
        tile.output.copy_from_slice(direction);
    }

    #[inline(always)]
    fn backward(&self, params: &Params<'_>, tile: Backward<'_, ()>, scratch: &mut Scratch) {
        let rows = tile.tokens * self.width;
        scratch.direction.resize(rows, 0.0);
        scratch.part.resize(rows, 0.0);
        let (direction, part) = (&mut scratch.direction, &mut scratch.part);
        let [_, turns, open, lanes] = tile.record.map(|part| &*part);
        let (turns, lanes) = (turns.as_chunks().0, lanes.as_chunks().0);
        let [_, _, _, before] = tile.before.record;
        let before = Before { lanes: before.as_chunks().0, runs: tile.before.runs };
        if tile.junction == 0 {
            rotation::enter_again(direction, tile.write, turns);
        } else {
            rotation::turn_again(direction, part, tile.write, tile.d_write, before, turns);
        }

        let [d_direction, d_log_norm, d_gains, _] = tile.gradient;
        let (d_log_gain, d_modulator) = tile.d_params.split_at_mut(usize::from(tile.junction == 0));
        match &params.modulator {
            Some(modulator) => {
                scratch.d_gates.resize(tile.tokens * self.directions, 0.0);
                modulator::modulate_back(
                    d_direction,
                    ModulatorGradient::new(d_modulator, self.directions, self.width),
                    &mut scratch.d_gates,
                    tile.d_output,
                    d_gains,
                    direction,
                    open,
                    lanes,
                    tile.runs,
                    modulator,
                );
            }
            None => {
                rotation::read_out_back(d_direction, d_log_norm, tile.d_output, direction, lanes);
            }
        }

        if tile.junction == 0 {
            d_log_gain[0] += d_log_norm.iter().sum::<f32>();
            rotation::enter_back(tile.d_write, d_direction, d_log_norm, direction, turns);
        } else {
            let gradients = (&mut *d_direction, &mut *d_gains, &*d_log_norm);
            rotation::turn_back(tile.d_write, gradients, direction, part, before, turns);
        }
    }
}
