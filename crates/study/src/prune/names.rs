//! Tensors of a Hugging Face directory: which belong to blocks of the decoder, and what becomes of them.

use super::map::Renumbering;
use super::shards::Fate;
use hadal_model::Part;
use std::collections::{BTreeMap, BTreeSet};

/// What stands before a block's number.
const WORDS: [&str; 4] = ["layers", "h", "blocks", "block"];
/// Where names of other parts of a model begin: they have layers of their own, which stay.
const OTHER_PARTS: [&str; 9] = [
    "model.visual.",
    "visual.",
    "model.vision_tower.",
    "vision_tower.",
    "vision_model.",
    "multi_modal_projector.",
    "model.multi_modal_projector.",
    "audio_tower.",
    "mtp.",
];

/// The numbered tensors of a decoder.
#[derive(Debug)]
pub(super) struct Decoder {
    /// What stands before a block's number, with the point: `model.layers.`.
    prefix: String,
    /// Blocks behind the last one, which predict further tokens.
    heads: usize,
}

/// The part of a name before a block's number, the number, and the part after it.
fn numbered(name: &str) -> Option<(&str, usize, &str)> {
    let mut start = 0;
    for word in name.split('.') {
        let end = start + word.len();
        if WORDS.contains(&word) {
            let (number, rest) = name.get(end + 1..)?.split_once('.')?;
            return Some((&name[..=end], number.parse().ok()?, rest));
        }
        start = end + 1;
    }
    None
}

impl Decoder {
    /// Finds the decoder's blocks among all tensors, or says why they cannot be told from others.
    pub(super) fn find(names: &[String], map: &Renumbering) -> Result<Self, String> {
        let inside = |name: &&String| numbered(name).is_none() && name.contains("per_layer");
        if let Some(name) = names.iter().find(inside) {
            return Err(format!("`{name}` holds a part for each block inside, which is not cut"));
        }
        let mut families: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
        for (prefix, block, _) in names.iter().filter_map(|name| numbered(name)) {
            if !OTHER_PARTS.iter().any(|part| prefix.starts_with(part)) {
                families.entry(prefix).or_default().insert(block);
            }
        }
        let (prefix, found) = match families.len() {
            1 => families.pop_first().unwrap_or_default(),
            0 => return Err("none of its tensors has the number of a block in its name".into()),
            _ => {
                let all: Vec<_> = families.keys().map(|prefix| format!("`{prefix}`")).collect();
                return Err(format!(
                    "tensors of several families have numbers ({}), and nothing says which are the decoder's; such \
                     models are not supported",
                    all.join(", ")
                ));
            }
        };
        let blocks = map.blocks();
        let behind = found.iter().filter(|&&block| block >= blocks).count();
        let heads = (blocks..blocks + behind).take_while(|&block| is_head(names, prefix, block));
        let decoder = Self { prefix: prefix.into(), heads: heads.count() };
        if found != (0..blocks + decoder.heads).collect() {
            return Err(format!(
                "its tensors belong to blocks {found:?}, but config.json says {} {blocks}",
                super::fields::BLOCKS
            ));
        }
        decoder.can_silence(names, map)?;
        Ok(decoder)
    }

    /// Blocks behind the last one, which predict further tokens and move down with it.
    pub(super) fn heads(&self) -> usize {
        self.heads
    }

    /// The number of a tensor's block, and the rest of its name.
    fn split<'a>(&self, name: &'a str) -> Option<(usize, &'a str)> {
        let (number, rest) = name.strip_prefix(&self.prefix)?.split_once('.')?;
        Some((number.parse().ok()?, rest))
    }

    /// What becomes of a tensor.
    pub(super) fn fate(&self, name: &str, map: &Renumbering) -> Fate {
        let Some((block, rest)) = self.split(name) else { return Fate::Kept(name.into()) };
        let number = match block.checked_sub(map.blocks()) {
            Some(head) => Some(map.kept().len() + head),
            None => map.new_number(block),
        };
        let Some(number) = number else { return Fate::Dropped };
        let new = format!("{}{number}.{rest}", self.prefix);
        match output_of(block, rest).is_some_and(|part| map.silences(part)) {
            true => Fate::Silent(new),
            false => Fate::Kept(new),
        }
    }

    fn can_silence(&self, names: &[String], map: &Renumbering) -> Result<(), String> {
        let outputs: Vec<Part> = (names.iter())
            .filter_map(|name| self.split(name))
            .filter_map(|(block, rest)| output_of(block, rest))
            .collect();
        match map.silent().iter().find(|part| !outputs.contains(part)) {
            None => Ok(()),
            Some(part) => Err(format!(
                "the output projection of {part} has a name that is not known, so it cannot be silenced"
            )),
        }
    }
}

