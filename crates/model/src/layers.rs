//! The branches of all blocks, and the row of sub-layers that a traversal passes.

use crate::attention::{Attention, KeyValue};
use crate::cache::Cache;
use crate::config::{DepthKv, ModelConfig, ValueResidual};
use crate::mlp::Mlp;
use crate::recording::Recording;
use crate::rope::Rope;
use crate::tally::{Tally, seen_keys};
use burn::module::{Module, Param};
use burn::tensor::{Tensor, TensorData};
use hadal_kernels::{Asking, Keys, Route, fuses, gather, linear, scatter};
use hadal_residual::{Init, Site, SkippedKeys, SubLayerKind, SubLayers, Weights};
use std::sync::atomic::{AtomicBool, Ordering};

/// `x W^T` with W stored as `[out, in]`, and a bias where a model has one.
#[derive(Module, Debug)]
pub(crate) struct Linear {
    weight: Param<Tensor<2>>,
    bias: Option<Param<Tensor<1>>>,
}

impl Linear {
    pub(crate) fn new(
        name: &str,
        shape: [usize; 2],
        std: f64,
        bias: bool,
        weights: &mut Weights,
    ) -> Self {
        Self {
            weight: weights.param(format!("{name}.weight"), shape, Init::Normal { std }),
            bias: bias.then(|| weights.param(format!("{name}.bias"), [shape[0]], Init::ZEROS)),
        }
    }

    /// # Shapes
    /// - `x`: `[B, T, in]`
    /// - output: `[B, T, out]`
    pub(crate) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let out = linear(x, self.weight.val());
        match self.bias() {
            None => out,
            Some(bias) => out + bias.unsqueeze(),
        }
    }

    /// The matrix, for a fused operation that multiplies by itself.
    pub(crate) fn weight(&self) -> Tensor<2> {
        self.weight.val()
    }

    /// What is added after the product, if anything.
    pub(crate) fn bias(&self) -> Option<Tensor<1>> {
        self.bias.as_ref().map(Param::val)
    }
}

/// An attention and an MLP, without norms or residual connections: those belong to the policy.
#[derive(Module, Debug)]
pub(crate) struct Block {
    pub(crate) attention: Attention,
    pub(crate) mlp: Mlp,
}

impl Block {
    pub(crate) fn new(index: usize, config: &ModelConfig, weights: &mut Weights) -> Self {
        Self {
            attention: Attention::new(index, config, weights),
            mlp: Mlp::new(index, config, weights),
        }
    }
}

/// All sub-layers during one pass.
pub(crate) struct Layers<'a> {
    pub(crate) blocks: &'a [Block],
    pub(crate) depth_kv: DepthKv,
    pub(crate) value_residual: ValueResidual,
    pub(crate) rope: Rope,
    pub(crate) cache: Option<&'a mut Cache>,
    pub(crate) absent: &'a [Site],
    /// Whether sub-layers run a second time in the backward pass instead of keeping what it needs.
    pub(crate) recompute: bool,
    /// What earlier blocks left for the same tokens. It lives for one pass: no token ever sees
    /// another token's slots.
    pub(crate) slots: Vec<KeyValue>,
    /// The values of the first attention that is there, `[B, T, kv heads * head_dim]`, for those that mix them into theirs.
    pub(crate) first_values: Option<Tensor<3>>,
    /// What becomes of the keys of tokens that skip.
    pub(crate) skipped_keys: SkippedKeys,
    /// Position of the first new token.
    pub(crate) start: usize,
    /// Counts what ran.
    pub(crate) tally: Option<&'a mut Tally>,
    /// The policy's own loss.
    pub(crate) extra_loss: Option<Tensor<1>>,
    /// Where outputs are kept.
    pub(crate) record: Option<&'a mut Recording>,
    /// Outputs of another pass, and how many sub-layers return the same in this one.
    pub(crate) replay: Option<(&'a Recording, usize)>,
    /// Asks to stop.
    pub(crate) stop: Option<&'a AtomicBool>,
    /// Whether a sub-layer did not run for that reason; then no later one does, and what comes out means nothing.
    pub(crate) stopped: bool,
}

