//! What a pass forward and back holds in memory, from the config alone: the one place where this is counted.
//!
//! The way forward adds what sub-layers and the policy keep. The way back takes it away again, while gradients of the
//! parameters gather, and every operation needs room for as long as it runs. The most of all this at once is what a pass
//! takes; docs/plan.md has the sums in words. What policies hold is asked of their streams ([`Footprint`]), and what
//! operations take is what `hadal_cpu` allocates.

mod sub_layers;

use crate::config::{ConfigError, ModelConfig, ValueResidual};
use crate::decoder::Decoder;
use burn::tensor::Device;
use hadal_residual::{Declared, Footprint, Held, Memory, Site, SubLayerKind, Weights};
use serde::Serialize;
use sub_layers::{Room, Sizes};

/// Bytes of an f32.
const FLOAT: f64 = 4.0;
/// Logits of a chunk of tokens, and how few and how many tokens it has (`hadal_cpu::loss`).
const LOGITS: usize = 1 << 22;
const CHUNK: [usize; 2] = [64, 2064];

/// The most that a pass holds at once beyond the parameters, and what it consists of, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PassMemory {
    /// Kept from the way forward for the way back, at its end.
    pub kept: u64,
    /// What of it is there when the pass holds most.
    pub activations: u64,
    /// Gradients of parameters that are there then.
    pub gradients: u64,
    /// What operations need while they run then: gradients between sub-layers, factors in the order of the products.
    pub working: u64,
}

impl PassMemory {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.activations.saturating_add(self.gradients).saturating_add(self.working)
    }
}

/// A model that is declared and not made: questions about its memory need no parameter.
#[derive(Debug)]
pub struct UnmadeModel {
    decoder: Decoder,
}

impl UnmadeModel {
    /// Declares a model that can be of any size.
    pub fn of(config: &ModelConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self { decoder: Decoder::declare(config, Weights::fresh(0, &Device::flex())) })
    }

    /// Every parameter's name and shape.
    pub fn declared(&self) -> &[Declared] {
        self.decoder.declared()
    }

    /// What a pass forward and back over `batch` sequences of `time` tokens holds.
    pub fn pass_memory(&self, memory: Memory, batch: usize, time: usize) -> PassMemory {
        Timeline::new(&self.decoder, memory, batch, time).most()
    }

    /// Bytes that the way forward keeps of each token of a sequence of `time`: for sub-layers, policy and head.
    pub fn kept_per_token(&self, memory: Memory, time: usize) -> f64 {
        let all = Kept::of(&self.decoder, memory, time);
        FLOAT * (all.sub_layers.iter().sum::<f64>() + all.policy.kept() + all.head)
    }
}

/// Floats of each token.
struct Kept {
    sub_layers: Vec<f64>,
    policy: Footprint,
    head: f64,
}

impl Kept {
    fn of(decoder: &Decoder, memory: Memory, time: usize) -> Self {
        let config = decoder.config();
        let dimensions = config.dimensions();
        let sites = dimensions.sites();
        let sizes = Sizes::of(config, memory.recompute);
        let values = config.kv_width() as f64;
        let sub_layer = |site: Site| {
            let kept = sizes.kept(site.kind()) * share(config, site.block(), time);
            match (site.kind(), config.value_residual) {
                (SubLayerKind::Mlp, _) | (_, ValueResidual::None) => kept,
                // The first attention's values are mixed into all others.
                (_, _) if site.block() == 0 => kept + values,
                // Weights learn from those that each had.
                (_, ValueResidual::Learned) => kept + values,
                (_, ValueResidual::Fixed) => kept,
            }
        };
        let policy = decoder.residual.footprint(sites, memory).unwrap_or_else(|| {
            let kept = config.residual.kept_plainly(&dimensions) as f64;
            let each = Held { kept: kept / (sites + 1) as f64, ..Held::default() };
            let carried = config.d_model as f64;
            Footprint { state: 0.0, junctions: vec![each; sites + 1], carried }
        });
        Self {
            sub_layers: dimensions.each_site().map(sub_layer).collect(),
            policy,
            head: config.d_model as f64,
        }
    }
}

/// The share of tokens that run a block by design.
fn share(config: &ModelConfig, block: usize, time: usize) -> f64 {
    let running = config.residual.running(block, time, &config.dimensions());
    running as f64 / time.max(1) as f64
}

/// What lives when, in floats.
struct Timeline<'a> {
    config: &'a ModelConfig,
    tokens: f64,
    kept: Kept,
    recompute: bool,
    shares: Vec<f64>,
    /// Parameters of the head, and of each sub-layer with what the policy has there.
    table: f64,
    parameters: Vec<f64>,
    rest: f64,
}

