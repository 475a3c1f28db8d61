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

use super::tiles::{TILE, tile, tile_count};
use super::{DecodeStream, Gradient, Stream};
use crate::buffer::{Buffer, Chunk, Chunks};
use crate::parallel;
use crate::route::Route;
use crate::rows::{Rows, sum_of_partials};
use crate::simd::Form;
use crate::work;
use std::fmt::Debug;

/// How many parts a record can have.
pub(super) const PARTS: usize = 4;

/// Floats of each part for each token; zero where there is no such part.
pub(super) type Parts = [usize; PARTS];

/// The arithmetic of a residual policy between two sub-layers, for a tile of tokens.
///
/// `forward` and `backward` are plain loops over slices, marked `#[inline(always)]` like all that they call: the driver
/// compiles them once for each [`Form`].
///
/// # Safety
/// `forward` has to write all of `record` and `output`, and all of `state` that it or later junctions read; `backward` has
/// to write all of `d_write`. Neither may read an element of these before it was written: they are not initialised. In
/// tests they are no numbers.
pub unsafe trait Policy: Debug + Send + Sync + 'static {
    /// A junction's parameters, taken apart.
    type Params<'a>: Sync;
    /// What a tile keeps for the backward pass besides its record.
    type Kept: Debug + Default + Send + Sync;
    /// A thread's working memory, which a tile leaves behind for the next one.
    type Scratch: Debug + Default + Send;
    /// Tiles that share a partial sum of the parameters' gradients: several, where such a sum is as large as a tile.
    const TILES_PER_SUM: usize = 1;

    /// Features of a write.
    fn width(&self) -> usize;
    /// How many junctions there are.
    fn junctions(&self) -> usize;
    /// How many parameters a junction has.
    fn params(&self, junction: usize) -> usize;
    /// Takes a junction's parameters apart.
    fn split<'a>(&self, junction: usize, params: &'a [f32]) -> Self::Params<'a>;
    /// The parts of a junction's record.
    fn record(&self, junction: usize) -> Parts;
    /// The parts of the gradient that is carried from junction to junction on the way back; zeros to begin with.
    fn gradient(&self) -> Parts;

    /// The parts of the state.
    fn state(&self) -> Parts {
        [0; PARTS]
    }

    /// Whether the write of a junction is kept.
    fn keeps_write(&self, _junction: usize) -> bool {
        false
    }

    /// Whether a junction decides which tokens run the sub-layer that follows it.
    fn decides(&self, _junction: usize) -> bool {
        false
    }

    /// The part of a junction's parameters that the next junction reads, too.
    fn handed_on<'a>(&self, _junction: usize, _params: &'a [f32]) -> &'a [f32] {
        &[]
    }

    /// What pays if it is done once for all tokens of a forward pass.
    fn prepare(&self, _params: &mut Self::Params<'_>, _tokens: usize) {}

    /// Floating-point operations of a junction for each token, of those that count as work.
    fn flops(&self, _junction: usize) -> usize {
        0
    }

    /// Takes in the writes, and answers with what the next sub-layer is given.
    fn forward(
        &self,
        params: &Self::Params<'_>,
        tile: Forward<'_, Self::Kept>,
        scratch: &mut Self::Scratch,
    );

    /// The way back. What tiles have in `d_params` adds up.
    fn backward(
        &self,
        params: &Self::Params<'_>,
        tile: Backward<'_, Self::Kept>,
        scratch: &mut Self::Scratch,
    );
}

/// What the junction before left to a tile; all empty at junction 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct Before<'a> {
    /// Its write, if it was kept.
    pub write: &'a [f32],
    /// Its record.
    pub record: [&'a [f32]; PARTS],
    /// Which tokens ran the sub-layer in between; empty if that was not decided.
    pub runs: &'a [bool],
}

