//! The whole sub-layer as one operation: from its input to its output.

use super::inputs::Inputs;
use super::projected::{Asking, Projected, keyed};
use super::values::ValueInputs;
use super::{AttentionCall, AttentionShape, AttentionWeights, RopeTables};
use crate::bridge::{Input, Operation, Output};
use crate::path::precision;
use crate::seen::SeenTokens;
use burn::tensor::Tensor;
use hadal_cpu::attention::{HeadNorms, Keys, Shape, Slots};
use hadal_cpu::bias;
use hadal_cpu::linear::{self, Weight};
use hadal_cpu::value_mix::ValueColumns;
use hadal_cpu::{Precision, Rows};
use std::borrow::Cow;
use std::ops::Range;

/// Inputs are x, the four matrices, then gains if there are any, then biases if there are any, then the first attention's
/// values and their weights if there are any.
#[derive(Debug)]
pub(super) struct Attention {
    /// The shape of the output.
    x: [usize; 3],
    /// What the rows of x are.
    layout: Inputs,
    shape: AttentionShape,
    rope: RopeTables,
    eps: Option<f32>,
    /// Which input it is, as below.
    bias: Option<usize>,
    output_bias: Option<usize>,
    first_values: Option<ValueInputs>,
    /// `None` if every token asks and has keys.
    asking: Option<Asking>,
    recompute: bool,
    precision: Precision,
}

/// Intermediate results of the forward pass.
struct Intermediates {
    projected: Projected<Vec<f32>>,
    /// Values before the first attention's were mixed into them, if weights learn from them.
    own_values: Vec<f32>,
    mixed: Vec<f32>,
    log_sums: Vec<f32>,
}

impl Intermediates {
    fn save(self) -> Vec<Vec<f32>> {
        let mut saved = vec![self.own_values, self.mixed, self.log_sums];
        match self.projected {
            Projected::Joined(joined) => saved.push(joined),
            Projected::Apart { queries, key_values, .. } => saved.extend([queries, key_values]),
        }
        saved
    }

    /// `None` if nothing was saved.
    fn restore(saved: Vec<Vec<f32>>, asking: Option<&Asking>) -> Option<Self> {
        let mut saved = saved.into_iter();
        let (own_values, mixed) = (saved.next()?, saved.next()?);
        let (log_sums, first) = (saved.next()?, saved.next()?);
        let projected = match asking.zip(saved.next()) {
            None => Projected::Joined(first),
            Some((asking, key_values)) => {
                Projected::Apart { queries: first, key_values, asking: asking.clone() }
            }
        };
        Some(Self { projected, own_values, mixed, log_sums })
    }
}

impl Attention {
    pub(super) fn new(
        x: Tensor<3>,
        weights: AttentionWeights,
        call: AttentionCall,
    ) -> (Self, Vec<Input>) {
        let AttentionWeights { q, k, v, o, norms, bias, output_bias } = weights;
        let AttentionCall { shape, rope, asking, first_values, recompute } = call;
        let eps = norms.as_ref().map(|norms| norms.eps as f32);
        let layout = Inputs::of(&x, &q);
        let [batch, time, _] = x.dims();
        let x_shape = [batch, time, layout.width()];
        let mut inputs: Vec<Input> = vec![x.into(), q.into(), k.into(), v.into(), o.into()];
        if let Some(norms) = norms {
            inputs.extend([norms.query.into(), norms.key.into()]);
        }
        let mut place = |bias: Option<Tensor<1>>| {
            bias.map(|bias| {
                inputs.push(bias.into());
                inputs.len() - 1
            })
        };
        let (bias, output_bias) = (place(bias), place(output_bias));
        let first_values = first_values.map(|first| ValueInputs::place(first, &mut inputs));
        let operation = Self {
            x: x_shape,
            layout,
            shape,
            rope: rope.clone(),
            eps,
            bias,
            output_bias,
            first_values,
            asking,
            recompute,
            precision: precision(),
        };
        (operation, inputs)
    }

    fn width(&self) -> usize {
        self.x[2]
    }

    fn mixed_width(&self) -> usize {
        self.shape.heads * self.shape.head_dim
    }

    fn key_value_width(&self) -> usize {
        2 * self.shape.kv_heads * self.shape.head_dim
    }

    fn shape<'a>(&'a self, inputs: &'a [Rows]) -> Shape<'a> {
        let norms = self.eps.map(|eps| HeadNorms {
            query: inputs[5].values(),
            key: inputs[6].values(),
            eps,
        });
        self.shape.with(self.x[1], &self.rope, norms)
    }

