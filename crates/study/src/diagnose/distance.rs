//! Angular distance between the inputs of any two blocks (Gromov et al., arXiv 2403.17887).
//!
//! `d(l, n) = mean of arccos(cos(x_l, x_(l+n))) / pi` over the last token of each sequence, where `x_l` is the
//! input of block l and `x_L` what the head reads, before any norm. A run of n blocks with a small distance does
//! little and can be cut.

use super::diagnostic::Diagnostic;
use super::draw::Words;
use super::summary::Summary;
use super::sums::{Mean, slot};
use super::values::{Values, angle};
use hadal_data::Batch;
use hadal_report::figure::{Axis, Figure, Marks};
use hadal_residual::{Place, Signal, SubLayerKind};
use std::f64::consts::PI;

/// Distances of the readings and of each stream.
pub(crate) struct Distance {
    blocks: usize,
    /// The tokens that count.
    tokens: Vec<usize>,
    every_token: bool,
    readings: Map,
    streams: Vec<Map>,
}

/// Distances between blocks along one way through depth.
#[derive(Clone, Default)]
struct Map {
    /// The present batch: `[boundary][row]`, the vector before block 0, 1, .. and before the head.
    here: Vec<Vec<Vec<f32>>>,
    /// `[block][distance - 1]`
    means: Vec<Vec<Mean>>,
}

impl Map {
    fn keep(&mut self, boundary: usize, values: &Values, stream: usize, tokens: &[usize]) {
        *slot(&mut self.here, boundary) =
            tokens.iter().map(|&token| values.row(token, stream).to_vec()).collect();
    }

    fn compare(&mut self) {
        for from in 0..self.here.len() {
            for to in from + 1..self.here.len() {
                let mean = slot(slot(&mut self.means, from), to - from - 1);
                for (a, b) in self.here[from].iter().zip(&self.here[to]) {
                    if let Some(angle) = angle(a, b) {
                        mean.add(angle / PI);
                    }
                }
            }
        }
        self.here.clear();
    }

    fn get(&self, block: usize, distance: usize) -> Option<f64> {
        self.means.get(block)?.get(distance.checked_sub(1)?)?.get()
    }

    fn figure(&self, name: &str, title: &str, caption: &str, blocks: usize) -> Figure {
        let values = (1..=blocks)
            .map(|distance| (0..blocks).map(|block| self.get(block, distance)).collect());
        let marks = Marks::Heat {
            values: values.collect(),
            legend: "angular distance (0 same direction, 0.5 orthogonal)".into(),
        };
        let names = |range: std::ops::Range<usize>| range.map(|i| i.to_string());
        Words { name, title, caption }.with(
            Axis::new("first block").categories(names(0..blocks)),
            Axis::new("blocks passed").categories(names(1..blocks + 1)),
            marks,
        )
    }
}

impl Distance {
    pub(crate) fn new(blocks: usize) -> Self {
        Self {
            blocks,
            tokens: Vec::new(),
            every_token: false,
            readings: Map::default(),
            streams: Vec::new(),
        }
    }

    /// Over every token instead of the last of each sequence.
    pub(crate) fn of_all_tokens(blocks: usize) -> Self {
        Self { every_token: true, ..Self::new(blocks) }
    }

    /// The angular distance that `distance` blocks from `block` on make.
    pub(crate) fn get(&self, block: usize, distance: usize) -> Option<f64> {
        self.readings.get(block, distance)
    }
}

/// The last token of each row, or the last that is scored: padding may follow it.
pub(crate) fn last_tokens(batch: &Batch) -> Vec<usize> {
    let time = batch.input.time();
    (0..batch.input.batch())
        .map(|row| {
            let scored = batch.scored.get(row * time..(row + 1) * time);
            let last = scored.and_then(|scored| scored.iter().rposition(|&scored| scored));
            row * time + last.unwrap_or(time - 1)
        })
        .collect()
}

impl Diagnostic for Distance {
    fn wants(&self, signal: Signal) -> bool {
        matches!(signal, Signal::Reading | Signal::Streams)
    }

    fn begin(&mut self, batch: &Batch) {
        self.tokens = match self.every_token {
            true => (0..batch.input.ids().len()).collect(),
            false => last_tokens(batch),
        };
    }

    fn see(&mut self, place: Place, signal: Signal, values: &Values) {
        match (signal, place) {
            (Signal::Reading, Place::Out) => {
                self.readings.keep(self.blocks, values, 0, &self.tokens);
            }
            (Signal::Reading, Place::Site(site)) if site.kind() == SubLayerKind::Attention => {
                self.readings.keep(site.block(), values, 0, &self.tokens);
            }
            (Signal::Streams, Place::Site(site)) if site.kind() == SubLayerKind::Mlp => {
                for stream in 0..values.streams() {
                    let map = slot(&mut self.streams, stream);
                    map.keep(site.block() + 1, values, stream, &self.tokens);
                }
            }
            _ => {}
        }
    }

    fn end(&mut self) {
        self.readings.compare();
        self.streams.iter_mut().for_each(Map::compare);
    }

    fn figures(&self) -> Vec<Figure> {
        let mut figures = vec![self.readings.figure(
            "angular-distance",
            "Angular distance between block inputs",
            "How far the blocks from the one below turn what is read, in units of half a circle, at the last token \
             of each sequence. Dark stretches are runs of blocks that could be cut with little harm. Values are \
             raw, so that models can be compared.",
            self.blocks,
        )];
        if self.streams.len() > 1 {
            for (i, map) in self.streams.iter().enumerate() {
                figures.push(map.figure(
                    &format!("angular-distance-stream-{i}"),
                    &format!("Angular distance within stream {i}"),
                    "The same for one stream of the depth state, from behind the first block on: how far the blocks \
                     turn this stream. A stream that stays dark is hardly written to.",
                    self.blocks,
                ));
            }
        }
        figures
    }

    fn tell(&self, summary: &mut Summary) {
        let turn = |block| Some(180.0 * self.readings.get(block, 1)?);
        summary.block_turns = (0..self.blocks).map(turn).collect();
    }
}