/// Whether a numbered block predicts a further token: it joins the state with an embedding.
fn is_head(names: &[String], prefix: &str, block: usize) -> bool {
    let joins = [format!("{prefix}{block}.eh_proj."), format!("{prefix}{block}.enorm.")];
    names.iter().any(|name| joins.iter().any(|join| name.starts_with(join)))
}

/// The half of a block whose output projection this tensor is, if it is one: without it the half returns nothing. The
/// MLP of a mixture has one in every expert.
fn output_of(block: usize, rest: &str) -> Option<Part> {
    let (half, inside) = rest.split_once('.')?;
    match half {
        "self_attn" | "linear_attn" | "attn" | "attention" => {
            let place = inside.split('.').next()?;
            let outputs = ["o_proj", "out_proj", "dense", "o"];
            outputs.contains(&place).then_some(Part::Attention(block))
        }
        "mlp" | "block_sparse_moe" | "feed_forward" => {
            let is_output = |word: &str| {
                // A stack of experts keeps biases, blocks and scales beside it: `down_proj_bias`.
                ["fc2", "down", "w2"].contains(&word) || word.starts_with("down_proj")
            };
            inside.split('.').any(is_output).then_some(Part::Mlp(block))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    fn without(blocks: &[usize], of: usize) -> Renumbering {
        let parts: Vec<Part> = blocks.iter().map(|&block| Part::Block(block)).collect();
        Renumbering::new(of, &parts).unwrap()
    }

    fn kept(name: &str) -> Fate {
        Fate::Kept(name.into())
    }

    #[test]
    fn tensors_follow_their_block() {
        let map = Renumbering::new(3, &[Part::Block(1), Part::Attention(2), Part::Mlp(0)]).unwrap();
        let all: Vec<String> = (0..3)
            .flat_map(|i| {
                ["self_attn.o_proj.weight", "mlp.down_proj.weight"]
                    .map(|n| format!("model.layers.{i}.{n}"))
            })
            .collect();
        let decoder = Decoder::find(&all, &map).unwrap();
        let fate = |name: &str| decoder.fate(name, &map);
        assert_eq!(fate("model.embed_tokens.weight"), kept("model.embed_tokens.weight"));
        assert_eq!(fate("model.layers.1.mlp.up_proj.weight"), Fate::Dropped);
        assert_eq!(
            fate("model.layers.2.mlp.down_proj.weight"),
            kept("model.layers.1.mlp.down_proj.weight")
        );
        let silent = |name: &str| Fate::Silent(name.into());
        assert_eq!(
            fate("model.layers.2.self_attn.o_proj.bias"),
            silent("model.layers.1.self_attn.o_proj.bias")
        );
        for output in [
            "mlp.down_proj.weight",
            "mlp.experts.3.down_proj.weight",
            "mlp.experts.down_proj_bias",
            "mlp.shared_expert.down_proj.weight",
            "block_sparse_moe.experts.1.w2.weight",
        ] {
            let name = format!("model.layers.0.{output}");
            assert_eq!(fate(&name), silent(&name));
        }
        let gate = "model.layers.0.mlp.gate.weight";
        assert_eq!(fate(gate), kept(gate));
    }

    #[test]
    fn other_parts_keep_their_layers_and_heads_move_down() {
        let map = without(&[0], 2);
        let all = names(&[
            "model.language_model.layers.0.x.weight",
            "model.language_model.layers.1.x.weight",
            "model.language_model.layers.2.eh_proj.weight",
            "model.visual.blocks.0.x.weight",
            "mtp.layers.0.x.weight",
        ]);
        let decoder = Decoder::find(&all, &map).unwrap();
        assert_eq!(decoder.heads(), 1);
        let fate = |name: &str| decoder.fate(name, &map);
        assert_eq!(fate(&all[0]), Fate::Dropped);
        assert_eq!(fate(&all[2]), kept("model.language_model.layers.1.eh_proj.weight"));
        assert_eq!(fate(&all[3]), kept(&all[3]));
        assert_eq!(fate(&all[4]), kept(&all[4]));
    }

    #[test]
    fn files_that_hold_other_layers_are_refused() {
        let map = without(&[1], 2);
        let refused = |list: &[&str]| Decoder::find(&names(list), &map).unwrap_err();
        let good = ["model.layers.0.x.weight", "model.layers.1.x.weight", "lm_head.weight"];
        assert!(Decoder::find(&names(&good), &map).is_ok());
        assert!(refused(&good[..1]).contains("num_hidden_layers 2"));
        assert!(refused(&[good[0], good[1], "model.layers.2.x.weight"]).contains("{0, 1, 2}"));
        assert!(
            refused(&[good[0], good[1], "strange.layers.0.x.weight"]).contains("`strange.layers.`")
        );
        assert!(refused(&["lm_head.weight"]).contains("none of its tensors"));
        let silenced = Renumbering::new(2, &[Part::Mlp(0)]).unwrap();
        let said = Decoder::find(&names(&good), &silenced).unwrap_err();
        assert!(said.contains("mlp:0"), "{said}");
    }
}
