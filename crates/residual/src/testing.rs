//! Helpers for the tests of several policies.

use crate::policy::PolicyConfig;
use crate::probe::{Place, Probe, Recorder, Signal};
use crate::residual::{Residual, SubLayers};
use crate::site::{Dimensions, Site, SubLayerKind};
use crate::traversal::Traversal;
use crate::weights::{Init, Weights};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Device, Gradients, Tensor, TensorData, activation::relu};
use hadal_cpu::Route;
use std::collections::HashMap;

/// A small model's dimensions.
pub(crate) fn dimensions(width: usize, blocks: usize) -> Dimensions {
    Dimensions::new(width, blocks, 1e-6)
}

/// Repeatable normal values of standard deviation one; the name tells draws apart.
pub(crate) fn normal<const D: usize>(name: &str, shape: [usize; D]) -> Tensor<D> {
    Weights::fresh(7, &Device::flex()).param(name, shape, Init::Normal { std: 1.0 }).val()
}

/// The elements of a tensor.
pub(crate) fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.try_into_vec_as().unwrap()
}

/// The policy as it starts.
pub(crate) fn fresh<C: PolicyConfig>(config: &C, dimensions: &Dimensions) -> C::Policy {
    config.check(dimensions).unwrap();
    config.init(dimensions, &mut Weights::fresh(7, &Device::flex()))
}

/// The policy with parameters chosen by name and shape; the rest as they start.
pub(crate) fn chosen<C: PolicyConfig>(
    config: &C,
    dimensions: &Dimensions,
    mut choose: impl FnMut(&str, &[usize]) -> Option<Vec<f32>>,
) -> C::Policy {
    config.check(dimensions).unwrap();
    config.init(dimensions, &mut Weights::stored(&mut choose, &Device::flex()))
}

/// The policy with every parameter drawn from a normal distribution around its start, so that no
/// term of the equations is zero.
pub(crate) fn random<C: PolicyConfig>(config: &C, dimensions: &Dimensions) -> C::Policy {
    chosen(config, dimensions, |name, shape| Some(drawn(name, shape)))
}

/// The elements that [`random`] draws for a parameter.
pub(crate) fn drawn(name: &str, shape: &[usize]) -> Vec<f32> {
    let around = if name.contains("norm") { 1.0 } else { 0.0 };
    values(normal(name, [shape.iter().product()]) * 0.5 + around)
}

/// Sub-layers that stand in for attention and MLPs: `tanh(x W_l)` with a matrix for each site, so
/// they are nonlinear, differ from each other and never mix tokens. An attention that is given inputs of its own for
/// queries, keys and values adds up three such products.
pub(crate) struct Stand {
    sites: usize,
    width: usize,
    absent: Vec<Site>,
}

impl Stand {
    pub(crate) fn new(dimensions: &Dimensions) -> Self {
        Self { sites: dimensions.sites(), width: dimensions.width, absent: Vec::new() }
    }

    pub(crate) fn without(dimensions: &Dimensions, absent: &[usize]) -> Self {
        let absent = absent.iter().map(|&index| Site::new(index)).collect();
        Self { absent, ..Self::new(dimensions) }
    }
}

impl SubLayers for Stand {
    fn sites(&self) -> usize {
        self.sites
    }

    fn absent(&self, site: Site) -> bool {
        self.absent.contains(&site)
    }

    fn run(&mut self, site: Site, input: Tensor<3>, _: Option<&Route>) -> Tensor<3> {
        let matrix = |name: String| {
            let matrix = normal(&name, [self.width, self.width]);
            matrix * (1.0 / (self.width as f64).sqrt())
        };
        let product = |first: usize, name: String| {
            crate::pool::project(input.clone().narrow(2, first, self.width), matrix(name))
        };
        let own = product(0, format!("stand.{}", site.index));
        // Inputs of keys and values, if they have their own.
        let others = (1..input.dims()[2] / self.width)
            .map(|i| product(i * self.width, format!("stand.{}.{i}", site.index)));
        others.fold(own, |sum, other| sum + other).tanh()
    }
}

/// The head's input after a traversal along [`Stand`].
pub(crate) fn traverse<R: Residual>(
    policy: &R,
    embedding: Tensor<3>,
    dimensions: &Dimensions,
) -> Tensor<3> {
    policy.traverse(embedding, &mut Stand::new(dimensions), &mut Traversal::default())
}

/// The same, watched.
pub(crate) fn watched<R: Residual>(
    policy: &R,
    embedding: Tensor<3>,
    dimensions: &Dimensions,
    probe: &mut dyn Probe,
) -> Tensor<3> {
    policy.traverse(embedding, &mut Stand::new(dimensions), &mut watching(probe))
}

/// A traversal of a model in use that a probe watches.
pub(crate) fn watching(probe: &mut dyn Probe) -> Traversal<'_> {
    Traversal { probe: Some(probe), ..Traversal::default() }
}

