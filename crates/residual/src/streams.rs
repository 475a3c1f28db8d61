//! The common part of HC, mHC and mHC-lite: n streams that are mixed into one reading, mixed into each other, and
//! written to with a weight per stream. They differ in how a site finds the weights.
//!
//! Their forms: no mixing; read-outs other than the sum; single pass, where a reader uses the weights that the site
//! before it found and the first one reads stream 0; streams that start as scaled embeddings instead of copies.

use crate::fused::{FusedOptions, Junction, gain, join};
use crate::manifold::GatedReadOut;
use crate::norm::{RmsNorm, final_norm, sub_layer_norms};
use crate::policy::{Cost, Update};
use crate::probe::{Place, Signal, show, show_per_stream, show_streams, steer_per_stream};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site};
use crate::traversal::Traversal;
use crate::weights::{Init, Weights};
use burn::module::{Module, ModuleDisplay, Param};
use burn::tensor::{Device, Tensor};
use hadal_cpu::streams::{Mixing, MixingForm, MixingReadOut, Stream};
use hadal_kernels::{mix_streams, read_streams};

/// The name of the scales that streams start with.
pub(crate) const STREAM_SCALE: &str = "residual.stream_scale";

/// A site that finds its mixing weights from the streams.
pub trait Mixer: Module + ModuleDisplay {
    /// # Shapes
    /// - `streams`: `[B, T, n, d]`
    fn mix(&self, streams: &Tensor<4>) -> Mix;

    /// How the fused form finds the weights; what is not the site's is left as the paper has it.
    fn form(&self) -> MixingForm;

    /// The parameters of the fused form, after the reader's gain.
    fn params(&self) -> Vec<Tensor<1>>;
}

/// How one site treats the streams of each token.
pub struct Mix {
    /// Weight of each stream in the reading. `[B, T, n]`
    pub pre: Tensor<3>,
    /// `[target, source]` weights from old to new streams; none if streams are not mixed. `[B, T, n, n]`
    pub res: Option<Tensor<4>>,
    /// Weight of the write in each stream. `[B, T, n]`
    pub post: Tensor<3>,
}

impl Mix {
    /// Shows the weights of writing and mixing to the probe.
    fn show(&self, site: Site, traversal: &mut Traversal) {
        let place = Place::Site(site);
        show_streams(traversal, place, Signal::Mixing, || match &self.res {
            Some(res) => res.clone(),
            None => {
                let [batch, time, n] = self.post.dims();
                let identity = Tensor::<2>::eye(n, &self.post.device());
                identity.reshape([1, 1, n, n]).expand([batch, time, n, n])
            }
        });
        show_per_stream(traversal, place, Signal::Gates, || self.post.clone());
    }

    /// What the probe makes of the weights of writing and mixing.
    fn steered(self, site: Site, traversal: &mut Traversal) -> Self {
        let place = Place::Site(site);
        Self {
            res: self.res.map(|res| traversal.steer(place, Signal::Mixing, res)),
            post: steer_per_stream(traversal, place, Signal::Gates, self.post),
            ..self
        }
    }

    /// `H'_i = sum_j res_ij H_j + post_i f`.
    ///
    /// # Shapes
    /// - `streams` and output: `[B, T, n, d]`
    /// - `output`: `[B, T, d]`
    fn write(self, streams: Tensor<4>, output: Tensor<3>) -> Tensor<4> {
        mix_streams(self.res, self.post, streams, output)
    }
}

/// What does not depend on how a site finds its weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamForm {
    /// Number of streams.
    pub(crate) streams: usize,
    /// Whether streams are mixed with each other.
    pub(crate) mixes: bool,
    /// How the head reads, and whether readers use the weights that the site before found.
    pub(crate) readout: MixingReadOut,
    /// Whether streams start as scaled embeddings.
    pub(crate) stream_scale: bool,
}

