//! GGUF files of the Llama family, as llama.cpp writes them.

use super::permute::unpermute;
use super::{Imported, Reason, WeightSource};
use crate::checkpoint::CheckpointError;
use crate::config::{AttentionBias, DepthKv, MlpKind, ModelConfig, SlidingWindow, ValueResidual};
use crate::rope_scaling::{RopeScaling, Yarn};
use hadal_gguf::{FromValue, Gguf, GgufError, TensorType, Value};
use hadal_residual::ResidualConfig;
use safetensors::tensor::Dtype;
use std::path::{Path, PathBuf};

/// The architecture that a file states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Architecture {
    /// Also Mistral and SmolLM2. Rows of queries and keys are reordered.
    Llama,
    Qwen2,
    Qwen3,
}

const KNOWN: [(&str, Architecture); 3] = [
    ("llama", Architecture::Llama),
    ("qwen2", Architecture::Qwen2),
    ("qwen3", Architecture::Qwen3),
];

/// Keys of an architecture that are read, or that do not affect what is computed. Any other is refused.
const KEYS: [&str; 21] = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.finetuned",
    "vocab_size",
];
/// Keys that are harmless as long as they are zero.
const ZERO_KEYS: [&str; 2] = ["expert_count", "expert_used_count"];

/// What llama.cpp takes where a file does not give it.
const DEFAULT_THETA: f64 = 10_000.0;
const DEFAULT_BETAS: [f64; 2] = [32.0, 1.0];

/// Numbers by which frequencies are divided, one for each pair of dimensions.
const DIVISORS: &str = "rope_freqs.weight";

/// An open file and what it describes.
#[derive(Debug)]
pub(crate) struct GgufModel {
    file: Gguf,
    architecture: Architecture,
    head_dim: usize,
}

impl GgufModel {
    /// Opens a file and reads its model's description.
    pub(crate) fn open(path: &Path) -> Result<(Self, Imported), CheckpointError> {
        let file = Gguf::open(path)?;
        let named: String = file.get("general.architecture")?;
        let Some(&(name, architecture)) = KNOWN.iter().find(|(name, _)| *name == named) else {
            let known = KNOWN.map(|(name, _)| name).join(", ");
            let reason = format!("its general.architecture is {named:?}; known are {known}");
            return Err(CheckpointError::Config { path: path.into(), reason });
        };
        let imported = Description { file: &file, name, architecture }.read()?;
        let head_dim = imported.config.head_dim;
        Ok((Self { file, architecture, head_dim }, imported))
    }

    fn is_permuted(&self, name: &str) -> bool {
        let turned = ["attn_q.weight", "attn_k.weight", "attn_q.bias", "attn_k.bias"];
        self.architecture == Architecture::Llama
            && turned.iter().any(|part| name.ends_with(&format!(".{part}")))
    }
}

/// Reads metadata.
struct Description<'a> {
    file: &'a Gguf,
    name: &'static str,
    architecture: Architecture,
}

