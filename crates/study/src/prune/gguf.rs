//! Cutting a GGUF file: tensors keep their bytes, blocks get new numbers, and so does all metadata about them.

use super::error::{PruneError, unfit};
use super::keys;
use super::map::Renumbering;
use hadal_gguf::{Gguf, Metadata, TensorInfo, Value, Writer};
use hadal_model::Part;
use std::collections::BTreeSet;
use std::path::Path;

/// How many blocks a file has.
pub(super) fn blocks(path: &Path) -> Result<usize, PruneError> {
    let file = Gguf::open(path)?;
    match is_importance(file.metadata()) {
        true => Ok(blocks_by_name(&file).last().map_or(0, |last| last + 1)),
        false => {
            let architecture = architecture(&file)?;
            let blocks = file.get::<usize>(&format!("{architecture}.block_count"))?;
            let heads = keys::heads(file.metadata(), &architecture);
            blocks.checked_sub(heads).ok_or_else(|| {
                unfit(
                    path,
                    format!("it has {blocks} blocks, {heads} of which predict further tokens"),
                )
            })
        }
    }
}

/// Writes a cut. What people should know of it.
pub(super) fn cut(
    path: &Path,
    map: &Renumbering,
    unknown: bool,
    out: &Path,
) -> Result<Vec<String>, PruneError> {
    let file = Gguf::open(path)?;
    let mut metadata = file.metadata().clone();
    let mut notes = Vec::new();
    if !is_importance(&metadata) {
        let architecture = architecture(&file)?;
        let heads = keys::heads(&metadata, &architecture);
        check(&file, heads, map).map_err(|reason| unfit(path, reason))?;
        notes = keys::cut(&mut metadata, &architecture, map, unknown)
            .map_err(|reason| unfit(path, reason))?;
    }
    let mut written = Vec::new();
    for tensor in file.tensors() {
        let info = tensor.info();
        let Some(name) = new_name(info.name(), map) else { continue };
        let renamed = TensorInfo::new(name, info.dimensions(), info.kind())
            .map_err(|fault| unfit(path, format!("tensor `{}` {fault}", info.name())))?;
        written.push((renamed, tensor));
    }
    let infos = written.iter().map(|(info, _)| info.clone()).collect();
    let mut writer = Writer::create(out, &metadata, infos)?;
    for (info, tensor) in &written {
        match silent(tensor.info().name(), map) {
            // Every type of ggml's reads zeros as zeros: its scales are zero.
            true => zeros(&mut writer, info)?,
            false => writer.raw(info.name(), tensor.bytes())?,
        }
    }
    writer.finish()?;
    Ok(notes)
}

fn zeros(writer: &mut Writer, info: &TensorInfo) -> Result<(), PruneError> {
    let row = vec![0; info.row_bytes()];
    for _ in 0..info.rows() {
        writer.raw(info.name(), &row)?;
    }
    Ok(())
}

/// A matrix of how much weights matter, which is indexed like the model it was made from.
fn is_importance(metadata: &Metadata) -> bool {
    metadata.value("general.type") == Some(&Value::String("imatrix".into()))
}

fn architecture(file: &Gguf) -> Result<String, PruneError> {
    Ok(file.get::<String>("general.architecture")?)
}

fn blocks_by_name(file: &Gguf) -> BTreeSet<usize> {
    file.tensors().filter_map(|tensor| Some(split_name(tensor.info().name())?.0)).collect()
}

/// Refuses files whose tensors are not those of their blocks.
fn check(file: &Gguf, heads: usize, map: &Renumbering) -> Result<(), String> {
    let split = file.metadata().find::<u64>("split.count").ok().flatten();
    if split.is_some_and(|count| count > 1) {
        return Err("it is one of several files of a model; merge them first, with `llama-gguf-split --merge`".into());
    }
    let found = blocks_by_name(file);
    let expected = map.blocks() + heads;
    // Not by a list of what is expected: a file of a few bytes may say any number.
    if found.len() != expected || found.last().is_some_and(|last| last + 1 != expected) {
        return Err(format!(
            "its tensors belong to blocks {found:?}, but block_count is {expected}"
        ));
    }
    let inside = |name: &&str| split_name(name).is_none() && name.starts_with("per_layer_");
    if let Some(name) = file.tensors().map(|tensor| tensor.info().name()).find(inside) {
        return Err(format!("`{name}` holds a part for each block inside, which is not cut"));
    }
    let has_output =
        |part: Part| file.tensors().any(|t| returns_through(t.info().name()) == Some(part));
    if let Some(part) = map.silent().iter().find(|&&part| !has_output(part)) {
        return Err(format!(
            "the output projection of {part} has a name that is not known, so it cannot be silenced"
        ));
    }
    Ok(())
}

