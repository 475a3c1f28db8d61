//! Attention of the tokens that a route lets run, after Mixture-of-Depths (Raposo et al., 2024). What is
//! skipped is not computed: neither queries of skipped tokens, nor keys that no query can see.

use super::backward::{Gradients, Kept, Rest, unmix};
use super::forward::mix;
use super::plan::Plan;
use super::table::Inputs;
use super::{Keys, Output, Shape, Slots};
use crate::Route;
use crate::buffer::unwritten;
use crate::precision::Precision;
use crate::rows::Columns;

/// Gradients of [`forward_routed()`].
#[derive(Debug)]
pub struct RoutedGradient {
    /// Of the queries' projections.
    pub queries: Vec<f32>,
    /// Of the keys' and values' projections; zero where no query sees them.
    pub key_values: Vec<f32>,
    /// Of the query heads' gain; empty without norms.
    pub query_gain: Vec<f32>,
    /// Of the key heads' gain; empty without norms.
    pub key_gain: Vec<f32>,
    /// Of the slots' keys, in their layout; zero for skipped tokens.
    pub slot_keys: Vec<f32>,
    /// Of the slots' values, in their layout; zero for skipped tokens.
    pub slot_values: Vec<f32>,
}

/// Attends from the running tokens to those of their sequence that have keys, up to themselves. Every token
/// keeps the position that it has in its sequence of `shape.time` tokens.
///
/// # Shapes
/// - `queries`: `[running, heads * head_dim]`, before norm and rotation
/// - `key_values`: `[tokens or running, 2 kv_heads * head_dim]`, rows `[k | v]` of the tokens that have keys, before
///   norm and rotation
/// - `slots`: of all tokens, of which only those of running ones are read
/// - mixed: `[running, heads * head_dim]`
pub fn forward_routed(
    queries: &[f32],
    key_values: &[f32],
    shape: &Shape,
    slots: &Slots,
    route: &Route,
    keys: Keys,
    precision: Precision,
) -> Output {
    let plan = checked_plan(queries, key_values, shape, route, keys);
    mix(&Inputs::separate(queries, key_values, shape, precision), &plan, shape, slots)
}

/// `d_mixed` is the gradient of [`Output::mixed`]; `mixed` and `log_sums` are those of the output.
#[allow(clippy::too_many_arguments)]
pub fn backward_routed(
    d_mixed: &[f32],
    queries: &[f32],
    key_values: &[f32],
    mixed: &[f32],
    log_sums: &[f32],
    shape: &Shape,
    slots: &Slots,
    route: &Route,
    keys: Keys,
    precision: Precision,
) -> RoutedGradient {
    let plan = checked_plan(queries, key_values, shape, route, keys);
    let inputs = Inputs::separate(queries, key_values, shape, precision);
    let kept = Kept::new(d_mixed, mixed, log_sums, shape);
    let mut rest = Rest::new(shape, slots);
    // The rows of keys that no query sees are not written.
    let mut d_key_values = vec![0.0; key_values.len()];
    // SAFETY: every query is of one part of the plan, whose task writes its row.
    let mut d_queries = unsafe { unwritten(queries.len()) };
    let to = Gradients {
        queries: Columns::new(&mut d_queries, shape.query_width()),
        key_values: Columns::new(&mut d_key_values, shape.key_value_width()),
    };
    unmix(&kept, &inputs, &to, &mut rest, &plan, shape, slots);
    let Rest { query_gain, key_gain, slot_keys, slot_values } = rest;
    let (queries, key_values) = (d_queries, d_key_values);
    RoutedGradient { queries, key_values, query_gain, key_gain, slot_keys, slot_values }
}

/// The plan of a route, for which there must be as many rows as it says.
fn checked_plan(
    queries: &[f32],
    key_values: &[f32],
    shape: &Shape,
    route: &Route,
    keys: Keys,
) -> Plan {
    shape.check();
    let with_keys = match keys {
        Keys::All => route.tokens(),
        Keys::Running => route.len(),
    };
    assert_eq!(queries.len(), route.len() * shape.query_width(), "a row for each running token");
    assert_eq!(key_values.len(), with_keys * shape.key_value_width(), "a row for each key");
    Plan::routed(route, shape, keys)
}

#[cfg(test)]
mod tests;
