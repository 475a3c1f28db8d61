//! The common part of HC, mHC and mHC-lite: n streams that are mixed into one reading, mixed into each other, and
//! written to with a weight per stream. They differ in how a site finds the weights.

use crate::fused::{Fused, FusedOptions, Junction, gain, join};
use crate::norm::{RmsNorm, final_norm, sub_layer_norms};
use crate::policy::Cost;
use crate::probe::{Place, Signal, show, show_streams, steer_per_stream};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site};
use crate::traversal::Traversal;
use crate::weights::Weights;
use burn::module::{Module, ModuleDisplay};
use burn::tensor::Tensor;
use hadal_cpu::streams::{Mixing, MixingKind};

/// A site that finds its mixing weights from the streams.
pub trait Mixer: Module + ModuleDisplay {
    /// # Shapes
    /// - `streams`: `[B, T, n, d]`
    fn mix(&self, streams: &Tensor<4>) -> Mix;

    /// How the fused form finds the weights.
    fn kind(&self) -> MixingKind;

    /// The parameters of the fused form, after the reader's gain.
    fn params(&self) -> Vec<Tensor<1>>;
}

/// How one site treats the streams of each token.
pub struct Mix {
    /// Weight of each stream in the reading. `[B, T, n]`
    pub pre: Tensor<3>,
    /// `[target, source]` weights from old to new streams. `[B, T, n, n]`
    pub res: Tensor<4>,
    /// Weight of the write in each stream. `[B, T, n]`
    pub post: Tensor<3>,
}

impl Mix {
    /// Shows the weights to the probe.
    fn show(&self, site: Site, traversal: &mut Traversal) {
        let place = Place::Site(site);
        show_streams(traversal, place, Signal::PoolWeights, || self.pre.clone().unsqueeze_dim(3));
        show_streams(traversal, place, Signal::Mixing, || self.res.clone());
        show_streams(traversal, place, Signal::Gates, || self.post.clone().unsqueeze_dim(3));
    }

    /// What the probe makes of the weights.
    fn steered(self, site: Site, traversal: &mut Traversal) -> Self {
        let place = Place::Site(site);
        Self {
            pre: steer_per_stream(traversal, place, Signal::PoolWeights, self.pre),
            res: traversal.steer(place, Signal::Mixing, self.res),
            post: steer_per_stream(traversal, place, Signal::Gates, self.post),
        }
    }

    /// `h = sum_i pre_i H_i`.
    ///
    /// # Shapes
    /// - `streams`: `[B, T, n, d]`
    /// - output: `[B, T, d]`
    fn read(&self, streams: Tensor<4>) -> Tensor<3> {
        self.pre.clone().unsqueeze_dim::<4>(2).matmul(streams).squeeze_dim(2)
    }

    /// `H'_i = sum_j res_ij H_j + post_i f`.
    ///
    /// # Shapes
    /// - `streams` and output: `[B, T, n, d]`
    /// - `output`: `[B, T, d]`
    fn write(self, streams: Tensor<4>, output: Tensor<3>) -> Tensor<4> {
        let written = self.post.unsqueeze_dim::<4>(3) * output.unsqueeze_dim::<4>(2);
        self.res.matmul(streams) + written
    }
}

/// `h = sum_i pre_i H_i; H'_i = sum_j res_ij H_j + post_i F_l(h)`, from n copies of the embedding to
/// the sum of the streams.
#[derive(Module, Debug)]
pub struct MixedStreams<M: Mixer> {
    norms: Vec<RmsNorm>,
    sites: Vec<M>,
    final_norm: RmsNorm,
    streams: usize,
}

impl<M: Mixer> MixedStreams<M> {
    /// `streams` streams, mixed at each site as `site` says.
    pub(crate) fn new(
        streams: usize,
        dimensions: &Dimensions,
        weights: &mut Weights,
        mut site: impl FnMut(Site, &mut Weights) -> M,
    ) -> Self {
        Self {
            norms: sub_layer_norms(dimensions, weights),
            sites: dimensions.each_site().map(|at| site(at, weights)).collect(),
            final_norm: final_norm(dimensions, weights),
            streams,
        }
    }
}

impl<M: Mixer> Residual for MixedStreams<M> {
    /// `[B, T, n, d]`
    type State = Tensor<4>;
    type Ticket = Mix;

    fn open(&self, embedding: Tensor<3>) -> Tensor<4> {
        embedding.unsqueeze_dim::<4>(2).repeat_dim(2, self.streams)
    }

    fn read(&self, site: Site, streams: &Tensor<4>, traversal: &mut Traversal) -> Read<Mix> {
        let mix = self.sites[site.index].mix(streams).steered(site, traversal);
        let h = mix.read(streams.clone());
        show(traversal, Place::Site(site), Signal::Reading, || h.clone());
        mix.show(site, traversal);
        Read::all(self.norms[site.index].forward(h), mix)
    }

    fn write(
        &self,
        site: Site,
        streams: Tensor<4>,
        mix: Mix,
        output: Tensor<3>,
        traversal: &mut Traversal,
    ) -> Tensor<4> {
        let streams =
            traversal.steer(Place::Site(site), Signal::Streams, mix.write(streams, output));
        show_streams(traversal, Place::Site(site), Signal::Streams, || streams.clone());
        streams
    }

    fn fused(&self, junctions: &[Junction], options: &FusedOptions) -> Option<Fused> {
        let reader = |junction: &Junction| {
            let mut parts = vec![gain(&self.norms, &self.final_norm, junction.to)];
            if let Place::Site(site) = junction.to {
                parts.extend(self.sites[site.index].params());
            }
            join(parts)
        };
        let params = junctions.iter().map(reader).collect();
        let (width, eps) = (self.final_norm.gain().dims()[0], self.final_norm.eps() as f32);
        let kind = self.sites.first()?.kind();
        let stream = Mixing::new(kind, self.streams, width, eps, junctions.len() - 1, options.keep);
        Some(Fused { stream: Box::new(stream), params })
    }

    fn close(&self, streams: Tensor<4>, traversal: &mut Traversal) -> Tensor<3> {
        let out: Tensor<3> = streams.sum_dim(2).squeeze_dim(2);
        show(traversal, Place::Out, Signal::Reading, || out.clone());
        self.final_norm.forward(out)
    }
}

/// Cost of mixing n streams, where finding the weights takes `weights` FLOPs at each site.
pub(crate) fn mixing_cost(dimensions: &Dimensions, n: u64, weights: u64) -> Cost {
    let (d, sites) = (dimensions.width as u64, dimensions.sites() as u64);
    let mixing = 2 * n * d + 2 * n * n * d + 2 * n * d;
    Cost {
        flops: sites * (weights + mixing + Cost::norm(d)) + n * d + Cost::norm(d),
        state: n * d,
        // The streams at every site, and every write.
        saved: sites * (n + 1) * d + d,
    }
}
