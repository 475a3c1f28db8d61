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
use super::{DecodeStream, Footprint, Gradient, Held, Stream};
use crate::buffer::{Chunks, unwritten, unwritten_in};
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
    /// As many as there were at the first junction.
    tokens: usize,
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
            form: if P::NARROW { Form::best().narrow() } else { Form::best() },
            keep,
            passed: 0,
            tokens: 0,
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

/// Vectors for all parts, in the memory of others.
///
/// # Safety
/// As [`unwritten`].
unsafe fn vectors(spare: Vectors, tokens: usize, parts: Parts) -> Vectors {
    let mut parts = parts.into_iter();
    // SAFETY: the caller's promise.
    spare.map(|spare| unsafe { unwritten_in(spare, tokens * parts.next().unwrap_or_default()) })
}

/// The tiles of all parts.
fn chunks(vectors: &mut Vectors, parts: Parts) -> [Chunks<'_, f32>; PARTS] {
    let mut parts = parts.into_iter();
    vectors.each_mut().map(|part| Chunks::new(part, TILE * parts.next().unwrap_or_default()))
}

/// One tile of all parts.
///
/// # Safety
/// As [`Chunks::take`].
unsafe fn take<'a>(chunks: &[Chunks<'a, f32>; PARTS], index: usize) -> [&'a mut [f32]; PARTS] {
    // SAFETY: the caller's promise.
    chunks.each_ref().map(|chunks| unsafe { chunks.take(index) })
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
        if junction == 0 {
            (self.tokens, self.gradient, self.next_write) = (tokens, None, None);
        }
        // Otherwise tiles of one junction would not be those of another, and something would stay unwritten.
        assert!(self.gradient.is_none(), "forward again, after a part of the way back");
        assert_eq!(values.len(), self.tokens * width, "a row for each token");
        let mut split = policy.split(junction, params);
        policy.prepare(&mut split, tokens);
        work::add(tokens * policy.flops(junction));

        let in_place = !self.keep && policy.in_place(junction);
        let mut fresh = parts;
        if in_place {
            fresh[0] = 0;
        }
        // SAFETY: a policy promises to write before it reads.
        let mut output = unsafe { unwritten(values.len() * policy.inputs(junction)) };
        if junction == 0 {
            // SAFETY: as above.
            self.state = unsafe { vectors(Vectors::default(), tokens, policy.state()) };
        }
        // SAFETY: as above.
        let mut record = unsafe { vectors(std::mem::take(&mut self.spare), tokens, fresh) };
        if let Some(level) = self.levels.last_mut().filter(|_| in_place) {
            record[0] = std::mem::take(&mut level.record[0]);
        }
        let mut runs = vec![true; if policy.decides(junction) { tokens } else { 0 }];
        let mut kept = Vec::new();
        kept.resize_with(tile_count(tokens), P::Kept::default);
        let mut state = std::mem::take(&mut self.state);
        {
            let (states, records) =
                (chunks(&mut state, policy.state()), chunks(&mut record, parts));
            let outputs = Chunks::new(&mut output, TILE * width * policy.inputs(junction));
            let (deciding, keeping) = (Chunks::new(&mut runs, TILE), Chunks::new(&mut kept, 1));
            let tiles = 0..tile_count(tokens);
            parallel::for_each_init(tiles, P::Scratch::default, |scratch, index| {
                let write = tile(values, index, width);
                // SAFETY: no other task has this index.
                let (state, record) = unsafe { (take(&states, index), take(&records, index)) };
                // SAFETY: as above.
                let (output, runs) = unsafe { (outputs.take(index), deciding.take(index)) };
                let tile = Forward {
                    junction,
                    first: index * TILE,
                    tokens: write.len() / width,
                    keep: self.keep,
                    before: self.before(index),
                    handed_on: &self.handed_on,
                    write,
                    state,
                    record,
                    runs,
                    // SAFETY: as above.
                    kept: unsafe { &mut keeping.take(index)[0] },
                    output,
                };
                forward_in(self.form, policy, &split, tile, scratch);
            });
        }
        drop(split);
        self.state = state;
        self.handed_on.clear();
        self.handed_on.extend_from_slice(policy.handed_on(junction, params));
        self.route = Route::of(runs.iter().copied());
        let write = policy.keeps_write(junction).then_some(write);
        if !self.keep {
            self.spare = self.levels.pop().map_or_else(Vectors::default, |level| level.record);
        }
        self.levels.push(Level { record, write, runs, kept });
        self.passed += 1;
        output
    }

    fn backward(&mut self, d_output: &[f32], params: &[f32]) -> Gradient {
        assert!(self.keep, "nothing was kept for the way back");
        let level = self.levels.pop().expect("every junction is gone back through once");
        self.passed -= 1;
        let (policy, junction) = (&self.policy, self.passed);
        assert_eq!(params.len(), policy.params(junction), "parameters of junction {junction}");
        let width = policy.width();
        let (tokens, elements) = (self.tokens, width * policy.inputs(junction));
        assert_eq!(d_output.len(), tokens * elements, "a row for each token");
        if policy.keeps_write(junction) {
            assert_eq!(rows_of(&level.write).len(), tokens * width, "the write, as it was");
        }
        let mut split = policy.split(junction, params);
        policy.prepare_backward(&mut split);

        let fresh = self.gradient.is_none();
        // SAFETY: a fresh gradient is cleared tile by tile.
        let new = || unsafe { vectors(Vectors::default(), tokens, policy.gradient()) };
        let mut gradient = self.gradient.take().unwrap_or_else(new);
        let mut state = std::mem::take(&mut self.state);
        let mut record = level.record;
        let mut d_write = match self.levels.last_mut() {
            Some(before) if P::D_WRITE_IN_RECORD => std::mem::take(&mut before.record[0]),
            // SAFETY: a policy promises to write before it reads.
            _ => unsafe { unwritten(tokens * width) },
        };
        let tiles = tile_count(tokens);
        let sums = tiles.div_ceil(P::TILES_PER_SUM);
        let mut partials = vec![0.0; sums * params.len()];
        {
            let gradients = chunks(&mut gradient, policy.gradient());
            let states = chunks(&mut state, policy.state());
            let records = chunks(&mut record, policy.record(junction));
            let d_writes = Chunks::new(&mut d_write, TILE * width);
            let d_params = Chunks::new(&mut partials, params.len());
            parallel::for_each_init(0..sums, P::Scratch::default, |scratch, sum| {
                // SAFETY: no other task has this index.
                let d_params = unsafe { d_params.take(sum) };
                let first = sum * P::TILES_PER_SUM;
                for index in first..tiles.min(first + P::TILES_PER_SUM) {
                    let d_output = tile(d_output, index, elements);
                    // SAFETY: no other task has these tiles.
                    let (gradient, state) =
                        unsafe { (take(&gradients, index), take(&states, index)) };
                    // SAFETY: as above.
                    let (record, d_write) =
                        unsafe { (take(&records, index), d_writes.take(index)) };
                    let mut tile = Backward {
                        junction,
                        tokens: d_output.len() / elements,
                        before: self.before(index),
                        write: tile(rows_of(&level.write), index, width),
                        next_write: tile(rows_of(&self.next_write), index, width),
                        record,
                        runs: tile(&level.runs, index, 1),
                        kept: &level.kept[index],
                        state,
                        d_output,
                        gradient,
                        d_write,
                        d_params: &mut *d_params,
                    };
                    if fresh {
                        tile.gradient.iter_mut().for_each(|part| part.fill(0.0));
                    }
                    backward_in(self.form, policy, &split, tile, scratch);
                }
            });
        }
        self.gradient = Some(gradient);
        self.state = state;
        self.next_write = level.write;
        Gradient { write: d_write, params: sum_of_partials(&partials, params.len()) }
    }

    fn route(&self) -> Option<Route> {
        self.route.clone()
    }

    fn footprint(&self) -> Footprint {
        let policy = &self.policy;
        let floats = |parts: Parts| parts.iter().sum::<usize>() as f64;
        let held = |junction| {
            let write = if policy.keeps_write(junction) { policy.width() as f64 } else { 0.0 };
            // A decision is a byte.
            let runs = if policy.decides(junction) { 0.25 } else { 0.0 };
            let kept = floats(policy.record(junction)) + write + runs + policy.kept(junction);
            // Sums of the parameters' gradients, each for some tiles.
            let sums = policy.params(junction) as f64 / (P::TILES_PER_SUM * TILE) as f64;
            Held { kept, left: 0.0, working: sums }
        };
        Footprint {
            state: floats(policy.state()),
            junctions: (0..policy.junctions()).map(held).collect(),
            carried: floats(policy.gradient()),
        }
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
        policy.forward_by::<FUSED>(params, tile, scratch);
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
        policy.backward_by::<FUSED>(params, tile, scratch);
    }
}