    fn projections<'a>(&self, inputs: &'a [Rows]) -> [Weight<'a>; 3] {
        [1, 2, 3].map(|i| Weight::new(inputs[i].values(), self.width()))
    }

    fn output<'a>(&self, inputs: &'a [Rows]) -> [Weight<'a>; 1] {
        [Weight::new(inputs[4].values(), self.mixed_width())]
    }

    /// The rows of the tokens that ask, of so many elements each.
    fn gather<'a>(&self, rows: &'a [f32], elements: usize) -> Cow<'a, [f32]> {
        match &self.asking {
            None => Cow::Borrowed(rows),
            Some(asking) => Cow::Owned(asking.route.gather(rows, elements)),
        }
    }

    fn gather_input<'a>(&self, inputs: &'a [Rows]) -> Cow<'a, [f32]> {
        self.gather(inputs[0].values(), self.layout.elements())
    }

    /// `gathered` are the input's rows of the tokens that ask.
    fn project(&self, inputs: &[Rows], gathered: &[f32]) -> Projected<Vec<f32>> {
        let bias = self.bias.map(|place| inputs[place].values());
        let projections = self.projections(inputs);
        let project = |x: &[f32], kinds: Range<usize>, bias: Option<&[f32]>| {
            biased(self.layout.forward(x, &projections, kinds, self.precision), bias)
        };
        let Some(asking) = &self.asking else {
            return Projected::Joined(project(gathered, 0..3, bias));
        };
        let bias = bias.map(|bias| bias.split_at(self.mixed_width()));
        let keyed = keyed(asking.keys, inputs[0].values(), gathered);
        Projected::Apart {
            queries: project(gathered, 0..1, bias.map(|(queries, _)| queries)),
            key_values: project(keyed, 1..3, bias.map(|(_, key_values)| key_values)),
            asking: asking.clone(),
        }
    }

    /// The output from mixed values. Rows of tokens that do not ask are zero.
    fn outputs(&self, mixed: &[f32], inputs: &[Rows]) -> Vec<f32> {
        let weight = self.output(inputs);
        let rows = linear::forward(mixed, self.mixed_width(), &weight, self.precision);
        let rows = biased(rows, self.output_bias.map(|place| inputs[place].values()));
        match &self.asking {
            None => rows,
            Some(asking) => asking.route.scatter(&rows, self.width()),
        }
    }

    /// The first attention's values, for the tokens that have keys.
    fn first_values<'a>(&self, place: ValueInputs, inputs: &'a [Rows]) -> Cow<'a, [f32]> {
        let values = place.values(inputs);
        match &self.asking {
            Some(Asking { route, keys: Keys::Running }) => {
                Cow::Owned(route.gather(values, self.key_value_width() / 2))
            }
            _ => Cow::Borrowed(values),
        }
    }

    /// The rows that hold values.
    fn valued<'a>(
        &self,
        projected: &'a mut Projected<Vec<f32>>,
    ) -> (&'a mut Vec<f32>, ValueColumns) {
        let key_values = self.key_value_width();
        let (rows, width) = match projected {
            Projected::Joined(joined) => (joined, self.mixed_width() + key_values),
            Projected::Apart { key_values: rows, .. } => (rows, key_values),
        };
        (rows, ValueColumns { width, values: key_values / 2 })
    }

    /// Mixes the first attention's values into those of the projections. Returns those that they had, if weights learn from
    /// them.
    fn mix_values(&self, projected: &mut Projected<Vec<f32>>, inputs: &[Rows]) -> Vec<f32> {
        let Some(place) = self.first_values else { return Vec::new() };
        let (rows, columns) = self.valued(projected);
        place.mix(rows, &self.first_values(place, inputs), columns, inputs)
    }

    /// `d` becomes the gradient of the projections before values were mixed. Returns those of the first attention's values
    /// and of the weights.
    fn mix_values_backward(
        &self,
        d: &mut Projected<Vec<f32>>,
        own: &[f32],
        inputs: &[Rows],
    ) -> Option<[Vec<f32>; 2]> {
        let place = self.first_values?;
        let (rows, columns) = self.valued(d);
        let first = self.first_values(place, inputs);
        let [of_first, of_weights] = place.mix_backward(rows, &first, own, columns, inputs);
        let of_first = match &self.asking {
            Some(Asking { route, keys: Keys::Running }) => route.scatter(&of_first, columns.values),
            _ => of_first,
        };
        Some([of_first, of_weights])
    }

    fn intermediates(&self, inputs: &[Rows], gathered: &[f32]) -> Intermediates {
        let mut projected = self.project(inputs, gathered);
        let own_values = self.mix_values(&mut projected, inputs);
        let out = projected.mix(&self.shape(inputs), &Slots::default(), self.precision);
        Intermediates { projected, own_values, mixed: out.mixed, log_sums: out.log_sums }
    }

    /// The gradients of the input and of the three matrices, from those of the projections.
    fn project_backward(
        &self,
        d: &Projected<Vec<f32>>,
        inputs: &[Rows],
        gathered: &[f32],
    ) -> Vec<Vec<f32>> {
        let (x, projections) = (inputs[0].values(), self.projections(inputs));
        let back = |d: &[f32], x: &[f32], kinds| {
            self.layout.backward(d, x, &projections, kinds, self.precision)
        };
        match d {
            Projected::Joined(joined) => {
                let gradient = back(joined, x, 0..3);
                std::iter::once(gradient.x).chain(gradient.weights).collect()
            }
            Projected::Apart { queries, key_values, asking } => {
                let keyed = keyed(asking.keys, x, gathered);
                let of_queries = back(queries, gathered, 0..1);
                let of_keys = back(key_values, keyed, 1..3);
                let of_x = input_gradient(asking, of_queries.x, of_keys.x, self.layout.elements());
                let weights = of_queries.weights.into_iter().chain(of_keys.weights);
                std::iter::once(of_x).chain(weights).collect()
            }
        }
    }

    /// The gradient of the projections' bias.
    fn bias_gradient(&self, d: &Projected<Vec<f32>>) -> Vec<f32> {
        let (queries, key_values) = (self.mixed_width(), self.key_value_width());
        match d {
            Projected::Joined(joined) => bias::gradient(joined, queries + key_values),
            Projected::Apart { queries: d_queries, key_values: d_key_values, .. } => {
                [bias::gradient(d_queries, queries), bias::gradient(d_key_values, key_values)]
                    .concat()
            }
        }
    }
}

