//! Models that bring their own code along for `transformers`.

use super::source::Source;
use serde_json::{Value, json};

/// The name of the module and of its file.
pub(super) const FILE: &str = "modeling_hadal.py";
/// The module.
pub(super) const CODE: &str = include_str!("modeling_hadal.py");
/// The class of the model.
pub(super) const CLASS: &str = "HadalForCausalLM";

/// `config.json`, with ours inside: `hadal` reads such a directory too.
pub(super) fn config(source: &Source) -> Value {
    json!({
        "architectures": [CLASS],
        "model_type": "hadal",
        "auto_map": {
            "AutoConfig": "modeling_hadal.HadalConfig",
            "AutoModelForCausalLM": format!("modeling_hadal.{CLASS}"),
        },
        "hadal": source.config,
        // The code ties the head itself.
        "tie_word_embeddings": false,
    })
}
