//! How much memory a hostile file may take, measured by counting allocations.

use hadal_files::testing::{Counting, peak as peak_of};
use hadal_gguf::Gguf;
use std::path::Path;

#[global_allocator]
static COUNTING: Counting = Counting;

/// The most bytes that were live at once while a file was read, beyond the file itself.
fn peak(bytes: Vec<u8>) -> usize {
    let path = Path::new("hostile.gguf");
    peak_of(|| drop(Gguf::from_bytes(path, bytes))).1
}

fn file(tensors: u64, entries: u64, rest: &[&[u8]]) -> Vec<u8> {
    let (tensors, entries) = (tensors.to_le_bytes(), entries.to_le_bytes());
    [&b"GGUF\x03\0\0\0"[..], &tensors, &entries, &rest.concat()].concat()
}

/// A key `a` whose value is an array, with the type of its elements and their count.
fn array(kind: u32, count: u64) -> Vec<u8> {
    let (key, array) = (1u64.to_le_bytes(), 9u32.to_le_bytes());
    [&key[..], b"a", &array, &kind.to_le_bytes(), &count.to_le_bytes()].concat()
}

/// One test, because the counters are global.
#[test]
fn memory_is_bounded_by_what_a_file_has_and_not_by_what_it_says() {
    let filler = [0u8; 64];
    for huge in [1 << 20, 1 << 32, 1 << 48, u64::MAX / 8, u64::MAX / 2, u64::MAX] {
        let mut small = vec![
            ("entries", file(0, huge, &[&filler])),
            ("tensors", file(huge, 0, &[&filler])),
            ("a key", file(0, 1, &[&huge.to_le_bytes(), &filler])),
            ("a name", file(1, 0, &[&huge.to_le_bytes(), &filler])),
        ];
        for kind in 0..13 {
            small.push(("an array", file(0, 1, &[&array(kind, huge), &filler])));
        }
        for (what, bytes) in small {
            let bytes = peak(bytes);
            assert!(bytes < 4096, "{what} of {huge}: {bytes} bytes");
        }
    }

    // Counts that could be true, one within the other, and then nothing that is counted.
    let could_be = 1u64 << 15;
    let level = |kind: u32| [&kind.to_le_bytes()[..], &could_be.to_le_bytes()].concat();
    let levels = [level(9).repeat(6), level(8)].concat();
    let bytes = peak(file(0, 1, &[&array(9, could_be), &levels, &[0xff; 1 << 19]]));
    assert!(bytes < 4096, "counts that could be true: {bytes} bytes");

    // The smallest items a file can hold, each many times; memory per byte is largest here. One more than a power of
    // two, so that lists have just grown.
    let many = (1 << 18) + 1;
    let string = [0u8; 8];
    let inner = [0u8; 12];
    let entry = |i: u64| [&8u64.to_le_bytes()[..], &i.to_le_bytes(), &[0; 5]].concat();
    let tensor = |i: u64| [&8u64.to_le_bytes()[..], &i.to_le_bytes(), &[0; 16]].concat();
    let ascii = |i: u64| (0..8).fold(0, |bytes, at| bytes | (i >> (4 * at) & 15) << (8 * at));
    let entries: Vec<u8> = (0..many).flat_map(|i| entry(ascii(i))).collect();
    let tensors: Vec<u8> = (0..many).flat_map(|i| tensor(ascii(i))).collect();
    let large = [
        ("strings", file(0, 1, &[&array(8, many), &string.repeat(many as usize)])),
        ("arrays", file(0, 1, &[&array(9, many), &inner.repeat(many as usize)])),
        ("entries", file(0, many, &[&entries])),
        ("tensors", file(many, 0, &[&tensors])),
    ];
    for (what, bytes) in large {
        let length = bytes.len();
        let ratio = peak(bytes) as f64 / length as f64;
        assert!(ratio < 10.0, "{what}: {ratio:.1} times the file");
        assert!(ratio > 1.0, "{what}: this does not measure: {ratio:.1}");
    }
}
