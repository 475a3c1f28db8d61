//! Changes of a GGUF file that leave it readable.

use super::random::Random;
use super::tree::{HOSTILE, HOSTILE_FLOATS};
use crate::scratch;
use hadal_gguf::{Array, Gguf, Metadata, TensorInfo, Value, Writer};
use std::fs;
use std::path::Path;

const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const KINDS: &str = "tokenizer.ggml.token_type";
/// No more tokens are added to a vocabulary; inputs stay small.
const MOST_TOKENS: usize = 600;
/// Nor are they longer: every power of a letter up to here fits into an input.
const LONGEST_TOKEN: usize = 300;

/// A changed copy, or `None` if this is no such file.
pub(super) fn changed(bytes: &[u8], words: &[&str], random: &mut Random) -> Option<Vec<u8>> {
    let file = Gguf::from_bytes(Path::new("mutated.gguf"), bytes.to_vec()).ok()?;
    let mut metadata = file.metadata().clone();
    let keys: Vec<String> = metadata.iter().map(|(key, _)| key.to_owned()).collect();
    let key = random.of(&keys).cloned().unwrap_or_default();
    let mut gone = None;
    match random.below(9) {
        0 => drop(metadata.remove(&key)),
        1 => metadata.set(random.of(words).copied().unwrap_or("a"), hostile(words, random)),
        2 => metadata.set(&key, hostile(words, random)),
        3 => gone = Some(random.below(file.tensors().len())),
        4 | 5 => grow(&mut metadata, random),
        _ => {
            if let Some(value) = metadata.value_mut(&key) {
                change(value, words, random);
            }
        }
    }
    // Padding up to an alignment of gigabytes is right, but slow.
    if metadata.find::<u64>("general.alignment").is_ok_and(|said| said.unwrap_or(0) > 4096) {
        return None;
    }
    let kept: Vec<_> =
        file.tensors().enumerate().filter(|(i, _)| Some(*i) != gone).map(|(_, t)| t).collect();
    let infos: Vec<TensorInfo> = kept.iter().map(|tensor| tensor.info().clone()).collect();
    let path = scratch::directory().join("mutated.gguf");
    let mut writer = Writer::create(&path, &metadata, infos).ok()?;
    for tensor in &kept {
        writer.raw(tensor.info().name(), tensor.bytes()).ok()?;
    }
    writer.finish().ok()?;
    fs::read(path).ok()
}

fn hostile(words: &[&str], random: &mut Random) -> Value {
    let number = random.of(&HOSTILE).copied().unwrap_or_default();
    let float = random.of(&HOSTILE_FLOATS).copied().unwrap_or_default();
    match random.below(9) {
        0 => Value::Bool(random.one_in(2)),
        1 => Value::F32(float as f32),
        2 => Value::F64(float),
        3 => Value::String(random.of(words).copied().unwrap_or_default().to_owned()),
        4 => Value::I32(number as i32),
        5 => Value::U64(number as u64),
        6 => Value::Array(Array::U32(vec![number as u32; random.below(4)])),
        _ => Value::U32(number as u32),
    }
}

/// A value of the same type, as far as possible.
fn change(value: &mut Value, words: &[&str], random: &mut Random) {
    let number = random.of(&HOSTILE).copied().unwrap_or_default();
    match value {
        Value::U32(old) => *old = number as u32,
        Value::I32(old) => *old = number as i32,
        Value::U64(old) => *old = number as u64,
        Value::F32(old) => *old = random.of(&HOSTILE_FLOATS).map_or(f32::NAN, |&f| f as f32),
        Value::Bool(old) => *old = !*old,
        Value::String(old) => *old = random.of(words).copied().unwrap_or_default().to_owned(),
        Value::Array(Array::String(list)) => {
            let at = random.below(list.len());
            match random.below(3) {
                0 => list.truncate(at),
                1 if !list.is_empty() => list.push(list[at].clone()),
                _ => list.push(random.of(words).copied().unwrap_or_default().to_owned()),
            }
        }
        Value::Array(Array::I32(list)) => {
            let at = random.below(list.len());
            match list.get_mut(at) {
                Some(old) => *old = number as i32,
                None => list.push(number as i32),
            }
        }
        Value::Array(Array::F32(list)) => {
            let at = random.below(list.len());
            match list.get_mut(at) {
                Some(old) => *old = [f32::NAN, f32::INFINITY, 0.0, -1.0][random.below(4)],
                None => list.push(0.0),
            }
        }
        Value::Array(list) => {
            let at = random.below(list.len());
            list.retain(|index| index < at);
        }
        other => *other = hostile(words, random),
    }
}

/// More tokens, made of those that are there, with everything that is listed beside them.
fn grow(metadata: &mut Metadata, random: &mut Random) {
    let Some(Value::Array(Array::String(tokens))) = metadata.value_mut(TOKENS) else { return };
    let before = tokens.len();
    let (first, second) = match (random.of(tokens).cloned(), random.of(tokens).cloned()) {
        (Some(first), Some(second)) => (first, second),
        _ => return,
    };
    // Powers of one token are the worst: every part of them is a token, too.
    let mut last = if random.one_in(2) { second.clone() } else { first };
    for _ in 0..[1, 16, LONGEST_TOKEN][random.below(3)] {
        last.push_str(&second);
        if tokens.len() >= MOST_TOKENS || last.len() > LONGEST_TOKEN {
            break;
        }
        if !tokens.contains(&last) {
            tokens.push(last.clone());
        }
    }
    let added = tokens.len() - before;
    if let Some(Value::Array(Array::F32(scores))) = metadata.value_mut(SCORES) {
        scores.extend(std::iter::repeat_n(0.0, added));
    }
    if let Some(Value::Array(Array::I32(kinds))) = metadata.value_mut(KINDS) {
        kinds.extend(std::iter::repeat_n(1, added));
    }
}
