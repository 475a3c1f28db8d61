//! `config.json`: everything that decides a model's shape.

use crate::rope_scaling::RopeScaling;
use hadal_residual::{Dimensions, InvalidPolicy, ResidualConfig, Site, SkippedKeys};
use serde::{Deserialize, Serialize};

/// The nonlinearity of the MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MlpKind {
    /// `down(relu(up x)^2)`.
    Relu2,
    /// `down(silu(gate x) * up x)`.
    Swiglu,
}

/// Which earlier sub-layers of the same token attention can see (Mixture-of-Depths Attention,
/// arXiv 2603.15619).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DepthKv {
    /// None: plain causal attention.
    #[serde(rename = "none")]
    None,
    /// The keys and values of earlier attention sub-layers.
    #[serde(rename = "attention")]
    Attention,
    /// Those, and a projection of the input of earlier MLPs.
    #[serde(rename = "attention+mlp")]
    AttentionMlp,
}

/// How much of the first attention's values enters every later one (value residual, arXiv 2410.17897).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueResidual {
    /// Nothing.
    #[default]
    None,
    /// A half of each.
    Fixed,
    /// Two weights of each attention but the first; a half of each at the start.
    Learned,
}

impl ValueResidual {
    /// Whether attention keeps its values to itself.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// Which projections of attention have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionBias {
    /// Queries, keys and values (Qwen2).
    Qkv,
    /// Those, and the output.
    All,
}

/// Attention that sees the last positions alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlidingWindow {
    /// How many positions back a token sees, itself included.
    pub size: usize,
    /// The blocks that have the window, in rising order; all if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Vec<usize>>,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// The only `model_type` of our own checkpoints.
const MODEL_TYPE: &str = "hadal";

/// The contents of `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Always `hadal`.
    pub model_type: String,
    /// Number of tokens.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Blocks; each is an attention and an MLP sub-layer.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; each serves `n_heads / n_kv_heads` query heads.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Hidden width of the MLP.
    pub d_ff: usize,
    /// The nonlinearity of the MLP.
    pub mlp: MlpKind,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Added to the mean square in every RMS normalisation.
    pub norm_eps: f64,
    /// Whether queries and keys are normalised per head.
    pub qk_norm: bool,
    /// Whether the head is the embedding.
    pub tie_embeddings: bool,
    /// What attention sees of earlier depth.
    pub depth_kv: DepthKv,
    /// How much of the first attention's values enters every later one.
    #[serde(default, skip_serializing_if = "ValueResidual::is_none")]
    pub value_residual: ValueResidual,
    /// Longest sequence.
    pub max_seq_len: usize,
    /// Which projections of attention have a bias, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention_bias: Option<AttentionBias>,
    /// Whether the matrices of the MLP have biases.
    #[serde(default, skip_serializing_if = "is_false")]
    pub mlp_bias: bool,
    /// How rotary frequencies are stretched for longer texts, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<RopeScaling>,
    /// Where attention sees the last positions alone, if anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sliding_window: Option<SlidingWindow>,
    /// Blocks that were cut out, by the numbers they had; only for policies that compute with a block's number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed_blocks: Vec<usize>,
    /// The residual policy.
    pub residual: ResidualConfig,
}

/// Why a config makes no model.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A field has an impossible value.
    #[error("{field} is {value}: {reason}")]
    Field {
        /// The field.
        field: &'static str,
        /// What it holds.
        value: String,
        /// Why that is impossible, and what is possible.
        reason: String,
    },
    /// The residual policy refuses its settings.
    #[error(transparent)]
    Policy(#[from] InvalidPolicy),
}

fn refuse(
    field: &'static str,
    value: impl ToString,
    reason: impl Into<String>,
) -> Result<(), ConfigError> {
    Err(ConfigError::Field { field, value: value.to_string(), reason: reason.into() })
}