/// A tile on the way forward.
#[derive(Debug)]
pub struct Forward<'a, K> {
    /// Which junction it is.
    pub junction: usize,
    /// The number of the first token.
    pub first: usize,
    /// How many tokens there are.
    pub tokens: usize,
    /// Whether there is a way back.
    pub keep: bool,
    /// What the junction before left.
    pub before: Before<'a>,
    /// What the junction before handed on of its parameters.
    pub handed_on: &'a [f32],
    /// `[tokens, width]`
    pub write: &'a [f32],
    /// As the junction before left it.
    pub state: [&'a mut [f32]; PARTS],
    /// To be written.
    pub record: [&'a mut [f32]; PARTS],
    /// To be written; true to begin with.
    pub runs: &'a mut [bool],
    /// To be written if there is a way back.
    pub kept: &'a mut K,
    /// To be written, `[tokens, width]`.
    pub output: &'a mut [f32],
}

/// A tile on the way back.
#[derive(Debug)]
pub struct Backward<'a, K> {
    /// Which junction it is.
    pub junction: usize,
    /// How many tokens there are.
    pub tokens: usize,
    /// What the junction before left.
    pub before: Before<'a>,
    /// The write, if it was kept.
    pub write: &'a [f32],
    /// The write of the next junction, if it was kept.
    pub next_write: &'a [f32],
    /// As it was left.
    pub record: [&'a mut [f32]; PARTS],
    /// As it was left; empty if the junction did not decide.
    pub runs: &'a [bool],
    /// As it was left.
    pub kept: &'a K,
    /// As the junction left it; to be taken back.
    pub state: [&'a mut [f32]; PARTS],
    /// Gradient of the output, `[tokens, width]`.
    pub d_output: &'a [f32],
    /// The gradient that is carried; comes from the next junction, goes on to the one before.
    pub gradient: [&'a mut [f32]; PARTS],
    /// To be written, `[tokens, width]`.
    pub d_write: &'a mut [f32],
    /// To be added to.
    pub d_params: &'a mut [f32],
}

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
        let mut record = buffers(std::mem::take(&mut self.spare), tokens, parts);
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
        let mut d_write = Buffer::new(d_output.len());
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

/// [`Carried`] for one token at a time.
#[derive(Debug)]
struct Decoding<P: Policy> {
    policy: P,
    form: Form,
    state: Vectors,
    handed_on: Vec<f32>,
    before: Left,
    /// Becomes what the next junction finds.
    next: Left,
    scratch: P::Scratch,
}

/// What a junction leaves of one token.
#[derive(Debug)]
struct Left {
    write: Vec<f32>,
    record: Vectors,
    runs: [bool; 1],
}

impl<P: Policy> Decoding<P> {
    fn new(Carried { policy, form, .. }: Carried<P>) -> Self {
        let junctions = 0..policy.junctions();
        let most =
            |part: usize| junctions.clone().map(|junction| policy.record(junction)[part]).max();
        let record: Parts = std::array::from_fn(|part| most(part).unwrap_or_default());
        let params = junctions.clone().map(|junction| policy.params(junction)).max();
        let left = || Left {
            write: vec![0.0; policy.width()],
            record: record.map(|each| vec![0.0; each]),
            runs: [true],
        };
        Self {
            form,
            state: policy.state().map(|each| vec![0.0; each]),
            handed_on: Vec::with_capacity(params.unwrap_or_default()),
            before: left(),
            next: left(),
            scratch: P::Scratch::default(),
            policy,
        }
    }
}

impl<P: Policy> DecodeStream for Decoding<P> {
    fn step(&mut self, junction: usize, write: &[f32], params: &[f32], output: &mut [f32]) -> bool {
        let Self { policy, form, state, handed_on, before, next, scratch } = self;
        assert_eq!(params.len(), policy.params(junction), "parameters of junction {junction}");
        let mut split = policy.split(junction, params);
        policy.prepare(&mut split, 1);
        work::add(policy.flops(junction));
        let parts_before =
            junction.checked_sub(1).map_or([0; PARTS], |before| policy.record(before));
        let before_it = junction.checked_sub(1).map_or_else(Before::default, |junction| Before {
            write: if policy.keeps_write(junction) { &before.write } else { &[] },
            record: std::array::from_fn(|part| &before.record[part][..parts_before[part]]),
            runs: &before.runs[..usize::from(policy.decides(junction))],
        });
        next.runs = [true];
        let mut parts = policy.record(junction).into_iter();
        let tile = Forward {
            junction,
            first: 0,
            tokens: 1,
            keep: false,
            before: before_it,
            handed_on,
            write,
            state: state.each_mut().map(Vec::as_mut_slice),
            record: next
                .record
                .each_mut()
                .map(|part| &mut part[..parts.next().unwrap_or_default()]),
            runs: &mut next.runs[..usize::from(policy.decides(junction))],
            kept: &mut P::Kept::default(),
            output,
        };
        forward_in(*form, policy, &split, tile, scratch);
        next.write.copy_from_slice(write);
        handed_on.clear();
        handed_on.extend_from_slice(policy.handed_on(junction, params));
        std::mem::swap(before, next);
        before.runs[0]
    }
}

simd! {
    fn forward_in<P: Policy>(
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
        policy: &P,
        params: &P::Params<'_>,
        tile: Backward<'_, P::Kept>,
        scratch: &mut P::Scratch,
    ) {
        policy.backward(params, tile, scratch);
    }
}
