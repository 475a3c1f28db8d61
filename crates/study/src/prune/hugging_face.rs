//! Cutting a Hugging Face directory: names of tensors, and every field of `config.json` that is about layers.

use super::error::{PruneError, unfit};
use super::file::{CONFIG, INDEX, WEIGHTS, read_json, weight_files, write_json};
use super::map::Renumbering;
use super::shards::{Fate, Shard};
use hadal_model::Part;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::Path;

const BLOCKS: &str = "num_hidden_layers";

/// Numbers that mean "the first n blocks".
const COUNTS_OF_FIRST: [&str; 2] = ["max_window_layers", "first_k_dense_replace"];
/// Lists of block numbers.
const LISTS_OF_BLOCKS: [&str; 2] = ["mlp_only_layers", "cross_attention_layers"];
/// Patterns that repeat every n blocks. Without a block the rest would fall out of step.
const PERIODS: [&str; 9] = [
    "sliding_window_pattern",
    "full_attention_interval",
    "attn_layer_period",
    "attn_layer_offset",
    "expert_layer_period",
    "decoder_sparse_step",
    "moe_layer_freq",
    "interleave_moe_layer_step",
    "hybrid_override_pattern",
];
/// Blocks that use what other blocks computed.
const SHARING: [&str; 2] = ["num_kv_shared_layers", "num_nextn_predict_layers"];
/// Lists that may happen to be as long as the model is deep.
const NOT_PER_BLOCK: [&str; 5] =
    ["architectures", "mrope_section", "bad_words_ids", "suppress_tokens", "forced_decoder_ids"];

/// How many blocks a config has.
pub(super) fn blocks(directory: &Path) -> Result<usize, PruneError> {
    let path = directory.join(CONFIG);
    let json = read_json(&path)?;
    let blocks = json[BLOCKS].as_u64().and_then(|blocks| usize::try_from(blocks).ok());
    blocks.filter(|&blocks| blocks > 0).ok_or_else(|| unfit(&path, format!("it has no {BLOCKS}")))
}

/// Writes the config and the weights of a cut; other files are not looked at.
pub(super) fn cut(directory: &Path, map: &Renumbering, out: &Path) -> Result<(), PruneError> {
    let path = directory.join(CONFIG);
    let mut config = read_json(&path)?;
    cut_config(&mut config, map).map_err(|reason| unfit(&path, reason))?;
    let files = weight_files(directory)?;
    let shards = files.iter().map(|name| Shard::open(&directory.join(name)));
    let shards = shards.collect::<Result<Vec<_>, _>>()?;
    let all: Vec<String> = shards.iter().flat_map(Shard::names).collect();
    check_names(&all, map).map_err(|reason| unfit(&directory.join(&files[0]), reason))?;

    write_json(&out.join(CONFIG), &config)?;
    let (mut weights, mut total) = (Map::new(), 0);
    for (shard, file) in shards.iter().zip(&files) {
        for (name, bytes) in shard.copy(&out.join(file), |name| fate(name, map))? {
            weights.insert(name, json!(file));
            total += bytes;
        }
    }
    if files != [WEIGHTS] {
        // Nothing of the source's index is kept: what else it may say is of the whole model.
        let index = json!({ "metadata": { "total_size": total }, "weight_map": weights });
        write_json(&out.join(INDEX), &index)?;
    }
    Ok(())
}

/// The part of the name before the block's number, the number, and the part after it.
fn split(name: &str) -> Option<(&str, usize, &str)> {
    const LAYERS: &str = "layers.";
    let prefix = if name.starts_with("model.layers.") { "model.layers." } else { LAYERS };
    let (number, rest) = name.strip_prefix(prefix)?.split_once('.')?;
    Some((prefix, number.parse().ok()?, rest))
}

/// The half of a block whose output projection this tensor is, if it is one: without it the half returns nothing.
fn output_of(block: usize, rest: &str) -> Option<Part> {
    let (place, _) = rest.rsplit_once('.')?;
    match place {
        "self_attn.o_proj" | "self_attn.dense" | "attn.o" => Some(Part::Attention(block)),
        "mlp.down_proj" | "mlp.fc2" | "mlp.down" => Some(Part::Mlp(block)),
        _ => None,
    }
}

