//! The branches of all blocks, and the row of sub-layers that a traversal walks along.

use crate::attention::{Attention, KeyValue};
use crate::cache::Cache;
use crate::config::{DepthKv, ModelConfig};
use crate::mlp::Mlp;
use crate::rope::Rope;
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use hadal_residual::{Init, Site, SubLayer, SubLayers, Weights};

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
}

/// `x W^T` with W as `[out, in]`.
pub(crate) fn linear(x: Tensor<3>, weight: Tensor<2>) -> Tensor<3> {
    let [batch, time, inputs] = x.dims();
    let [outputs, _] = weight.dims();
    x.reshape([batch * time, inputs]).matmul(weight.transpose()).reshape([batch, time, outputs])
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
    /// What earlier blocks left for the same tokens. It lives for one pass: no token ever sees
    /// another token's slots.
    pub(crate) slots: Vec<KeyValue>,
}

impl Layers<'_> {
    fn attention(&mut self, block: usize, x: Tensor<3>) -> Tensor<3> {
        let attention = &self.blocks[block].attention;
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
        mlp.forward(x)
    }
}

impl SubLayers for Layers<'_> {
    fn sites(&self) -> usize {
        2 * self.blocks.len()
    }

    fn absent(&self, site: Site) -> bool {
        self.absent.contains(&site)
    }

    fn run(&mut self, site: Site, input: Tensor<3>) -> Tensor<3> {
        match site.kind() {
            SubLayer::Attention => self.attention(site.block(), input),
            SubLayer::Mlp => self.mlp(site.block(), input),
        }
    }
}
