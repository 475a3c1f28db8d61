//! Usefulness: what it costs to put the best affine map in the place of a block.
//!
//! A stand-in computes what both sub-layers of a block return as affine maps of what the block reads, `y = A h + b`, by
//! least squares. For a policy that adds its writes to one stream, that is the affine map that comes nearest to the block. A
//! block whose loss with a stand-in is above 1.1 times the whole model's computes something that no such map does, as in
//! DepthBench's code. Maps are fitted to one half of the sequences, and the loss is taken on the other half.

use super::diagnostic::{Diagnostic, Models};
use super::draw::{Words, bars, block_categories};
use super::error::DiagnoseError;
use super::kind::Kind;
use super::solve::cholesky;
use super::summary::Summary;
use super::values::Values;
use burn::tensor::{Tensor, TensorData};
use hadal_data::Batch;
use hadal_model::{ModelConfig, Pass};
use hadal_report::figure::{Axis, Figure, Marks};
use hadal_residual::{Place, Probe, Signal, Site, SubLayerKind};
use hadal_train::quality::mean_loss;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ops::Range;

/// Positions that maps are fitted to, in whole batches; as many are measured.
pub(crate) const POSITIONS: usize = 16384;
/// A block counts from this ratio of losses on.
pub(crate) const USEFUL: f64 = 1.1;
/// Tokens for each channel that a fit needs: with fewer a map learns them by heart.
const SPARE: usize = 2;
/// Added to the squares, relative to their mean, so that channels that say the same do no harm.
const RIDGE: f64 = 1e-7;

/// What affine stand-ins cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UsefulnessSummary {
    /// Loss of the model as it is, on the half that is measured.
    pub loss: f64,
    /// Loss with a stand-in for each block over that.
    pub ratios: Vec<Option<f64>>,
    /// Blocks whose ratio is above 1.1.
    pub useful: usize,
}

impl UsefulnessSummary {
    /// A sentence without its full stop.
    pub(crate) fn sentence(&self) -> String {
        let blocks = self.ratios.iter().flatten().count();
        format!(
            "{} of {blocks} blocks compute what no affine map of their reading does: with one in their place the loss is more \
             than {USEFUL} times as high",
            self.useful
        )
    }
}

/// The sums of squares of one block: of its reading with a one behind it, and of that with both writes.
struct Squares {
    /// `[d + 1, d + 1]`
    own: Vec<f64>,
    /// `[d + 1, 2 d]`
    with_writes: Vec<f64>,
    tokens: usize,
}

/// `[d + 1, 2 d]`: a map of a block's reading to both of its writes.
type AffineMap = Vec<f32>;

/// What the present batch shows of the present block.
#[derive(Default)]
struct Seen {
    reading: Vec<f32>,
    attention: Vec<f32>,
    skipped: Vec<bool>,
}

/// What is summed over passes.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Sums {
    /// Of the whole model, then with a stand-in for each block.
    losses: Vec<f64>,
    positions: usize,
    /// Batches that were begun.
    batches: usize,
    /// Whether this batch is measured.
    measures: bool,
}

/// Losses with stand-ins.
pub(crate) struct Usefulness {
    blocks: usize,
    width: usize,
    squares: Vec<Squares>,
    maps: Vec<Option<AffineMap>>,
    here: Seen,
    /// Rows of this batch that are fitted.
    fitted: Range<usize>,
    batches: usize,
    positions: usize,
    sums: Sums,
}

/// The rows of a batch that maps are fitted to, and those that are measured. A batch of one row is all one or the other.
fn halves(index: usize, rows: usize) -> [Range<usize>; 2] {
    match rows {
        1 if index.is_multiple_of(2) => [0..1, 0..0],
        1 => [0..0, 0..1],
        rows => [0..rows / 2, rows / 2..rows],
    }
}

impl Usefulness {
    pub(crate) fn new(config: &ModelConfig) -> Self {
        let (blocks, width) = (config.n_layers, config.d_model);
        let none = || Squares {
            own: vec![0.0; (width + 1) * (width + 1)],
            with_writes: vec![0.0; (width + 1) * 2 * width],
            tokens: 0,
        };
        Self {
            blocks,
            width,
            squares: (0..blocks).map(|_| none()).collect(),
            maps: Vec::new(),
            here: Seen::default(),
            fitted: 0..0,
            batches: 0,
            positions: 0,
            sums: Sums { losses: vec![0.0; blocks + 1], ..Sums::default() },
        }
    }

    /// Tokens that a fit needs.
    fn needed(&self) -> usize {
        SPARE * (self.width + 1)
    }

