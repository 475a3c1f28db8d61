//! Every field of a Hugging Face `config.json` that speaks of blocks: how it is after a cut, or why it cannot be said.

#[cfg(test)]
mod tests;

use super::map::Renumbering;
use serde_json::{Map, Value, json};

type Fields = Map<String, Value>;

pub(super) const BLOCKS: &str = "num_hidden_layers";
/// Prediction heads that may be stored as blocks behind the last one.
const HEADS: &str = "num_nextn_predict_layers";

/// `model_type`s of which it is known what they derive from a block's number: nothing, or what [`PATTERNS`] says.
const KNOWN: [&str; 34] = [
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_text",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "phi",
    "phi3",
    "olmo",
    "olmo2",
    "olmo3",
    "granite",
    "smollm3",
    "deepseek_v2",
    "deepseek_v3",
    "kimi_k2",
    "kimi_linear",
    "gpt_oss",
    "gpt_neox",
    "stablelm",
    "starcoder2",
    "nemotron",
    "internlm2",
    "exaone",
];

/// What a class derives from a block's number when the config has no list: every n-th block is another one.
struct Pattern {
    families: &'static [&'static str],
    /// The list that says it block by block.
    list: &'static str,
    /// The field that says n.
    period: &'static str,
    /// n if no field does.
    usual: usize,
    /// What the n-th, 2n-th, ... blocks are.
    nth: Kind,
    /// What the others are.
    other: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Word(&'static str),
    Number(u64),
}

impl Kind {
    fn value(self) -> Value {
        match self {
            Self::Word(word) => json!(word),
            Self::Number(number) => json!(number),
        }
    }
}

const FULL: Kind = Kind::Word("full_attention");
const SLIDING: Kind = Kind::Word("sliding_attention");
const LINEAR: Kind = Kind::Word("linear_attention");

const fn windows(families: &'static [&'static str], period: &'static str, usual: usize) -> Pattern {
    Pattern { families, list: "layer_types", period, usual, nth: FULL, other: SLIDING }
}

const PATTERNS: [Pattern; 6] = [
    windows(&["gemma2"], "sliding_window_pattern", 2),
    windows(&["gemma3", "gemma3_text"], "sliding_window_pattern", 6),
    windows(&["gpt_oss"], "sliding_window_pattern", 2),
    windows(&["olmo3"], "sliding_window_pattern", 4),
    Pattern {
        families: &["qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"],
        list: "layer_types",
        period: "full_attention_interval",
        usual: 4,
        nth: FULL,
        other: LINEAR,
    },
    Pattern {
        families: &["smollm3"],
        list: "no_rope_layers",
        period: "no_rope_layer_interval",
        usual: 4,
        // A 1 is a block that rotates, whatever the field's name says.
        nth: Kind::Number(0),
        other: Kind::Number(1),
    },
];

/// Numbers that mean "the first n blocks".
const COUNTS_OF_FIRST: [&str; 5] = [
    "max_window_layers",
    "first_k_dense_replace",
    "num_dense_layers",
    "num_hash_layers",
    "moe_layer_start_index",
];
/// Lists of block numbers.
const LISTS_OF_BLOCKS: [&str; 10] = [
    "mlp_only_layers",
    "cross_attention_layers",
    "full_attn_idxs",
    "attn_layer_indices",
    "moe_layers",
    "rope_scaling_layers",
    "hybrid_layer_ids",
    "local_layer_ids",
    "ple_layer_ids",
    "target_layer_ids",
];
/// Lists of block numbers in `linear_attn_config`, counted from 1.
const COUNTED_FROM_ONE: [&str; 2] = ["kda_layers", "full_attn_layers"];
/// Patterns that repeat every n blocks.
const PERIODS: [&str; 14] = [
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "full_attention_interval",
    "no_rope_layer_interval",
    "global_attn_every_n_layers",
    "layer_group_size",
    "attn_layer_period",
    "expert_layer_period",
    "decoder_sparse_step",
    "moe_layer_freq",
    "moe_layer_interval",
    "interleave_moe_layer_step",
    "n_layers_per_attn_res_block",
    "rescale_every",
];
/// Periods of attention, which a `layer_types` beside them overrules; one of MLPs goes on to hold.
const OVERRULED: [&str; 5] = [
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "full_attention_interval",
    "global_attn_every_n_layers",
    "attn_layer_period",
];
/// Fields that, if they are true or not zero, make blocks depend on others or on their number.
const DEPENDENT: [&str; 3] =
    ["num_kv_shared_layers", "scale_attn_by_inverse_layer_idx", "moe_layer_end_index"];
