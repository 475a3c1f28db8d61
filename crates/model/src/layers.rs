//! The branches of all blocks, and the row of sub-layers that a traversal walks along.

use crate::attention::{Attention, KeyValue};
use crate::cache::Cache;
use crate::config::{DepthKv, ModelConfig};
use crate::mlp::Mlp;
use crate::rope::Rope;
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use hadal_kernels::{fuses, linear};
use hadal_residual::{Init, Memory, Site, SubLayer, SubLayers, Weights};

/// `x W^T` with W stored as `[out, in]`, without a bias.
#[derive(Module, Debug)]
pub(crate) struct Linear {
    weight: Param<Tensor<2>>,
}

impl Linear {
    pub(crate) fn new(name: String, shape: [usize; 2], std: f64, weights: &mut Weights) -> Self {
        Self { weight: weights.param(name, shape, Init::Normal { std }) }
    }

    /// # Shapes
    /// - `x`: `[B, T, in]`
    /// - output: `[B, T, out]`
    pub(crate) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        linear(x, self.weight.val())
    }

    /// The matrix, for a fused operation that multiplies by itself.
    pub(crate) fn weight(&self) -> Tensor<2> {
        self.weight.val()
    }
}

/// An attention and an MLP, without norms or skips: those belong to the policy.
#[derive(Module, Debug)]
pub(crate) struct Block {
    attention: Attention,
    mlp: Mlp,
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
    pub(crate) rope: Rope,
    pub(crate) cache: Option<&'a mut Cache>,
    pub(crate) absent: &'a [Site],
    pub(crate) memory: Memory,
    /// What earlier blocks left for the same tokens. It lives for one pass: no token ever sees
    /// another token's slots.
    pub(crate) slots: Vec<KeyValue>,
}

impl Layers<'_> {
    fn attention(&mut self, block: usize, x: Tensor<3>) -> Tensor<3> {
        let attention = &self.blocks[block].attention;
        let device = x.device();
        if self.depth_kv == DepthKv::None && fuses(&device) {
            match &mut self.cache {
                None => return attention.fused(x, &self.rope, self.memory.recompute),
                Some(cache) if !device.is_autodiff() => {
                    return cache
                        .with_fused(block, |seen| attention.continued(x, &self.rope, seen));
                }
                Some(_) => {}
            }
        }
        if self.cache.is_none() && fuses(&device) {
            let (output, own) = attention.with_slots(x, &self.rope, &self.slots);
            self.slots.push(own);
            return output;
        }
        let own = attention.key_value(x.clone(), &self.rope);
        let sequence = match &mut self.cache {
            None => own.clone(),
            Some(cache) => cache.extend(block, own.clone()),
        };
        let output = attention.attend(x, &self.rope, sequence, &self.slots);
        if self.depth_kv != DepthKv::None {
            self.slots.push(own);
        }
        output
    }

    fn mlp(&mut self, block: usize, x: Tensor<3>) -> Tensor<3> {
        let Block { attention, mlp } = &self.blocks[block];
        if let Some(projection) = mlp.depth() {
            self.slots.push(attention.depth_slot(projection, x.clone(), &self.rope));
        }
        mlp.forward(x, self.memory.recompute)
    }
}

impl SubLayers for Layers<'_> {
    fn sites(&self) -> usize {
        2 * self.blocks.len()
    }

    fn absent(&self, site: Site) -> bool {
        self.absent.contains(&site)
    }

    fn memory(&self) -> Memory {
        self.memory
    }

    fn first_token(&self, site: Site, input: &Tensor<3>) -> Option<Tensor<4>> {
        // What a cache holds is laid out for decoding, and nobody watches that.
        if site.kind() == SubLayer::Mlp || self.cache.is_some() {
            return None;
        }
        let attention = &self.blocks[site.block()].attention;
        Some(attention.first_token(input.clone(), &self.rope, &self.slots))
    }

    fn run(&mut self, site: Site, input: Tensor<3>) -> Tensor<3> {
        match site.kind() {
            SubLayer::Attention => self.attention(site.block(), input),
            SubLayer::Mlp => self.mlp(site.block(), input),
        }
    }
}
