//! Attention for the tokens on a route: the others ask nothing, and keep their keys and values or not.

use crate::attention::{
    Attention, AttentionShape, AttentionWeights, HeadGains, RopeTables, prepare,
};
use crate::bridge::{Operation, Output, run};
use crate::heads::{DepthSlots, Mixing};
use crate::seen::SeenTokens;
use burn::tensor::Tensor;
use hadal_cpu::attention::{Slots, backward_routed, forward_routed};
use hadal_cpu::linear;
use hadal_cpu::{Route, Rows};

pub use hadal_cpu::attention::Keys;

/// Who asks, and whose keys there are.
#[derive(Clone, Debug)]
pub struct Asking {
    /// The tokens that ask.
    pub route: Route,
    /// Whose keys and values exist.
    pub keys: Keys,
}

impl Asking {
    /// The tokens whose keys and values exist, `[tokens or running, width]`.
    fn keyed<'a>(&self, all: &'a [f32], gathered: &'a [f32]) -> &'a [f32] {
        match self.keys {
            Keys::All => all,
            Keys::Running => gathered,
        }
    }
}

/// [`crate::attention()`] for tokens on a route, of which there must be one; the other rows of the output
/// are zero. Call this only where [`crate::fuses`] says so.
///
/// # Shapes
/// - `x` and output: `[B, T, d]`
pub fn routed_attention(
    x: Tensor<3>,
    weights: AttentionWeights,
    shape: AttentionShape,
    rope: &RopeTables,
    recompute: bool,
    asking: Asking,
) -> Tensor<3> {
    let (attention, inputs) = prepare(x, weights, shape, rope, recompute);
    run(RoutedAttention { attention, asking }, inputs)
}

/// [`crate::continued_attention()`] for tokens on a route, which may be empty; the other rows of the output
/// are zero. Call this only on a device without autodiff.
///
/// # Shapes
/// - `x` and output: `[B, T, d]`
pub fn continued_routed_attention(
    x: Tensor<3>,
    weights: AttentionWeights,
    shape: AttentionShape,
    rope: &RopeTables,
    seen: SeenTokens,
    asking: Asking,
) -> Tensor<3> {
    let (attention, inputs) = prepare(x, weights, shape, rope, false);
    run(ContinuedRouted { attention, seen, asking }, inputs)
}

#[derive(Debug)]
struct RoutedAttention {
    attention: Attention,
    asking: Asking,
}

impl RoutedAttention {
    /// The queries, the keys with the values, the mixed values and the logarithms of the sums.
    fn intermediates(&self, inputs: &[Rows], gathered: &[f32]) -> [Vec<f32>; 4] {
        let Self { attention, asking } = self;
        let keyed = asking.keyed(inputs[0].values(), gathered);
        let queries = attention.queries(gathered, inputs);
        let key_values = attention.key_values(keyed, inputs);
        let (shape, slots) = (attention.shape(inputs), Slots::default());
        let Asking { route, keys } = asking;
        let out = forward_routed(&queries, &key_values, &shape, &slots, route, *keys);
        [queries, key_values, out.mixed, out.log_sums]
    }
}

impl Operation for RoutedAttention {
    fn forward(&self, inputs: &[Rows], keep: bool) -> Output {
        let Self { attention, asking } = self;
        let gathered = asking.route.gather(inputs[0].values(), attention.width());
        let saved = self.intermediates(inputs, &gathered);
        let rows = attention.outputs(&saved[2], inputs);
        let saved = if keep && !attention.recompute { saved.into() } else { Vec::new() };
        let values = asking.route.scatter(&rows, attention.width());
        Output { values, shape: attention.x.to_vec(), saved }
    }

    fn backward(&self, d: Rows, inputs: &[Rows], saved: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        let Self { attention, asking: Asking { route, keys } } = self;
        let (x, width) = (inputs[0].values(), attention.width());
        let gathered = route.gather(x, width);
        let [queries, key_values, mixed, log_sums] = match <[Vec<f32>; 4]>::try_from(saved) {
            Ok(saved) => saved,
            Err(_) => self.intermediates(inputs, &gathered),
        };
        let d = route.gather(d.values(), width);
        let mut out =
            linear::backward(&d, &mixed, attention.mixed_width(), &attention.output(inputs));
        let heads = {
            let (shape, slots) = (attention.shape(inputs), Slots::default());
            backward_routed(
                &out.x,
                &queries,
                &key_values,
                &mixed,
                &log_sums,
                &shape,
                &slots,
                route,
                *keys,
            )
        };
        drop((queries, key_values, mixed));
        let [q, k, v] = attention.projections(inputs);
        let keyed = self.asking.keyed(x, &gathered);
        let of_queries = linear::backward(&heads.queries, &gathered, width, &[q]);
        let of_keys = linear::backward(&heads.key_values, keyed, width, &[k, v]);
        let mut gradients = vec![self.joined(of_queries.x, of_keys.x)];
        gradients.extend(of_queries.weights);
        gradients.extend(of_keys.weights);
        gradients.push(out.weights.remove(0));
        let parts = [
            (heads.queries.as_slice(), attention.mixed_width()),
            (heads.key_values.as_slice(), attention.key_value_width()),
        ];
        let gains = [heads.query_gain, heads.key_gain];
        gradients.extend(attention.small_gradients(gains, &parts, &d));
        gradients
    }
}