/// A moment, in floats.
#[derive(Clone, Copy, Debug, Default)]
struct Moment {
    activations: f64,
    gradients: f64,
    working: f64,
}

impl Moment {
    fn total(&self) -> f64 {
        self.activations + self.gradients + self.working
    }
}

impl<'a> Timeline<'a> {
    fn new(decoder: &'a Decoder, memory: Memory, batch: usize, time: usize) -> Self {
        let config = decoder.config();
        let sites = config.dimensions().sites();
        let mut parameters = vec![0.0; sites];
        let (mut all, mut of_sites) = (0.0, 0.0);
        for declared in decoder.declared() {
            let count: f64 = declared.shape.iter().map(|&length| length as f64).product();
            all += count;
            if let Some(site) = site_of(&declared.name, sites) {
                parameters[site] += count;
                of_sites += count;
            }
        }
        let table = config.vocab_size as f64 * config.d_model as f64;
        Self {
            config,
            tokens: batch as f64 * time as f64,
            kept: Kept::of(decoder, memory, time),
            recompute: memory.recompute,
            shares: (0..config.n_layers).map(|block| share(config, block, time)).collect(),
            table,
            parameters,
            rest: (all - of_sites - table).max(0.0),
        }
    }

    /// Goes through the pass and remembers the fullest moment.
    fn most(&self) -> PassMemory {
        let tokens = self.tokens;
        let policy = &self.kept.policy;
        let of_sub_layers: f64 = self.kept.sub_layers.iter().sum();
        let forward = tokens * (of_sub_layers + policy.kept());
        let mut fullest = Moment::default();
        let mut see = |moment: Moment| {
            if moment.total() > fullest.total() {
                fullest = moment;
            }
        };
        see(self.at_the_head(forward));

        let width = self.config.d_model as f64;
        let sizes = Sizes::of(self.config, self.recompute);
        let (mut activations, mut gradients) = (forward, self.table);
        let carried = tokens * policy.carried;
        let mut junctions = policy.junctions.iter().rev();
        let mut back = |activations: &mut f64, gradients: f64, see: &mut dyn FnMut(Moment)| {
            let Some(held) = junctions.next() else { return };
            // The gradient of what was read, and that of the write.
            let working = carried + tokens * (2.0 * width + held.working);
            *activations += tokens * held.left;
            see(Moment { activations: *activations, gradients, working });
            *activations -= tokens * held.kept;
        };
        back(&mut activations, gradients, &mut see);
        for (index, own) in self.parameters.iter().enumerate().rev() {
            let site = Site::new(index);
            let share = self.shares[site.block()];
            let working = carried + tokens * width;
            sizes.backward(site.kind(), tokens * share, &mut |room: Room| {
                see(Moment {
                    activations: activations - room.freed,
                    gradients: gradients + room.gradients,
                    working: working + room.working,
                });
            });
            activations -= tokens * self.kept.sub_layers[index];
            gradients += own;
            back(&mut activations, gradients, &mut see);
        }
        // The gradient of the embedding, besides that of the head, to which it is added if they are one.
        let embedding = self.table;
        let working = tokens * width + if self.config.tie_embeddings { embedding } else { 0.0 };
        see(Moment { activations, gradients: gradients + self.rest, working });

        let bytes = |floats: f64| (FLOAT * floats.max(0.0)) as u64;
        PassMemory {
            kept: bytes(forward + tokens * self.kept.head),
            activations: bytes(fullest.activations),
            gradients: bytes(fullest.gradients),
            working: bytes(fullest.working),
        }
    }

    /// The loss, whose gradients are computed on the way forward: the head in two orders, a chunk of logits.
    fn at_the_head(&self, forward: f64) -> Moment {
        let (width, vocabulary) = (self.config.d_model as f64, self.config.vocab_size);
        let chunk = (LOGITS / vocabulary.max(1)).clamp(CHUNK[0], CHUNK[1]) as f64;
        let chunk = chunk.min(self.tokens);
        let factors = 2.0 * self.table + chunk * width;
        Moment {
            activations: forward,
            gradients: self.table,
            working: 2.0 * self.tokens * width + factors + chunk * vocabulary as f64,
        }
    }
}

/// The sub-layer whose way back makes a parameter's gradient; the policy's and the norms' are small or come with it.
fn site_of(name: &str, sites: usize) -> Option<usize> {
    let mut words = name.split('.');
    let (first, number) = (words.next()?, words.next()?);
    let number: usize = number.parse().ok()?;
    let site = match (first, words.next()?) {
        ("layers", "attn" | "attn_norm") => 2 * number,
        ("layers", _) => 2 * number + 1,
        ("residual", _) => number,
        _ => return None,
    };
    (site < sites).then_some(site)
}

#[cfg(test)]
mod tests;
