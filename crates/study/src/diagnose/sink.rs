//! Attention sinks: how much attention goes to the first token, whatever it is.

use super::diagnostic::Diagnostic;
use super::draw::{Words, block_axis, line, reference};
use super::summary::Summary;
use super::sums::{Mean, slot};
use super::values::Values;
use hadal_report::figure::{Axis, Figure};
use hadal_residual::{Place, Signal};

/// Attention to the first token by block and head.
pub(crate) struct Sink {
    blocks: usize,
    /// `[block][head]`
    heads: Vec<Vec<Mean>>,
    /// What even attention would give.
    even: Mean,
}

impl Sink {
    pub(crate) fn new(blocks: usize) -> Self {
        Self { blocks, heads: vec![Vec::new(); blocks], even: Mean::default() }
    }

    /// Mean over heads, and that of the head that looks there most.
    fn of_block(&self, block: usize) -> Option<(f64, f64)> {
        let heads: Vec<f64> = self.heads[block].iter().filter_map(Mean::get).collect();
        let most = heads.iter().copied().reduce(f64::max)?;
        Some((heads.iter().sum::<f64>() / heads.len() as f64, most))
    }
}

impl Diagnostic for Sink {
    fn wants(&self, signal: Signal) -> bool {
        signal == Signal::FirstToken
    }

    fn see(&mut self, place: Place, _: Signal, values: &Values) {
        let Place::Site(site) = place else { return };
        let time = values.time();
        // The first token has nothing else to look at.
        let tokens = (0..values.tokens()).filter(|token| token % time > 0);
        for token in tokens {
            for head in 0..values.streams() {
                slot(&mut self.heads[site.block()], head).add(values.row(token, head)[0].into());
            }
            if site.block() == 0 {
                self.even.add(1.0 / (token % time + 1) as f64);
            }
        }
    }

    fn figures(&self) -> Vec<Figure> {
        let blocks: Vec<_> = (0..self.blocks).map(|block| self.of_block(block)).collect();
        let Some(even) = self.even.get() else { return Vec::new() };
        vec![
            Words {
                name: "attention-sink",
                title: "Attention on the first token",
                caption: "Share of their attention that heads give to the first token of the sequence, averaged over \
                          all later tokens. Far above the dashed line (even attention) it is a sink: a place to look at \
                          when a head has nothing to say.",
            }
            .lines(
                block_axis(),
                Axis::new("share of attention"),
                vec![
                    line("mean over heads", blocks.iter().map(|b| b.map(|(mean, _)| mean))),
                    line("strongest head", blocks.iter().map(|b| b.map(|(_, most)| most))),
                    reference("even attention", vec![even; self.blocks]),
                ],
            ),
        ]
    }

    fn tell(&self, summary: &mut Summary) {
        let blocks = (0..self.blocks).filter_map(|block| Some((block, self.of_block(block)?.0)));
        summary.sink = blocks.max_by(|a, b| a.1.total_cmp(&b.1));
    }
}
