//! [`AttnRes`] for one token at a time.

use super::AttnRes;
use super::tile::{ReadOne, add_to, read_one};
use crate::streams::DecodeStream;

#[derive(Debug)]
pub(super) struct AttnResDecoding {
    stream: AttnRes,
    /// Sources so far.
    count: usize,
    /// `[sources, width]`, with room for all.
    sources: Vec<f32>,
    /// Of each source.
    inverse_rms: Vec<f32>,
    logits: Vec<f32>,
    weights: Vec<f32>,
    /// What a reader without a query asks with.
    no_query: Vec<f32>,
}

impl AttnResDecoding {
    pub(super) fn new(stream: AttnRes) -> Self {
        let (width, most) = (stream.width, stream.junctions.iter().filter(|j| !j.joins).count());
        Self {
            count: 0,
            sources: vec![0.0; most * width],
            inverse_rms: vec![0.0; most],
            logits: vec![0.0; most],
            weights: vec![0.0; most],
            no_query: vec![0.0; width],
            stream,
        }
    }

    fn take_in(&mut self, write: &[f32], joins: bool) {
        let width = self.stream.width;
        if joins {
            add_to(self.stream.form, &mut self.sources[(self.count - 1) * width..][..width], write);
        } else {
            self.sources[self.count * width..][..width].copy_from_slice(write);
            self.count += 1;
        }
    }
}

impl DecodeStream for AttnResDecoding {
    fn step(&mut self, junction: usize, write: &[f32], params: &[f32], output: &mut [f32]) -> bool {
        if junction == 0 {
            self.count = 0;
        }
        self.take_in(write, self.stream.junctions[junction].joins);
        let (query, gain) = self.stream.split(junction, params);
        let count = self.count;
        read_one(
            self.stream.form,
            ReadOne {
                sources: &self.sources[..count * gain.len()],
                inverse_rms: &mut self.inverse_rms[..count],
                query: if query.is_empty() { &self.no_query } else { query },
                gain,
                eps: self.stream.eps,
                logits: &mut self.logits[..count],
                weights: &mut self.weights[..count],
                output,
            },
        );
        true
    }
}