impl Operation for Attention {
    fn forward(&self, inputs: &[Rows], keep: bool) -> Output {
        let gathered = self.gather_input(inputs);
        let intermediates = self.intermediates(inputs, &gathered);
        let values = self.outputs(&intermediates.mixed, inputs);
        let saved = if keep && !self.recompute { intermediates.save() } else { Vec::new() };
        Output { values, shape: self.x.to_vec(), saved }
    }

    fn backward(&self, d: Rows, inputs: &[Rows], saved: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        let gathered = self.gather_input(inputs);
        let Intermediates { projected, own_values, mixed, log_sums } =
            match Intermediates::restore(saved, self.asking.as_ref()) {
                Some(saved) => saved,
                None => self.intermediates(inputs, &gathered),
            };
        let d = self.gather(d.values(), self.width());
        let (width, weight, precision) = (self.mixed_width(), self.output(inputs), self.precision);
        let mut out = linear::backward(&d, &mixed, width, &weight, precision);
        let (shape, slots) = (self.shape(inputs), Slots::default());
        let mut heads =
            projected.mix_backward(&out.x, &mixed, &log_sums, &shape, &slots, precision);
        drop((projected, mixed));
        let of_values = self.mix_values_backward(&mut heads.projected, &own_values, inputs);
        let mut gradients = self.project_backward(&heads.projected, inputs, &gathered);
        gradients.push(out.weights.remove(0));
        if self.eps.is_some() {
            gradients.extend(heads.gains);
        }
        if self.bias.is_some() {
            gradients.push(self.bias_gradient(&heads.projected));
        }
        if self.output_bias.is_some() {
            gradients.push(bias::gradient(&d, self.width()));
        }
        gradients.extend(of_values.into_iter().flatten());
        gradients
    }
}

/// The gradient of the input: from keys for every token that has them, and from queries for those that ask.
fn input_gradient(
    asking: &Asking,
    of_queries: Vec<f32>,
    mut of_keys: Vec<f32>,
    width: usize,
) -> Vec<f32> {
    match asking.keys {
        Keys::All => {
            asking.route.add_back(&mut of_keys, &of_queries, width);
            of_keys
        }
        Keys::Running => {
            of_keys.iter_mut().zip(&of_queries).for_each(|(sum, part)| *sum += part);
            asking.route.scatter(&of_keys, width)
        }
    }
}

fn biased(mut rows: Vec<f32>, bias: Option<&[f32]>) -> Vec<f32> {
    if let Some(bias) = bias {
        bias::add(&mut rows, bias);
    }
    rows
}

/// An attention with what it has seen before.
#[derive(Debug)]
pub(super) struct Continued {
    pub(super) attention: Attention,
    pub(super) seen: SeenTokens,
}

impl Operation for Continued {
    fn forward(&self, inputs: &[Rows], _: bool) -> Output {
        let Self { attention, seen } = self;
        let gathered = attention.gather_input(inputs);
        let mut projected = attention.project(inputs, &gathered);
        attention.mix_values(&mut projected, inputs);
        let (shape, batch) = (attention.shape(inputs), attention.x[0]);
        let mixed = seen.attend(&projected, &shape, batch, attention.precision);
        let values = attention.outputs(&mixed, inputs);
        Output { values, shape: attention.x.to_vec(), saved: Vec::new() }
    }

    fn backward(&self, _: Rows, _: &[Rows], _: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        unreachable!("a continued attention is run without autodiff")
    }
}
