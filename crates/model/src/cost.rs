//! What a model costs before it is built: parameters, FLOPs and bytes, computed from the config.

use crate::config::{ConfigError, DepthKv, MlpKind, ModelConfig};
use crate::pass_memory::UnmadeModel;
use crate::tally::seen_keys;
use hadal_residual::Memory;
use serde::Serialize;

/// Bytes of an f32.
const FLOAT: u64 = 4;

/// Parameters that belong together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ParameterGroup {
    /// Token embedding.
    pub embedding: u64,
    /// Output head, if it is not the embedding.
    pub head: u64,
    /// Attention matrices and head norms.
    pub attention: u64,
    /// MLP matrices.
    pub mlp: u64,
    /// Projections that MLPs leave for later attention.
    pub depth_kv: u64,
    /// Norms around sub-layers and before the head.
    pub norms: u64,
    /// The residual policy's own parameters.
    pub residual: u64,
}

impl ParameterGroup {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.embedding
            + self.head
            + self.attention
            + self.mlp
            + self.depth_kv
            + self.norms
            + self.residual
    }

    fn slot(&mut self, name: &str) -> &mut u64 {
        match name.split('.').collect::<Vec<_>>().as_slice() {
            ["embed", ..] => &mut self.embedding,
            ["head", ..] => &mut self.head,
            ["residual", ..] => &mut self.residual,
            ["layers", _, "attn", ..] => &mut self.attention,
            ["layers", _, "mlp", "depth_k" | "depth_v", ..] => &mut self.depth_kv,
            ["layers", _, "mlp", ..] => &mut self.mlp,
            _ => &mut self.norms,
        }
    }
}

/// The cost of a model at its full context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ModelCost {
    /// Number of parameters.
    pub parameters: ParameterGroup,
    /// Forward FLOPs per token, at the mean causal context of a full sequence.
    pub forward_flops_per_token: u64,
    /// The residual policy's part of these, norms included.
    pub residual_flops_per_token: u64,
    /// Bytes of keys and values per token of context.
    pub kv_bytes_per_token: u64,
    /// Bytes that fused kernels keep for the backward pass per token, as [`Memory::default`] says. Plain tensor
    /// operations keep more.
    pub activation_bytes_per_token: u64,
    /// Bytes of depth state per token where it is largest.
    pub state_bytes_per_token: u64,
}

impl ModelCost {
    /// Counts without building anything.
    pub fn of(config: &ModelConfig) -> Result<Self, ConfigError> {
        let model = UnmadeModel::of(config)?;
        let mut parameters = ParameterGroup::default();
        for declared in model.declared() {
            let count: u64 = declared.shape.iter().map(|&length| length as u64).product();
            *parameters.slot(&declared.name) += count;
        }
        let policy = config.residual.cost(&config.dimensions());
        let branches = Branches::of(config);
        let kept = model.kept_per_token(Memory::default(), config.max_seq_len);
        Ok(Self {
            parameters,
            forward_flops_per_token: branches.flops + policy.flops,
            residual_flops_per_token: policy.flops,
            kv_bytes_per_token: FLOAT * branches.kv,
            activation_bytes_per_token: kept as u64,
            state_bytes_per_token: FLOAT * policy.state,
        })
    }
}

/// Attention, MLPs and head, per token.
struct Branches {
    flops: u64,
    kv: u64,
}

impl Branches {
    fn of(config: &ModelConfig) -> Self {
        let [d, ff, vocab] = [config.d_model, config.d_ff, config.vocab_size].map(|n| n as u64);
        let q = (config.n_heads * config.head_dim) as u64;
        let kv = config.kv_width() as u64;
        let mlp = match config.mlp {
            MlpKind::Relu2 => 4 * d * ff,
            MlpKind::Swiglu => 6 * d * ff,
        };
        let projections = 2 * d * q + 4 * d * kv + 2 * q * d;
        let time = config.max_seq_len;
        let mut sum = Self { flops: 0, kv: 0 };
        for block in 0..config.n_layers {
            let running = config.residual.running(block, time, &config.dimensions());
            // Running tokens see each other, wherever they are in the sequence. Twice the mean number of keys, so that
            // it stays whole.
            let double_context = 2 * seen_keys(0, running, config.window(block)) / running as u64;
            let scores = 2 * q * double_context;
            let share = |of_running: u64| spread(of_running, running, time);
            sum.flops += share(projections + scores + mlp);
            sum.kv += share(2 * kv);
        }
        Self { flops: sum.flops + Self::depth(config, d, q, kv) + 2 * d * vocab, kv: sum.kv }
    }

