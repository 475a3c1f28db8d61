//! The one idea everything rests on: a depth state flows past a row of sub-layers, and a policy
//! decides how each sub-layer reads from it and how its output is written back.

use crate::fused::{Fused, FusedDecode, FusedOptions, Junction, Memory, junctions};
use crate::probe::{Place, Signal, show};
use crate::site::{Site, SubLayerKind};
use crate::skip::{Skipping, StepMode};
use crate::traversal::Traversal;
use burn::module::Module;
use burn::tensor::Tensor;
use hadal_cpu::Route;
use hadal_cpu::streams::{Footprint, Stream};
use hadal_kernels::fuses;

/// What a sub-layer is given, and what the policy wants back when it has run.
pub struct Read<Ticket> {
    /// The sub-layer's input, already normalised if the policy normalises: `[B, T, d]`, or `[B, T, 3 d]` where an
    /// attention has inputs of its own for queries, keys and values, side by side.
    pub input: Tensor<3>,
    /// The tokens that run the sub-layer; `None` for all.
    pub route: Option<Route>,
    /// What reading computed that writing needs: gates, a normalised stream, or nothing.
    pub ticket: Ticket,
}

impl<Ticket> Read<Ticket> {
    /// A reading for every token.
    pub fn all(input: Tensor<3>, ticket: Ticket) -> Self {
        Self { input, route: None, ticket }
    }

    /// A reading for every token, of an attention whose queries, keys and values are made of different inputs.
    ///
    /// # Shapes
    /// - `inputs`: of queries, keys and values, `[B, T, d]` each
    pub fn apart(inputs: [Tensor<3>; 3], ticket: Ticket) -> Self {
        Self::all(Tensor::cat(inputs.to_vec(), 2), ticket)
    }
}

/// A way to carry information through depth.
///
/// Nothing here mixes tokens: what flows through depth at a token depends on that token alone. So
/// one implementation serves training, prefill and one-token decoding, and no policy needs a cache.
pub trait Residual: Module {
    /// What flows through depth. It has one owner and is moved.
    type State;
    /// Travels from a site's read to its write.
    type Ticket;

    /// The state before the first sub-layer.
    ///
    /// # Shapes
    /// - `embedding`: `[B, T, d]`
    fn open(&self, embedding: Tensor<3>) -> Self::State;

    /// What the sub-layer at `site` is given.
    fn read(
        &self,
        site: Site,
        state: &Self::State,
        traversal: &mut Traversal,
    ) -> Read<Self::Ticket>;

    /// The state after the sub-layer at `site` returned `output`, of shape `[B, T, d]`. What it holds for
    /// tokens that were not on the route has no meaning.
    fn write(
        &self,
        site: Site,
        state: Self::State,
        ticket: Self::Ticket,
        output: Tensor<3>,
        traversal: &mut Traversal,
    ) -> Self::State;

    /// The state when the sub-layer at `site` is absent: it neither reads nor writes.
    ///
    /// Overridden where something other than the sub-layer happens at the site, such as the end of
    /// a block.
    fn without(&self, _site: Site, state: Self::State) -> Self::State {
        state
    }

