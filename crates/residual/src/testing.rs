//! What the tests of several policies share.

use crate::policy::PolicyConfig;
use crate::probe::{Probe, Silent};
use crate::residual::{Residual, SubLayers};
use crate::site::{Dimensions, Site};
use crate::weights::{Init, Weights};
use burn::tensor::{Device, Tensor};

/// A small model's dimensions.
pub(crate) fn dimensions(width: usize, blocks: usize) -> Dimensions {
    Dimensions { width, blocks, norm_eps: 1e-6 }
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
    chosen(config, dimensions, |name, shape| {
        let count: usize = shape.iter().product();
        let around = if name.contains("norm") { 1.0 } else { 0.0 };
        Some(values(normal(name, [count]) * 0.5 + around))
    })
}

/// Sub-layers that stand in for attention and MLPs: `tanh(x W_l)` with a matrix for each site, so
/// they are nonlinear, differ from each other and never mix tokens.
pub(crate) struct Stand {
    sites: usize,
    absent: Vec<Site>,
}

impl Stand {
    pub(crate) fn new(dimensions: &Dimensions) -> Self {
        Self { sites: dimensions.sites(), absent: Vec::new() }
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

    fn run(&mut self, site: Site, input: Tensor<3>) -> Tensor<3> {
        let [_, _, width] = input.dims();
        let matrix = normal(&format!("stand.{}", site.index), [width, width]);
        crate::pool::project(input, matrix * (1.0 / (width as f64).sqrt())).tanh()
    }
}

/// The head's input after a traversal along [`Stand`].
pub(crate) fn traverse<R: Residual>(
    policy: &R,
    embedding: Tensor<3>,
    dimensions: &Dimensions,
) -> Tensor<3> {
    policy.traverse(embedding, &mut Stand::new(dimensions), &mut Silent)
}

/// The same, watched.
pub(crate) fn watched<R: Residual>(
    policy: &R,
    embedding: Tensor<3>,
    dimensions: &Dimensions,
    probe: &mut dyn Probe,
) -> Tensor<3> {
    policy.traverse(embedding, &mut Stand::new(dimensions), probe)
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