    fn add(&mut self, block: usize, time: usize, writes: &Values) {
        let (d, rows) = (self.width, self.fitted.clone());
        let Seen { reading, attention, skipped } = &self.here;
        let tokens = (rows.start * time..rows.end * time)
            .filter(|&token| !skipped.get(token).copied().unwrap_or_default());
        let tokens: Vec<usize> = tokens.collect();
        if reading.is_empty() || attention.is_empty() {
            return;
        }
        let squares = &mut self.squares[block];
        squares.tokens += tokens.len();
        let at = |token: usize, channel: usize| match channel {
            channel if channel < d => f64::from(reading[token * d + channel]),
            _ => 1.0,
        };
        squares.own.par_chunks_mut(d + 1).enumerate().for_each(|(channel, row)| {
            for &token in &tokens {
                let x = at(token, channel);
                let values = &reading[token * d..(token + 1) * d];
                row.iter_mut().zip(values).for_each(|(sum, &y)| *sum += x * f64::from(y));
                row[d] += x;
            }
        });
        squares.with_writes.par_chunks_mut(2 * d).enumerate().for_each(|(channel, row)| {
            for &token in &tokens {
                let x = at(token, channel);
                let written =
                    attention[token * d..(token + 1) * d].iter().chain(writes.row(token, 0));
                row.iter_mut().zip(written).for_each(|(sum, &y)| *sum += x * f64::from(y));
            }
        });
    }

    /// The maps, once all of the data was seen. What was summed for them goes.
    fn fit(&mut self) {
        let (width, needed) = (self.width, self.needed());
        let fit = |squares: Squares| -> Option<AffineMap> {
            let Squares { mut own, mut with_writes, tokens } = squares;
            let size = width + 1;
            let mean = (0..size).map(|i| own[i * size + i]).sum::<f64>() / size as f64;
            if tokens < needed || !(mean.is_finite() && mean > 0.0) {
                return None;
            }
            (0..size).for_each(|i| own[i * size + i] += RIDGE * mean);
            cholesky(own, size)?.solve(&mut with_writes, 2 * width);
            Some(with_writes.into_iter().map(|x| x as f32).collect())
        };
        self.maps = std::mem::take(&mut self.squares).into_iter().map(fit).collect();
    }

    /// The map of a block, once all of the data was seen.
    #[cfg(test)]
    pub(crate) fn fitted_map(&mut self, block: usize) -> Option<&AffineMap> {
        self.fit();
        self.maps[block].as_ref()
    }

    /// Loss with a stand-in over the loss.
    pub(crate) fn ratio(&self, block: usize) -> Option<f64> {
        let whole = self.sums.losses[0];
        let fitted = self.maps.get(block).is_some_and(Option::is_some);
        (fitted && whole > 0.0).then(|| self.sums.losses[block + 1] / whole)
    }

    fn summary(&self) -> UsefulnessSummary {
        let ratios: Vec<Option<f64>> = (0..self.blocks).map(|block| self.ratio(block)).collect();
        UsefulnessSummary {
            loss: self.sums.losses[0] / self.sums.positions.max(1) as f64,
            useful: ratios.iter().flatten().filter(|ratio| **ratio > USEFUL).count(),
            ratios,
        }
    }
}

/// Puts a map in the place of a block's sub-layers.
struct StandIn<'a> {
    block: usize,
    map: &'a AffineMap,
    /// Both writes, `[B, T, 2 d]`.
    writes: Option<Tensor<3>>,
}

impl Probe for StandIn<'_> {
    fn wants(&self, signal: Signal) -> bool {
        signal == Signal::Reading
    }

    fn record(&mut self, place: Place, _: Signal, value: Tensor<4>) {
        if place != Place::Site(Site::new(2 * self.block)) {
            return;
        }
        let [batch, time, _, width] = value.dims();
        let data = TensorData::new(self.map.clone(), [width + 1, 2 * width]);
        let map = Tensor::<2>::from_data(data, &value.device());
        let (matrix, constant) = (map.clone().narrow(0, 0, width), map.narrow(0, width, 1));
        let writes = value.reshape([batch * time, width]).matmul(matrix) + constant;
        self.writes = Some(writes.reshape([batch, time, 2 * width]));
    }

    fn tap(&mut self, site: Site, output: Tensor<3>) -> Tensor<3> {
        let width = output.dims()[2];
        match &self.writes {
            Some(writes) if site.block() == self.block => {
                let half = usize::from(site.kind() == SubLayerKind::Mlp);
                writes.clone().narrow(2, half * width, width)
            }
            _ => output,
        }
    }
}