    /// Why the site cannot be absent, if it cannot.
    fn required_because(&self, _site: Site) -> Option<&'static str> {
        None
    }

    /// Sets when tokens skip. Only called for policies whose settings take it.
    fn set_skipping(&mut self, _skipping: Option<Skipping>) {}

    /// What one block hands to the next at a place between them, where that is not what is read there: all streams of
    /// a state that has several, or a sum that is not finished yet. For watchers that compare blocks.
    ///
    /// # Shapes
    /// - output: `[B, T, n, d]`
    fn between(&self, _place: Place, _state: &Self::State) -> Option<Tensor<4>> {
        None
    }

    /// A loss of the policy's own, to be learned from besides the model's.
    fn extra_loss(&self, _state: &Self::State) -> Option<Tensor<1>> {
        None
    }

    /// What the head multiplies: the read-out after the final norm.
    ///
    /// # Shapes
    /// - output: `[B, T, d]`
    fn close(&self, state: Self::State, traversal: &mut Traversal) -> Tensor<3>;

    /// The same policy as a stream that is carried past these junctions, if it has such a form. No parameter is made or
    /// read for it, so what a stream holds is known of models of any size.
    fn as_stream(
        &self,
        _junctions: &[Junction],
        _options: &FusedOptions,
    ) -> Option<Box<dyn Stream>> {
        None
    }

    /// The parameters of each junction, in the layout of the stream.
    fn stream_params(&self, _junctions: &[Junction], _options: &FusedOptions) -> Vec<Tensor<1>> {
        Vec::new()
    }

    /// The same policy as one fused operation for each junction, if it has such a form.
    fn fused(&self, junctions: &[Junction], options: &FusedOptions) -> Option<Fused> {
        let stream = self.as_stream(junctions, options)?;
        Some(Fused { stream, params: self.stream_params(junctions, options) })
    }

    /// What the fused form past so many sub-layers holds of each token, if there is one.
    fn footprint(&self, sites: usize, memory: Memory) -> Option<Footprint> {
        let present: Vec<Site> = (0..sites).map(Site::new).collect();
        let options = FusedOptions { mode: &StepMode::default(), memory, keep: true };
        Some(self.as_stream(&junctions(&present), &options)?.footprint())
    }

    /// The same policy for one token at a time past these sub-layers, if it has a fused form. It stays as it is now: what
    /// is changed in the policy afterwards does not reach it.
    fn decode(&self, present: &[Site], mode: &StepMode) -> Option<FusedDecode> {
        let options = FusedOptions { mode, memory: Memory::default(), keep: false };
        self.fused(&junctions(present), &options)?.decode()
    }

    /// From the embedding to the head's input, past every sub-layer: through the fused form if there is
    /// one and nothing watches, or else step by step, which defines what is computed.
    ///
    /// # Shapes
    /// - `embedding` and output: `[B, T, d]`
    fn traverse(
        &self,
        embedding: Tensor<3>,
        layers: &mut dyn SubLayers,
        traversal: &mut Traversal,
    ) -> Tensor<3> {
        let device = embedding.device();
        if fuses(&device) && !traversal.is_watched() {
            let sites = (0..layers.sites()).map(Site::new);
            let present: Vec<Site> = sites.filter(|&site| !layers.absent(site)).collect();
            // What is given may be a constant to a policy that learns.
            let keep = device.is_autodiff() || self.devices().iter().any(|d| d.is_autodiff());
            let Traversal { mode, memory, .. } = *traversal;
            let options = FusedOptions { mode, memory, keep };
            if let Some(fused) = self.fused(&junctions(&present), &options) {
                return fused.traverse(embedding, layers, &present, traversal);
            }
        }
        show(traversal, Place::Site(Site::new(0)), Signal::Embedding, || embedding.clone());
        let mut state = self.open(embedding);
        let show_between = |place: Place, state: &Self::State, traversal: &mut Traversal| {
            if traversal.wants(Signal::Between)
                && let Some(between) = self.between(place, state)
            {
                traversal.record(place, Signal::Between, between);
            }
        };
        for site in (0..layers.sites()).map(Site::new) {
            if site.kind() == SubLayerKind::Attention {
                show_between(Place::Site(site), &state, traversal);
            }
            if layers.absent(site) {
                state = self.without(site, state);
                continue;
            }
            let Read { input, route, ticket } = self.read(site, &state, traversal);
            if traversal.wants(Signal::FirstToken)
                && let Some(share) = layers.first_token(site, &input)
            {
                traversal.record(Place::Site(site), Signal::FirstToken, share);
            }
            let output = traversal.tap(site, layers.run(site, input, route.as_ref()));
            show(traversal, Place::Site(site), Signal::Write, || output.clone());
            state = self.write(site, state, ticket, output, traversal);
        }
        if let Some(loss) = self.extra_loss(&state) {
            layers.learn(loss);
        }
        show_between(Place::Out, &state, traversal);
        self.close(state, traversal)
    }
}

/// The row of sub-layers that a traversal passes: bare functions without norms or residual connections.
pub trait SubLayers {
    /// How many there are.
    fn sites(&self) -> usize;

    /// Whether the traversal leaves this one out.
    fn absent(&self, site: Site) -> bool;

    /// How much of its attention each head would give to the first token, if this is an attention.
    ///
    /// # Shapes
    /// - `input`: as in [`Read`]
    /// - output: `[B, T, heads, 1]`
    fn first_token(&self, _site: Site, _input: &Tensor<3>) -> Option<Tensor<4>> {
        None
    }

    /// Applies the sub-layer to the tokens on the route, or to all if there is none. The rest of the output
    /// has no meaning.
    ///
    /// # Shapes
    /// - `input`: as in [`Read`]
    /// - output: `[B, T, d]`
    fn run(&mut self, site: Site, input: Tensor<3>, route: Option<&Route>) -> Tensor<3>;

    /// Receives a loss of the policy's own.
    fn learn(&mut self, _extra_loss: Tensor<1>) {}
}
