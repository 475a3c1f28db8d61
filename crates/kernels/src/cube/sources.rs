//! Reading many sources through a query (AttnRes): `u_i = q . rms(v_i)`, `alpha = softmax(u)`, `h = sum_i alpha_i v_i`, in each
//! group of neighbouring channels by itself, or without `rms` where sources are normalised already.
//!
//! Each source is a tensor of its own, so nothing is copied, and a kernel takes up to [`TAKEN`] of them. The gradient of a source
//! follows from it alone. With `g = dh`, `r_i` the inverse RMS and dots within a group:
//!
//! ```text
//! du_i = alpha_i g . (v_i - h)      dv_i = alpha_i g + r_i du_i q - r_i^2 v_i sum_groups(du_i u_i) / d
//! dq = sum_tokens sum_i r_i du_i v_i
//! ```
//!
//! What a token keeps is `[r | u | alpha]` of each source: one, and one for each group, twice.

use super::launch::{Layout, cubes, empty, in_order};
use super::sums::{Terms, columns, cube_sum, inverse_root, room};
use crate::path::Planes;
use burn::backend::TensorMetadata;
use burn::tensor::Shape;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

/// Sources that one kernel takes.
pub(super) const TAKEN: usize = 4;

/// Units of the kernel that weighs.
const WEIGHERS: u32 = 64;

/// How readings are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// Groups of channels, each with a softmax.
    pub(crate) groups: usize,
    /// Whether keys are normalised.
    pub(crate) normalises: bool,
    /// All sources.
    pub(crate) sources: usize,
    /// How units add.
    pub(crate) planes: Planes,
}

impl Manner {
    /// Numbers of a source that [`scores`] finds.
    pub(super) fn scored(self) -> usize {
        1 + self.groups
    }

    /// Numbers of a source that are kept.
    pub(super) fn kept(self) -> usize {
        1 + 2 * self.groups
    }
}

/// What a unit adds to the squares of a source and, for each group, to its product with the query; from `at` on in `sums`.
#[cube]
fn add_up(
    source: &Tensor<f32>,
    query: &Tensor<f32>,
    sums: &mut Array<f32>,
    at: usize,
    #[comptime] groups: usize,
    #[comptime] width: usize,
    #[comptime] units: usize,
) {
    let group = comptime!(width / groups);
    let start = CUBE_POS * width;
    let mut squares = 0.0f32;
    for k in 0..groups {
        let mut sum = 0.0f32;
        let mut c = UNIT_POS as usize;
        while c < group {
            let v = source[start + k * group + c];
            squares += v * v;
            sum += query[k * group + c] * v;
            c += units;
        }
        sums[at + 1 + k] = sum;
    }
    sums[at] = squares;
}

/// One cube for each token. The first `count` sources are scored.
#[cube(launch)]
fn score_some(
    first: &Tensor<f32>,
    second: &Tensor<f32>,
    third: &Tensor<f32>,
    fourth: &Tensor<f32>,
    query: &Tensor<f32>,
    scores: &mut Tensor<f32>,
    epsilon: f32,
    share: f32,
    #[comptime] count: usize,
    #[comptime] normalises: bool,
    #[comptime] groups: usize,
    #[comptime] width: usize,
    #[comptime] units: usize,
    #[comptime] planes: bool,
) {
    let token = CUBE_POS;
    if token >= scores.len() / comptime!(count * (1 + groups)) {
        terminate!();
    }
    let mut parts = Shared::<[f32]>::new_slice(comptime!(room(units)));
    let mut sums = Array::<f32>::new(comptime!(count * (1 + groups)));
    add_up(first, query, &mut sums, 0, groups, width, units);
    if comptime!(count > 1) {
        add_up(second, query, &mut sums, comptime!(1 + groups), groups, width, units);
    }
    if comptime!(count > 2) {
        add_up(third, query, &mut sums, comptime!(2 * (1 + groups)), groups, width, units);
    }
    if comptime!(count > 3) {
        add_up(fourth, query, &mut sums, comptime!(3 * (1 + groups)), groups, width, units);
    }
    let start = token * comptime!(count * (1 + groups));
    for i in 0..count {
        let from = i * comptime!(1 + groups);
        let mut r = 1.0f32;
        if comptime!(normalises) {
            let mean = cube_sum(sums[from], &mut parts, units, planes) * share;
            r = inverse_root(mean, epsilon);
        }
        if UNIT_POS == 0 {
            scores[start + from] = r;
        }
        for k in 0..groups {
            let score = cube_sum(sums[from + 1 + k], &mut parts, units, planes) * r;
            if UNIT_POS == 0 {
                scores[start + from + 1 + k] = score;
            }
        }
    }
}