/// A letter for each block.
const LETTERS: [&str; 1] = ["hybrid_override_pattern"];
/// Lists that may happen to be as long as the model is deep.
const NOT_PER_BLOCK: [&str; 5] =
    ["architectures", "mrope_section", "bad_words_ids", "suppress_tokens", "forced_decoder_ids"];

/// The fields about the decoder: those of `text_config` where a directory holds several models.
pub(super) fn decoder(config: &Value) -> &Value {
    config.get("text_config").filter(|text| text.is_object()).unwrap_or(config)
}

fn decoder_mut(config: &mut Value) -> Option<&mut Fields> {
    let nested = config.get("text_config").is_some_and(Value::is_object);
    match nested {
        true => config["text_config"].as_object_mut(),
        false => config.as_object_mut(),
    }
}

/// Corrects every field, or says why one cannot be corrected. `unknown` allows families of which nothing is known.
pub(super) fn cut(config: &mut Value, map: &Renumbering, unknown: bool) -> Result<(), String> {
    let fields = decoder_mut(config).ok_or("it is not an object")?;
    let moves = map.kept().len() < map.blocks();
    if moves {
        let family = fields.get("model_type").and_then(Value::as_str).unwrap_or_default();
        let family = family.to_owned();
        check_family(&family, fields, unknown)?;
        spell_patterns(&family, fields, map);
        dense_blocks_by_number(fields, map);
        refuse_dependent(fields, map)?;
        refuse_periods(fields, map)?;
        keep_an_attention(fields, map)?;
    }
    if let Some(linear) = fields.get_mut("linear_attn_config").and_then(Value::as_object_mut) {
        for key in COUNTED_FROM_ONE {
            linear.entry(key).and_modify(|list| renumber(list, map, 1));
        }
    }
    if let Some(blocks) = fields.get_mut("per_layer_config").and_then(Value::as_object_mut) {
        *blocks = renumber_keys(blocks, map);
    }
    for (key, value) in fields.iter_mut() {
        let key = key.as_str();
        if COUNTS_OF_FIRST.contains(&key)
            && let Some(count) = value.as_u64()
        {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            *value = json!(map.staying_of_first(count));
        } else if LISTS_OF_BLOCKS.contains(&key) || (is_per_block(key) && counts_up(value, map)) {
            renumber(value, map, 0);
        } else if key == "kv_source_layers" {
            retain(value, map);
            renumber(value, map, 0);
        } else if LETTERS.contains(&key) {
            retain_letters(value, map);
        } else if key == BLOCKS {
            *value = json!(map.kept().len());
        } else if is_per_block(key) {
            retain(value, map);
        }
    }
    Ok(())
}

/// Refuses families that may derive something from a block's number that no field says.
fn check_family(family: &str, fields: &Fields, unknown: bool) -> Result<(), String> {
    if KNOWN.contains(&family) {
        let linear = fields.get("linear_attn_config").and_then(|config| config.get("kda_layers"));
        return match family == "kimi_linear" && linear.is_none() {
            true => Err("linear_attn_config has no kda_layers, so kinds of blocks follow from their number; write the lists into it first".into()),
            false => Ok(()),
        };
    }
    if !unknown {
        return Err(format!(
            "nothing is known of the model_type `{family}`: its class may derive something from a block's number; with \
             --structure-only its blocks are cut by what its files say"
        ));
    }
    let listed = fields.get("layer_types").is_some_and(Value::is_array);
    match fields.get("sliding_window").filter(|window| !window.is_null() && !listed) {
        Some(window) => Err(format!(
            "sliding_window is {window}, but no layer_types says in which blocks; write the list into it first"
        )),
        None => Ok(()),
    }
}

