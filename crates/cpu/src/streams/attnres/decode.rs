//! [`AttnRes`] and [`DeltaAttnRes`] for one token at a time.

use super::delta::{Params, ReadOneDelta, read_one_delta};
use super::tile::{ReadOne, add_to, read_one};
use super::{AttnRes, DeltaAttnRes};
use crate::streams::DecodeStream;

/// What a token's readers work with, with room for all sources.
#[derive(Debug)]
struct Tables {
    /// Sources so far.
    count: usize,
    /// `[sources, width]`
    sources: Vec<f32>,
    /// Of each source.
    inverse_rms: Vec<f32>,
    /// `[heads, sources]`
    logits: Vec<f32>,
    weights: Vec<f32>,
    /// What a reader without a query asks with.
    no_query: Vec<f32>,
}

impl Tables {
    fn new(most: usize, heads: usize, width: usize) -> Self {
        Self {
            count: 0,
            sources: vec![0.0; most * width],
            inverse_rms: vec![0.0; most],
            logits: vec![0.0; heads * most],
            weights: vec![0.0; heads * most],
            no_query: vec![0.0; width],
        }
    }
}

#[derive(Debug)]
pub(super) struct AttnResDecoding {
    stream: AttnRes,
    tables: Tables,
}

impl AttnResDecoding {
    pub(super) fn new(stream: AttnRes) -> Self {
        let most = stream.junctions.iter().filter(|junction| !junction.joins).count();
        Self { tables: Tables::new(most, stream.heads, stream.width), stream }
    }

    fn take_in(&mut self, write: &[f32], joins: bool) {
        let (width, tables) = (self.stream.width, &mut self.tables);
        if joins {
            let newest = &mut tables.sources[(tables.count - 1) * width..][..width];
            add_to(self.stream.form, newest, write);
        } else {
            tables.sources[tables.count * width..][..width].copy_from_slice(write);
            tables.count += 1;
        }
    }
}

impl DecodeStream for AttnResDecoding {
    fn inputs(&self, junction: usize) -> usize {
        self.stream.junctions[junction].inputs()
    }

    fn step(&mut self, junction: usize, write: &[f32], params: &[f32], output: &mut [f32]) -> bool {
        if junction == 0 {
            self.tables.count = 0;
        }
        self.take_in(write, self.stream.junctions[junction].joins);
        let (params, width) = (self.stream.split(junction, params), self.stream.width);
        let tables = &mut self.tables;
        let (count, each) = (tables.count, tables.count * self.stream.heads);
        for (pool, output) in output.chunks_exact_mut(width).enumerate() {
            let (query, gain) = self.stream.of_pool(params, pool);
            read_one(
                self.stream.form,
                ReadOne {
                    shape: self.stream.shape(query),
                    sources: &tables.sources[..count * width],
                    inverse_rms: &mut tables.inverse_rms[..count],
                    query: if query.is_empty() { &tables.no_query } else { query },
                    gain,
                    eps: self.stream.eps,
                    logits: &mut tables.logits[..each],
                    weights: &mut tables.weights[..each],
                    output,
                },
            );
        }
        true
    }
}

#[derive(Debug)]
pub(super) struct DeltaDecoding {
    junctions: DeltaAttnRes,
    stream: Vec<f32>,
    open: Vec<f32>,
    tables: Tables,
}

impl DeltaDecoding {
    pub(super) fn new(junctions: DeltaAttnRes) -> Self {
        let most = junctions.junctions.iter().filter(|junction| junction.closes).count();
        let width = junctions.shape.width;
        Self {
            tables: Tables::new(most, junctions.shape.heads, width),
            stream: vec![0.0; width],
            open: vec![0.0; width],
            junctions,
        }
    }
}

impl DecodeStream for DeltaDecoding {
    fn step(&mut self, junction: usize, write: &[f32], params: &[f32], output: &mut [f32]) -> bool {
        let step = self.junctions.junctions[junction];
        let params = self.junctions.split(junction, params);
        let (shape, tables) = (self.junctions.shape, &mut self.tables);
        if junction == 0 {
            tables.count = 0;
            self.stream.fill(0.0);
        }
        if !step.joins {
            self.open.fill(0.0);
        }
        tables.count += usize::from(step.closes);
        let count = tables.count;
        let each = if step.pools { shape.heads * count } else { 0 };
        let query = if params.query.is_empty() { &tables.no_query } else { params.query };
        read_one_delta(
            self.junctions.form,
            ReadOneDelta {
                shape,
                params: Params { query, ..params },
                eps: self.junctions.eps,
                write,
                stream: &mut self.stream,
                open: &mut self.open,
                sources: &mut tables.sources[..count * shape.width],
                inverse_rms: &mut tables.inverse_rms[..count],
                closes: step.closes,
                logits: &mut tables.logits[..each],
                weights: &mut tables.weights[..each],
                output,
            },
        );
        true
    }
}