impl StreamForm {
    /// Cost of n streams, where finding the weights takes `weights` FLOPs at each site.
    pub(crate) fn cost(&self, dimensions: &Dimensions, weights: u64) -> Cost {
        let (d, sites) = (dimensions.width as u64, dimensions.sites() as u64);
        let n = self.streams as u64;
        let mixing = 2 * n * d + if self.mixes { 2 * n * n * d } else { 0 } + 2 * n * d;
        let readout = match self.readout {
            MixingReadOut::Sum => n * d,
            MixingReadOut::Mean => n * d + d,
            MixingReadOut::HandedOn => 2 * n * d,
            MixingReadOut::Gated => Cost::rms(n * d) + 2 * n * n * d + 2 * n * d,
        };
        let scaled = if self.stream_scale { n * d } else { 0 };
        let flops = sites * (weights + mixing + Cost::norm(d)) + readout + scaled + Cost::norm(d);
        Cost { flops, state: n * d }
    }
}

/// How the optimiser moves a parameter of streams: scales start around a number that they must not decay from.
pub(crate) fn update(name: &str, shape: &[usize]) -> Update {
    if name == STREAM_SCALE { Update::Plain } else { Update::by_shape(shape) }
}

/// `h = sum_i pre_i H_i; H'_i = sum_j res_ij H_j + post_i F_l(h)`, from n copies of the embedding to
/// the sum of the streams.
#[derive(Module, Debug)]
pub struct MixedStreams<M: Mixer> {
    norms: Vec<RmsNorm>,
    stream_scale: Option<Param<Tensor<2>>>,
    sites: Vec<M>,
    out: Option<GatedReadOut>,
    final_norm: RmsNorm,
    streams: usize,
    #[module(skip)]
    readout: MixingReadOut,
}

impl<M: Mixer> MixedStreams<M> {
    /// Streams that are mixed at each site as `site` says, and read out as `out` says if that has gates.
    pub(crate) fn new(
        form: StreamForm,
        dimensions: &Dimensions,
        weights: &mut Weights,
        mut site: impl FnMut(Site, &mut Weights) -> M,
        out: impl FnOnce(&mut Weights) -> Option<GatedReadOut>,
    ) -> Self {
        let (n, d) = (form.streams, dimensions.width);
        // Xavier's bound around the start of Learned Stream Scaling's code (arXiv 2606.03483).
        let start = Init::Uniform { around: 0.6, bound: (6.0 / (n + d) as f64).sqrt() };
        Self {
            norms: sub_layer_norms(dimensions, weights),
            stream_scale: form.stream_scale.then(|| weights.param(STREAM_SCALE, [n, d], start)),
            sites: dimensions.each_site().map(|at| site(at, weights)).collect(),
            out: out(weights),
            final_norm: final_norm(dimensions, weights),
            streams: n,
            readout: form.readout,
        }
    }

    /// Reading stream 0 alone, as the first reader of a single pass does.
    fn first_stream(&self, [batch, time]: [usize; 2], device: &Device) -> Tensor<3> {
        let mut pick = vec![0f32; self.streams];
        pick[0] = 1.0;
        let pick = Tensor::<1>::from_floats(pick.as_slice(), device);
        pick.reshape([1, 1, self.streams]).expand([batch, time, self.streams])
    }
}

/// The streams of every token.
pub struct StreamState {
    /// `[B, T, n, d]`
    pub streams: Tensor<4>,
    /// In a single pass, the weights that the next reader reads with. A site that is absent leaves them as they are.
    /// `[B, T, n]`
    handed_on: Option<Tensor<3>>,
}

/// Streams whose readers find weights of their own.
impl From<Tensor<4>> for StreamState {
    fn from(streams: Tensor<4>) -> Self {
        Self { streams, handed_on: None }
    }
}

impl<M: Mixer> Residual for MixedStreams<M> {
    type State = StreamState;
    type Ticket = Mix;