impl Layers<'_> {
    /// Whether the next attention is the first one, whose values the others take.
    fn leaves_values(&self) -> bool {
        !self.value_residual.is_none() && self.first_values.is_none()
    }

    /// Attention of the tokens on a route, or of all.
    fn attend(&mut self, block: usize, x: Tensor<3>, route: Option<&Route>) -> Tensor<3> {
        let attention = &self.blocks[block].attention;
        let (no_slots, deserted) =
            (self.depth_kv == DepthKv::None, route.is_some_and(Route::is_empty));
        let leaves_values = self.leaves_values();
        let leaves_nothing = no_slots && !leaves_values;
        if deserted && self.cache.is_none() && leaves_nothing {
            // No later pass and no later block will ask for keys either.
            return nothing(x, attention.width());
        }
        let device = x.device();
        if !fuses(&device) {
            return self.attend_plainly(block, x, route);
        }
        let first_values = self.first_values.clone();
        match &mut self.cache {
            None if leaves_nothing => {
                let asking = asking(route, self.skipped_keys);
                attention.fused(x, &self.rope, asking, first_values, self.recompute)
            }
            Some(cache) if no_slots && !device.is_autodiff() => {
                let [batch, time, _] = x.dims();
                let asking = asking(route, self.skipped_keys);
                let output = cache.with_fused(block, |seen| {
                    attention.continued(x, &self.rope, asking, first_values, seen)
                });
                if leaves_values {
                    // The cache holds the first attention's values as they are.
                    let values = cache.rows(block).last_values(time);
                    let shape = [batch, time, values.len() / (batch * time)];
                    let values = TensorData::new(values, shape);
                    self.first_values = Some(Tensor::from_data(values, &device));
                }
                output
            }
            None if !deserted => {
                let (output, own) =
                    attention.with_slots(x, &self.rope, &self.slots, route, first_values);
                if leaves_values {
                    self.first_values = Some(own[1].clone());
                }
                if !no_slots {
                    self.slots.push(attention.finish_slot(own, &self.rope));
                }
                output
            }
            _ => self.attend_plainly(block, x, route),
        }
    }

    fn attend_plainly(&mut self, block: usize, x: Tensor<3>, route: Option<&Route>) -> Tensor<3> {
        let attention = &self.blocks[block].attention;
        let [batch, time, _] = x.dims();
        let own = attention.key_value(x.clone(), self.first_values.clone());
        if self.leaves_values() {
            self.first_values = Some(own[1].clone());
        }
        let own = attention.finish_slot(own, &self.rope);
        let new = (self.skipped_keys == SkippedKeys::Drop)
            .then(|| present(route, [batch, time], self.start));
        let (sequence, present) = match &mut self.cache {
            None => (own.clone(), new),
            Some(cache) => cache.extend(block, own.clone(), new),
        };
        let output = if route.is_some_and(Route::is_empty) {
            nothing(x, attention.width())
        } else {
            attention.plain(x, &self.rope, sequence, &self.slots, route, present.as_deref())
        };
        if self.depth_kv != DepthKv::None {
            self.slots.push(own);
        }
        output
    }

    fn mlp(&mut self, block: usize, x: Tensor<3>, route: Option<&Route>) -> Tensor<3> {
        let Block { attention, mlp } = &self.blocks[block];
        if let Some(projection) = mlp.depth() {
            self.slots.push(attention.depth_slot(projection, x.clone(), &self.rope));
        }
        let recompute = self.recompute;
        let [batch, time, _] = x.dims();
        match route {
            None => mlp.forward(x, recompute),
            Some(route) if route.is_empty() => nothing(x, attention.width()),
            Some(route) => scatter(mlp.forward(gather(x, route), recompute), route, [batch, time]),
        }
    }

    /// What the sub-layer returned in an earlier pass, if it would return the same.
    fn known(&self, site: Site) -> Option<Tensor<3>> {
        let (recording, agreeing) = self.replay?;
        if site.index < agreeing { recording.output(site) } else { None }
    }

    /// Takes the values that an attention left in an earlier pass, if they are the first ones.
    fn recall_values(&mut self, site: Site) {
        if site.kind() == SubLayerKind::Attention && self.leaves_values() {
            self.first_values = self.replay.and_then(|(recording, _)| recording.first_values());
        }
    }

    fn compute(&mut self, site: Site, input: Tensor<3>, route: Option<&Route>) -> Tensor<3> {
        let [batch, time, _] = input.dims();
        self.count(site, [batch, time], route);
        match site.kind() {
            SubLayerKind::Attention => self.attend(site.block(), input, route),
            SubLayerKind::Mlp => self.mlp(site.block(), input, route),
        }
    }

    fn count(&mut self, site: Site, [batch, time]: [usize; 2], route: Option<&Route>) {
        let (cached, start, keys) = (self.cache.is_some(), self.start, self.skipped_keys);
        let left_over = self.depth_kv != DepthKv::None || self.leaves_values();
        if self.tally.is_none() {
            return;
        }
        let before = match &self.cache {
            Some(cache) if keys == SkippedKeys::Drop => cache.keys(site.block(), batch),
            _ => vec![start; batch],
        };
        let window = self.blocks[site.block()].attention.window();
        let Some(tally) = &mut self.tally else { return };
        let all = (batch * time) as u64;
        let ran = route.map_or(all, |route| route.len() as u64);
        if site.kind() == SubLayerKind::Mlp {
            return tally.count(site, [ran, 0, 0]);
        }
        let keyed = match keys {
            SkippedKeys::Drop => ran,
            // No token asks for these keys.
            SkippedKeys::Keep if ran == 0 && !cached && !left_over => 0,
            SkippedKeys::Keep => all,
        };
        let seen = match (route, keys) {
            (None, _) => before.iter().map(|&start| seen_keys(start, time, window)).sum::<u64>(),
            (Some(route), SkippedKeys::Keep) => {
                let seen = |&token: &u32| seen_keys(start + token as usize % time, 1, window);
                route.running().iter().map(seen).sum()
            }
            (Some(route), SkippedKeys::Drop) => {
                let rows = route.sequences(time).zip(&before);
                rows.map(|(range, &start)| seen_keys(start, range.len(), window)).sum()
            }
        };
        tally.count(site, [ran, keyed, seen]);
    }
}

