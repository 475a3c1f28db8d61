//! The streams of every token, apart or in one tensor.

use super::gate::{MultiGateKind, StreamGate, scaled};
use crate::pool::{Pooled, Source, pool};
use crate::skip::Opening;
use burn::tensor::Tensor;
use hadal_kernels::{
    GateWeights, MOST_GATED_STREAMS, gated_write, pool_and_gate_streams, pool_streams, takes_cubes,
};

/// At most n streams; fewer while they are being filled. There is one in a pass, so its size does not matter.
#[allow(clippy::large_enum_variant)]
pub enum Streams {
    /// Each by itself.
    Apart(Vec<Source>),
    /// As kernels of GPUs take them, `[B, T, n, d]`.
    Together(Tensor<4>),
}

/// What a site reads.
pub(super) struct Reading {
    /// `[B, T, d]`
    pub(super) value: Tensor<3>,
    /// `[B, T, n]`; none where there is nothing to choose from.
    pub(super) weights: Option<Tensor<3>>,
}

impl From<Vec<Source>> for Streams {
    fn from(streams: Vec<Source>) -> Self {
        Self::Apart(streams)
    }
}

impl Streams {
    /// The embedding alone, of a policy that will have `most` streams.
    pub(super) fn new(embedding: Tensor<3>, most: usize, eps: f64) -> Self {
        if most <= MOST_GATED_STREAMS && takes_cubes(&embedding.device()) {
            return Self::Together(embedding.unsqueeze_dim(2));
        }
        Self::Apart(vec![Source::new(embedding, eps)])
    }

    /// The first stream. `[B, T, d]`
    pub(super) fn first(&self) -> Tensor<3> {
        match self {
            Self::Apart(streams) => streams[0].value.clone(),
            Self::Together(streams) => streams.clone().narrow(2, 0, 1).squeeze_dim(2),
        }
    }

    /// All streams. `[B, T, n, d]`
    pub(super) fn all(&self) -> Tensor<4> {
        match self {
            Self::Apart(streams) => {
                Tensor::stack(streams.iter().map(|stream| stream.value.clone()).collect(), 2)
            }
            Self::Together(streams) => streams.clone(),
        }
    }

    /// What a query reads.
    pub(super) fn pool(&self, query: Tensor<1>, eps: f64) -> Pooled {
        match self {
            Self::Apart(streams) => pool(streams, query),
            Self::Together(streams) => {
                let (value, weights) = pool_streams(streams.clone(), query, eps);
                Pooled { value, weights }
            }
        }
    }

    /// What a query reads, or the first stream without one, and how much of a write each stream takes, `[B, T, n]`.
    pub(super) fn read(
        &self,
        query: Option<Tensor<1>>,
        gate: Option<&StreamGate>,
        eps: f64,
    ) -> (Reading, Option<Tensor<3>>) {
        if let (Self::Together(streams), Some(query), Some(gate)) = (self, query.clone(), gate) {
            let weights = GateWeights {
                query: scaled(&gate.weight),
                bias: gate.bias.val(),
                competitive: gate.kind == MultiGateKind::Competitive,
            };
            let (value, pooled, gates) =
                pool_and_gate_streams(streams.clone(), query, weights, eps);
            return (Reading { value, weights: Some(pooled) }, Some(gates));
        }
        let reading = match query {
            None => Reading { value: self.first(), weights: None },
            Some(query) => {
                let Pooled { value, weights } = self.pool(query, eps);
                Reading { value, weights: Some(weights) }
            }
        };
        let gates = gate.map(|gate| match self {
            Self::Apart(streams) => gate.forward(streams),
            // Nothing was asked, so there is one stream.
            Self::Together(_) => gate.forward(&[Source::new(self.first(), eps)]),
        });
        (reading, gates)
    }

    /// With the write as one more stream.
    pub(super) fn with(self, write: Tensor<3>, eps: f64) -> Self {
        match self {
            Self::Apart(mut streams) => {
                streams.push(Source::new(write, eps));
                Self::Apart(streams)
            }
            Self::Together(streams) => {
                Self::Together(Tensor::cat(vec![streams, write.unsqueeze_dim(2)], 2))
            }
        }
    }

    /// Moved towards the write.
    pub(super) fn moved(self, opening: Opening, write: Tensor<3>, eps: f64) -> Self {
        let Opening { gates, skipped } = opening;
        match self {
            Self::Apart(mut streams) => {
                for (i, stream) in streams.iter_mut().enumerate() {
                    let s = stream.value.clone();
                    let step = gates.clone().narrow(2, i, 1) * (write.clone() - s.clone());
                    let moved = s.clone() + step;
                    let moved = match &skipped {
                        Some(skipped) => moved.mask_where(skipped.clone().expand(s.dims()), s),
                        None => moved,
                    };
                    *stream = Source::new(moved, eps);
                }
                Self::Apart(streams)
            }
            Self::Together(streams) => {
                let gates = match skipped {
                    Some(skipped) => {
                        let skipped = skipped.expand(gates.dims());
                        gates.mask_fill(skipped, 0.0)
                    }
                    None => gates,
                };
                Self::Together(gated_write(streams, write, gates))
            }
        }
    }
}
