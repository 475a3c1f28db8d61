//! How large the stream is after each block, and how it grows against Xiong's bounds.

use super::diagnostic::Diagnostic;
use super::draw::{Words, block_axis, line, reference};
use super::summary::Summary;
use super::sums::{Mean, slot};
use super::values::{Values, square};
use super::xiong::Bounds;
use hadal_report::figure::{Axis, Figure};
use hadal_residual::{Place, Signal, Site, SubLayerKind};

/// Mean squares of what blocks leave in the stream.
pub(crate) struct Output {
    blocks: usize,
    bounds: Bounds,
    /// Logarithm of a factor on the embedding, where the policy has one.
    log_gain: f64,
    /// Readings before block 0, 1, .. and before the head.
    readings: Vec<Mean>,
    embedding: Mean,
    /// Squared norm per channel, where a policy carries it apart from the direction.
    carried: Vec<Mean>,
    /// `[stream][block]`
    streams: Vec<Vec<Mean>>,
}

impl Output {
    pub(crate) fn new(blocks: usize, bounds: Bounds, log_gain: f64) -> Self {
        Self {
            blocks,
            bounds,
            log_gain,
            readings: vec![Mean::default(); blocks + 1],
            embedding: Mean::default(),
            carried: vec![Mean::default(); blocks],
            streams: Vec::new(),
        }
    }

    /// `E |x_l|^2 / E |x_0|^2` after l = 0, 1, .. blocks.
    pub(crate) fn growth(&self) -> Vec<Option<f64>> {
        let carried = self.carried.iter().any(|mean| mean.get().is_some());
        let first = self
            .embedding
            .get()
            .map(|square| if carried { square * (2.0 * self.log_gain).exp() } else { square });
        let behind = (0..self.blocks).map(|block| match carried {
            true => self.carried[block].get(),
            false => self.readings[block + 1].get(),
        });
        let all = std::iter::once(first).chain(behind);
        all.map(|square| Some(square? / first.filter(|&first| first > 0.0)?)).collect()
    }
}

/// The block that ends at this place, if one does.
fn behind_block(place: Place, blocks: usize) -> Option<usize> {
    match place {
        Place::Out => Some(blocks),
        Place::Site(site) => (site.kind() == SubLayerKind::Attention).then_some(site.block()),
    }
}

impl Diagnostic for Output {
    fn wants(&self, signal: Signal) -> bool {
        matches!(signal, Signal::Embedding | Signal::Reading | Signal::Streams | Signal::LogNorm)
    }

    fn see(&mut self, place: Place, signal: Signal, values: &Values) {
        let width = values.features() as f64;
        let last_of_block = match place {
            Place::Site(site @ Site { .. }) if site.kind() == SubLayerKind::Mlp => {
                Some(site.block())
            }
            _ => None,
        };
        match (signal, last_of_block) {
            (Signal::Embedding, _) => {
                values.rows(0).for_each(|row| self.embedding.add(square(row) / width));
            }
            (Signal::Reading, _) => {
                if let Some(block) = behind_block(place, self.blocks) {
                    let mean = &mut self.readings[block];
                    values.rows(0).for_each(|row| mean.add(square(row) / width));
                }
            }
            (Signal::LogNorm, Some(block)) => {
                let mean = &mut self.carried[block];
                (0..values.tokens()).for_each(|token| mean.add((2.0 * values.number(token)).exp()));
            }
            (Signal::Streams, Some(block)) => {
                for stream in 0..values.streams() {
                    let mean = slot(slot(&mut self.streams, stream), block);
                    values.rows(stream).for_each(|row| mean.add(square(row) / width));
                }
            }
            _ => {}
        }
    }

    fn figures(&self) -> Vec<Figure> {
        let rms = Words {
            name: "output-rms",
            title: "Size of the stream behind each block",
            caption: "Root mean square of what the next block (or the head) reads before its norm. A curve that \
                      keeps rising means that each later block has to shout louder to be heard.",
        }
        .lines(
            block_axis(),
            Axis::new("RMS of the output").log(),
            vec![line("block output", self.readings[1..].iter().map(Mean::root))],
        );
        let of = self.bounds.of;
        let bounds = self.bounds.growth();
        let caption = format!(
            "Mean squared norm of the stream behind each block, relative to the embedding. Between the dashed \
             lines is where Xiong et al. prove that a {of} model starts if its embedding and its sub-layers have \
             unit size; later values show what training made of it."
        );
        let growth = Words {
            name: "stream-growth",
            title: "Growth of the stream with depth",
            caption: &caption,
        }
        .lines(
            Axis::new("blocks passed"),
            Axis::new("squared norm relative to the embedding").log(),
            vec![
                line("measured", self.growth()),
                reference(format!("least ({of} at initialisation)"), bounds.iter().map(|b| b.0)),
                reference(format!("most ({of} at initialisation)"), bounds.iter().map(|b| b.1)),
            ],
        );
        let mut figures = vec![rms, growth];
        if self.streams.len() > 1 {
            let curves = self.streams.iter().enumerate();
            let padded = |means: &Vec<Mean>| {
                (0..self.blocks).map(|b| means.get(b).and_then(Mean::root)).collect::<Vec<_>>()
            };
            let words = Words {
                name: "output-rms-streams",
                title: "Size of each stream behind each block",
                caption: "Root mean square of every stream of the depth state. Streams of different sizes carry \
                          different things; a flat line is a stream that is hardly written to.",
            };
            figures.push(words.lines(
                block_axis(),
                Axis::new("RMS of the stream").log(),
                curves.map(|(i, means)| line(format!("stream {i}"), padded(means))).collect(),
            ));
        }
        figures
    }

    fn tell(&self, summary: &mut Summary) {
        summary.norm_growth = self.growth().last().copied().flatten().map(f64::sqrt);
    }
}
