//! One stream to which every sub-layer adds: the module of PreNorm, LayerNorm Scaling, PostNorm, DeepNorm, Mix-LN and
//! Sandwich.
//!
//! They differ in the places of their norms. At sub-layer l
//!
//! `x' = after_l(carry_l x + write_l(sub_l(scale_l before_l(x))))`
//!
//! where each of the three norms may be missing, and the head reads `final_norm(x)`, or x where there is none.

use crate::fused::{Fused, FusedOptions, Junction, join_any};
use crate::norm::{RmsNorm, final_norm, sub_layer_norms};
use crate::policy::Cost;
use crate::probe::{Place, Signal, show};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site};
use crate::traversal::Traversal;
use crate::weights::Weights;
use burn::module::Module;
use burn::tensor::Tensor;
use hadal_cpu::streams::{Additive as Stream, AdditiveStep};

/// The stream's norms and weights.
#[derive(Module, Debug)]
pub struct Additive {
    sites: Vec<AdditiveSite>,
    final_norm: Option<RmsNorm>,
    width: usize,
    eps: f64,
}

/// What happens around one sub-layer.
#[derive(Module, Debug)]
pub(crate) struct AdditiveSite {
    /// Normalises what the sub-layer is given.
    pub(crate) before: Option<RmsNorm>,
    /// Factor on that input.
    pub(crate) scale: f64,
    /// Normalises the sub-layer's output.
    pub(crate) write: Option<RmsNorm>,
    /// Weight of the stream when the write is added to it.
    pub(crate) carry: f64,
    /// Normalises the sum.
    pub(crate) after: Option<RmsNorm>,
}

impl AdditiveSite {
    /// PreNorm: the sub-layer reads through the norm.
    pub(crate) fn pre(norm: RmsNorm) -> Self {
        Self { before: Some(norm), scale: 1.0, write: None, carry: 1.0, after: None }
    }

    /// PostNorm: the sum is normalised.
    pub(crate) fn post(norm: RmsNorm) -> Self {
        Self { before: None, scale: 1.0, write: None, carry: 1.0, after: Some(norm) }
    }
}

impl Additive {
    /// One norm for each sub-layer, which `site` puts in its place, and none before the head.
    pub(crate) fn new(
        dimensions: &Dimensions,
        weights: &mut Weights,
        mut site: impl FnMut(Site, RmsNorm) -> AdditiveSite,
    ) -> Self {
        let norms = sub_layer_norms(dimensions, weights);
        Self {
            sites: dimensions.each_site().zip(norms).map(|(at, norm)| site(at, norm)).collect(),
            final_norm: None,
            width: dimensions.width,
            eps: dimensions.norm_eps,
        }
    }

    /// The same with a norm before the head.
    pub(crate) fn with_final_norm(self, dimensions: &Dimensions, weights: &mut Weights) -> Self {
        Self { final_norm: Some(final_norm(dimensions, weights)), ..self }
    }

    /// The norm before a reader and its factor, if it has one.
    fn before(&self, reader: Place) -> Option<(&RmsNorm, f64)> {
        match reader {
            Place::Site(site) => {
                let AdditiveSite { before, scale, .. } = &self.sites[site.index];
                Some((before.as_ref()?, *scale))
            }
            Place::Out => Some((self.final_norm.as_ref()?, 1.0)),
        }
    }
}

/// A norm and an addition at each sub-layer, and the final norm; one stream is kept at each read.
pub(crate) fn additive_cost(dimensions: &Dimensions) -> Cost {
    let (d, sites) = (dimensions.width as u64, dimensions.sites() as u64);
    Cost { flops: sites * (Cost::norm(d) + d) + Cost::norm(d), state: d, saved: (sites + 1) * d }
}

/// The same with a multiplication of the stream at each sub-layer.
pub(crate) fn with_scaling(cost: Cost, dimensions: &Dimensions) -> Cost {
    Cost { flops: cost.flops + dimensions.sites() as u64 * dimensions.width as u64, ..cost }
}

impl Residual for Additive {
    type State = Tensor<3>;
    type Ticket = ();

    fn open(&self, embedding: Tensor<3>) -> Tensor<3> {
        embedding
    }

    fn read(&self, site: Site, x: &Tensor<3>, traversal: &mut Traversal) -> Read<()> {
        show(traversal, Place::Site(site), Signal::Reading, || x.clone());
        let input = match self.before(Place::Site(site)) {
            None => x.clone(),
            Some((norm, 1.0)) => norm.forward(x.clone()),
            Some((norm, scale)) => norm.forward(x.clone()) * scale,
        };
        Read::all(input, ())
    }

    fn write(&self, site: Site, x: Tensor<3>, _: (), y: Tensor<3>, _: &mut Traversal) -> Tensor<3> {
        let AdditiveSite { write, carry, after, .. } = &self.sites[site.index];
        let y = match write {
            Some(norm) => norm.forward(y),
            None => y,
        };
        let sum = if *carry == 1.0 { x + y } else { x * *carry + y };
        match after {
            Some(norm) => norm.forward(sum),
            None => sum,
        }
    }

    fn fused(&self, junctions: &[Junction], options: &FusedOptions) -> Option<Fused> {
        let (mut steps, mut params) = (Vec::new(), Vec::new());
        for junction in junctions {
            let writer = junction.from.map(|site| &self.sites[site.index]);
            let write = writer.and_then(|site| site.write.as_ref());
            let after = writer.and_then(|site| site.after.as_ref());
            let before = self.before(junction.to);
            steps.push(AdditiveStep {
                write_norm: write.map(|_| 1.0),
                carry: writer.map_or(1.0, |site| site.carry as f32),
                post: after.is_some(),
                pre: before.map(|(_, scale)| scale as f32),
            });
            let norms = write.into_iter().chain(after).chain(before.map(|(norm, _)| norm));
            params.push(norms.map(RmsNorm::gain).collect::<Vec<_>>());
        }
        let device = params.iter().flatten().next()?.device();
        let params = params.into_iter().map(|gains| join_any(gains, &device)).collect();
        let stream = Stream::new(self.width, self.eps as f32, steps, options.keep);
        Some(Fused { stream: Box::new(stream), params })
    }

    fn close(&self, x: Tensor<3>, traversal: &mut Traversal) -> Tensor<3> {
        show(traversal, Place::Out, Signal::Reading, || x.clone());
        match &self.final_norm {
            Some(norm) => norm.forward(x),
            None => x,
        }
    }
}
