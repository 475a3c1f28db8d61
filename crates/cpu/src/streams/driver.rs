//! What all streams have in common: a policy gives the arithmetic of one junction for a tile of tokens, and [`Carried`]
//! does the rest. It cuts tokens into tiles, hands them to threads, keeps what the backward pass needs, adds up the
//! gradients of the parameters in the order of the tiles, and carries single tokens when text is generated.
//!
//! # What a policy can keep
//! | what | lives | for |
//! |---|---|---|
//! | record | one for each junction: the next junction and the backward pass see it | the streams, if they are kept by copying; norms, weights, logits |
//! | write | as the record, without a copy | whatever can be computed from it again |
//! | state | one for the whole pass, changed in place and taken back in place | streams that can be computed backwards |
//! | kept | one for each junction and tile | whatever has no fixed size |
//!
//! Records, state and gradient have up to [`PARTS`] parts, each a buffer of its own: a tile is given `[tokens, each]` of
//! every part, where `each` is what the policy's [`Parts`] say.

mod decode;
mod policy;

pub(super) use policy::{Backward, Before, Forward, PARTS, Parts, Policy};

use super::tiles::{TILE, tile, tile_count};
use super::{DecodeStream, Gradient, Stream};
use crate::buffer::{Buffer, Chunk, Chunks};
use crate::parallel;
use crate::route::Route;
use crate::rows::{Rows, sum_of_partials};
use crate::simd::Form;
use crate::work;
use decode::Decoding;

/// A policy's depth state on its way past the sub-layers.
#[derive(Debug)]
pub struct Carried<P: Policy> {
    pub(super) policy: P,
    form: Form,
    keep: bool,
    /// Junctions gone through and not gone back through.
    passed: usize,
    /// What they left, or only the last of them if nothing is kept.
    pub(super) levels: Vec<Level<P::Kept>>,
    pub(super) state: Vectors,
    handed_on: Vec<f32>,
    /// A record that is not needed any longer, to be overwritten.
    spare: Vectors,
    route: Option<Route>,
    gradient: Option<Vectors>,
    /// The write of the junction gone back through last.
    next_write: Option<Rows>,
}

/// One for each part.
type Vectors = [Vec<f32>; PARTS];

/// What a junction leaves.
#[derive(Debug)]
pub(super) struct Level<K> {
    pub(super) record: Vectors,
    write: Option<Rows>,
    runs: Vec<bool>,
    /// One for each tile.
    pub(super) kept: Vec<K>,
}

impl<P: Policy> Carried<P> {
    /// No token yet. Without `keep` there is no way back.
    pub(super) fn by(policy: P, keep: bool) -> Self {
        Self {
            policy,
            form: Form::best(),
            keep,
            passed: 0,
            levels: Vec::new(),
            state: Vectors::default(),
            handed_on: Vec::new(),
            spare: Vectors::default(),
            route: None,
            gradient: None,
            next_write: None,
        }
    }

    /// The same stream with its kernels in another form.
    pub fn in_form(self, form: Form) -> Self {
        Self { form, ..self }
    }

    /// How many parameters a junction takes.
    pub fn params(&self, junction: usize) -> usize {
        self.policy.params(junction)
    }

    /// What the last junction left to a tile.
    fn before(&self, index: usize) -> Before<'_> {
        let Some((level, junction)) = self.levels.last().zip(self.passed.checked_sub(1)) else {
            return Before::default();
        };
        Before {
            write: level.write(index, self.policy.width()),
            record: record_tile(&level.record, index, self.policy.record(junction)),
            runs: tile(&level.runs, index, 1),
        }
    }
}

impl<K> Level<K> {
    fn write(&self, index: usize, width: usize) -> &[f32] {
        tile(rows_of(&self.write), index, width)
    }
}

fn record_tile(record: &Vectors, index: usize, parts: Parts) -> [&[f32]; PARTS] {
    std::array::from_fn(|part| tile(&record[part], index, parts[part]))
}