/// One unit for each group of each token, of which there are `rows`.
#[cube(launch)]
fn weigh_all(
    scores: &Tensor<f32>,
    kept: &mut Tensor<f32>,
    sources: u32,
    rows: u32,
    #[comptime] groups: usize,
    #[comptime] units: usize,
) {
    let row = CUBE_POS * units + UNIT_POS as usize;
    if row < rows as usize {
        let token = row / groups;
        let k = row % groups;
        let scored = comptime!(1 + groups);
        let stride = comptime!(1 + 2 * groups);
        let from = token * sources as usize * scored;
        let to = token * sources as usize * stride;
        let mut largest = scores[from + 1 + k];
        for i in 0..sources {
            largest = max(largest, scores[from + i as usize * scored + 1 + k]);
        }
        let mut total = 0.0f32;
        for i in 0..sources {
            total += (scores[from + i as usize * scored + 1 + k] - largest).exp();
        }
        for i in 0..sources {
            let at = from + i as usize * scored;
            let place = to + i as usize * stride;
            let score = scores[at + 1 + k];
            if k == 0 {
                kept[place] = scores[at];
            }
            kept[place + 1 + k] = score;
            kept[place + 1 + groups + k] = (score - largest).exp() / total;
        }
    }
}

/// One cube for each token. The first `count` sources are read, which begin at `begin` of all, and added to `before`.
#[cube(launch)]
fn read_some(
    first: &Tensor<f32>,
    second: &Tensor<f32>,
    third: &Tensor<f32>,
    fourth: &Tensor<f32>,
    kept: &Tensor<f32>,
    before: &Tensor<f32>,
    reading: &mut Tensor<f32>,
    begin: u32,
    sources: u32,
    #[comptime] adds: bool,
    #[comptime] count: usize,
    #[comptime] groups: usize,
    #[comptime] width: usize,
    #[comptime] units: usize,
) {
    let token = CUBE_POS;
    if token >= reading.len() / width {
        terminate!();
    }
    let stride = comptime!(1 + 2 * groups);
    let group = comptime!(width / groups);
    let at = (token * sources as usize + begin as usize) * stride + comptime!(1 + groups);
    let mut c = UNIT_POS as usize;
    while c < width {
        let place = token * width + c;
        let alpha = at + c / group;
        let mut h = kept[alpha] * first[place];
        if comptime!(count > 1) {
            h += kept[alpha + stride] * second[place];
        }
        if comptime!(count > 2) {
            h += kept[alpha + comptime!(2 * (1 + 2 * groups))] * third[place];
        }
        if comptime!(count > 3) {
            h += kept[alpha + comptime!(3 * (1 + 2 * groups))] * fourth[place];
        }
        if comptime!(adds) {
            h += before[place];
        }
        reading[place] = h;
        c += units;
    }
}

/// One cube for each token. `pull` becomes `r du` of each group.
#[cube(launch)]
fn source_backward(
    source: &Tensor<f32>,
    query: &Tensor<f32>,
    kept: &Tensor<f32>,
    reading: &Tensor<f32>,
    d_reading: &Tensor<f32>,
    d_source: &mut Tensor<f32>,
    pull: &mut Tensor<f32>,
    index: u32,
    sources: u32,
    share: f32,
    #[comptime] normalises: bool,
    #[comptime] groups: usize,
    #[comptime] width: usize,
    #[comptime] units: usize,
    #[comptime] planes: bool,
) {
    let token = CUBE_POS;
    if token >= pull.len() / groups {
        terminate!();
    }
    let mut parts = Shared::<[f32]>::new_slice(comptime!(room(units)));
    let group = comptime!(width / groups);
    let start = token * width;
    let at = (token * sources as usize + index as usize) * comptime!(1 + 2 * groups);
    let weights = at + comptime!(1 + groups);
    let r = kept[at];
    let mut pulls = Array::<f32>::new(groups);
    let mut back = 0.0f32;
    for k in 0..groups {
        let mut sum = 0.0f32;
        let mut c = UNIT_POS as usize;
        while c < group {
            let place = start + k * group + c;
            sum += d_reading[place] * (source[place] - reading[place]);
            c += units;
        }
        let p = kept[weights + k] * cube_sum(sum, &mut parts, units, planes) * r;
        if UNIT_POS == 0 {
            pull[token * groups + k] = p;
        }
        pulls[k] = p;
        if comptime!(normalises) {
            back += p * kept[at + 1 + k] * r * share;
        }
    }
    let mut c = UNIT_POS as usize;
    while c < width {
        let place = start + c;
        let k = c / group;
        let own = kept[weights + k] * d_reading[place] + pulls[k] * query[c];
        d_source[place] = own - back * source[place];
        c += units;
    }
}