impl Diagnostic for Usefulness {
    fn wants(&self, signal: Signal) -> bool {
        matches!(signal, Signal::Reading | Signal::Write | Signal::Skipped)
    }

    fn begin(&mut self, batch: &Batch) {
        let [fitted, _] = halves(self.batches, batch.input.batch());
        self.fitted = if self.positions < POSITIONS { fitted } else { 0..0 };
        self.positions += self.fitted.len() * batch.input.time();
        self.batches += 1;
    }

    fn see(&mut self, place: Place, signal: Signal, values: &Values) {
        let Place::Site(site) = place else { return };
        if self.fitted.is_empty() {
            return;
        }
        match (signal, site.kind()) {
            (Signal::Reading, SubLayerKind::Attention) => {
                self.here = Seen { reading: values.all().to_vec(), ..Seen::default() };
            }
            (Signal::Skipped, _) => {
                let skips = (0..values.tokens()).map(|token| values.number(token) > 0.5);
                self.here.skipped.resize(values.tokens(), false);
                self.here.skipped.iter_mut().zip(skips).for_each(|(any, skips)| *any |= skips);
            }
            (Signal::Write, SubLayerKind::Attention) => {
                self.here.attention = values.all().to_vec();
            }
            (Signal::Write, SubLayerKind::Mlp) => {
                self.add(site.block(), values.time(), values);
                self.here = Seen::default();
            }
            _ => {}
        }
    }

    fn passes(&self) -> usize {
        self.blocks + 1
    }

    fn pass(&mut self, index: usize, models: Models, batch: &Batch) -> Result<(), DiagnoseError> {
        let Models { plain, variant, .. } = models;
        if self.maps.is_empty() {
            self.fit();
        }
        if index == 0 {
            self.sums.batches += 1;
        }
        let [_, rows] = halves(self.sums.batches - 1, batch.input.batch());
        if index == 0 {
            self.sums.measures = self.sums.positions < POSITIONS && !rows.is_empty();
        }
        if !self.sums.measures {
            return Ok(());
        }
        let part = batch.rows(rows);
        let count = part.positions() as f64;
        let Some(block) = index.checked_sub(1) else {
            self.sums.positions += part.positions();
            self.sums.losses[0] += mean_loss(plain, &part, variant.pass())? * count;
            return Ok(());
        };
        let Some(Some(map)) = self.maps.get(block) else { return Ok(()) };
        let mut probe = StandIn { block, map, writes: None };
        let pass = Pass { probe: Some(&mut probe), ..variant.pass() };
        self.sums.losses[index] += mean_loss(plain, &part, pass)? * count;
        Ok(())
    }

    fn save(&self) -> Option<Value> {
        serde_json::to_value(&self.sums).ok()
    }

    fn restore(&mut self, saved: &Value) -> bool {
        let Ok(saved) = Sums::deserialize(saved) else { return false };
        let fits = saved.losses.len() == self.blocks + 1;
        if fits {
            self.sums = saved;
        }
        fits
    }

    fn figures(&self) -> Vec<Figure> {
        let UsefulnessSummary { ratios, useful, .. } = self.summary();
        if ratios.iter().all(Option::is_none) {
            return Vec::new();
        }
        let rises = ratios.into_iter().map(|ratio| Some(100.0 * (ratio? - 1.0)));
        let caption = format!(
            "How much higher the loss is with an affine map of its reading in the place of what a block returns. Above {:.0} % \
             ({useful} of {} blocks) a block computes what no such map does. Maps are fitted by least squares to \
             one half of the sequences; the loss is that of the other half.",
            100.0 * (USEFUL - 1.0),
            self.blocks
        );
        vec![
            Words {
                name: "usefulness",
                title: "Loss with an affine stand-in for a block",
                caption: &caption,
            }
            .with(
                block_categories(self.blocks),
                Axis::new("rise of the loss").unit("%"),
                Marks::Bars { series: vec![bars("with a stand-in", rises)] },
            ),
        ]
    }

    fn tell(&self, summary: &mut Summary) {
        let found = self.summary();
        if found.ratios.iter().any(Option::is_some) {
            summary.usefulness = Some(found);
            return;
        }
        let reason = match self.sums.positions {
            0 => {
                "one half of the sequences is fitted and the other measured, but there is only one"
                    .to_owned()
            }
            _ => format!(
                "a fit needs {} tokens, twice as many as channels, in half of the sequences; give more --batches or a \
                 longer --data",
                self.needed()
            ),
        };
        summary.refuse(Kind::Usefulness, reason);
    }
}