impl RoutedAttention {
    /// The gradient of the input: of all tokens from keys, and of those that asked from queries.
    fn joined(&self, of_queries: Vec<f32>, mut of_keys: Vec<f32>) -> Vec<f32> {
        let Asking { route, keys } = &self.asking;
        let width = self.attention.width();
        match keys {
            Keys::All => {
                route.add_back(&mut of_keys, &of_queries, width);
                of_keys
            }
            Keys::Running => {
                of_keys.iter_mut().zip(&of_queries).for_each(|(sum, part)| *sum += part);
                route.scatter(&of_keys, width)
            }
        }
    }
}

#[derive(Debug)]
struct ContinuedRouted {
    attention: Attention,
    seen: SeenTokens,
    asking: Asking,
}

impl Operation for ContinuedRouted {
    fn forward(&self, inputs: &[Rows], _: bool) -> Output {
        let Self { attention, seen, asking } = self;
        let (x, width) = (inputs[0].values(), attention.width());
        let gathered = asking.route.gather(x, width);
        let queries = attention.queries(&gathered, inputs);
        let key_values = attention.key_values(asking.keyed(x, &gathered), inputs);
        let shape = attention.shape(inputs);
        let mixed = seen.attend_routed(&queries, &key_values, &shape, asking);
        let rows = attention.outputs(&mixed, inputs);
        let values = asking.route.scatter(&rows, width);
        Output { values, shape: attention.x.to_vec(), saved: Vec::new() }
    }

    fn backward(&self, _: Rows, _: &[Rows], _: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        unreachable!("a continued attention is run without autodiff")
    }
}

/// Attends from projected queries of the tokens on a route, of which there must be one, to projected keys
/// of their sequences and to the slots of the same tokens. Call this only where [`crate::fuses`] says so.
///
/// # Shapes
/// - `queries`: `[1, running, heads * head_dim]`
/// - `key_values`: `[B, T, 2 kv heads * head_dim]`, keys then values of every token
/// - output: `[1, running, heads * head_dim]`
pub fn mix_routed_heads(
    queries: Tensor<3>,
    key_values: Tensor<3>,
    norms: Option<HeadGains>,
    slots: Option<DepthSlots>,
    shape: AttentionShape,
    rope: &RopeTables,
    route: &Route,
) -> Tensor<3> {
    let time = key_values.dims()[1];
    let projections = vec![queries.into(), key_values.into()];
    let (mixing, inputs) = Mixing::prepare(projections, time, norms, slots, shape, rope);
    run(MixRouted { mixing, route: route.clone() }, inputs)
}

/// The projections are queries, and keys with values.
#[derive(Debug)]
struct MixRouted {
    mixing: Mixing,
    route: Route,
}

impl Operation for MixRouted {
    fn forward(&self, inputs: &[Rows], keep: bool) -> Output {
        let [queries, key_values] = [0, 1].map(|i| inputs[i].values());
        let (shape, slots) = (self.mixing.shape(inputs), self.mixing.slots(inputs));
        let out = forward_routed(queries, key_values, &shape, &slots, &self.route, Keys::All);
        let saved = if keep { vec![out.mixed.clone(), out.log_sums] } else { Vec::new() };
        let shape = vec![1, self.route.len(), self.mixing.width()];
        Output { values: out.mixed, shape, saved }
    }

    fn backward(&self, d: Rows, inputs: &[Rows], saved: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        let [queries, key_values] = [0, 1].map(|i| inputs[i].values());
        let (shape, slots) = (self.mixing.shape(inputs), self.mixing.slots(inputs));
        let gradient = backward_routed(
            d.values(),
            queries,
            key_values,
            &saved[0],
            &saved[1],
            &shape,
            &slots,
            &self.route,
            Keys::All,
        );
        self.mixing.gradients(
            vec![gradient.queries, gradient.key_values],
            [gradient.slot_keys, gradient.slot_values],
            [gradient.query_gain, gradient.key_gain],
        )
    }
}