    fn open(&self, embedding: Tensor<3>) -> StreamState {
        let [batch, time, _] = embedding.dims();
        let handed_on = (self.readout == MixingReadOut::HandedOn)
            .then(|| self.first_stream([batch, time], &embedding.device()));
        let streams = match &self.stream_scale {
            None => embedding.unsqueeze_dim::<4>(2).repeat_dim(2, self.streams),
            Some(scale) => embedding.unsqueeze_dim::<4>(2) * scale.val().unsqueeze(),
        };
        StreamState { streams, handed_on }
    }

    fn read(&self, site: Site, state: &StreamState, traversal: &mut Traversal) -> Read<Mix> {
        let mix = self.sites[site.index].mix(&state.streams).steered(site, traversal);
        let pre = state.handed_on.as_ref().unwrap_or(&mix.pre).clone();
        let pre = steer_per_stream(traversal, Place::Site(site), Signal::PoolWeights, pre);
        let h = read_streams(pre.clone(), state.streams.clone());
        show(traversal, Place::Site(site), Signal::Reading, || h.clone());
        show_per_stream(traversal, Place::Site(site), Signal::PoolWeights, || pre.clone());
        mix.show(site, traversal);
        Read::all(self.norms[site.index].forward(h), mix)
    }

    fn write(
        &self,
        site: Site,
        state: StreamState,
        mix: Mix,
        output: Tensor<3>,
        traversal: &mut Traversal,
    ) -> StreamState {
        let handed_on = state.handed_on.map(|_| mix.pre.clone());
        let written = mix.write(state.streams, output);
        let streams = traversal.steer(Place::Site(site), Signal::Streams, written);
        show_streams(traversal, Place::Site(site), Signal::Streams, || streams.clone());
        StreamState { streams, handed_on }
    }

    fn between(&self, _: Place, state: &StreamState) -> Option<Tensor<4>> {
        Some(state.streams.clone())
    }

    fn stream_params(&self, junctions: &[Junction], _: &FusedOptions) -> Vec<Tensor<1>> {
        let reader = |(index, junction): (usize, &Junction)| {
            let mut parts = vec![gain(&self.norms, &self.final_norm, junction.to)];
            match junction.to {
                Place::Site(site) => parts.extend(self.sites[site.index].params()),
                Place::Out => parts.extend(self.out.iter().flat_map(GatedReadOut::params)),
            }
            if let Some(scale) = self.stream_scale.as_ref().filter(|_| index == 0) {
                parts.push(scale.val().flatten(0, 1));
            }
            join(parts)
        };
        junctions.iter().enumerate().map(reader).collect()
    }

    fn as_stream(&self, junctions: &[Junction], options: &FusedOptions) -> Option<Box<dyn Stream>> {
        let (width, eps) = (self.final_norm.width(), self.final_norm.eps() as f32);
        let form = MixingForm {
            readout: self.readout,
            stream_scale: self.stream_scale.is_some(),
            ..self.sites.first()?.form()
        };
        let sites = junctions.len() - 1;
        Some(Box::new(Mixing::new(form, self.streams, width, eps, sites, options.keep)))
    }

    fn close(&self, state: StreamState, traversal: &mut Traversal) -> Tensor<3> {
        let StreamState { streams, handed_on } = state;
        let [batch, time, n, _] = streams.dims();
        let weights = match self.readout {
            MixingReadOut::Sum => None,
            MixingReadOut::Mean => {
                Some(Tensor::full([batch, time, n], 1.0 / n as f32, &streams.device()))
            }
            MixingReadOut::Gated => self.out.as_ref().map(|out| out.weights(&streams)),
            MixingReadOut::HandedOn => handed_on,
        };
        let weights = weights
            .map(|weights| steer_per_stream(traversal, Place::Out, Signal::PoolWeights, weights));
        let out: Tensor<3> = match &weights {
            None => streams.sum_dim(2).squeeze_dim(2),
            Some(weights) => read_streams(weights.clone(), streams),
        };
        show(traversal, Place::Out, Signal::Reading, || out.clone());
        if let Some(weights) = weights {
            show_per_stream(traversal, Place::Out, Signal::PoolWeights, || weights);
        }
        self.final_norm.forward(out)
    }
}
