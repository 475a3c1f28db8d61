//! Every key of a GGUF file that speaks of blocks: how it is after a cut, or why it cannot be said. What llama.cpp derives
//! from a block's number is in no key, so it has to be known.

use super::fields::keeps_step;
use super::map::Renumbering;
use hadal_gguf::{Metadata, Value};

/// Architectures of which it is known what llama.cpp derives from a block's number: nothing, or what this file knows.
const KNOWN: [&str; 29] = [
    "llama",
    "qwen2",
    "qwen2moe",
    "qwen3",
    "qwen3moe",
    "qwen3next",
    "qwen35",
    "qwen35moe",
    "gemma",
    "gemma2",
    "gemma3",
    "phi2",
    "phi3",
    "starcoder2",
    "stablelm",
    "gpt2",
    "gptneox",
    "gpt-oss",
    "falcon",
    "bloom",
    "mpt",
    "olmo",
    "olmo2",
    "internlm2",
    "granite",
    "nemotron",
    "smollm3",
    "deepseek2",
    "kimi-linear",
];
/// Every n-th block sees everything, the others a window. n if no key says it.
const WINDOWS: [(&str, usize); 4] = [("gemma2", 2), ("gemma3", 6), ("gpt-oss", 2), ("olmo2", 4)];
/// Every n-th block has softmax attention, the others a recurrent state.
const HYBRIDS: [&str; 3] = ["qwen3next", "qwen35", "qwen35moe"];
/// n of these if no key says it.
const USUAL_INTERVAL: usize = 4;
/// Numbers of blocks at which llama.cpp computes something else, with what it is.
const SPECIAL: [(&str, &[usize], &str); 5] = [
    ("gemma2", &[46], "the scale of attention"),
    ("gemma3", &[62], "the scale of attention"),
    ("baichuan", &[32, 40], "positions"),
    ("exaone4", &[64], "windows"),
    ("deepseek2", &[47, 48], "the router"),
];
/// Lists of an architecture that do not run over blocks.
const NOT_PER_BLOCK: [&str; 2] = ["rope.dimension_sections", "classifier.output_labels"];
/// Lists over blocks without an architecture before their name.
const BARE_LISTS: [&str; 4] = ["xielu.alpha_n", "xielu.alpha_p", "xielu.beta", "xielu.eps"];
/// Numbers that mean "the first n blocks".
const COUNTS_OF_FIRST: [&str; 2] = ["leading_dense_block_count", "hash_layer_count"];
/// Keys that make blocks depend on others.
const DEPENDENT: [&str; 4] =
    ["attention.shared_kv_layers", "n_deepstack_layers", "num_loops", "attn_res.block_size"];
/// Patterns that repeat every n blocks.
const PERIODS: [&str; 4] =
    [WINDOW_PATTERN, INTERVAL, "interleave_moe_layer_step", "moe_every_n_layers"];
const WINDOW_PATTERN: &str = "attention.sliding_window_pattern";
const INTERVAL: &str = "full_attention_interval";
const RECURRENT: &str = "attention.recurrent_layers";

/// Blocks behind the last one, which predict further tokens.
pub(super) fn heads(metadata: &Metadata, architecture: &str) -> usize {
    let key = format!("{architecture}.nextn_predict_layers");
    metadata.find(&key).ok().flatten().unwrap_or(0)
}

/// Corrects every key, or says why one cannot be corrected. What people should know of it.
pub(super) fn cut(
    metadata: &mut Metadata,
    architecture: &str,
    map: &Renumbering,
    unknown: bool,
) -> Result<Vec<String>, String> {
    let heads = heads(metadata, architecture);
    let mut keys = Keys { metadata, architecture, map };
    let mut notes = Vec::new();
    if map.kept().len() < map.blocks() {
        keys.check(unknown)?;
        keys.windows(&mut notes);
        keys.hybrid()?;
        keys.refuse_periods()?;
        if architecture == "deepseek2" && keys.value("attention.q_lora_rank").is_none() {
            // Needed unless a file has the depth of the one model without it.
            keys.set("attention.q_lora_rank", 0u32);
        }
        if heads > 0 {
            notes.push("the heads that predict further tokens were trained on the whole model, and predict worse now".into());
        }
    }
    keys.lists(heads);
    keys.set("block_count", (map.kept().len() + heads) as u32);
    Ok(notes)
}

