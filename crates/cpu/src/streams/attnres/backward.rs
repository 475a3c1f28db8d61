//! The way back: through the readers of a junction, and then from what all readers want of the newest source.

use super::tile::{CollectTile, PullTile, collect, pull};
use super::{AttnRes, Pull, Reading, Source};
use crate::buffer::unwritten;
use crate::parallel;
use crate::rows::sum_of_partials;
use crate::streams::tiles::{TILE, tile_count};

impl AttnRes {
    /// Goes back through the reader: to what it pooled and to its parameters.
    pub(super) fn pull(
        &self,
        d_output: &[f32],
        reading: Reading,
        query: &[f32],
        gain: &[f32],
    ) -> (Pull, Vec<f32>) {
        let width = self.width;
        let (count, params) = (self.sources.len(), query.len() + width);
        let (shape, each) = (self.shape(query), self.heads * count);
        let Reading { logits: mut turns, weights } = reading;
        // SAFETY: `pull` writes all that a token has of both.
        let [mut gradient, mut slopes] =
            [d_output.len(), weights.len()].map(|length| unsafe { unwritten(length) });
        let mut partials = vec![0.0; params * tile_count(d_output.len() / width)];

        let sources = self.sources.iter().map(Source::view).collect::<Vec<_>>();
        let tiles = gradient
            .chunks_mut(TILE * width)
            .zip(d_output.chunks(TILE * width))
            .zip(slopes.chunks_mut(TILE * each))
            .zip(turns.chunks_mut(TILE * each))
            .zip(weights.chunks(TILE * each))
            .zip(partials.chunks_mut(params))
            .enumerate()
            .map(|(i, (((((gradient, d_output), slopes), turns), weights), partial))| {
                let (d_query, d_gain) = partial.split_at_mut(query.len());
                PullTile {
                    shape,
                    first: i * TILE,
                    sources: &sources,
                    gain,
                    eps: self.eps,
                    weights,
                    d_output,
                    gradient,
                    slopes,
                    turns,
                    d_query,
                    d_gain,
                }
            });
        parallel::for_each(tiles, |tile| pull(self.form, tile));
        let (query, heads) = (query.to_vec(), self.heads);
        let pull = Pull { weights, turns, slopes, gradient, query, sources: count, heads };
        (pull, sum_of_partials(&partials, params))
    }

    /// The gradient of the newest source, which is that of every write added to it.
    pub(super) fn collect(&mut self) -> Vec<f32> {
        let width = self.width;
        let position = self.sources.len() - 1;
        let source = self.sources[position].view();
        let carried = self.carried.take();
        let is_carried = carried.is_some();
        // A source that was added to later was read in its present state by the last reader only.
        let last = self.junctions[self.passed].inputs();
        let readers = if is_carried { self.pulls.len() - last.. } else { 0.. };
        let pulls = &self.pulls[readers];
        // SAFETY: `collect` clears the gradient unless it is carried, and copies all of it.
        let new = || unsafe { unwritten(source.rows.len()) };
        let mut gradient = carried.unwrap_or_else(new);
        let shared = self.junctions[self.passed].joins;
        let shape = self.shape(&[]);
        let mut copy = shared.then(new);

        let mut copies = copy.as_mut().map(|copy| copy.chunks_mut(TILE * width));
        let tiles =
            gradient.chunks_mut(TILE * width).enumerate().map(|(i, gradient)| CollectTile {
                first: i * TILE,
                source,
                position,
                pulls,
                start: None,
                is_carried,
                gradient,
                copy: copies.as_mut().and_then(Iterator::next),
            });
        parallel::for_each(tiles, |tile| collect(self.form, tile, shape));

        match copy {
            None => gradient,
            Some(copy) => {
                self.carried = Some(gradient);
                copy
            }
        }
    }
}
