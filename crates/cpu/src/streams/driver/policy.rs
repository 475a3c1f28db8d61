//! What a policy gives, and what it is given.

use std::fmt::Debug;

/// How many parts a record can have.
pub(in crate::streams) const PARTS: usize = 4;

/// Floats of each part for each token; zero where there is no such part.
pub(in crate::streams) type Parts = [usize; PARTS];

/// The arithmetic of a residual policy between two sub-layers, for a tile of tokens.
///
/// `forward` and `backward` are plain loops over slices, marked `#[inline(always)]` like all that they call: the driver
/// compiles them once for each [`Form`](crate::Form).
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
    /// Whether the kernels for AVX2 are taken on CPUs with AVX-512, too, because they are faster there.
    const NARROW: bool = false;
    /// Whether, on the way back, the gradient of a write takes the place of the first part of the record before: then
    /// `d_write` comes as that part, which is `[tokens, width]` and not needed for anything else.
    const D_WRITE_IN_RECORD: bool = false;

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

    /// How many rows of the width stand side by side in a junction's output for each token: more than one where the
    /// attention that is given it has inputs of its own for queries, keys and values.
    fn inputs(&self, _junction: usize) -> usize {
        1
    }

    /// The parts of the state.
    fn state(&self) -> Parts {
        [0; PARTS]
    }

    /// Whether a junction changes the first part of the last record in place if there is no way back: then it finds that
    /// part in its own record, and not in what the junction before left.
    fn in_place(&self, _junction: usize) -> bool {
        false
    }

    /// Whether the write of a junction is kept.
    fn keeps_write(&self, _junction: usize) -> bool {
        false
    }

    /// Floats that [`Self::Kept`] holds of each token, as a mean.
    fn kept(&self, _junction: usize) -> f64 {
        0.0
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

    /// The same for the way back.
    fn prepare_backward(&self, _params: &mut Self::Params<'_>) {}

    /// Floating-point operations of a junction for each token, as far as they count as work.
    fn flops(&self, _junction: usize) -> usize {
        0
    }

    /// Takes in the writes and gives the next sub-layer its input.
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

    /// What the driver calls for [`Self::forward`]: for policies that want to know whether the CPU has fused products.
    #[inline(always)]
    fn forward_by<const FUSED: bool>(
        &self,
        params: &Self::Params<'_>,
        tile: Forward<'_, Self::Kept>,
        scratch: &mut Self::Scratch,
    ) {
        self.forward(params, tile, scratch);
    }

    /// The same for [`Self::backward`].
    #[inline(always)]
    fn backward_by<const FUSED: bool>(
        &self,
        params: &Self::Params<'_>,
        tile: Backward<'_, Self::Kept>,
        scratch: &mut Self::Scratch,
    ) {
        self.backward(params, tile, scratch);
    }
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
    /// To be written, `[tokens, inputs * width]`.
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
    /// Gradient of the output, `[tokens, inputs * width]`.
    pub d_output: &'a [f32],
    /// The gradient that is carried; comes from the next junction, goes on to the one before.
    pub gradient: [&'a mut [f32]; PARTS],
    /// To be written, `[tokens, width]`; see [`Policy::D_WRITE_IN_RECORD`].
    pub d_write: &'a mut [f32],
    /// To be added to.
    pub d_params: &'a mut [f32],
}