/// Asserts that two tensors agree, relative to the largest magnitude.
#[track_caller]
pub(crate) fn assert_close<const D: usize>(actual: Tensor<D>, expected: Tensor<D>, tolerance: f32) {
    assert_eq!(actual.dims(), expected.dims());
    assert_near(&values(actual), &values(expected), tolerance);
}

/// Asserts that two lists of numbers agree, relative to the largest magnitude.
#[track_caller]
pub(crate) fn assert_near(actual: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(actual.len(), expected.len());
    let scale = expected.iter().fold(f32::MIN_POSITIVE, |most, value| most.max(value.abs()));
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert!((a - e).abs() <= tolerance * scale, "element {i}: {a} is not {e} (scale {scale})");
    }
}

/// Asserts that a token's way through depth depends on that token alone: reordered tokens give
/// reordered results, and a token by itself gives what it gives among others.
#[track_caller]
pub(crate) fn assert_tokens_are_independent<R: Residual>(policy: &R, dimensions: &Dimensions) {
    let embedding = normal("tokens", [2, 3, dimensions.width]);
    let together = traverse(policy, embedding.clone(), dimensions);
    let reordered = traverse(policy, embedding.clone().flip([0, 1]), dimensions);
    assert_close(reordered.flip([0, 1]), together.clone(), 1e-5);
    let token = |x: Tensor<3>| x.narrow(0, 1, 1).narrow(1, 2, 1);
    assert_close(traverse(policy, token(embedding), dimensions), token(together), 1e-5);
}

/// Asserts that autodiff agrees with central differences for every element of every parameter and
/// of the embedding, the loss being a fixed linear form of the head's input along [`Stand`].
#[track_caller]
pub(crate) fn assert_gradients<C: PolicyConfig>(config: &C, dimensions: &Dimensions) {
    let shape = [1, 2, dimensions.width];
    let (embedding, form) = (normal("tokens", shape), normal("form", shape));

    let mut at = |name: &str, shape: &[usize]| Some(drawn(name, shape));
    let mut weights = Weights::stored(&mut at, &Device::flex().autodiff());
    let policy = config.init(dimensions, &mut weights);
    let names = weights.declared().into_iter().map(|d| (d.id, (d.name, d.shape))).collect();
    let leaf = embedding.clone().autodiff().require_grad();
    let loss = (traverse(&policy, leaf.clone(), dimensions) * form.clone()).sum();
    let mut found = Found { gradients: loss.backward(), names, found: Vec::new() };
    policy.visit(&mut found);
    let of_embedding = leaf.grad(&found.gradients).map(values);
    found.found.push(("tokens".into(), shape.to_vec(), of_embedding));

    // The embedding moves like a parameter of its own name.
    let loss_at = |moved: &str, element: usize, step: f32| -> f64 {
        let moved_from = |name: &str, mut elements: Vec<f32>| {
            if name == moved {
                elements[element] += step;
            }
            elements
        };
        let policy =
            chosen(config, dimensions, |name, shape| Some(moved_from(name, drawn(name, shape))));
        let tokens = moved_from("tokens", values(embedding.clone()));
        let tokens = Tensor::from_data(TensorData::new(tokens, shape), &Device::flex());
        let out = values(traverse(&policy, tokens, dimensions));
        out.iter().zip(values(form.clone())).map(|(o, f)| f64::from(*o) * f64::from(f)).sum()
    };
    // Fourth order, so that the step can be long enough for the rounding of f32 to cost only 1e-4.
    let step = 1e-2;
    for (name, shape, gradient) in found.found {
        let count: usize = shape.iter().product();
        // A parameter that nothing depends on has no gradient, and must not move the loss.
        let gradient = gradient.unwrap_or_else(|| vec![0.0; count]);
        for (i, got) in gradient.into_iter().enumerate() {
            let rise = |step| loss_at(&name, i, step) - loss_at(&name, i, -step);
            let slope = (8.0 * rise(step) - rise(2.0 * step)) / (12.0 * f64::from(step));
            let want = slope as f32;
            assert!(
                (got - want).abs() <= 1e-3 * want.abs().max(1.0),
                "{name}[{i}]: {got} is not {want}"
            );
        }
    }
}

/// Collects the gradient of every parameter under its name.
struct Found {
    gradients: Gradients,
    names: HashMap<ParamId, (String, Vec<usize>)>,
    found: Vec<(String, Vec<usize>, Option<Vec<f32>>)>,
}

impl ModuleVisitor for Found {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let (name, shape) = self.names[&param.id].clone();
        self.found.push((name, shape, param.val().grad(&self.gradients).map(values)));
    }
}

/// For [`chosen`]: the model's norms as [`random`] draws them, the policy's own parameters as they
/// start.
pub(crate) fn random_norms(name: &str, shape: &[usize]) -> Option<Vec<f32>> {
    name.ends_with("norm.weight").then(|| drawn(name, shape))
}

