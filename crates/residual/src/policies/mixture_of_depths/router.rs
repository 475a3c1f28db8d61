//! Which tokens run a routed block.
//!
//! Which tokens are among the top k depends on later tokens, which a text that is being generated does not have. So
//! the top k decide only while the model learns. Otherwise a small network guesses from the token alone:
//! it runs if `v . relu(U rms(x_t) + b) + c > 0`. The network learns by cross-entropy whether the token was
//! among the top k, from a detached x: nothing else learns from it.

use crate::policy::Cost;
use crate::pool::project;
use crate::probe::{Place, Signal, show};
use crate::site::{Dimensions, Site};
use crate::skip::skipped;
use crate::traversal::Traversal;
use crate::weights::{Init, Weights};
use burn::module::{Module, Param};
use burn::tensor::{Bool, Tensor, TensorData, activation::relu};
use hadal_cpu::Route;
use hadal_kernels::{read_back, rms};

/// Hidden features of a predictor.
const HIDDEN: usize = 32;
/// Where every token runs, a predictor starts this sure of it.
const SURE: f64 = 7.0;
/// Products such as 0.07 x 100 must not be rounded up to the next token.
const ROUNDING: f64 = 1e-9;

/// Which blocks are routed, and for how many tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Routing {
    /// Share of a sequence's tokens that run.
    pub(crate) capacity: f64,
    /// One block in every `every` is routed: the last of them.
    pub(crate) every: usize,
}

impl Routing {
    /// Whether a block is routed: every other one, beginning with the second, if `every` is 2.
    pub(crate) fn routes(&self, block: usize, dimensions: &Dimensions) -> bool {
        (dimensions.depth_of(block) + 1).is_multiple_of(self.every)
    }

    /// Tokens of a sequence that run a routed block.
    pub(crate) fn running(&self, time: usize) -> usize {
        ((self.capacity * time as f64 - ROUNDING).ceil() as usize).clamp(1, time.max(1))
    }

    /// FLOPs of a router and its predictor, for each token.
    pub(crate) fn deciding(width: u64) -> u64 {
        let hidden = HIDDEN as u64;
        2 * width + 2 * hidden * width + 2 * hidden
    }

    /// Blocks that are routed.
    fn routed(&self, dimensions: &Dimensions) -> u64 {
        (0..dimensions.blocks).filter(|&block| self.routes(block, dimensions)).count() as u64
    }

    /// Floats that deciding and weighting keep for each token.
    pub(crate) fn kept(&self, dimensions: &Dimensions) -> u64 {
        self.routed(dimensions) * (2 * dimensions.width as u64 + HIDDEN as u64 + 2)
    }

    /// What deciding and weighting add to a stream's cost.
    pub(crate) fn cost(&self, dimensions: &Dimensions) -> Cost {
        let routed = self.routed(dimensions);
        let d = dimensions.width as u64;
        Cost {
            flops: routed * (Self::deciding(d) + Cost::rms(d) + 2 * d),
            // The entry waits for the block's end, beside what the MLP reads.
            state: d,
        }
    }

    pub(crate) fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> Routers {
        let mut router = |block| Router::new(self.capacity, block, dimensions.width, weights);
        Routers {
            blocks: (0..dimensions.blocks)
                .map(|block| self.routes(block, dimensions).then(|| router(block)))
                .collect(),
            routing: *self,
            eps: dimensions.norm_eps,
        }
    }
}

/// The routers of a model.
#[derive(Module, Debug)]
pub(crate) struct Routers {
    /// The router of each block; `None` where a block is not routed.
    pub(super) blocks: Vec<Option<Router>>,
    #[module(skip)]
    routing: Routing,
    eps: f64,
}