fn fate(name: &str, map: &Renumbering) -> Fate {
    let Some((prefix, block, rest)) = split(name) else { return Fate::Kept(name.into()) };
    let Some(number) = map.new_number(block) else { return Fate::Dropped };
    let new = format!("{prefix}{number}.{rest}");
    match output_of(block, rest).is_some_and(|part| map.silences(part)) {
        true => Fate::Silent(new),
        false => Fate::Kept(new),
    }
}

/// Refuses files whose blocks are not those of the config, or in which something else has layers too.
fn check_names(names: &[String], map: &Renumbering) -> Result<(), String> {
    let found: BTreeSet<usize> = names.iter().filter_map(|name| Some(split(name)?.1)).collect();
    if found != (0..map.blocks()).collect() {
        return Err(format!(
            "its tensors belong to blocks {found:?}, but config.json says {BLOCKS} {}",
            map.blocks()
        ));
    }
    let strange = |name: &&String| split(name).is_none() && name.contains("layers.");
    if let Some(name) = names.iter().find(strange) {
        return Err(format!(
            "`{name}` belongs to layers that are not the decoder's; such models are not supported"
        ));
    }
    for &part in map.silent() {
        let outputs = names.iter().filter(|name| {
            split(name).is_some_and(|(_, block, rest)| output_of(block, rest) == Some(part))
        });
        if outputs.count() == 0 {
            return Err(format!(
                "the output projection of {part} has a name that is not known, so it cannot be silenced"
            ));
        }
    }
    Ok(())
}

/// Corrects every field that is about layers, or says why one cannot be corrected.
fn cut_config(config: &mut Value, map: &Renumbering) -> Result<(), String> {
    let fields = config.as_object_mut().ok_or("it is not an object")?;
    if fields.contains_key("text_config") {
        return Err(
            "it describes several models in one (text_config); such models are not supported"
                .into(),
        );
    }
    let uniform = map.kept().len() == map.blocks();
    let listed = fields.get("layer_types").is_some_and(Value::is_array);
    for (key, value) in fields.iter_mut() {
        let key = key.as_str();
        let number = value.as_u64();
        if PERIODS.contains(&key)
            && !uniform
            && !listed
            && value.as_u64() != Some(1)
            && !value.is_null()
            && !value.is_array()
        {
            return Err(format!(
                "{key} is {value}: its pattern repeats with depth, and without a block the rest would fall out of step; leave blocks out when loading instead, with --without"
            ));
        }
        if SHARING.contains(&key) && !uniform && number.is_some_and(|count| count > 0) {
            return Err(format!(
                "{key} is {value}: some blocks use what others computed, so no block can be cut"
            ));
        }
        if COUNTS_OF_FIRST.contains(&key)
            && let Some(count) = number
        {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            *value = json!(map.staying_of_first(count));
        } else if LISTS_OF_BLOCKS.contains(&key) {
            renumber(value, map);
        } else if key == BLOCKS {
            *value = json!(map.kept().len());
        } else if is_per_block(key) {
            retain(value, map);
        }
    }
    Ok(())
}