/// [`Buffer`]s for all parts.
fn buffers(spare: Vectors, tokens: usize, parts: Parts) -> [Buffer; PARTS] {
    let mut parts = parts.into_iter();
    spare.map(|spare| Buffer::reusing(spare, tokens * parts.next().unwrap_or_default()))
}

/// Their tiles, one after the other.
fn tiles_of(buffers: &mut [Buffer; PARTS], parts: Parts) -> [Chunks<'_>; PARTS] {
    let mut parts = parts.into_iter();
    buffers.each_mut().map(|buffer| buffer.chunks(TILE * parts.next().unwrap_or_default()))
}

fn take<'a>(tiles: &mut [Chunks<'a>; PARTS]) -> [Chunk<'a>; PARTS] {
    tiles.each_mut().map(Chunks::take)
}

fn open<P: Policy>(chunk: Chunk<'_>) -> &mut [f32] {
    // SAFETY: a policy promises to write before it reads.
    unsafe { chunk.open() }
}

fn rows_of(rows: &Option<Rows>) -> &[f32] {
    rows.as_ref().map_or(&[], |rows| rows.values())
}

impl<P: Policy> Stream for Carried<P> {
    fn forward(&mut self, write: Rows, params: &[f32]) -> Vec<f32> {
        let (policy, junction) = (&self.policy, self.passed);
        assert!(junction < policy.junctions(), "there are only {} junctions", policy.junctions());
        assert_eq!(params.len(), policy.params(junction), "parameters of junction {junction}");
        let (width, parts) = (policy.width(), policy.record(junction));
        let values = write.values();
        let tokens = values.len() / width;
        let mut split = policy.split(junction, params);
        policy.prepare(&mut split, tokens);
        work::add(tokens * policy.flops(junction));

        let mut output = Buffer::new(values.len());
        let mut state = match junction {
            0 => buffers(Vectors::default(), tokens, policy.state()),
            _ => std::mem::take(&mut self.state).map(Buffer::written),
        };
        let in_place = !self.keep && policy.in_place(junction);
        let [first, rest @ ..] = parts;
        let fresh = [if in_place { 0 } else { first }, rest[0], rest[1], rest[2]];
        let mut record = buffers(std::mem::take(&mut self.spare), tokens, fresh);
        if let Some(level) = self.levels.last_mut().filter(|_| in_place) {
            record[0] = Buffer::written(std::mem::take(&mut level.record[0]));
        }
        let mut runs = vec![true; if policy.decides(junction) { tokens } else { 0 }];
        let mut kept = Vec::new();
        kept.resize_with(tile_count(tokens), P::Kept::default);
        {
            let mut states = tiles_of(&mut state, policy.state());
            let mut records = tiles_of(&mut record, parts);
            let mut outputs = output.chunks(TILE * width);
            let mut deciding = runs.chunks_mut(TILE);
            let tiles = kept.iter_mut().enumerate().map(|(index, kept)| {
                let chunks = (take(&mut states), take(&mut records), outputs.take());
                (index, kept, chunks, deciding.next().unwrap_or_default())
            });
            parallel::for_each_init(
                tiles,
                P::Scratch::default,
                |scratch, (index, kept, chunks, runs)| {
                    let (state, record, output) = chunks;
                    let write = tile(values, index, width);
                    let tile = Forward {
                        junction,
                        first: index * TILE,
                        tokens: write.len() / width,
                        keep: self.keep,
                        before: self.before(index),
                        handed_on: &self.handed_on,
                        write,
                        state: state.map(open::<P>),
                        record: record.map(open::<P>),
                        runs,
                        kept,
                        output: open::<P>(output),
                    };
                    forward_in(self.form, policy, &split, tile, scratch);
                },
            );
        }
        drop(split);
        self.state = state.map(Buffer::finish);
        self.handed_on.clear();
        self.handed_on.extend_from_slice(policy.handed_on(junction, params));
        self.route = Route::of(runs.iter().copied());
        let write = policy.keeps_write(junction).then_some(write);
        if !self.keep {
            self.spare = self.levels.pop().map_or_else(Vectors::default, |level| level.record);
        }
        self.levels.push(Level { record: record.map(Buffer::finish), write, runs, kept });
        self.passed += 1;
        output.finish()
    }

