//! The model: embedding, blocks, one residual policy, head.

mod on_device;
mod parameters;

pub use parameters::ReadParameter;

use crate::cache::Cache;
use crate::config::{ConfigError, DepthKv, ModelConfig};
use crate::layers::{Block, Layers};
use crate::loss::shares;
use crate::pass::{Pass, PassError, Tokens, Variant};
use crate::rope::Rope;
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use hadal_kernels::{Targets, embed, fuses, head_loss, linear, with_precision};
use hadal_residual::{
    AnyResidual, Declared, Init, Site, SkippedKeys, Skipping, Stored, Traversal, Weights,
};

/// A decoder-only Transformer.
#[derive(Module, Debug)]
pub struct Decoder {
    embed: Param<Tensor<2>>,
    head: Option<Param<Tensor<2>>>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) residual: AnyResidual,
    #[module(skip)]
    config: ModelConfig,
    #[module(skip)]
    declared: Vec<Declared>,
}

impl Decoder {
    /// A new model. Its parameters are made when first used.
    pub fn fresh(config: &ModelConfig, seed: u64, device: &Device) -> Result<Self, ConfigError> {
        config.check_fresh()?;
        Ok(Self::declare(config, Weights::fresh(seed, device)))
    }

    /// A model with given parameters: `stored` is called for each with its name and shape; parameters that it does not
    /// know start fresh.
    pub fn stored(
        config: &ModelConfig,
        stored: Stored,
        device: &Device,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::declare(config, Weights::stored(stored, device)))
    }

    /// Builds the model from wherever the weights come from. The config must have been checked.
    pub(crate) fn declare(config: &ModelConfig, mut weights: Weights) -> Self {
        let table = [config.vocab_size, config.d_model];
        let tables = config.residual.tables();
        // A table that is both starts at the size that the head wants: the head's logits feel it.
        let tied = config.tie_embeddings;
        let embed_std = if tied { tables.head_std } else { tables.embed_std };
        let embed_init = Init::Rows { std: embed_std, rule: tables.embed_rows };
        let head_init = Init::Rows { std: tables.head_std, rule: tables.head_rows };
        Self {
            embed: weights.param("embed.weight", table, embed_init),
            head: (!config.tie_embeddings).then(|| weights.param("head.weight", table, head_init)),
            blocks: (0..config.n_layers).map(|i| Block::new(i, config, &mut weights)).collect(),
            residual: config.residual.init(&config.dimensions(), &mut weights),
            config: config.clone(),
            declared: weights.declared(),
        }
    }

    /// The model's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Every parameter's name and shape.
    pub fn declared(&self) -> &[Declared] {
        &self.declared
    }

    /// The logits of every position, or of the last one.
    ///
    /// # Shapes
    /// - output: `[B, T, V]`, or `[B, 1, V]` with [`Pass::only_last`]
    pub fn logits(&self, tokens: &Tokens, pass: Pass) -> Result<Tensor<3>, PassError> {
        let only_last = pass.only_last;
        with_precision(pass.precision, || {
            let (hidden, _) = self.hidden(tokens, pass)?;
            let hidden = if only_last { hidden.narrow(1, tokens.time() - 1, 1) } else { hidden };
            Ok(linear(hidden, self.head()))
        })
    }

    /// The mean cross-entropy of the scored positions, or of all of them if `scored` is empty. Logits are
    /// computed a part at a time and not kept.
    ///
    /// # Shapes
    /// - `targets`: as many tokens as there are inputs
    /// - `scored`: one for each target, row by row
    /// - output: `[1]`
    pub fn loss(
        &self,
        tokens: &Tokens,
        targets: &Tokens,
        scored: &[bool],
        pass: Pass,
    ) -> Result<Tensor<1>, PassError> {
        if targets.ids().len() != tokens.ids().len() {
            return Err(PassError::Targets {
                targets: targets.ids().len(),
                inputs: tokens.ids().len(),
            });
        }
        self.check_vocabulary(targets.ids())?;
        let shares = shares(targets.ids().len(), scored).into();
        let targets = Targets { ids: targets.ids().into(), shares };
        let (loss, extra) = with_precision(pass.precision, || {
            let (hidden, extra) = self.hidden(tokens, pass)?;
            Ok::<_, PassError>((head_loss(hidden, self.head(), &targets), extra))
        })?;
        // The policy's own loss has a gradient but is not part of the returned loss.
        Ok(match extra {
            Some(extra) => loss + (extra.clone() - extra.detach()),
            None => loss,
        })
    }

    /// The embeddings, `[V, d]`.
    pub(crate) fn embeddings(&self) -> Tensor<2> {
        self.embed.val()
    }

    /// `[V, d]`
    pub(crate) fn head(&self) -> Tensor<2> {
        self.head.as_ref().unwrap_or(&self.embed).val()
    }

    /// The sub-layers of a pass from which `absent` are left out.
    pub(crate) fn present(&self, absent: &[Site]) -> Vec<Site> {
        let sites = (0..2 * self.blocks.len()).map(Site::new);
        sites.filter(|site| !absent.contains(site)).collect()
    }

    /// What the head multiplies, `[B, T, d]`, and the policy's own loss, in the precision of this scope.
    fn hidden(
        &self,
        tokens: &Tokens,
        pass: Pass,
    ) -> Result<(Tensor<3>, Option<Tensor<1>>), PassError> {
        let Pass { absent, mode, precision, memory, probe, replay, stop, .. } = pass;
        let Pass { mut cache, mut tally, mut record, .. } = pass;
        let variant = Variant { absent, mode, precision, stop };
        let start = cache.as_ref().map_or(0, |cache| cache.len());
        self.check(tokens.ids(), start + tokens.time())?;
        self.check_absent(absent)?;
        if let Some(cache) = &cache {
            self.check_cache(cache, tokens, absent)?;
        }
        let table = self.embeddings();
        let device = table.device();
        let embedding = embed(table, tokens.ids(), tokens.batch());
        let time = tokens.time();
        if let Some(tally) = &mut tally {
            tally.begin(&self.config, tokens.batch(), time, start);
        }
        if let Some(record) = &mut record {
            record.begin(tokens, variant, 2 * self.blocks.len());
        }
        // Caches and slots would miss what a sub-layer that does not run leaves for others.
        let alone = cache.is_none() && self.config.depth_kv == DepthKv::None;
        let replay = replay.filter(|_| alone);
        let mut layers = Layers {
            blocks: &self.blocks,
            depth_kv: self.config.depth_kv,
            value_residual: self.config.value_residual,
            rope: Rope::new(start, time, &self.config, &device),
            cache: cache.as_deref_mut(),
            absent,
            recompute: memory.recompute,
            slots: Vec::new(),
            first_values: None,
            skipped_keys: self.config.residual.skipped_keys(),
            start,
            tally,
            extra_loss: None,
            record,
            replay: replay.map(|replay| (replay, replay.agreeing(tokens, variant))),
            stop,
            stopped: false,
        };
        let mut traversal = Traversal { mode, memory, probe };
        let hidden = self.residual.traverse(embedding, &mut layers, &mut traversal);
        if layers.stopped {
            return Err(PassError::Stopped);
        }
        let extra_loss = layers.extra_loss.take();
        if let Some(cache) = cache {
            cache.advance(time);
        }
        Ok((hidden, extra_loss))
    }

    /// Refuses a cache that a pass cannot continue.
    fn check_cache(
        &self,
        cache: &Cache,
        tokens: &Tokens,
        absent: &[Site],
    ) -> Result<(), PassError> {
        let present = |block: usize| !absent.contains(&Site::new(2 * block));
        if let Some(reason) = cache.mismatch(self.blocks.len(), tokens.batch(), present) {
            return Err(PassError::ForeignCache { reason });
        }
        let device = self.embeddings().device();
        if self.config.residual.skipped_keys() == SkippedKeys::Drop
            && cache.fused().is_some_and(|fused| fused != (fuses(&device) && !device.is_autodiff()))
        {
            let reason = "it was filled by the other form of the operations, which keeps track of \
                          dropped keys in its own way";
            return Err(PassError::ForeignCache { reason });
        }
        Ok(())
    }

    fn check_vocabulary(&self, ids: &[u32]) -> Result<(), PassError> {
        let vocab_size = self.config.vocab_size;
        match ids.iter().find(|&&id| id as usize >= vocab_size) {
            Some(&id) => Err(PassError::UnknownToken { id, vocab_size }),
            None => Ok(()),
        }
    }

    /// Whether these tokens can be read in a text of this length.
    pub(crate) fn check(&self, ids: &[u32], length: usize) -> Result<(), PassError> {
        if ids.is_empty() {
            return Err(PassError::Empty);
        }
        self.check_vocabulary(ids)?;
        let max_seq_len = self.config.max_seq_len;
        if length > max_seq_len {
            return Err(PassError::TooLong { length, max_seq_len });
        }
        Ok(())
    }

    /// Refuses sub-layers that cannot be left out.
    pub fn check_absent(&self, absent: &[Site]) -> Result<(), PassError> {
        let sites = 2 * self.blocks.len();
        if let Some(&site) = absent.iter().find(|site| site.index >= sites) {
            return Err(PassError::UnknownSite { site, sites });
        }
        match absent.iter().find_map(|&site| Some((site, self.residual.required_because(site)?))) {
            Some((site, reason)) => Err(PassError::NotAbsent { site, reason }),
            None => self.check_first_values(absent),
        }
    }

    /// Refuses to leave out the first attention where the next one does not have the values of all tokens.
    fn check_first_values(&self, absent: &[Site]) -> Result<(), PassError> {
        let attentions = (0..self.blocks.len()).map(|block| Site::new(2 * block));
        let Some(first) = attentions.into_iter().find(|site| !absent.contains(site)) else {
            return Ok(());
        };
        if self.config.may_lack_values(first.block()) {
            let site = Site::new(first.index - 2);
            let reason = "later attention takes the first one's values (value_residual), and tokens that \
                          skip the next one have none";
            return Err(PassError::NotAbsent { site, reason });
        }
        Ok(())
    }

    /// Sets when tokens skip sub-layers; it becomes part of the model's config.
    pub fn set_skipping(&mut self, skipping: Option<Skipping>) -> Result<(), ConfigError> {
        let mut config = self.config.clone();
        config.residual.set_skipping(skipping.clone())?;
        config.check()?;
        self.residual.set_skipping(skipping);
        self.config = config;
        Ok(())
    }
}