impl Description<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    fn get<T: FromValue>(&self, key: &str) -> Result<T, GgufError> {
        self.file.get(&self.key(key))
    }

    fn find<T: FromValue>(&self, key: &str) -> Result<Option<T>, GgufError> {
        self.file.find(&self.key(key))
    }

    fn number(&self, key: &str) -> Result<Option<f64>, GgufError> {
        Ok(self.find::<f32>(key)?.map(decimal))
    }

    fn wrong(&self, reason: Reason) -> CheckpointError {
        CheckpointError::Config { path: self.file.path().into(), reason }
    }

    fn read(&self) -> Result<Imported, CheckpointError> {
        self.refuse_unknown()?;
        let n_layers = self.get("block_count")?;
        let d_model: usize = self.get("embedding_length")?;
        let n_heads = self.for_all_blocks("attention.head_count", n_layers)?;
        let n_kv_heads = match self.file.metadata().value(&self.key("attention.head_count_kv")) {
            None => n_heads,
            Some(_) => self.for_all_blocks("attention.head_count_kv", n_layers)?,
        };
        let head_dim = match self.find("attention.key_length")? {
            Some(length) => length,
            None => d_model / n_heads.max(1),
        };
        for key in ["attention.value_length", "rope.dimension_count"] {
            if let Some(length) = self.find::<usize>(key)?
                && length != head_dim
            {
                return Err(self.wrong(format!(
                    "{} is {length}, but heads are {head_dim} wide, and only heads of one width that turn \
                     as a whole are supported",
                    self.key(key)
                )));
            }
        }
        let context: usize = self.get("context_length")?;
        let rope_scaling = self.rope_scaling(head_dim, context)?;
        let max_seq_len = match &rope_scaling {
            Some(RopeScaling::Yarn(yarn)) => {
                context.max((yarn.original_max_seq_len as f64 * yarn.factor).round() as usize)
            }
            _ => context,
        };
        let size: Option<usize> = self.find("attention.sliding_window")?;
        let first = |part: &str| self.file.contains(&format!("blk.0.{part}"));
        let config = ModelConfig {
            model_type: "hadal".into(),
            vocab_size: self.file.tensor("token_embd.weight")?.info().rows(),
            d_model,
            n_layers,
            n_heads,
            n_kv_heads,
            head_dim,
            d_ff: self.for_all_blocks("feed_forward_length", n_layers)?,
            mlp: MlpKind::Swiglu,
            rope_theta: self.number("rope.freq_base")?.unwrap_or(DEFAULT_THETA),
            norm_eps: decimal(self.get("attention.layer_norm_rms_epsilon")?),
            qk_norm: self.architecture == Architecture::Qwen3,
            tie_embeddings: !self.file.contains("output.weight"),
            depth_kv: DepthKv::None,
            value_residual: ValueResidual::None,
            max_seq_len,
            attention_bias: match (first("attn_q.bias"), first("attn_output.bias")) {
                (false, false) => None,
                (true, false) => Some(AttentionBias::Qkv),
                // An output bias without the others is reported as missing names when parameters are read.
                (_, true) => Some(AttentionBias::All),
            },
            mlp_bias: first("ffn_up.bias"),
            rope_scaling,
            sliding_window: size
                .filter(|size| *size > 0)
                .map(|size| SlidingWindow { size, blocks: None }),
            removed_blocks: Vec::new(),
            residual: ResidualConfig::default(),
        };
        let token = |key: &str| self.file.find::<u32>(&format!("tokenizer.ggml.{key}_token_id"));
        let mut ends: Vec<u32> = Vec::new();
        for end in [token("eos")?, token("eot")?, token("eom")?].into_iter().flatten() {
            if !ends.contains(&end) {
                ends.push(end);
            }
        }
        Ok(Imported { config, begin: token("bos")?, ends })
    }

    fn refuse_unknown(&self) -> Result<(), CheckpointError> {
        let prefix = self.key("");
        let metadata = self.file.metadata().iter();
        let ours = metadata.filter_map(|(key, value)| Some((key.strip_prefix(&prefix)?, value)));
        for (key, value) in ours {
            let harmless = match value {
                Value::U32(0) | Value::U64(0) => ZERO_KEYS.contains(&key),
                _ => false,
            };
            if !KEYS.contains(&key) && !harmless {
                let key = self.key(key).escape_debug().to_string();
                return Err(self.wrong(format!(
                    "it has {key}, which is not supported: models that need it would be computed wrongly"
                )));
            }
        }
        Ok(())
    }

    /// A number that may be given once or for each block, but must be the same for all.
    fn for_all_blocks(&self, key: &str, blocks: usize) -> Result<usize, CheckpointError> {
        let name = self.key(key);
        let Some(Value::Array(_)) = self.file.metadata().value(&name) else {
            return Ok(self.file.get(&name)?);
        };
        let each: Vec<usize> = self.file.get(&name)?;
        match each.first() {
            Some(&first) if each.len() == blocks && each.iter().all(|one| *one == first) => Ok(first),
            _ => Err(self.wrong(format!(
                "{name} is a list, but only models whose {blocks} blocks are all of one shape are supported"
            ))),
        }
    }

    fn rope_scaling(
        &self,
        head_dim: usize,
        context: usize,
    ) -> Result<Option<RopeScaling>, CheckpointError> {
        let kind: Option<String> = self.find("rope.scaling.type")?;
        let factor = match self.number("rope.scaling.factor")? {
            Some(factor) => factor,
            None => self.number("rope.scale_linear")?.unwrap_or(1.0),
        };
        let stated = match kind.as_deref() {
            Some("none") => None,
            // llama.cpp reads a factor without a type as linear.
            None | Some("linear") if factor == 1.0 || factor == 0.0 => None,
            None | Some("linear") => Some(RopeScaling::Linear { factor }),
            Some("yarn") => {
                let original = self.find("rope.scaling.original_context_length")?;
                let sharper = self.number("rope.scaling.attn_factor")?.unwrap_or(1.0);
                let [fast, slow] = DEFAULT_BETAS;
                Some(RopeScaling::Yarn(Yarn {
                    factor,
                    original_max_seq_len: original.unwrap_or(context),
                    beta_fast: self.number("rope.scaling.yarn_beta_fast")?.unwrap_or(fast),
                    beta_slow: self.number("rope.scaling.yarn_beta_slow")?.unwrap_or(slow),
                    attention_factor: (sharper * Yarn::suggested_attention_factor(factor)) as f32,
                    truncate: true,
                }))
            }
            Some(other) => {
                return Err(self.wrong(format!(
                    "{} is {other:?}, but known are none, linear and yarn",
                    self.key("rope.scaling.type")
                )));
            }
        };
        if !self.file.contains(DIVISORS) {
            return Ok(stated);
        }
        let tensor = self.file.tensor(DIVISORS)?;
        if tensor.info().elements() != head_dim / 2 {
            return Err(self.wrong(format!(
                "{DIVISORS} has {} elements, but a head has {} pairs of dimensions",
                tensor.info().elements(),
                head_dim / 2
            )));
        }
        let divisors = tensor.to_f32()?;
        match stated {
            _ if divisors.iter().all(|divisor| *divisor == 1.0) => Ok(stated),
            None => Ok(Some(RopeScaling::Divided { divisors })),
            Some(_) => Err(self.wrong(format!(
                "it has {DIVISORS} and {}, but only one of them is supported",
                self.key("rope.scaling.type")
            ))),
        }
    }
}