    fn backward(&mut self, d_output: &[f32], params: &[f32]) -> Gradient {
        assert!(self.keep, "nothing was kept for the way back");
        let level = self.levels.pop().expect("every junction is gone back through once");
        self.passed -= 1;
        let (policy, junction) = (&self.policy, self.passed);
        assert_eq!(params.len(), policy.params(junction), "parameters of junction {junction}");
        let width = policy.width();
        let tokens = d_output.len() / width;
        let split = policy.split(junction, params);

        let mut gradient = match self.gradient.take() {
            Some(gradient) => gradient.map(Buffer::written),
            None => buffers(Vectors::default(), tokens, policy.gradient()),
        };
        let mut state = std::mem::take(&mut self.state).map(Buffer::written);
        let mut record = level.record.map(Buffer::written);
        let mut d_write = match self.levels.last_mut() {
            Some(before) if P::D_WRITE_IN_RECORD => {
                Buffer::written(std::mem::take(&mut before.record[0]))
            }
            _ => Buffer::new(d_output.len()),
        };
        let sums = tile_count(tokens).div_ceil(P::TILES_PER_SUM);
        let mut partials = vec![0.0; sums * params.len()];
        {
            let mut gradients = tiles_of(&mut gradient, policy.gradient());
            let mut states = tiles_of(&mut state, policy.state());
            let mut records = tiles_of(&mut record, policy.record(junction));
            let mut d_writes = d_write.chunks(TILE * width);
            let mut d_params = partials.chunks_mut(params.len().max(1));
            let mut kept = level.kept.iter().enumerate();
            let parts = (0..sums).map(|_| {
                let tiles = kept.by_ref().take(P::TILES_PER_SUM).map(|(index, kept)| {
                    let chunks = (take(&mut gradients), take(&mut states), take(&mut records));
                    (index, kept, chunks, d_writes.take())
                });
                (tiles.collect::<Vec<_>>(), d_params.next().unwrap_or_default())
            });
            parallel::for_each_init(parts, P::Scratch::default, |scratch, (tiles, d_params)| {
                for (index, kept, (gradient, state, record), d_write) in tiles {
                    let d_output = tile(d_output, index, width);
                    let tile = Backward {
                        junction,
                        tokens: d_output.len() / width,
                        before: self.before(index),
                        write: tile(rows_of(&level.write), index, width),
                        next_write: tile(rows_of(&self.next_write), index, width),
                        record: record.map(open::<P>),
                        runs: tile(&level.runs, index, 1),
                        kept,
                        state: state.map(open::<P>),
                        d_output,
                        gradient: gradient.map(Chunk::zeroed),
                        d_write: open::<P>(d_write),
                        d_params: &mut *d_params,
                    };
                    backward_in(self.form, policy, &split, tile, scratch);
                }
            });
        }
        self.gradient = Some(gradient.map(Buffer::finish));
        self.state = state.map(Buffer::finish);
        self.next_write = level.write;
        Gradient { write: d_write.finish(), params: sum_of_partials(&partials, params.len()) }
    }

    fn route(&self) -> Option<Route> {
        self.route.clone()
    }

    fn decode(self: Box<Self>) -> Box<dyn DecodeStream> {
        Box::new(Decoding::new(*self))
    }
}

simd! {
    fn forward_in<P: Policy>(
        form: Form,
        policy: &P,
        params: &P::Params<'_>,
        tile: Forward<'_, P::Kept>,
        scratch: &mut P::Scratch,
    ) {
        policy.forward(params, tile, scratch);
    }
}

simd! {
    fn backward_in<P: Policy>(
        form: Form,
        policy: &P,
        params: &P::Params<'_>,
        tile: Backward<'_, P::Kept>,
        scratch: &mut P::Scratch,
    ) {
        policy.backward(params, tile, scratch);
    }
}
