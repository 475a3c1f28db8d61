//! What a model is, on one sheet: its shape, and what it takes on disk, in memory and in the cache.

use crate::output::{Table, bytes, grouped};
use hadal_model::{ChatTemplate, ModelConfig, ModelCost, Stored, Tokenizer, ValueResidual};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::Path;

/// Bytes of an f32, which is what a model computes with.
const FLOAT: u64 = 4;

/// The sheet.
pub(crate) struct Sheet<'a> {
    config: &'a ModelConfig,
    cost: &'a ModelCost,
    /// What is on disk; nothing for settings alone.
    stored: Option<Stored>,
    /// Kind and size of the tokenizer.
    tokenizer: Option<(&'static str, usize)>,
    chat_template: bool,
}

impl<'a> Sheet<'a> {
    /// Of a model, or of settings that have none. No parameter is read.
    pub(crate) fn of(config: &'a ModelConfig, cost: &'a ModelCost, model: Option<&Path>) -> Self {
        // What cannot be read is missing here; whoever loads the model says why.
        let tokenizer = model.and_then(|model| match Tokenizer::of_model(model) {
            Ok(Some(own)) => Some((own.kind(), own.vocab_size())),
            Ok(None) if (256..=257).contains(&config.vocab_size) => {
                Some((Tokenizer::bytes().kind(), config.vocab_size))
            }
            _ => None,
        });
        Self {
            config,
            cost,
            stored: model.and_then(|model| Stored::of(model).ok()),
            tokenizer,
            chat_template: model
                .is_some_and(|model| matches!(ChatTemplate::of_model(model), Ok(Some(_)))),
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.cost.parameters.total().saturating_mul(FLOAT)
    }

    fn full_cache_bytes(&self) -> u64 {
        self.cost.kv_bytes_per_token.saturating_mul(self.config.max_seq_len as u64)
    }

    /// For people.
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { config, cost, .. } = self;
        let count = |number: usize| grouped(number as i128);
        let mut table = Table::new(&["model", "value"]);
        let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
        row("blocks", count(config.n_layers));
        row("width", format!("{}, MLP {}", count(config.d_model), count(config.d_ff)));
        row("heads", format!("{} of {}", count(config.n_heads), count(config.head_dim)));
        row("key heads", count(config.n_kv_heads));
        row("vocabulary", count(config.vocab_size));
        row("context", count(config.max_seq_len));
        row("features", features(config));
        row("parameters", grouped(cost.parameters.total().into()));
        row("on disk", self.on_disk());
        row("in memory", format!("{}, f32", bytes(self.memory_bytes() as f64)));
        row(
            "keys and values",
            format!(
                "{} per token, {} at full context",
                bytes(cost.kv_bytes_per_token as f64),
                bytes(self.full_cache_bytes() as f64)
            ),
        );
        let tokenizer =
            self.tokenizer.map(|(kind, size)| format!("{kind}, {} tokens", count(size)));
        row("tokenizer", tokenizer.unwrap_or_else(|| "none".into()));
        row("chat template", if self.chat_template { "yes" } else { "none" }.into());
        table.print(out)
    }

    fn on_disk(&self) -> String {
        let Some(stored) = &self.stored else { return "nothing: settings alone".into() };
        let all: u64 = stored.types.iter().map(|(_, count)| count).sum();
        let share = |(name, count): &(String, u64)| {
            let share = 100.0 * *count as f64 / all.max(1) as f64;
            if stored.types.len() == 1 { name.clone() } else { format!("{name} {share:.1} %") }
        };
        let types: Vec<String> = stored.types.iter().map(share).collect();
        format!("{}, {}", bytes(stored.bytes as f64), types.join(", "))
    }

    /// For scripts: the fields to add to an object.
    pub(crate) fn json(&self) -> Value {
        json!({
            "stored": self.stored,
            "memory_bytes": self.memory_bytes(),
            "kv_bytes_per_token": self.cost.kv_bytes_per_token,
            "kv_bytes_at_full_context": self.full_cache_bytes(),
            "tokenizer_kind": self.tokenizer.map(|(kind, _)| kind),
            "tokenizer_tokens": self.tokenizer.map(|(_, size)| size),
            "chat_template": self.chat_template,
        })
    }
}

/// An object with the fields of another.
pub(crate) fn with_fields(mut object: Value, more: Value) -> Value {
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

/// What the model has besides plain attention and MLPs.
fn features(config: &ModelConfig) -> String {
    let mut found = Vec::new();
    if let Some(bias) = config.attention_bias {
        found.push(format!("attention biases ({})", format!("{bias:?}").to_lowercase()));
    }
    if config.mlp_bias {
        found.push("MLP biases".into());
    }
    if config.qk_norm {
        found.push("normalised queries and keys".into());
    }
    match config.value_residual {
        ValueResidual::None => {}
        ValueResidual::Fixed => found.push("values of the first block".into()),
        ValueResidual::Learned => found.push("values of the first block (learned)".into()),
    }
    if let Some(window) = &config.sliding_window {
        found.push(format!("window of {}", grouped(window.size as i128)));
    }
    if config.rope_scaling.is_some() {
        found.push("scaled RoPE".into());
    }
    if config.tie_embeddings {
        found.push("tied head".into());
    }
    if found.is_empty() { "none".into() } else { found.join(", ") }
}