/// The number that was meant when it was stored as f32: 1e-5, not 0.000009999999747.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| value.into())
}

impl WeightSource for GgufModel {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![self.file.path().into()]
    }

    fn name_of(&self, ours: &str) -> String {
        let parts: Vec<&str> = ours.split('.').collect();
        match parts.as_slice() {
            ["embed", "weight"] => "token_embd.weight".into(),
            ["head", "weight"] => "output.weight".into(),
            ["norm", "weight"] => "output_norm.weight".into(),
            ["layers", i, "attn_norm", "weight"] => format!("blk.{i}.attn_norm.weight"),
            ["layers", i, "mlp_norm", "weight"] => format!("blk.{i}.ffn_norm.weight"),
            ["layers", i, "attn", "o", kind] => format!("blk.{i}.attn_output.{kind}"),
            ["layers", i, "attn", part, kind] => format!("blk.{i}.attn_{part}.{kind}"),
            ["layers", i, "mlp", part, kind] => format!("blk.{i}.ffn_{part}.{kind}"),
            _ => ours.into(),
        }
    }

    fn names(&self) -> Vec<String> {
        self.file.tensors().map(|tensor| tensor.info().name().to_owned()).collect()
    }

    fn may_ignore(&self, name: &str) -> bool {
        // It was read with the config.
        name == DIVISORS
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let tensor = self.file.tensor(name).ok()?;
        Some(tensor.info().dimensions().iter().rev().copied().collect())
    }

    fn dtype(&self, name: &str) -> Dtype {
        match self.file.tensor(name).map(|tensor| tensor.info().kind()) {
            Ok(TensorType::F16) => Dtype::F16,
            Ok(TensorType::BF16) => Dtype::BF16,
            _ => Dtype::F32,
        }
    }

    fn stored_type(&self, name: &str) -> String {
        let kind = self.file.tensor(name).map(|tensor| tensor.info().kind().name());
        kind.unwrap_or("unknown").to_lowercase()
    }

    fn floats(&self, name: &str) -> Result<Vec<f32>, Reason> {
        let said = |error: GgufError| error.to_string();
        let tensor = self.file.tensor(name).map_err(said)?;
        let values = tensor.to_f32().map_err(said)?;
        if let Some(index) = values.iter().position(|value| !value.is_finite()) {
            return Err(format!("`{name}` holds {} at element {index}", values[index]));
        }
        if !self.is_permuted(name) {
            return Ok(values);
        }
        // The rows of a bias are single numbers.
        let columns = if name.ends_with(".bias") { 1 } else { tensor.info().row_length() };
        Ok(unpermute(&values, self.head_dim, columns))
    }
}