/// A field, how to read it, and the most it may hold.
type Bound = (&'static str, fn(&ModelConfig) -> usize, usize);

impl ModelConfig {
    /// Three small blocks without anything optional, for tests: a test names what matters to it and takes the rest from
    /// here.
    #[doc(hidden)]
    pub fn tiny() -> Self {
        Self {
            model_type: MODEL_TYPE.into(),
            vocab_size: 19,
            d_model: 16,
            n_layers: 3,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 6,
            d_ff: 24,
            mlp: MlpKind::Relu2,
            rope_theta: 10_000.0,
            norm_eps: 1e-7,
            qk_norm: false,
            tie_embeddings: true,
            depth_kv: DepthKv::None,
            value_residual: ValueResidual::None,
            max_seq_len: 32,
            attention_bias: None,
            mlp_bias: false,
            rope_scaling: None,
            sliding_window: None,
            removed_blocks: Vec::new(),
            residual: ResidualConfig::default(),
        }
    }

    /// No model has more blocks.
    pub(crate) const MOST_LAYERS: usize = 4096;

    /// Far beyond any model, close enough that counting never overflows and that a mistyped number is refused before
    /// memory is allocated.
    const BOUNDS: [Bound; 9] = [
        ("vocab_size", |c| c.vocab_size, 1 << 24),
        ("d_model", |c| c.d_model, 1 << 20),
        ("n_layers", |c| c.n_layers, Self::MOST_LAYERS),
        ("n_heads", |c| c.n_heads, 1 << 14),
        ("n_kv_heads", |c| c.n_kv_heads, 1 << 14),
        ("head_dim", |c| c.head_dim, 1 << 14),
        ("d_ff", |c| c.d_ff, 1 << 24),
        ("max_seq_len", |c| c.max_seq_len, 1 << 30),
        // These numbers have already been checked by the lines above.
        ("n_heads * head_dim", |c| c.n_heads * c.head_dim, 1 << 20),
    ];

    /// Refuses values that make no model.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.model_type != MODEL_TYPE {
            refuse("model_type", &self.model_type, format!("it must be \"{MODEL_TYPE}\""))?;
        }
        for (field, get, most) in Self::BOUNDS {
            if !(1..=most).contains(&get(self)) {
                refuse(field, get(self), format!("it must be between 1 and {most}"))?;
            }
        }
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            let reason = format!(
                "n_heads {} is not divisible by it, but every key/value head serves the same number of query heads",
                self.n_heads
            );
            refuse("n_kv_heads", self.n_kv_heads, reason)?;
        }
        if !self.head_dim.is_multiple_of(2) {
            refuse("head_dim", self.head_dim, "RoPE pairs its dimensions, so it must be even")?;
        }
        if !(self.rope_theta.is_finite() && self.rope_theta > 0.0) {
            refuse("rope_theta", self.rope_theta, "it must be a positive number, such as 10000")?;
        }
        if !(self.norm_eps.is_finite() && self.norm_eps > 0.0) {
            refuse("norm_eps", self.norm_eps, "it must be a small positive number, such as 1e-6")?;
        }
        if let Some(scaling) = &self.rope_scaling
            && let Err((value, reason)) = scaling.check(self.head_dim, self.rope_theta)
        {
            refuse("rope_scaling", value, reason)?;
        }
        self.check_window()?;
        let rising = self.removed_blocks.windows(2).all(|pair| pair[0] < pair[1]);
        let depth = self.n_layers + self.removed_blocks.len();
        if !rising || self.removed_blocks.last().is_some_and(|&last| last >= depth) {
            let reason = format!(
                "they must be blocks between 0 and {} of the model before the cut, each once and in rising order",
                depth - 1
            );
            refuse("removed_blocks", format!("{:?}", self.removed_blocks), reason)?;
        }
        self.residual.check(&self.dimensions())?;
        if self.residual.skipped_keys() == SkippedKeys::Drop && self.depth_kv != DepthKv::None {
            let reason = "tokens leave depth slots behind, but the residual policy drops the keys of tokens \
                          that skip; set depth_kv to \"none\", or its skip_kv to \"keep\"";
            refuse("depth_kv", "not \"none\"", reason)?;
        }
        if self.may_lack_values(0) {
            let reason = "later attention takes the first one's values, but its tokens may skip that one, and the \
                          residual policy drops the keys and values of tokens that skip; set value_residual to \
                          \"none\", or let all tokens keep theirs in block 0: by skip_kv = \"keep\", or by routing \
                          later blocks alone";
            refuse("value_residual", "not \"none\"", reason)?;
        }
        Ok(())
    }

    /// Whether tokens that skip a block's attention leave no values there, though later attention would take them if it were
    /// the first.
    pub(crate) fn may_lack_values(&self, block: usize) -> bool {
        let routed = || self.residual.deciding(Site::new(2 * block), &self.dimensions()) > 0;
        !self.value_residual.is_none()
            && self.residual.skipped_keys() == SkippedKeys::Drop
            && (self.residual.skipping().is_some() || routed())
    }

    /// The same for models from files. A run may be started with an epsilon that is zero in f32, and fails when
    /// something is zero; a file with one is damaged.
    pub(crate) fn check_stored(&self) -> Result<(), ConfigError> {
        let eps = self.norm_eps as f32;
        if self.norm_eps > 0.0 && !(eps.is_finite() && eps > 0.0) {
            let reason = "it is used as f32, in which it is zero or infinite; 1e-6 is usual";
            refuse("norm_eps", format!("{:e}", self.norm_eps), reason)?;
        }
        self.check()
    }

    fn check_window(&self) -> Result<(), ConfigError> {
        let Some(SlidingWindow { size, blocks }) = &self.sliding_window else { return Ok(()) };
        if !(1..=1 << 30).contains(size) {
            refuse("sliding_window.size", size, format!("it must be between 1 and {}", 1 << 30))?;
        }
        if let Some(blocks) = blocks {
            let rising = blocks.windows(2).all(|pair| pair[0] < pair[1]);
            if blocks.is_empty() || !rising || blocks.last() >= Some(&self.n_layers) {
                let reason = format!(
                    "they must be blocks between 0 and {}, each once and in rising order; leave it out for all",
                    self.n_layers - 1
                );
                refuse("sliding_window.blocks", format!("{blocks:?}"), reason)?;
            }
        }
        if self.residual.skipped_keys() == SkippedKeys::Drop {
            let reason = "a window counts positions, but the residual policy drops the keys of tokens that \
                          skip; set skip_kv to \"keep\", or leave the window out";
            refuse("sliding_window", size, reason)?;
        }
        Ok(())
    }

    /// How many positions back a block's attention sees, itself included; everything if none.
    pub fn window(&self, block: usize) -> Option<usize> {
        let SlidingWindow { size, blocks } = self.sliding_window.as_ref()?;
        blocks.as_ref().is_none_or(|blocks| blocks.contains(&block)).then_some(*size)
    }

    /// Also refuses a policy whose initial values do not exist, for models that start fresh.
    pub fn check_fresh(&self) -> Result<(), ConfigError> {
        self.check()?;
        self.residual.check_start(&self.dimensions())?;
        Ok(())
    }

    /// What the residual policy needs to know.
    pub fn dimensions(&self) -> Dimensions {
        let removed = self.removed_blocks.clone();
        Dimensions { removed, ..Dimensions::new(self.d_model, self.n_layers, self.norm_eps) }
    }

    /// Width of all keys, or of all values, of a layer.
    pub(crate) fn kv_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Whether the MLP of a block leaves a depth slot: no block would read the last one's.
    pub(crate) fn mlp_leaves_slot(&self, block: usize) -> bool {
        self.depth_kv == DepthKv::AttentionMlp && block + 1 < self.n_layers
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn small() -> ModelConfig {
        ModelConfig { d_model: 12, head_dim: 4, d_ff: 20, norm_eps: 1e-6, ..ModelConfig::tiny() }
    }

    fn complaint(change: impl FnOnce(&mut ModelConfig)) -> String {
        let mut config = small();
        change(&mut config);
        config.check_fresh().unwrap_err().to_string()
    }

    #[test]
    fn impossible_shapes_are_refused_with_the_reason() {
        assert!(complaint(|c| c.n_kv_heads = 3).contains("n_heads 4 is not divisible"));
        assert!(complaint(|c| c.head_dim = 5).contains("must be even"));
        assert!(complaint(|c| c.n_layers = 0).contains("between 1 and 4096"));
        assert!(
            complaint(|c| c.vocab_size = usize::MAX).contains("vocab_size is 18446744073709551615")
        );
        assert!(complaint(|c| c.norm_eps = f64::NAN).contains("norm_eps is NaN"));
        assert!(complaint(|c| c.rope_theta = 0.0).contains("rope_theta is 0"));
        assert!(complaint(|c| c.model_type = "gpt".into()).contains("model_type is gpt"));
    }

    #[test]
    fn impossible_policies_are_refused_with_the_reason() {
        let residual = |text: &str| complaint(|c| c.residual = text.parse().unwrap());
        assert!(residual("mhc_lite:streams=8").contains("8! = 40,320 permutations"));
        assert!(residual("mgr:streams=6").contains("Eq. 14 has no initial gate"));
        assert!(residual("mgr:streams=0").contains("at least one stream"));
        assert!(residual("mixln:post_fraction=1.5").contains("between 0 and 1"));
        assert!(residual("mhc:sinkhorn_iters=0").contains("sinkhorn_iters is 0"));
        assert!(residual("nag:directions=0").contains("directions is 0"));
        assert!(residual("nag:skip_threshold=-1").contains("skip_threshold is -1"));
    }

    #[test]
    fn impossible_windows_are_refused_with_the_reason() {
        let window = |size, blocks: Option<Vec<usize>>| {
            complaint(|c| c.sliding_window = Some(SlidingWindow { size, blocks }))
        };
        assert!(window(0, None).contains("sliding_window.size is 0"));
        assert!(window(4, Some(vec![])).contains("leave it out for all"));
        assert!(window(4, Some(vec![1, 1])).contains("rising order"));
        assert!(window(4, Some(vec![3])).contains("between 0 and 2"));
        let dropping = complaint(|c| {
            c.sliding_window = Some(SlidingWindow { size: 4, blocks: None });
            c.residual = "nag:skip_threshold=0.2,skip_kv=drop".parse().unwrap();
        });
        assert!(dropping.contains("skip_kv"), "{dropping}");
    }

    #[test]
    fn values_that_some_tokens_would_lack_are_refused_with_the_reason() {
        let with = |residual: &str| {
            let value_residual = ValueResidual::Fixed;
            ModelConfig { value_residual, residual: residual.parse().unwrap(), ..small() }
        };
        for residual in ["nag:skip_threshold=0.2,skip_kv=drop", "prenorm:capacity=0.5,every=1"] {
            let error = with(residual).check().unwrap_err().to_string();
            assert!(error.contains("value_residual") && error.contains("skip_kv"), "{error}");
        }
        for residual in ["nag:skip_threshold=0.2", "prenorm:capacity=0.5,every=2"] {
            assert_eq!(with(residual).check(), Ok(()), "{residual}");
        }
    }

    #[test]
    fn what_says_nothing_is_left_out_of_the_file() {
        let text = serde_json::to_string(&small()).unwrap();
        for key in [
            "value_residual",
            "attention_bias",
            "mlp_bias",
            "rope_scaling",
            "sliding_window",
            "removed_blocks",
        ] {
            assert!(!text.contains(key), "{key}");
        }
        let config = ModelConfig {
            value_residual: ValueResidual::Learned,
            attention_bias: Some(AttentionBias::Qkv),
            mlp_bias: true,
            rope_scaling: Some(RopeScaling::Linear { factor: 2.0 }),
            sliding_window: Some(SlidingWindow { size: 4, blocks: Some(vec![1]) }),
            ..small()
        };
        assert_eq!((config.window(0), config.window(1)), (None, Some(4)));
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<ModelConfig>(&text).unwrap(), config);
    }

    #[test]
    fn a_trained_mgr_needs_no_initial_gate() {
        let mut config = small();
        config.residual = "mgr:streams=6".parse().unwrap();
        assert_eq!(config.check(), Ok(()));
    }

    #[test]
    fn unknown_keys_are_errors() {
        let mut value = serde_json::to_value(small()).unwrap();
        value["n_layer"] = 3.into();
        let error = serde_json::from_value::<ModelConfig>(value).unwrap_err();
        assert!(error.to_string().contains("unknown field `n_layer`"));
    }
}
