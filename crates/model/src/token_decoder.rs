//! One token through the model without tensors, graph or allocation: the kernels of the fused operations, over the
//! weights where the model keeps them, in preallocated rows.

use crate::cache::Cache;
use crate::config::{DepthKv, ModelConfig, ValueResidual};
use crate::decoder::Decoder;
use crate::pass::Variant;
use crate::rope::RopeStep;
use crate::tally::{Tally, seen_keys};
use hadal_kernels::{AttentionStep, LinearStep, MlpStep, Room, ValueStep, fuses};
use hadal_residual::{FusedDecode, Site, SkippedKeys, SubLayerKind};
use std::mem::replace;

/// A model that reads one token after another.
#[derive(Debug)]
pub(crate) struct TokenDecoder {
    embeddings: LinearStep,
    head: LinearStep,
    layers: Vec<(Site, Layer)>,
    policy: FusedDecode,
    rope: RopeStep,
    skipped_keys: SkippedKeys,
    room: Room,
    /// The input of a sub-layer, and finally of the head; with room for several side by side.
    input: Vec<f32>,
    /// The output of a sub-layer.
    output: Vec<f32>,
    logits: Vec<f32>,
}

/// A sub-layer.
#[derive(Debug)]
enum Layer {
    Attention(AttentionStep),
    Mlp(MlpStep),
}

impl TokenDecoder {
    /// `None` if the model has no such form: on a device other than Flex or with a graph, where plain operations are
    /// requested, with depth slots, and for policies that are not fused.
    pub(crate) fn new(decoder: &Decoder, variant: Variant) -> Option<Self> {
        let (config, head) = (decoder.config(), decoder.head());
        if !fuses(&head.device()) || config.depth_kv != DepthKv::None {
            return None;
        }
        let present = decoder.present(variant.absent);
        let mut values_left = false;
        let layer = |&site: &Site| {
            let block = &decoder.blocks[site.block()];
            let attention = &block.attention;
            let layer = match site.kind() {
                SubLayerKind::Attention => {
                    let values = match (config.value_residual, replace(&mut values_left, true)) {
                        (ValueResidual::None, _) => ValueStep::Own,
                        (_, false) => ValueStep::First,
                        (_, true) => ValueStep::Mixed(attention.value_mix()),
                    };
                    let (weights, shape) = (attention.weights(), attention.shape());
                    Layer::Attention(AttentionStep::new(weights, shape, values)?)
                }
                SubLayerKind::Mlp => Layer::Mlp(MlpStep::new(block.mlp.weights())?),
            };
            Some((site, layer))
        };
        let policy = decoder.residual.decode(&present, variant.mode)?;
        let inputs = (0..=present.len()).map(|junction| policy.inputs(junction)).max();
        Some(Self {
            policy,
            layers: present.iter().map(layer).collect::<Option<_>>()?,
            embeddings: LinearStep::new(decoder.embeddings())?,
            head: LinearStep::new(head)?,
            rope: RopeStep::default(),
            skipped_keys: config.residual.skipped_keys(),
            room: Room::default(),
            input: vec![0.0; inputs.unwrap_or(1) * config.d_model],
            output: vec![0.0; config.d_model],
            logits: vec![0.0; config.vocab_size],
        })
    }

    /// Reserves memory for a text of this many tokens.
    pub(crate) fn reserve(&self, cache: &mut Cache, tokens: usize) {
        for (site, layer) in &self.layers {
            if let Layer::Attention(attention) = layer {
                attention.reserve(cache.rows(site.block()).only(), tokens);
            }
        }
    }

    /// The logits after a token, which must be in the vocabulary and fit into the text.
    pub(crate) fn step(
        &mut self,
        token: u32,
        config: &ModelConfig,
        cache: &mut Cache,
        mut tally: Option<&mut Tally>,
    ) -> &[f32] {
        let Self { embeddings, head, layers, policy, rope, room, input, output, logits, .. } = self;
        let position = cache.len();
        if let Some(tally) = &mut tally {
            tally.begin(config, 1, 1, position);
        }
        let rotation = rope.at(position, config);
        let width = output.len();
        let mut given = policy.inputs(0) * width;
        let mut runs = policy.step(0, embeddings.row(token as usize), &mut input[..given]);
        for (index, (site, layer)) in layers.iter().enumerate() {
            let x = &input[..given];
            let done = match layer {
                Layer::Mlp(mlp) => {
                    if runs {
                        mlp.run(x, room, output);
                    }
                    [u64::from(runs), 0, 0]
                }
                Layer::Attention(attention) => {
                    let seen = cache.rows(site.block()).only();
                    let before = seen.len();
                    if runs {
                        attention.run(x, rotation, seen, room, output);
                    } else if self.skipped_keys == SkippedKeys::Keep {
                        attention.add(x, rotation, seen, room);
                    }
                    let window = attention.window().map(|window| window as usize);
                    let keys = if runs { seen_keys(before, 1, window) } else { 0 };
                    [u64::from(runs), (seen.len() - before) as u64, keys]
                }
            };
            if let Some(tally) = &mut tally {
                tally.count(*site, done);
            }
            given = policy.inputs(index + 1) * width;
            runs = policy.step(index + 1, output, &mut input[..given]);
        }
        cache.advance(1);
        head.apply(&input[..given], logits);
        logits
    }
}
