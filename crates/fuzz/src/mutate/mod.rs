//! Changes that keep a file's form, so that they get past the parser: hostile numbers, missing keys, keys of other
//! files. Chance alone hardly ever makes two such changes in one file.

mod gguf;
mod random;
mod tree;

use crate::folder::{join, split};
use crate::targets::{Form, Target};
use random::Random;
use serde_json::Value;
use tree::change;

/// A changed copy of an input of a target. The same seed makes the same change.
pub fn mutate(target: &Target, bytes: &[u8], seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let words: Vec<&str> = target.words.split_whitespace().collect();
    let mut changed = bytes.to_vec();
    for _ in 0..1 + random.below(3) {
        changed = match target.form {
            Form::File(name) => file(name, &changed, &words, &mut random),
            Form::Folder => folder(&changed, &words, &mut random),
        };
    }
    changed
}

/// One of the files of a folder is changed, or is gone.
fn folder(bytes: &[u8], words: &[&str], random: &mut Random) -> Vec<u8> {
    let mut files = split(bytes);
    if files.is_empty() || random.one_in(16) {
        return plain(bytes, random);
    }
    let chosen = random.below(files.len());
    if random.one_in(24) {
        files.remove(chosen);
    } else {
        let (name, content) = &mut files[chosen];
        *content = file(name, content, words, random);
    }
    join(&files)
}

/// A file is changed as its name's ending says, or byte by byte.
fn file(name: &str, bytes: &[u8], words: &[&str], random: &mut Random) -> Vec<u8> {
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    let changed = match ending {
        _ if random.one_in(8) => None,
        "json" => json(bytes, words, random),
        "jsonl" => Some(lines(bytes, words, random)),
        "toml" => toml(bytes, words, random),
        "safetensors" => safetensors(bytes, words, random),
        "gguf" => gguf::changed(bytes, words, random),
        "jinja" => word(bytes, words, random),
        _ => None,
    };
    changed.unwrap_or_else(|| plain(bytes, random))
}

fn json(bytes: &[u8], words: &[&str], random: &mut Random) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(bytes).ok()?;
    change(&mut value, words, random);
    serde_json::to_vec(&value).ok()
}

fn lines(bytes: &[u8], words: &[&str], random: &mut Random) -> Vec<u8> {
    let mut lines: Vec<Vec<u8>> = bytes.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
    let chosen = random.below(lines.len());
    match random.below(8) {
        0 => lines.push(lines[chosen].clone()),
        1 => lines.swap(chosen, 0),
        2 => drop(lines.remove(chosen)),
        _ => {
            let line = &mut lines[chosen];
            *line = json(line, words, random).unwrap_or_else(|| plain(line, random));
        }
    }
    lines.join(&b'\n')
}

fn toml(bytes: &[u8], words: &[&str], random: &mut Random) -> Option<Vec<u8>> {
    let mut value: Value = ::toml::from_str(std::str::from_utf8(bytes).ok()?).ok()?;
    change(&mut value, words, random);
    Some(::toml::to_string(&value).ok()?.into_bytes())
}

/// The header is changed, and its length fits again.
fn safetensors(bytes: &[u8], words: &[&str], random: &mut Random) -> Option<Vec<u8>> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let header = json(rest.get(..length)?, words, random)?;
    Some([&(header.len() as u64).to_le_bytes()[..], &header, &rest[length..]].concat())
}

/// One word becomes another.
fn word(bytes: &[u8], words: &[&str], random: &mut Random) -> Option<Vec<u8>> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let begins: Vec<usize> = (0..bytes.len())
        .filter(|&at| is_part(&bytes[at]) && (at == 0 || !is_part(&bytes[at - 1])))
        .collect();
    let at = *begins.get(random.below(begins.len().max(1)))?;
    let length = bytes[at..].iter().take_while(|byte| is_part(byte)).count();
    let new = words.get(random.below(words.len().max(1)))?;
    Some([&bytes[..at], new.as_bytes(), &bytes[at + length..]].concat())
}

/// A few bytes are changed, inserted, repeated or taken away.
fn plain(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + random.below(3) {
        let at = random.below(bytes.len() + 1);
        let until = (at + random.below(32)).min(bytes.len());
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..until)),
            2 => bytes.insert(at, random.next() as u8),
            3 => {
                let again = bytes[at..until].to_vec();
                drop(bytes.splice(at..at, again));
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = random.next() as u8;
                }
            }
        }
    }
    bytes
}