impl Routers {
    /// Decides about the tokens that enter the block of `site`, if it is routed.
    ///
    /// # Shapes
    /// - `x`: `[B, T, d]`
    pub(crate) fn choose(
        &self,
        site: Site,
        x: &Tensor<3>,
        traversal: &mut Traversal,
    ) -> Option<Choice> {
        let router = self.blocks[site.block()].as_ref()?;
        // While parameters are being learned, decisions may use later tokens.
        let learning = traversal.mode.learning;
        let weight = project(x.clone(), router.weight.val().unsqueeze_dim(1));
        let guess = router.predictor.forward(rms(x.clone().detach(), self.eps), learning);
        let guesses: Vec<bool> = elements(&guess).into_iter().map(guessed).collect();
        let place = Place::Site(site);
        let chosen = (learning || traversal.wants(Signal::Agreement))
            .then(|| largest(&elements(&weight), x.dims()[1], self.routing));
        if let Some(chosen) = &chosen {
            show(traversal, place, Signal::Agreement, || {
                let agree = chosen.iter().zip(&guesses).map(|(chosen, guess)| chosen == guess);
                numbers(agree, &weight)
            });
        }
        let (runs, lesson) = match chosen {
            Some(chosen) if learning => {
                let target = numbers(chosen.iter().copied(), &guess);
                (chosen, Some(surprise(guess, target)))
            }
            _ => (guesses, None),
        };
        let route = Route::of(runs);
        let skipped = route.as_ref().map(|route| skipped(route, &weight));
        Some(Choice { weight, route, skipped, lesson })
    }
}

/// The weights of a block's tokens, and a guess which of them will be large.
#[derive(Module, Debug)]
pub(crate) struct Router {
    pub(super) weight: Param<Tensor<1>>,
    pub(super) predictor: Predictor,
}

impl Router {
    fn new(capacity: f64, block: usize, width: usize, weights: &mut Weights) -> Self {
        // Weights are then as large as the stream's elements. An embedding starts at 0.02, but within 50 steps
        // of the preset nano its stream is at 0.3 to 0.5, and the weights of the top k, which are the largest,
        // are of order one. Routers that start there would be at 15 to 30 by then, too far to learn their way back.
        let std = 1.0 / (width as f64).sqrt();
        Self {
            weight: weights.param(
                format!("residual.{block}.router.weight"),
                [width],
                Init::Normal { std },
            ),
            predictor: Predictor::new(capacity, block, width, weights),
        }
    }
}

/// Guesses from a token alone whether it is among the top k of its sequence.
#[derive(Module, Debug)]
pub(crate) struct Predictor {
    pub(super) hidden: Param<Tensor<2>>,
    pub(super) hidden_bias: Param<Tensor<1>>,
    pub(super) out: Param<Tensor<1>>,
    pub(super) out_bias: Param<Tensor<1>>,
}

impl Predictor {
    fn new(capacity: f64, block: usize, width: usize, weights: &mut Weights) -> Self {
        let name = |part: &str| format!("residual.{block}.predictor.{part}");
        let normal = |inputs: usize| Init::Normal { std: 1.0 / (inputs as f64).sqrt() };
        // Before it knows anything, the capacity is the best guess.
        let prior = (capacity / (1.0 - capacity)).ln().min(SURE);
        Self {
            hidden: weights.param(name("hidden.weight"), [HIDDEN, width], normal(width)),
            hidden_bias: weights.param(name("hidden.bias"), [HIDDEN], Init::ZEROS),
            out: weights.param(name("out.weight"), [HIDDEN], normal(HIDDEN)),
            out_bias: weights.param(name("out.bias"), [1], Init::Constant(prior)),
        }
    }

    /// # Shapes
    /// - `x`: `[B, T, d]`, of mean square one
    /// - output: `[B, T, 1]`, the logits
    fn forward(&self, x: Tensor<3>, learns: bool) -> Tensor<3> {
        let Self { hidden, hidden_bias, out, out_bias } = self;
        let features = project(x, read(hidden, learns).transpose());
        let features = relu(features + read(hidden_bias, learns).unsqueeze());
        project(features, read(out, learns).unsqueeze_dim(1)) + read(out_bias, learns).unsqueeze()
    }
}

/// A parameter's value. Where nothing learns from it, no graph may keep it: no backward pass would go through
/// that graph, and the parameter could no longer change where it is.
fn read<const D: usize>(param: &Param<Tensor<D>>, learns: bool) -> Tensor<D> {
    if learns { param.val() } else { param.val().detach() }
}

/// What was decided about the tokens that enter a routed block.
#[derive(Clone, Debug)]
pub struct Choice {
    /// z, `[B, T, 1]`
    weight: Tensor<3>,
    route: Option<Route>,
    /// `[B, T, 1]`
    skipped: Option<Tensor<3, Bool>>,
    lesson: Option<Tensor<1>>,
}