/// A route in the form that a fused attention takes.
fn asking(route: Option<&Route>, skipped_keys: SkippedKeys) -> Option<Asking> {
    let keys = match skipped_keys {
        SkippedKeys::Keep => Keys::All,
        SkippedKeys::Drop => Keys::Running,
    };
    route.map(|route| Asking { route: route.clone(), keys })
}

/// The output of a sub-layer that no token runs. It still depends on the input, because the backward pass through fused
/// junctions leads through every sub-layer.
///
/// # Shapes
/// - `x`: `[B, T, width]` or wider, as an attention's inputs can be
/// - output: `[B, T, width]`
fn nothing(x: Tensor<3>, width: usize) -> Tensor<3> {
    x.narrow(2, 0, width) * 0.0
}

/// The positions of new tokens that have keys, row by row.
fn present(route: Option<&Route>, [batch, time]: [usize; 2], start: usize) -> Vec<Vec<u32>> {
    let position = |token: u32| (start + token as usize % time) as u32;
    match route {
        None => vec![(0..time as u32).map(position).collect(); batch],
        Some(route) => (route.sequences(time))
            .map(|range| route.running()[range].iter().map(|&token| position(token)).collect())
            .collect(),
    }
}

impl SubLayers for Layers<'_> {
    fn sites(&self) -> usize {
        2 * self.blocks.len()
    }

    fn absent(&self, site: Site) -> bool {
        self.absent.contains(&site)
    }

    fn first_token(&self, site: Site, input: &Tensor<3>) -> Option<Tensor<4>> {
        // A cache is laid out for decoding, which is not watched.
        if site.kind() == SubLayerKind::Mlp || self.cache.is_some() {
            return None;
        }
        let attention = &self.blocks[site.block()].attention;
        Some(attention.first_token(input.clone(), &self.rope, &self.slots))
    }

    fn run(&mut self, site: Site, input: Tensor<3>, route: Option<&Route>) -> Tensor<3> {
        self.stopped |= self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
        if self.stopped {
            return nothing(input, self.blocks[site.block()].attention.width());
        }
        let output = match self.known(site) {
            Some(output) => {
                self.recall_values(site);
                output
            }
            None => self.compute(site, input, route),
        };
        if let Some(record) = &mut self.record {
            record.keep(site, &output, &self.first_values);
        }
        output
    }

    fn learn(&mut self, extra_loss: Tensor<1>) {
        self.extra_loss = Some(extra_loss);
    }
}
