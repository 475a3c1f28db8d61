//! What a reader asks its sources with.

use super::KINDS;
use crate::norm::RmsNorm;
use crate::site::Dimensions;
use crate::weights::{Init, Weights};
use burn::module::{Module, Param};
use burn::tensor::Tensor;

/// Queries over depth with the gain of their keys.
#[derive(Module, Debug)]
pub(crate) struct Reader {
    query: Query,
    /// None in the normed form.
    key_norm: Option<Param<Tensor<1>>>,
}

/// What a reader asks with.
#[derive(Module, Debug)]
pub(crate) enum Query {
    /// One query for all that the sub-layer is given.
    One(Param<Tensor<1>>),
    /// An attention's queries for what its query, key and value are made of.
    Each(Apart),
}

/// An attention whose query, key and value are pooled apart.
#[derive(Module, Debug)]
pub(crate) struct Apart {
    /// `[3, d]`
    queries: Param<Tensor<2>>,
    /// Of what keys and values are made of.
    norms: [RmsNorm; 2],
}

impl Reader {
    pub(super) fn new(
        place: &str,
        normed: bool,
        pools: usize,
        dimensions: &Dimensions,
        weights: &mut Weights,
    ) -> Self {
        let (d, eps) = (dimensions.width, dimensions.norm_eps);
        let name = |part: &str| format!("residual.{place}.{part}");
        Self {
            query: match pools {
                1 => Query::One(weights.param(name("query"), [d], Init::ZEROS)),
                _ => Query::Each(Apart {
                    queries: weights.param(name("query"), [pools, d], Init::ZEROS),
                    norms: ["k_norm", "v_norm"]
                        .map(|part| RmsNorm::new(name(part), d, eps, weights)),
                }),
            },
            key_norm: (!normed).then(|| weights.param(name("key_norm"), [d], Init::ONES)),
        }
    }

    /// What multiplies the normalised sources, one for each pool.
    pub(super) fn questions(&self) -> Vec<Tensor<1>> {
        let queries = match &self.query {
            Query::One(query) => vec![query.val()],
            Query::Each(apart) => {
                let queries = apart.queries.val();
                (0..KINDS).map(|kind| queries.clone().narrow(0, kind, 1).squeeze_dim(0)).collect()
            }
        };
        let ask = |query: Tensor<1>| match &self.key_norm {
            Some(key_norm) => query * key_norm.val(),
            None => {
                let width = query.dims()[0] as f64;
                query / width.sqrt()
            }
        };
        queries.into_iter().map(ask).collect()
    }

    /// The norms of what keys and values are made of, if they are pooled apart.
    pub(super) fn apart(&self) -> Option<&[RmsNorm; 2]> {
        match &self.query {
            Query::One(_) => None,
            Query::Each(apart) => Some(&apart.norms),
        }
    }
}
