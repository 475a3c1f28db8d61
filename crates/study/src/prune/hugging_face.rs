//! Cutting a Hugging Face directory: its config, and its weights with their index.

use super::error::{PruneError, unfit};
use super::fields;
use super::file::{CONFIG, INDEX, WEIGHTS, read_json, weight_files, write_json};
use super::map::Renumbering;
use super::names::Decoder;
use super::shards::Shard;
use serde_json::{Map, json};
use std::path::Path;

/// How many blocks a config has.
pub(super) fn blocks(directory: &Path) -> Result<usize, PruneError> {
    let path = directory.join(CONFIG);
    let json = read_json(&path)?;
    let blocks = fields::decoder(&json)[fields::BLOCKS].as_u64();
    let blocks = blocks.and_then(|blocks| usize::try_from(blocks).ok());
    let missing = || unfit(&path, format!("it has no {}", fields::BLOCKS));
    blocks.filter(|&blocks| blocks > 0).ok_or_else(missing)
}

/// Writes the config and the weights of a cut; other files are not looked at. What people should know of it.
pub(super) fn cut(
    directory: &Path,
    map: &Renumbering,
    unknown: bool,
    out: &Path,
) -> Result<Vec<String>, PruneError> {
    let path = directory.join(CONFIG);
    let mut config = read_json(&path)?;
    fields::cut(&mut config, map, unknown).map_err(|reason| unfit(&path, reason))?;
    let files = weight_files(directory)?;
    let shards = files.iter().map(|name| Shard::open(&directory.join(name)));
    let shards = shards.collect::<Result<Vec<_>, _>>()?;
    let all: Vec<String> = shards.iter().flat_map(Shard::names).collect();
    let decoder =
        Decoder::find(&all, map).map_err(|reason| unfit(&directory.join(&files[0]), reason))?;

    write_json(&out.join(CONFIG), &config)?;
    let (mut weights, mut total) = (Map::new(), 0);
    for (shard, file) in shards.iter().zip(&files) {
        for (name, bytes) in shard.copy(&out.join(file), |name| decoder.fate(name, map))? {
            weights.insert(name, json!(file));
            total += bytes;
        }
    }
    if files != [WEIGHTS] {
        // Nothing of the source's index is kept: what else it may say is of the whole model.
        let index = json!({ "metadata": { "total_size": total }, "weight_map": weights });
        write_json(&out.join(INDEX), &index)?;
    }
    let moved = "the heads that predict further tokens were trained on the whole model, and predict worse now";
    Ok(if decoder.heads() > 0 { vec![moved.into()] } else { Vec::new() })
}