/// The sub-layers of Xiong et al. (arXiv 2002.04745) at initialisation: attention that averages all
/// tokens, and a ReLU network as wide as the stream, with matrices of variance `1/d`.
struct Toy {
    blocks: usize,
    seed: usize,
}

impl SubLayers for Toy {
    fn sites(&self) -> usize {
        2 * self.blocks
    }

    fn absent(&self, _: Site) -> bool {
        false
    }

    fn run(&mut self, site: Site, input: Tensor<3>, _: Option<&Route>) -> Tensor<3> {
        let shape = input.dims();
        let [_, _, width] = shape;
        let matrix = |part: &str| {
            let name = format!("toy.{}.{}.{part}", self.seed, site.index);
            normal(&name, [width, width]) * (1.0 / (width as f64).sqrt())
        };
        match site.kind() {
            SubLayerKind::Attention => {
                crate::pool::project(input.mean_dim(1).expand(shape), matrix("value"))
            }
            SubLayerKind::Mlp => {
                let hidden = relu(crate::pool::project(input, matrix("up")));
                crate::pool::project(hidden, matrix("down"))
            }
        }
    }
}

/// `E ||x||^2 / d` after each block of a policy whose reading is its stream, over three random
/// tokens and 48 draws of Xiong's sub-layers. A single draw can leave the bounds on the expectation.
pub(crate) fn growth_by_block<R: Residual>(policy: &R, dimensions: &Dimensions) -> Vec<f64> {
    const SEEDS: usize = 48;
    let mut growth = vec![0.0; dimensions.blocks];
    for seed in 0..SEEDS {
        let embedding = normal(&format!("toy.{seed}"), [1, 3, dimensions.width]);
        let mut seen = Recorder::of(&[Signal::Reading]);
        policy.traverse(
            embedding,
            &mut Toy { blocks: dimensions.blocks, seed },
            &mut watching(&mut seen),
        );
        let entering = (1..dimensions.blocks).map(|block| Place::Site(Site::new(2 * block)));
        for (sum, place) in growth.iter_mut().zip(entering.chain([Place::Out])) {
            let stream = seen.get(place, Signal::Reading).unwrap();
            *sum += f64::from(values(stream.square().mean())[0]) / SEEDS as f64;
        }
    }
    growth
}

/// Renaming three streams renames the state and nothing else. `renamed` makes the policy whose stream i is what
/// stream `order[i]` was.
pub(crate) fn assert_streams_can_be_renamed<R: Residual>(
    renamed: impl Fn([usize; 3], &Dimensions) -> R,
) {
    let dimensions = dimensions(8, 3);
    let embedding = normal("embedding", [2, 3, 8]);
    let order = [2, 0, 1];
    let [mut before, mut after] = [(); 2].map(|()| Recorder::of(&[Signal::Streams]));
    let expected =
        watched(&renamed([0, 1, 2], &dimensions), embedding.clone(), &dimensions, &mut before);
    let found = watched(&renamed(order, &dimensions), embedding, &dimensions, &mut after);
    // Sums over streams run in another order.
    assert_close(found, expected, 1e-4);
    for ((_, _, before), (_, _, after)) in before.seen.into_iter().zip(after.seen) {
        let old = order.map(|i| before.clone().narrow(2, i, 1)).to_vec();
        assert_close(after, Tensor::cat(old, 2), 1e-4);
    }
}

/// A fresh policy of four streams on a manifold reads and writes with the gates of the reference code, and mixes with
/// these weights on the diagonal and elsewhere.
pub(crate) fn assert_manifold_start<R: Residual>(policy: &R, diagonal: f32, elsewhere: f32) {
    const STREAMS: usize = 4;
    let dimensions = dimensions(8, 3);
    let mut seen = Recorder::of(&[Signal::PoolWeights, Signal::Gates, Signal::Mixing]);
    watched(policy, normal("embedding", [1, 1, 8]), &dimensions, &mut seen);
    for site in dimensions.each_site() {
        let found = |signal| values(seen.get(Place::Site(site), signal).unwrap());
        let mut pre = [0.268_941_42; STREAMS];
        pre[site.index % STREAMS] = 0.731_058_6;
        assert_near(&found(Signal::PoolWeights), &pre, 1e-6);
        assert_near(&found(Signal::Gates), &pre.map(|gate| 2.0 * gate), 1e-6);
        for (k, weight) in found(Signal::Mixing).into_iter().enumerate() {
            // The small weights deserve a tolerance of their own size.
            let (expected, tolerance) =
                if k / STREAMS == k % STREAMS { (diagonal, 1e-6) } else { (elsewhere, 1e-8) };
            assert!((weight - expected).abs() < tolerance, "element {k} is {weight}");
        }
    }
}
