//! A reading of many sources: kernels that take a few each, and a graph in which each source is a parent of its own.

use super::Cubes;
use super::sources::{Manner, TAKEN};
use crate::path::planes;
use burn::backend::Dispatch;
use burn::tensor::Tensor;

/// [`crate::pool_sources()`].
pub(crate) fn pool_sources(
    sources: &[Tensor<3>],
    query: Tensor<1>,
    groups: usize,
    eps: Option<f64>,
) -> (Tensor<3>, Tensor<4>) {
    let [batch, time, _] = sources[0].dims();
    let manner =
        Manner { groups, normalises: eps.is_some(), sources: sources.len(), planes: planes() };
    let epsilon = eps.unwrap_or_default() as f32;
    // Those that a kernel takes; where there are fewer, the first stands for what is missing.
    let taken = |chunk: &[Tensor<3>]| -> [_; TAKEN] {
        std::array::from_fn(|i| chunk.get(i).unwrap_or(&chunk[0]).clone().into_dispatch())
    };
    let score = |chunk: &[Tensor<3>]| {
        let [first, second, third, fourth] = taken(chunk);
        let (query, count) = (query.clone().into_dispatch(), chunk.len());
        Tensor::<2>::from_dispatch(Dispatch::score_sources(
            first, second, third, fourth, query, count, epsilon, manner,
        ))
    };
    let scores = Tensor::cat(sources.chunks(TAKEN).map(score).collect(), 1);
    let kept = Tensor::<2>::from_dispatch(Dispatch::weigh_sources(scores.into_dispatch(), manner));
    let mut reading = sources[0].clone();
    for (number, chunk) in sources.chunks(TAKEN).enumerate() {
        let [first, second, third, fourth] = taken(chunk);
        let (kept, before) = (kept.clone().into_dispatch(), reading.into_dispatch());
        let (begin, count) = (number * TAKEN, chunk.len());
        reading = Tensor::from_dispatch(Dispatch::read_sources(
            first, second, third, fourth, kept, before, begin, count, manner,
        ));
    }
    if reading.device().is_autodiff() {
        for (index, source) in sources.iter().enumerate() {
            let inputs = [source.clone().into_dispatch(), query.clone().into_dispatch()];
            let ([source, query], kept) = (inputs, kept.clone().into_dispatch());
            let attached = Dispatch::attach_source(
                reading.into_dispatch(),
                source,
                query,
                kept,
                index,
                manner,
            );
            reading = Tensor::from_dispatch(attached);
        }
    }
    let kept = kept.reshape([batch, time, sources.len(), manner.kept()]);
    (reading, kept.narrow(3, 1 + groups, groups))
}