struct Keys<'a> {
    metadata: &'a mut Metadata,
    architecture: &'a str,
    map: &'a Renumbering,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.value(&self.name(key))
    }

    fn number(&self, key: &str) -> Option<usize> {
        self.metadata.find(&self.name(key)).ok().flatten()
    }

    fn is_list(&self, key: &str) -> bool {
        matches!(self.value(key), Some(Value::Array(_)))
    }

    fn set(&mut self, key: &str, value: impl Into<Value>) {
        let name = self.name(key);
        self.metadata.set(&name, value);
    }

    /// Refuses what depends on blocks in ways that no key can say.
    fn check(&self, unknown: bool) -> Result<(), String> {
        let (architecture, map) = (self.architecture, self.map);
        if !KNOWN.contains(&architecture) && !unknown {
            return Err(format!(
                "nothing is known of the architecture `{architecture}`: llama.cpp may derive something from a block's \
                 number; with --structure-only its blocks are cut by what the file says"
            ));
        }
        let dependent = |key: &&&str| self.number(key).is_some_and(|count| count > 0);
        if let Some(key) = DEPENDENT.iter().find(dependent) {
            return Err(format!(
                "{} is set: some blocks depend on others, so none can be cut",
                self.name(key)
            ));
        }
        let (before, after) = (map.blocks(), map.kept().len());
        let special = |(name, depths, _): &&(&str, &[usize], &str)| {
            *name == architecture && (depths.contains(&before) || depths.contains(&after))
        };
        if let Some((_, depths, what)) = SPECIAL.iter().find(special) {
            return Err(format!(
                "llama.cpp chooses {what} of {architecture} by the number of blocks ({depths:?}), and a cut from {before} \
                 to {after} would change it"
            ));
        }
        // Every fourth block does not rotate, and no key can say otherwise.
        if architecture == "smollm3" && !keeps_step(map, 4) {
            return Err("every fourth block of smollm3 has no positions, and no key can say otherwise; cut four in a row, as 4,5,6,7".into());
        }
        let window = self.value("attention.sliding_window").is_some();
        if !KNOWN.contains(&architecture) && window && !self.is_list(WINDOW_PATTERN) {
            return Err(format!(
                "{} is set, but no {WINDOW_PATTERN} says for which blocks",
                self.name("attention.sliding_window")
            ));
        }
        Ok(())
    }

    /// Says which blocks have windows, if those that stay do not follow the pattern.
    fn windows(&mut self, notes: &mut Vec<String>) {
        let usual = WINDOWS.iter().find(|(name, _)| *name == self.architecture);
        let Some((_, usual)) = usual.filter(|_| !self.is_list(WINDOW_PATTERN)) else { return };
        if self.value("attention.sliding_window").is_none() && self.architecture == "olmo2" {
            return;
        }
        let period = self.number(WINDOW_PATTERN).unwrap_or(*usual);
        if period == 0 || keeps_step(self.map, period) {
            return;
        }
        let kept = self.map.kept();
        let has_window: Vec<bool> =
            kept.iter().map(|block| !(block + 1).is_multiple_of(period)).collect();
        let follows = |n: &usize| {
            has_window.iter().enumerate().all(|(i, &window)| window != (i + 1).is_multiple_of(*n))
        };
        match (1..=kept.len() + 1).find(follows) {
            Some(n) => self.set(WINDOW_PATTERN, n as u32),
            None => {
                // All blocks: those that go are taken out with the entries of every other list.
                let all = (0..self.map.blocks()).map(|block| !(block + 1).is_multiple_of(period));
                self.set(WINDOW_PATTERN, all.collect::<Vec<bool>>());
                notes.push(format!(
                    "which blocks have windows is now a list ({}): llama.cpp before October 2026 ignores it, and computes \
                     something else",
                    self.name(WINDOW_PATTERN)
                ));
            }
        }
    }

    /// Says which blocks have a recurrent state, if those that stay do not follow the interval.
    fn hybrid(&mut self) -> Result<(), String> {
        let (map, blocks) = (self.map, self.map.blocks());
        let recurrent: Vec<bool> = if self.architecture == "kimi-linear" {
            let heads: Option<Vec<usize>> =
                self.metadata.find(&self.name("attention.head_count_kv")).ok().flatten();
            heads.unwrap_or_default().iter().map(|&count| count == 0).collect()
        } else if HYBRIDS.contains(&self.architecture) {
            let listed: Option<Vec<bool>> =
                self.metadata.find(&self.name(RECURRENT)).ok().flatten();
            let interval = self.number(INTERVAL).unwrap_or(USUAL_INTERVAL);
            let by_number =
                || (0..blocks).map(|block| !(block + 1).is_multiple_of(interval.max(1)));
            let is_list = listed.is_some();
            let recurrent = listed.unwrap_or_else(|| by_number().collect());
            if !is_list && !keeps_step(map, interval.max(1)) {
                let name = self.name(INTERVAL);
                self.metadata.remove(&name);
                self.set(RECURRENT, recurrent.clone());
            }
            recurrent
        } else {
            return Ok(());
        };
        let attends = |&block: &usize| recurrent.get(block) == Some(&false);
        match recurrent.is_empty() || map.kept().iter().any(attends) {
            true => Ok(()),
            false => Err("no block with softmax attention would be left: such a model has no exact memory, and llama.cpp does not load it".into()),
        }
    }

    /// Refuses patterns with which the blocks that stay would fall out of step.
    fn refuse_periods(&self) -> Result<(), String> {
        let known = WINDOWS.iter().any(|(name, _)| *name == self.architecture);
        for key in PERIODS {
            if (known && key == WINDOW_PATTERN) || self.is_list(key) {
                continue;
            }
            let Some(period) = self.number(key) else { continue };
            if period > 0 && !keeps_step(self.map, period) {
                return Err(format!(
                    "{} is {period}: its pattern repeats with depth, and without a block the rest would fall out of step; \
                     cut whole periods",
                    self.name(key)
                ));
            }
        }
        Ok(())
    }

    /// Cuts lists with a value for each block, and counts of first blocks.
    fn lists(&mut self, heads: usize) {
        let prefix = format!("{}.", self.architecture);
        let map = self.map;
        for (key, value) in self.metadata.iter_mut() {
            let own = key.strip_prefix(&prefix);
            let listed = own.is_some_and(|key| !NOT_PER_BLOCK.contains(&key));
            let listed = listed || BARE_LISTS.contains(&key);
            let lengths = [map.blocks(), map.blocks() + heads];
            match value {
                Value::Array(list) if listed && lengths.contains(&list.len()) => {
                    list.retain(|block| block >= map.blocks() || map.stays(block));
                }
                Value::U32(count) if own.is_some_and(|key| COUNTS_OF_FIRST.contains(&key)) => {
                    *count = map.staying_of_first(*count as usize) as u32;
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hadal_model::Part;

    fn without(blocks: &[usize], of: usize) -> Renumbering {
        let parts: Vec<Part> = blocks.iter().map(|&block| Part::Block(block)).collect();
        Renumbering::new(of, &parts).unwrap()
    }

    /// A file's keys, cut.
    fn cut_of(
        architecture: &str,
        of: usize,
        change: impl FnOnce(&mut Metadata),
        blocks: &[usize],
    ) -> Result<(Metadata, Vec<String>), String> {
        let mut metadata = Metadata::default();
        metadata.set(&format!("{architecture}.block_count"), of as u32);
        change(&mut metadata);
        let notes = cut(&mut metadata, architecture, &without(blocks, of), false)?;
        Ok((metadata, notes))
    }

    #[test]
    fn windows_stay_with_their_blocks() {
        let pattern = |blocks: &[usize]| {
            let (keys, notes) = cut_of("gemma3", 7, |_| {}, blocks).unwrap();
            (keys.value("gemma3.attention.sliding_window_pattern").cloned(), notes.len())
        };
        // The sixth sees everything; whoever stays behind it moves.
        assert_eq!(pattern(&[6]), (None, 0));
        assert_eq!(pattern(&[0]), (Some(Value::U32(5)), 0));
        let (keys, notes) = cut_of("gpt-oss", 4, |_| {}, &[2]).unwrap();
        let listed: Vec<bool> = keys.get("gpt-oss.attention.sliding_window_pattern").unwrap();
        assert_eq!((listed, notes.len()), (vec![true, false, false], 1));
    }

    #[test]
    fn recurrent_blocks_are_listed_and_one_must_attend() {
        let set = |m: &mut Metadata| m.set("qwen3next.full_attention_interval", 4u32);
        let (keys, _) = cut_of("qwen3next", 8, set, &[1]).unwrap();
        let listed: Vec<bool> = keys.get("qwen3next.attention.recurrent_layers").unwrap();
        assert_eq!(listed, [true, true, false, true, true, true, false]);
        assert!(keys.value("qwen3next.full_attention_interval").is_none());
        assert!(
            cut_of("qwen3next", 8, set, &[3, 7]).unwrap_err().contains("no block with softmax")
        );
        let (keys, _) = cut_of("qwen3next", 8, set, &[0, 1, 2, 3]).unwrap();
        assert_eq!(keys.get::<u32>("qwen3next.full_attention_interval").unwrap(), 4);
        let kimi =
            |m: &mut Metadata| m.set("kimi-linear.attention.head_count_kv", vec![0u32, 0, 0, 1]);
        let (keys, _) = cut_of("kimi-linear", 4, kimi, &[0]).unwrap();
        assert_eq!(keys.get::<Vec<u32>>("kimi-linear.attention.head_count_kv").unwrap(), [0, 0, 1]);
        assert!(cut_of("kimi-linear", 4, kimi, &[3]).is_err());
    }

    #[test]
    fn heads_behind_the_last_block_move_down() {
        let set = |m: &mut Metadata| {
            m.set("deepseek2.nextn_predict_layers", 1u32);
            m.set("deepseek2.leading_dense_block_count", 1u32);
            m.set("deepseek2.feed_forward_length", vec![1u32, 2, 3, 4]);
        };
        let (keys, notes) = cut_of("deepseek2", 3, set, &[0]).unwrap();
        assert_eq!(keys.get::<u32>("deepseek2.block_count").unwrap(), 3);
        assert_eq!(keys.get::<u32>("deepseek2.leading_dense_block_count").unwrap(), 0);
        assert_eq!(keys.get::<u32>("deepseek2.attention.q_lora_rank").unwrap(), 0);
        assert_eq!(keys.get::<Vec<u32>>("deepseek2.feed_forward_length").unwrap(), [2, 3, 4]);
        assert_eq!(notes.len(), 1);
    }

    #[test]
    fn what_would_be_shifted_is_refused() {
        let refused = |architecture: &str, of: usize, change: fn(&mut Metadata), text: &str| {
            let said = cut_of(architecture, of, change, &[1]).unwrap_err();
            assert!(said.contains(text), "{said}");
        };
        refused("strange", 4, |_| {}, "--structure-only");
        refused("smollm3", 8, |_| {}, "every fourth block");
        refused("gemma3", 62, |_| {}, "the scale of attention");
        refused(
            "llama",
            4,
            |m| m.set("llama.attention.shared_kv_layers", 2u32),
            "depend on others",
        );
        refused("llama", 4, |m| m.set("llama.interleave_moe_layer_step", 2u32), "out of step");
    }
}