    /// Scores and values of depth slots, and the projections that MLPs leave.
    fn depth(config: &ModelConfig, d: u64, q: u64, kv: u64) -> u64 {
        let layers = config.n_layers as u64;
        let pairs = layers * (layers - 1) / 2;
        match config.depth_kv {
            DepthKv::None => 0,
            DepthKv::Attention => 4 * q * pairs,
            DepthKv::AttentionMlp => 4 * q * 2 * pairs + (layers - 1) * 4 * d * kv,
        }
    }
}

/// What each of `time` tokens pays if `running` of them pay `each`.
fn spread(each: u64, running: usize, time: usize) -> u64 {
    if running == time {
        return each;
    }
    // Sizes that only a mistyped config has would not fit into 64 bits.
    let sum = u128::from(each) * running as u128;
    (sum / time.max(1) as u128) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ValueResidual, tests::small};

    #[test]
    fn the_papers_small_model_has_its_published_size() {
        let config = ModelConfig {
            vocab_size: 50_304,
            d_model: 768,
            n_layers: 12,
            n_heads: 6,
            n_kv_heads: 6,
            head_dim: 128,
            d_ff: 3072,
            max_seq_len: 1024,
            residual: "mgr:streams=4".parse().unwrap(),
            ..small()
        };
        let parameters = ModelCost::of(&config).unwrap().parameters;
        assert_eq!(parameters.residual, 34_665);
        assert_eq!(parameters.total() - parameters.residual - parameters.norms, 123_568_128);
    }

    #[test]
    fn flops_follow_the_formula_of_the_skipping_paper() {
        let config = ModelConfig {
            vocab_size: 32_000,
            d_model: 1024,
            n_layers: 24,
            n_heads: 16,
            n_kv_heads: 16,
            head_dim: 64,
            d_ff: 2736,
            mlp: MlpKind::Swiglu,
            max_seq_len: 1024,
            ..small()
        };
        let cost = ModelCost::of(&config).unwrap();
        let branches = cost.forward_flops_per_token - cost.residual_flops_per_token;
        assert_eq!(branches, 720_683_008);
    }

    #[test]
    fn a_routed_block_costs_what_its_tokens_cost() {
        let config = |residual: &str| ModelConfig {
            d_model: 64,
            n_layers: 4,
            max_seq_len: 1000,
            residual: residual.parse().unwrap(),
            ..small()
        };
        let branches = |config: &ModelConfig| {
            let cost = ModelCost::of(config).unwrap();
            cost.forward_flops_per_token - cost.residual_flops_per_token
        };
        let (dense, routed) = (config("prenorm"), config("prenorm:capacity=0.125"));
        assert_eq!(branches(&config("prenorm:capacity=1,every=1")), branches(&dense));
        // Two of four blocks, in which 125 of 1000 tokens see 63 of them on average.
        let d = 64;
        let q = (dense.n_heads * dense.head_dim) as u64;
        let (kv, ff) = (dense.kv_width() as u64, dense.d_ff as u64);
        let of_running = |keys: u64| 4 * d * q + 4 * d * kv + 4 * q * keys + 4 * d * ff;
        assert_eq!(dense.mlp, MlpKind::Relu2);
        let saved = of_running(500) + 2 * q - of_running(63) / 8;
        assert_eq!(branches(&dense) - branches(&routed), 2 * saved);
        let keys = |config: &ModelConfig| ModelCost::of(config).unwrap().kv_bytes_per_token;
        assert_eq!(keys(&routed), keys(&dense) * 9 / 16);
    }

    #[test]
    fn mixed_values_cost_two_weights_each_and_what_they_learn_from() {
        let of =
            |value_residual| ModelCost::of(&ModelConfig { value_residual, ..small() }).unwrap();
        let [none, fixed, learned] =
            [ValueResidual::None, ValueResidual::Fixed, ValueResidual::Learned].map(of);
        let more =
            |cost: &ModelCost| cost.activation_bytes_per_token - none.activation_bytes_per_token;
        let kv = FLOAT * small().kv_width() as u64;
        assert_eq!([more(&fixed), more(&learned)], [kv, 3 * kv]);
        assert_eq!(fixed.parameters, none.parameters);
        assert_eq!(learned.parameters.attention, none.parameters.attention + 2 * 2);
        assert_eq!(learned.forward_flops_per_token, none.forward_flops_per_token);
    }

    #[test]
    fn a_petabyte_is_counted_without_being_built() {
        let config = ModelConfig { d_model: 1 << 20, d_ff: 1 << 24, n_layers: 4096, ..small() };
        assert!(ModelCost::of(&config).unwrap().parameters.total() > 1 << 50);
    }
}