/// Says block by block what followed from their numbers, where kept blocks do not follow the same pattern.
fn spell_patterns(family: &str, fields: &mut Fields, map: &Renumbering) {
    for pattern in PATTERNS.iter().filter(|pattern| pattern.families.contains(&family)) {
        let private = format!("_{}", pattern.period);
        let number = |name: &str| fields.get(name).and_then(Value::as_u64);
        let period = number(pattern.period).or_else(|| number(&private));
        let period = period.and_then(|n| usize::try_from(n).ok()).unwrap_or(pattern.usual);
        let is_list = fields.get(pattern.list).is_some_and(Value::is_array);
        if period == 0 || (is_list && keeps_step(map, period)) {
            continue;
        }
        if !is_list {
            let kind = |block: usize| match (block + 1).is_multiple_of(period) {
                true => pattern.nth.value(),
                false => pattern.other.value(),
            };
            // All blocks: those that go are taken out with the entries of every other list.
            fields.insert(pattern.list.into(), (0..map.blocks()).map(kind).collect());
        }
        fields.remove(pattern.period);
        fields.remove(&private);
    }
}

/// Mixtures of experts in every n-th block: the dense ones are named instead.
fn dense_blocks_by_number(fields: &mut Fields, map: &Renumbering) {
    let step = fields.get("decoder_sparse_step").and_then(Value::as_u64).unwrap_or(1);
    let Ok(step) = usize::try_from(step) else { return };
    if step < 2 || keeps_step(map, step) {
        return;
    }
    let mut dense: Vec<u64> = (fields.get("mlp_only_layers").and_then(Value::as_array))
        .map_or_else(Vec::new, |list| list.iter().filter_map(Value::as_u64).collect());
    dense.extend((0..map.blocks()).filter(|i| !(i + 1).is_multiple_of(step)).map(|i| i as u64));
    dense.sort_unstable();
    dense.dedup();
    fields.insert("mlp_only_layers".into(), json!(dense));
    fields.insert("decoder_sparse_step".into(), json!(1));
}

fn refuse_dependent(fields: &Fields, map: &Renumbering) -> Result<(), String> {
    let set =
        |value: &Value| value.as_bool() == Some(true) || value.as_u64().is_some_and(|n| n > 0);
    if let Some((key, value)) =
        fields.iter().find(|(key, value)| DEPENDENT.contains(&key.as_str()) && set(value))
    {
        return Err(format!(
            "{key} is {value}: blocks depend on others or on their number, so none can be cut"
        ));
    }
    let sources = fields.get("kv_source_layers").and_then(Value::as_array);
    let gone = |(block, source): &(usize, &Value)| {
        let source = source.as_u64().and_then(|block| usize::try_from(block).ok());
        map.stays(*block) && source.is_some_and(|source| !map.stays(source))
    };
    match sources.and_then(|list| list.iter().enumerate().find(gone)) {
        Some((block, source)) => Err(format!(
            "kv_source_layers: block {block} uses keys of block {source}, which would be gone"
        )),
        None => Ok(()),
    }
}

/// Refuses patterns with which the blocks that stay would fall out of step.
fn refuse_periods(fields: &Fields, map: &Renumbering) -> Result<(), String> {
    let listed = fields.get("layer_types").is_some_and(Value::is_array);
    for (key, value) in fields.iter().filter(|(key, _)| PERIODS.contains(&key.as_str())) {
        if (listed && OVERRULED.contains(&key.as_str())) || value.is_null() || value.is_array() {
            continue;
        }
        let period = value.as_u64().and_then(|period| usize::try_from(period).ok());
        if !period.is_some_and(|period| period > 0 && keeps_step(map, period)) {
            return Err(format!(
                "{key} is {value}: its pattern repeats with depth, and without a block the rest would fall out of step; \
                 cut whole periods, or leave blocks out when loading instead, with --without"
            ));
        }
    }
    Ok(())
}