/// The width of rows, and how many there are.
fn rows(tensor: &CubeTensor, query: &CubeTensor) -> [usize; 2] {
    let width = query.shape().num_elements();
    [width, tensor.shape().num_elements() / width]
}

/// `[r | u]` of the first `count` sources, `[tokens, ..]`; the others are not looked at.
pub(super) fn scores(
    sources: [CubeTensor; TAKEN],
    query: CubeTensor,
    count: usize,
    epsilon: f32,
    manner: Manner,
) -> CubeTensor {
    let [first, second, third, fourth] = in_order(sources);
    let [query] = in_order([query]);
    let [width, tokens] = rows(&first, &query);
    let scores = empty(&first, Shape::new([tokens, count * manner.scored()]));
    let layout = Layout::of(&first, width / manner.groups);
    score_some::launch(
        &first.client.clone(),
        cubes(tokens),
        layout.dim(),
        first.into_tensor_arg(),
        second.into_tensor_arg(),
        third.into_tensor_arg(),
        fourth.into_tensor_arg(),
        query.into_tensor_arg(),
        scores.clone().into_tensor_arg(),
        epsilon,
        1.0 / width as f32,
        count,
        manner.normalises,
        manner.groups,
        width,
        layout.units as usize,
        layout.planes(manner.planes),
    );
    scores
}

/// What is kept, `[tokens, ..]`, from `[r | u]` of all sources.
pub(super) fn weigh(scores: CubeTensor, manner: Manner) -> CubeTensor {
    let [scores] = in_order([scores]);
    let tokens = scores.shape().num_elements() / (manner.sources * manner.scored());
    let kept = empty(&scores, Shape::new([tokens, manner.sources * manner.kept()]));
    let rows = tokens * manner.groups;
    weigh_all::launch(
        &scores.client.clone(),
        cubes(rows.div_ceil(WEIGHERS as usize)),
        CubeDim::new_1d(WEIGHERS),
        scores.into_tensor_arg(),
        kept.clone().into_tensor_arg(),
        manner.sources as u32,
        rows as u32,
        manner.groups,
        WEIGHERS as usize,
    );
    kept
}

/// The weighted sum of the first `count` sources here, which begin at `begin` of all, and of what was read before them.
pub(super) fn read(
    sources: [CubeTensor; TAKEN],
    kept: CubeTensor,
    before: Option<CubeTensor>,
    begin: usize,
    count: usize,
    manner: Manner,
) -> CubeTensor {
    let [first, second, third, fourth] = in_order(sources);
    let adds = before.is_some();
    let [kept, before] = in_order([kept, before.unwrap_or_else(|| first.clone())]);
    let shape = first.shape();
    let width = shape[shape.num_dims() - 1];
    let reading = empty(&first, shape.clone());
    let layout = Layout::of(&first, width);
    read_some::launch(
        &first.client.clone(),
        cubes(shape.num_elements() / width),
        layout.dim(),
        first.into_tensor_arg(),
        second.into_tensor_arg(),
        third.into_tensor_arg(),
        fourth.into_tensor_arg(),
        kept.into_tensor_arg(),
        before.into_tensor_arg(),
        reading.clone().into_tensor_arg(),
        begin as u32,
        manner.sources as u32,
        adds,
        count,
        manner.groups,
        width,
        layout.units as usize,
    );
    reading
}

/// Gradients of the source with this index and of the query through it.
pub(super) fn backward(
    source: CubeTensor,
    query: CubeTensor,
    kept: CubeTensor,
    reading: CubeTensor,
    d_reading: CubeTensor,
    index: usize,
    manner: Manner,
) -> (CubeTensor, CubeTensor) {
    let inputs = in_order([source, query, kept, reading, d_reading]);
    let [source, query, kept, reading, d_reading] = inputs;
    let [width, tokens] = rows(&source, &query);
    let d_source = empty(&source, source.shape());
    let pull = empty(&source, Shape::new([tokens * manner.groups]));
    let layout = Layout::of(&source, width / manner.groups);
    source_backward::launch(
        &source.client.clone(),
        cubes(tokens),
        layout.dim(),
        source.clone().into_tensor_arg(),
        query.into_tensor_arg(),
        kept.into_tensor_arg(),
        reading.into_tensor_arg(),
        d_reading.into_tensor_arg(),
        d_source.clone().into_tensor_arg(),
        pull.clone().into_tensor_arg(),
        index as u32,
        manner.sources as u32,
        1.0 / width as f32,
        manner.normalises,
        manner.groups,
        width,
        layout.units as usize,
        layout.planes(manner.planes),
    );
    (d_source, columns(source, Terms::Grouped(pull, manner.groups), width))
}
