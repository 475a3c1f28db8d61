//! A probe that changes what flows, and what it can learn of a model.

use burn::tensor::{Tensor, TensorData};
use hadal_kernels::{ReadBackError, read_back};
use hadal_model::{Decoder, Pass, PassError, Tokens, Variant};
use hadal_residual::{Place, Probe, Signal};

/// Calls a function for everything that a policy lets it change.
pub(crate) struct Steer<F>(pub(crate) F);

impl<F: FnMut(Place, Signal, Tensor<4>) -> Tensor<4>> Probe for Steer<F> {
    fn wants(&self, _: Signal) -> bool {
        false
    }

    fn record(&mut self, _: Place, _: Signal, _: Tensor<4>) {}

    fn steers(&self) -> bool {
        true
    }

    fn steer(&mut self, place: Place, signal: Signal, value: Tensor<4>) -> Tensor<4> {
        (self.0)(place, signal, value)
    }
}

/// What a policy lets a probe change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Steerable {
    /// Streams; fewer than two are none.
    pub(crate) streams: usize,
    /// Whether they are mixed into each other.
    pub(crate) mixes: bool,
}

/// Asks a model with one token.
pub(crate) fn steerable(decoder: &Decoder, variant: Variant) -> Result<Steerable, PassError> {
    let mut found = Steerable::default();
    let mut probe = Steer(|_, signal, value: Tensor<4>| {
        match signal {
            Signal::Streams => found.streams = found.streams.max(value.dims()[2]),
            Signal::Mixing => found.mixes = true,
            _ => {}
        }
        value
    });
    let pass = Pass { probe: Some(&mut probe), ..variant.pass() };
    decoder.logits(&Tokens::row(&[0]), pass)?;
    Ok(found)
}

/// The same matrix for every token.
///
/// # Shapes
/// - `matrix`: `[n, n]`, row by row
/// - `like` and output: `[B, T, n, n]`
pub(crate) fn everywhere(matrix: &[f64], like: &Tensor<4>) -> Tensor<4> {
    let [batch, time, n, m] = like.dims();
    let values: Vec<f32> = matrix.iter().map(|&value| value as f32).collect();
    let one = Tensor::<2>::from_data(TensorData::new(values, [n, m]), &like.device());
    one.reshape([1, 1, n, m]).expand([batch, time, n, m])
}

/// The largest `k` weights of each token by their size; the others are zero.
///
/// # Shapes
/// - `weights` and output: `[B, T, n, 1]`
pub(crate) fn top(weights: Tensor<4>, k: usize) -> Result<Tensor<4>, ReadBackError> {
    let (shape, device) = (weights.dims(), weights.device());
    let mut values = read_back(weights)?;
    for row in values.chunks_mut(shape[2].max(1)) {
        let mut order: Vec<usize> = (0..row.len()).collect();
        // Stable, so that of equals the first ones stay.
        order.sort_by(|&a, &b| row[b].abs().total_cmp(&row[a].abs()));
        order.into_iter().skip(k).for_each(|i| row[i] = 0.0);
    }
    Ok(Tensor::from_data(TensorData::new(values, shape), &device))
}