/// Whether a list of the right length has an entry for each block. Ids of tokens never do, whatever their number.
fn is_per_block(key: &str) -> bool {
    !NOT_PER_BLOCK.contains(&key) && !key.ends_with("_token_id") && !key.ends_with("_token_ids")
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

/// Gives the blocks in a list their new numbers.
fn renumber(value: &mut Value, map: &Renumbering) {
    if let Value::Array(list) = value {
        let new = |old: &Value| {
            let block = usize::try_from(old.as_u64()?).ok()?;
            Some(json!(map.new_number(block)?))
        };
        *list = list.iter().filter_map(new).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without(blocks: &[usize], of: usize) -> Renumbering {
        let parts: Vec<Part> = blocks.iter().map(|&block| Part::Block(block)).collect();
        Renumbering::new(of, &parts).unwrap()
    }

    #[test]
    fn every_field_that_speaks_of_layers_is_corrected() {
        let mut config = json!({
            "num_hidden_layers": 4,
            "layer_types": ["full", "sliding", "full", "sliding"],
            "no_rope_layers": [1, 1, 1, 0],
            "whatever_per_layer": [10, 11, 12, 13],
            "max_window_layers": 3,
            "mlp_only_layers": [0, 2, 3],
            "hidden_size": 4,
            "eos_token_id": [5, 6, 7, 8],
            "architectures": ["a", "b", "c", "d"],
            "rope_scaling": {"long_factor": [1, 2, 3, 4]},
        });
        cut_config(&mut config, &without(&[1, 2], 4)).unwrap();
        assert_eq!(config["num_hidden_layers"], 2);
        assert_eq!(config["layer_types"], json!(["full", "sliding"]));
        assert_eq!(config["no_rope_layers"], json!([1, 0]));
        assert_eq!(config["whatever_per_layer"], json!([10, 13]));
        assert_eq!(config["max_window_layers"], 1);
        assert_eq!(config["mlp_only_layers"], json!([0, 1]));
        assert_eq!(config["hidden_size"], 4);
        assert_eq!(config["eos_token_id"], json!([5, 6, 7, 8]));
        assert_eq!(config["architectures"].as_array().unwrap().len(), 4);
        assert_eq!(config["rope_scaling"]["long_factor"].as_array().unwrap().len(), 4);
    }

    #[test]
    fn patterns_that_would_fall_out_of_step_and_shared_keys_forbid_a_cut() {
        let refused = |extra: Value, remove: &[usize]| {
            let mut config = json!({"num_hidden_layers": 4});
            config.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            cut_config(&mut config, &without(remove, 4)).err()
        };
        assert!(
            refused(json!({"sliding_window_pattern": 2}), &[1]).unwrap().contains("out of step")
        );
        assert!(
            refused(json!({"num_kv_shared_layers": 2}), &[1])
                .unwrap()
                .contains("no block can be cut")
        );
        assert!(refused(json!({"text_config": {}}), &[1]).unwrap().contains("several models"));
        // Nothing moves, or the pattern is spelled out for each block, or there is none.
        assert_eq!(refused(json!({"sliding_window_pattern": 2}), &[]), None);
        let spelled = json!({"sliding_window_pattern": 2, "layer_types": ["a", "b", "a", "b"]});
        assert_eq!(refused(spelled, &[1]), None);
        assert_eq!(
            refused(json!({"decoder_sparse_step": 1, "num_kv_shared_layers": 0}), &[1]),
            None
        );
    }

    #[test]
    fn tensors_follow_their_block() {
        let parts = [Part::Block(1), Part::Attention(2), Part::Mlp(0)];
        let map = Renumbering::new(3, &parts).unwrap();
        let kept = |name: &str| Fate::Kept(name.into());
        assert_eq!(fate("model.embed_tokens.weight", &map), kept("model.embed_tokens.weight"));
        assert_eq!(fate("model.layers.1.mlp.up_proj.weight", &map), Fate::Dropped);
        assert_eq!(
            fate("model.layers.2.mlp.down_proj.weight", &map),
            kept("model.layers.1.mlp.down_proj.weight")
        );
        let silent = Fate::Silent("model.layers.1.self_attn.o_proj.bias".into());
        assert_eq!(fate("model.layers.2.self_attn.o_proj.bias", &map), silent);
        let silent = Fate::Silent("model.layers.0.mlp.down_proj.weight".into());
        assert_eq!(fate("model.layers.0.mlp.down_proj.weight", &map), silent);
    }

    #[test]
    fn files_that_hold_other_layers_are_refused() {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let map = without(&[1], 2);
        let good = names(&["model.layers.0.x.weight", "model.layers.1.x.weight", "lm_head.weight"]);
        assert_eq!(check_names(&good, &map), Ok(()));
        let missing = names(&["model.layers.0.x.weight"]);
        assert!(check_names(&missing, &map).unwrap_err().contains("num_hidden_layers 2"));
        let mut vision = good.clone();
        vision.push("vision.layers.0.x.weight".into());
        assert!(check_names(&vision, &map).unwrap_err().contains("vision.layers.0"));
        let silenced = Renumbering::new(2, &[Part::Mlp(0)]).unwrap();
        assert!(check_names(&good, &silenced).unwrap_err().contains("mlp:0"));
    }
}
