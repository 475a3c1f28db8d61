//! Projections of tokens, and attention from them: dense and routed are one operation with an optional route.

use hadal_cpu::attention::{
    Keys, Output, Shape, Slots, backward, backward_routed, forward, forward_routed,
};
use hadal_cpu::{Precision, Route};

/// Which tokens ask, and which have keys.
#[derive(Clone, Debug)]
pub struct Asking {
    /// The tokens that ask.
    pub route: Route,
    /// The tokens whose keys and values exist.
    pub keys: Keys,
}

/// The rows of the tokens that have keys.
pub(super) fn keyed<'a>(keys: Keys, all: &'a [f32], asking: &'a [f32]) -> &'a [f32] {
    match keys {
        Keys::All => all,
        Keys::Running => asking,
    }
}

/// Queries, keys and values before norms and rotation, as rows.
#[derive(Debug)]
pub(crate) enum Projected<T> {
    /// `[q | k | v]` of every token.
    Joined(T),
    /// Queries of the tokens that ask, and `[k | v]` of those that have keys.
    Apart { queries: T, key_values: T, asking: Asking },
}

/// A token's query, and its key with its value.
pub(crate) type TokenRows<'a> = (Option<&'a [f32]>, Option<&'a [f32]>);

/// Gradients of [`Projected::mix`].
pub(crate) struct Gradient {
    pub(crate) projected: Projected<Vec<f32>>,
    /// Gradients of their keys and values.
    pub(crate) slots: [Vec<f32>; 2],
    /// Gradients of the gains of queries and keys; empty without norms.
    pub(crate) gains: [Vec<f32>; 2],
}

impl<T: AsRef<[f32]>> Projected<T> {
    /// Attends within each sequence.
    pub(crate) fn mix(&self, shape: &Shape, slots: &Slots, precision: Precision) -> Output {
        match self {
            Self::Joined(joined) => forward(joined.as_ref(), shape, slots, precision),
            Self::Apart { queries, key_values, asking: Asking { route, keys } } => {
                let (queries, key_values) = (queries.as_ref(), key_values.as_ref());
                forward_routed(queries, key_values, shape, slots, route, *keys, precision)
            }
        }
    }

    /// The backward pass of [`Projected::mix`], which returned `mixed` and `log_sums`.
    pub(crate) fn mix_backward(
        &self,
        d_mixed: &[f32],
        mixed: &[f32],
        log_sums: &[f32],
        shape: &Shape,
        slots: &Slots,
        precision: Precision,
    ) -> Gradient {
        match self {
            Self::Joined(joined) => {
                let joined = joined.as_ref();
                let d = backward(d_mixed, joined, mixed, log_sums, shape, slots, precision);
                Gradient {
                    projected: Projected::Joined(d.joined),
                    slots: [d.slot_keys, d.slot_values],
                    gains: [d.query_gain, d.key_gain],
                }
            }
            Self::Apart { queries, key_values, asking } => {
                let d = backward_routed(
                    d_mixed,
                    queries.as_ref(),
                    key_values.as_ref(),
                    mixed,
                    log_sums,
                    shape,
                    slots,
                    &asking.route,
                    asking.keys,
                    precision,
                );
                let (queries, key_values, asking) = (d.queries, d.key_values, asking.clone());
                Gradient {
                    projected: Projected::Apart { queries, key_values, asking },
                    slots: [d.slot_keys, d.slot_values],
                    gains: [d.query_gain, d.key_gain],
                }
            }
        }
    }

    /// Number of tokens that ask, in a batch of `tokens`.
    pub(crate) fn asking(&self, tokens: usize) -> usize {
        match self {
            Self::Joined(_) => tokens,
            Self::Apart { asking, .. } => asking.route.len(),
        }
    }

    /// The rows of each token: a query if it asks, a key and a value if it has them.
    pub(crate) fn tokens(&self, shape: &Shape) -> Vec<TokenRows<'_>> {
        let width = shape.heads * shape.head_dim;
        let key_width = 2 * shape.kv_heads * shape.head_dim;
        match self {
            Self::Joined(joined) => {
                let rows = joined.as_ref().chunks_exact(width + key_width);
                rows.map(|row| (Some(&row[..width]), Some(&row[width..]))).collect()
            }
            Self::Apart { queries, key_values, asking: Asking { route, keys } } => {
                let mut queries = queries.as_ref().chunks_exact(width);
                let mut key_values = key_values.as_ref().chunks_exact(key_width);
                let token = |asks: bool| {
                    let query = if asks { queries.next() } else { None };
                    let keyed = asks || *keys == Keys::All;
                    (query, if keyed { key_values.next() } else { None })
                };
                route.decisions().into_iter().map(token).collect()
            }
        }
    }
}