impl Choice {
    /// The tokens that run; `None` for all.
    pub(crate) fn route(&self) -> Option<Route> {
        self.route.clone()
    }

    /// The loss that the predictor learns from; it can be taken once.
    pub(crate) fn take_lesson(&mut self) -> Option<Tensor<1>> {
        self.lesson.take()
    }

    /// One where a token does not run, `[B, T, 1]`.
    pub(crate) fn skips(&self) -> Tensor<3> {
        match &self.skipped {
            Some(skipped) => skipped.clone().float(),
            None => self.weight.zeros_like(),
        }
    }
}

/// A stream in the middle of a routed block.
pub(crate) struct Inside {
    pub(crate) choice: Choice,
    /// The stream before the block, `[B, T, d]`
    entry: Tensor<3>,
    /// What the block has written so far, `[B, T, d]`
    written: Option<Tensor<3>>,
}

impl Inside {
    /// Before the first sub-layer.
    pub(crate) fn enter(choice: Choice, entry: Tensor<3>) -> Self {
        Self { choice, entry, written: None }
    }

    /// After one more sub-layer. What it returned for tokens that do not run has no meaning.
    pub(crate) fn write(self, output: Tensor<3>) -> Self {
        let output = match &self.choice.skipped {
            Some(skipped) => {
                let everywhere = skipped.clone().expand(output.dims());
                output.mask_fill(everywhere, 0.0)
            }
            None => output,
        };
        let written = match self.written {
            Some(written) => written + output,
            None => output,
        };
        Self { written: Some(written), ..self }
    }

    /// What the block's next sub-layer reads: not weighted yet.
    pub(crate) fn reading(&self) -> Tensor<3> {
        match &self.written {
            Some(written) => self.entry.clone() + written.clone(),
            None => self.entry.clone(),
        }
    }

    /// The stream after the block.
    pub(crate) fn leave(self) -> Tensor<3> {
        let Self { choice: Choice { weight, skipped, .. }, entry, written } = self;
        let Some(written) = written else { return entry };
        let after = entry.clone() + weight * written;
        match skipped {
            // Not the sum with a weighted zero: bits must stay.
            Some(skipped) => after.mask_where(skipped.expand(entry.dims()), entry),
            None => after,
        }
    }
}

/// A predictor's verdict; a NaN runs, so that it is seen.
fn guessed(logit: f32) -> bool {
    logit > 0.0 || logit.is_nan()
}

/// Marks the largest weights of each sequence.
pub(super) fn largest(weights: &[f32], time: usize, routing: Routing) -> Vec<bool> {
    let mut chosen = vec![false; weights.len()];
    // A NaN runs, so that it is seen.
    let rank = |weight: f32| if weight.is_nan() { f32::INFINITY } else { weight };
    for (weights, chosen) in weights.chunks(time).zip(chosen.chunks_mut(time)) {
        let mut order: Vec<usize> = (0..weights.len()).collect();
        // Stable, so that of equal weights the earlier come first.
        order.sort_by(|&a, &b| {
            let (a, b) = (rank(weights[a]), rank(weights[b]));
            b.partial_cmp(&a).unwrap_or(std::cmp::Ordering::Equal)
        });
        order.iter().take(routing.running(time)).for_each(|&token| chosen[token] = true);
    }
    chosen
}

/// The mean binary cross-entropy of logits, in a form that does not overflow.
pub(super) fn surprise(logits: Tensor<3>, targets: Tensor<3>) -> Tensor<1> {
    let tail = (-logits.clone().abs()).exp().log1p();
    (relu(logits.clone()) - logits * targets + tail).mean()
}

fn elements(tensor: &Tensor<3>) -> Vec<f32> {
    read_back(tensor.clone()).unwrap_or_else(|error| panic!("{error}"))
}

/// One for true, zero for false, in the shape of another tensor.
fn numbers(values: impl Iterator<Item = bool>, like: &Tensor<3>) -> Tensor<3> {
    let values: Vec<f32> = values.map(|value| f32::from(u8::from(value))).collect();
    Tensor::from_data(TensorData::new(values, like.dims()), &like.device())
}
