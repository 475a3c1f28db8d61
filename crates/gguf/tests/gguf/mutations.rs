//! Damage of every kind to good files: reading answers, it never panics.

use crate::support::{golden, read_all};
use std::fs;

const FILES: [&str; 3] = ["types.gguf", "written.gguf", "metadata.gguf"];

/// SplitMix64: the same damage in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// Where the first tensor begins, and where the last one ends.
fn data(bytes: &[u8]) -> (usize, usize) {
    let copy = bytes.to_vec();
    let base = copy.as_ptr().addr();
    let file = read_all(copy).unwrap();
    let start = |bytes: &[u8]| bytes.as_ptr().addr() - base;
    let first = file.tensors().map(|tensor| start(tensor.bytes())).min().unwrap();
    let end = file.tensors().map(|t| start(t.bytes()) + t.bytes().len()).max().unwrap();
    (first, end)
}

#[test]
fn a_file_that_ends_anywhere_too_early_is_refused() {
    for name in FILES {
        let bytes = fs::read(golden(name)).unwrap();
        let (_, end) = data(&bytes);
        for length in 0..bytes.len() {
            let answer = read_all(bytes[..length].to_vec());
            // Padding after the last tensor may be missing.
            assert_eq!(answer.is_ok(), length >= end, "{name} cut to {length} bytes");
        }
    }
}

#[test]
fn every_byte_of_a_header_can_be_anything() {
    for name in FILES {
        let bytes = fs::read(golden(name)).unwrap();
        let (start, _) = data(&bytes);
        for index in 0..start {
            let flips = (0..8).map(|bit| bytes[index] ^ (1 << bit));
            for value in flips.chain([0, 0x7f, 0x80, 0xff]) {
                let mut damaged = bytes.clone();
                damaged[index] = value;
                let _ = read_all(damaged);
            }
        }
    }
}

#[test]
fn repeated_damage_is_answered() {
    let mut random = Random(1);
    let files = FILES.map(|name| fs::read(golden(name)).unwrap());
    let starts = files.each_ref().map(|bytes| data(bytes).0);
    let mut refused = 0;
    let rounds = 20_000;
    for _ in 0..rounds {
        let chosen = random.below(files.len());
        let mut bytes = files[chosen].clone();
        for _ in 0..=random.below(4) {
            damage(&mut random, &mut bytes, starts[chosen]);
        }
        refused += usize::from(read_all(bytes).is_err());
    }
    assert!(
        refused > rounds / 2,
        "only {refused} of {rounds} were noticed: the damage is too weak"
    );
}

fn damage(random: &mut Random, bytes: &mut Vec<u8>, header: usize) {
    let at = random.below(header.min(bytes.len()));
    match random.below(5) {
        0 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        1 => {
            let extreme = [0, 1, 31, 1 << 31, 1 << 32, 1 << 62, 1 << 63, u64::MAX, u64::MAX - 31];
            let value = extreme[random.below(extreme.len())].to_le_bytes();
            let width = [4, 8][random.below(2)];
            for (byte, new) in bytes.iter_mut().skip(at).zip(&value[..width]) {
                *byte = *new;
            }
        }
        2 => bytes.truncate(random.below(bytes.len())),
        3 => {
            let length = random.below(16).min(bytes.len() - at);
            let copied = bytes[at..at + length].to_vec();
            let to = random.below(bytes.len());
            bytes.splice(to..to, copied);
        }
        _ => {
            let end = (at + random.below(16)).min(bytes.len());
            bytes.drain(at..end);
        }
    }
}