/// A block's number, and the rest of a tensor's name.
fn split_name(name: &str) -> Option<(usize, &str)> {
    let (number, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

fn new_name(name: &str, map: &Renumbering) -> Option<String> {
    match split_name(name) {
        None => Some(name.into()),
        Some((block, rest)) => {
            let number = match block.checked_sub(map.blocks()) {
                // Behind the last block: it moves down with it.
                Some(head) => map.kept().len() + head,
                None => map.new_number(block)?,
            };
            Some(format!("blk.{number}.{rest}"))
        }
    }
}

/// The half of a block whose output projection this tensor is, if it is one.
fn returns_through(name: &str) -> Option<Part> {
    let (block, rest) = split_name(name)?;
    match rest.split('.').next()? {
        "attn_output" | "ssm_out" => Some(Part::Attention(block)),
        "ffn_down" | "ffn_down_exps" | "ffn_down_shexp" => Some(Part::Mlp(block)),
        _ => None,
    }
}

fn silent(name: &str, map: &Renumbering) -> bool {
    returns_through(name).is_some_and(|part| map.silences(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hadal_gguf::TensorType;
    use std::path::PathBuf;

    /// A file of four blocks, quantised, with a value for each block and lists of other lengths.
    fn model(directory: &Path, change: impl FnOnce(&mut Metadata)) -> PathBuf {
        let path = directory.join("model.gguf");
        let mut metadata = Metadata::default();
        metadata.set("general.architecture", "llama");
        metadata.set("llama.block_count", 4u32);
        metadata.set("llama.attention.head_count_kv", vec![1u32, 2, 3, 4]);
        metadata.set("llama.feed_forward_length", vec![10u32, 11, 12, 13]);
        metadata.set("llama.rope.dimension_sections", vec![1i32, 2, 3, 4]);
        metadata.set("tokenizer.ggml.tokens", ["a", "b", "c", "d"].map(String::from).to_vec());
        change(&mut metadata);
        let mut tensors =
            vec![TensorInfo::new("token_embd.weight", &[32, 4], TensorType::Q8_0).unwrap()];
        for block in 0..4 {
            for part in ["attn_q", "attn_output", "ffn_up", "ffn_down"] {
                let name = format!("blk.{block}.{part}.weight");
                tensors.push(TensorInfo::new(name, &[32, 2], TensorType::Q8_0).unwrap());
            }
        }
        let mut writer = Writer::create(&path, &metadata, tensors.clone()).unwrap();
        for (i, info) in tensors.iter().enumerate() {
            let values: Vec<f32> =
                (0..info.elements()).map(|x| (x * (i + 1)) as f32 - 50.0).collect();
            writer.rows(info.name(), &values).unwrap();
        }
        writer.finish().unwrap();
        path
    }

    fn pruned(path: &Path, parts: &[Part]) -> Result<Gguf, PruneError> {
        let out = path.with_file_name("out.gguf");
        let map = Renumbering::new(blocks(path)?, parts)?;
        cut(path, &map, false, &out)?;
        Ok(Gguf::open(&out)?)
    }

    fn bytes(file: &Gguf, name: &str) -> Vec<u8> {
        file.tensor(name).unwrap().bytes().to_vec()
    }

    #[test]
    fn every_list_with_a_value_for_each_block_is_cut_with_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = model(directory.path(), |_| {});
        let file = pruned(&path, &[Part::Block(2), Part::Block(1)]).unwrap();
        assert_eq!(file.get::<u32>("llama.block_count").unwrap(), 2);
        assert_eq!(file.get::<Vec<u32>>("llama.attention.head_count_kv").unwrap(), [1, 4]);
        assert_eq!(file.get::<Vec<u32>>("llama.feed_forward_length").unwrap(), [10, 13]);
        // As long as the model was deep, but about something else.
        assert_eq!(file.get::<Vec<i32>>("llama.rope.dimension_sections").unwrap().len(), 4);
        assert_eq!(file.get::<Vec<String>>("tokenizer.ggml.tokens").unwrap().len(), 4);
    }

    #[test]
    fn kept_tensors_keep_their_bytes_under_their_new_number() {
        let directory = tempfile::tempdir().unwrap();
        let path = model(directory.path(), |_| {});
        let old = Gguf::open(&path).unwrap();
        let new = pruned(&path, &[Part::Block(1)]).unwrap();
        assert_eq!(new.tensors().len(), old.tensors().len() - 4);
        assert_eq!(bytes(&new, "token_embd.weight"), bytes(&old, "token_embd.weight"));
        for (was, is) in [(0, 0), (2, 1), (3, 2)] {
            for part in ["attn_q", "attn_output", "ffn_up", "ffn_down"] {
                let name = |block: usize| format!("blk.{block}.{part}.weight");
                assert_eq!(bytes(&new, &name(is)), bytes(&old, &name(was)));
            }
        }
        assert!(!new.contains("blk.3.attn_q.weight"));
    }

    #[test]
    fn a_cut_of_nothing_is_the_same_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = model(directory.path(), |_| {});
        pruned(&path, &[]).unwrap();
        assert_eq!(
            std::fs::read(path.with_file_name("out.gguf")).unwrap(),
            std::fs::read(&path).unwrap()
        );
    }

    #[test]
    fn a_silenced_half_returns_zeros_in_its_own_type() {
        let directory = tempfile::tempdir().unwrap();
        let path = model(directory.path(), |_| {});
        let file = pruned(&path, &[Part::Mlp(3), Part::Block(0)]).unwrap();
        let down = file.tensor("blk.2.ffn_down.weight").unwrap();
        assert_eq!(down.info().kind(), TensorType::Q8_0);
        assert!(down.to_f32().unwrap().iter().all(|&value| value == 0.0));
        assert!(
            file.tensor("blk.2.attn_output.weight")
                .unwrap()
                .to_f32()
                .unwrap()
                .iter()
                .any(|&v| v != 0.0)
        );
    }

    #[test]
    fn importance_matrices_are_renumbered_with_the_model() {
        let directory = tempfile::tempdir().unwrap();
        let path = model(directory.path(), |metadata| {
            metadata.remove("general.architecture");
            metadata.remove("llama.block_count");
            metadata.set("general.type", "imatrix");
        });
        let old = Gguf::open(&path).unwrap();
        let new = pruned(&path, &[Part::Block(0)]).unwrap();
        assert_eq!(bytes(&new, "blk.0.ffn_up.weight"), bytes(&old, "blk.1.ffn_up.weight"));
        assert!(!new.contains("blk.3.ffn_up.weight"));
    }

    #[test]
    fn what_would_be_shifted_is_refused() {
        let refused = |change: fn(&mut Metadata)| {
            let directory = tempfile::tempdir().unwrap();
            let path = model(directory.path(), change);
            pruned(&path, &[Part::Block(1)]).unwrap_err().to_string()
        };
        assert!(refused(|m| m.set("split.count", 2u16)).contains("merge them first"));
        assert!(refused(|m| m.set("llama.block_count", 5u32)).contains("block_count is 5"));
        let strange = |m: &mut Metadata| {
            m.set("general.architecture", "strange");
            m.set("strange.block_count", 4u32);
        };
        assert!(refused(strange).contains("--structure-only"));
        let heads = |m: &mut Metadata| {
            m.set("llama.block_count", u64::MAX);
            m.set("llama.nextn_predict_layers", u64::MAX - 4);
        };
        assert!(refused(heads).contains("block_count is"));
    }
}