/// Refuses to leave a hybrid without softmax attention: it has no exact memory then.
fn keep_an_attention(fields: &Fields, map: &Renumbering) -> Result<(), String> {
    let kinds = fields.get("layer_types").and_then(Value::as_array);
    let kinds = kinds.filter(|kinds| kinds.iter().any(|kind| *kind == "linear_attention"));
    let full = fields.get("linear_attn_config").and_then(|config| config.get("full_attn_layers"));
    let left = match (kinds, full.and_then(Value::as_array)) {
        (Some(kinds), _) => map
            .kept()
            .iter()
            .any(|&block| kinds.get(block).is_some_and(|kind| *kind != "linear_attention")),
        (None, Some(full)) => full.iter().any(|block| {
            let block = block.as_u64().and_then(|block| usize::try_from(block).ok());
            block.and_then(|block| block.checked_sub(1)).is_some_and(|block| map.stays(block))
        }),
        (None, None) => true,
    };
    match left {
        true => Ok(()),
        false => Err("no block with softmax attention would be left: such a model has no exact memory; keep one".into()),
    }
}

/// Whether every block that stays has the same place in its period as before.
pub(super) fn keeps_step(map: &Renumbering, period: usize) -> bool {
    map.kept().iter().enumerate().all(|(new, old)| new % period == old % period)
}

/// Whether a list has an entry for each block, if it is as long. Ids of tokens never do, whatever their number.
fn is_per_block(key: &str) -> bool {
    !NOT_PER_BLOCK.contains(&key)
        && key != HEADS
        && !key.ends_with("_token_id")
        && !key.ends_with("_token_ids")
}

/// Whether a value is the list 0, 1, ..., n - 1: numbers of blocks, not a value for each.
fn counts_up(value: &Value, map: &Renumbering) -> bool {
    let list = value.as_array().filter(|list| list.len() == map.blocks() && list.len() > 1);
    list.is_some_and(|list| (0u64..).zip(list).all(|(i, entry)| entry.as_u64() == Some(i)))
}

/// Keeps the entries of blocks that stay.
fn retain(value: &mut Value, map: &Renumbering) {
    if let Value::Array(list) = value
        && list.len() == map.blocks()
    {
        let mut block = 0..;
        list.retain(|_| block.next().is_some_and(|block| map.stays(block)));
    }
}

fn retain_letters(value: &mut Value, map: &Renumbering) {
    if let Value::String(letters) = value
        && letters.chars().count() == map.blocks()
    {
        let stay = letters.chars().enumerate().filter(|(block, _)| map.stays(*block));
        *letters = stay.map(|(_, letter)| letter).collect();
    }
}

/// Gives the blocks in a list their new numbers. The first block is number `first`.
fn renumber(value: &mut Value, map: &Renumbering, first: usize) {
    if let Value::Array(list) = value {
        let new = |old: &Value| {
            let block = usize::try_from(old.as_u64()?).ok()?.checked_sub(first)?;
            Some(json!(map.new_number(block)? + first))
        };
        *list = list.iter().filter_map(new).collect();
    }
}

/// An object whose keys are block numbers, with as many zeros before them as there were.
fn renumber_keys(blocks: &Fields, map: &Renumbering) -> Fields {
    let new = |(key, value): (&String, &Value)| match key.parse::<usize>() {
        Ok(block) => {
            let number = map.new_number(block)?;
            Some((format!("{number:0width$}", width = key.len()), value.clone()))
        }
        Err(_) => Some((key.clone(), value.clone())),
    };
    blocks.iter().filter_map(new).collect()
}
