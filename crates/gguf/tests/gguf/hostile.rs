//! Files that lie: each is refused, by name.

use crate::support::{Raw, golden, read_all};
use hadal_gguf::{Gguf, GgufError};
use std::fs;

const F32: u32 = 0;
const Q8_0: u32 = 8;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// Two tensors of 32 bytes each, which is fine, changed by the caller.
fn two(first: (&[u64], u32, u64), second: (&[u64], u32, u64)) -> Raw {
    let raw = Raw::new(2, 0).tensor("first", first.0, first.1, first.2);
    raw.tensor("second", second.0, second.1, second.2).data(64)
}

fn nested(depth: usize) -> Raw {
    let raw = (1..depth).fold(Raw::new(0, 1).key("bomb", ARRAY), |raw, _| raw.u32(ARRAY).u64(1));
    raw.u32(0).u64(1).bytes(&[1])
}

#[test]
fn every_lie_is_refused_with_its_place_and_reason() {
    const MAX: u64 = u64::MAX;
    let fine: (&[u64], u32, u64) = (&[8], F32, 32);
    let start = |offset| (&[8u64][..], F32, offset);
    let one = |dimensions: &[u64], kind| Raw::new(1, 0).tensor("x", dimensions, kind, 0).data(64);
    let truncated = "are left; the file is truncated or damaged";
    let cases: Vec<(Raw, &str)> = vec![
        (Raw(vec![]), "is not a GGUF file"),
        (Raw(b"GGU".to_vec()), "is not a GGUF file"),
        (Raw(b"ggjt\x03\0\0\0".to_vec()), "is not a GGUF file"),
        (Raw(b"GGUF\x03\0".to_vec()), "the header needs 4 bytes where 2 are left"),
        (Raw(b"GGUF\x01\0\0\0".to_vec()), "is of GGUF version 1, but versions 2 and 3 are read"),
        (Raw(b"GGUF\x04\0\0\0".to_vec()), "is of GGUF version 4"),
        (Raw(b"GGUF\0\0\0\x03".to_vec()), "is big-endian"),
        // Counts and lengths.
        (Raw::new(0, MAX), truncated),
        (Raw::new(MAX, 0), truncated),
        (Raw::new(0, 2).key("a", 0).bytes(&[1]), truncated),
        (Raw::new(0, 1).u64(MAX).bytes(&[0; 16]), "metadata entry 0 needs 18446744073709551615"),
        (Raw::new(0, 1).key("a", STRING).u64(1 << 40), "key a needs 1099511627776 bytes where 0"),
        (Raw::new(0, 1).key("a", ARRAY).u32(12).u64(MAX), "key a needs 18446744073709551615"),
        (Raw::new(0, 1).key("a", ARRAY).u32(STRING).u64(1 << 50), truncated),
        (Raw::new(0, 1).key("a", ARRAY).u32(ARRAY).u64(1 << 50), truncated),
        (Raw::new(0, 1).key("a", ARRAY).u32(7).u64(2).bytes(&[1]), "key a needs 2 bytes where 1"),
        // Contents.
        (
            Raw::new(0, 1).string(b"\xff\xfe").u32(0).bytes(&[1]),
            "metadata entry 0 is not valid UTF-8",
        ),
        (Raw::new(0, 1).key("a", STRING).string(b"\xc3"), "key a is not valid UTF-8"),
        (Raw::new(0, 1).key("a", 13).u64(0), "key a has value type 13"),
        (Raw::new(0, 1).key("a", ARRAY).u32(77).u64(0), "key a has value type 77"),
        (Raw::new(0, 1).key("a", 7).bytes(&[2]), "key a holds the bool 2"),
        (Raw::new(0, 1).key("a", ARRAY).u32(7).u64(2).bytes(&[1, 9]), "key a holds the bool 9"),
        (Raw::new(0, 2).key("a", 0).bytes(&[1]).key("a", 0).bytes(&[1]), "key a occurs twice"),
        (nested(9), "key bomb nests arrays deeper than 8 levels"),
        (nested(10_000), "key bomb nests arrays deeper than 8 levels"),
        (Raw::new(0, 1).key("\x1b[31m", 99).u64(0), "key \\u{1b}[31m has value type 99"),
        // The alignment.
        (Raw::new(0, 1).key("general.alignment", 4).u32(0), "but is the integer 0"),
        (
            Raw::new(0, 1).key("general.alignment", 4).u32(24),
            "key general.alignment must be a power of two",
        ),
        (Raw::new(0, 1).key("general.alignment", STRING).string(b"32"), "but is a string"),
        // Tensors.
        (Raw::new(1, 0).string(b"\xff").u32(0).u32(0).u64(0), "tensor entry 0 is not valid UTF-8"),
        (Raw::new(1, 0).string(b"x").u32(5).bytes(&[1; 60]), "tensor `x` has 5 dimensions"),
        (
            Raw::new(1, 0).string(b"x").u32(u32::MAX).bytes(&[1; 60]),
            "tensor `x` has 4294967295 dimensions",
        ),
        (one(&[4, 0], F32), "tensor `x` has no elements: dimension 1 is 0"),
        (one(&[MAX, MAX], F32), "tensor `x` is larger than memory"),
        (one(&[1 << 32, 1 << 32], F32), "tensor `x` is larger than memory"),
        (one(&[1 << 31, 1 << 31], F32), "tensor `x` is larger than memory"),
        (one(&[1 << 40], F32), "tensor `x` needs 4398046511104 bytes where 64 are left"),
        (one(&[17], F32), "tensor `x` needs 68 bytes where 64 are left"),
        (one(&[33], Q8_0), "tensor `x` has rows of 33 elements, but Q8_0 packs 32 at a time"),
        (one(&[8], 4), "tensor `x` has tensor type 4, which is not known"),
        (one(&[8], u32::MAX), "tensor `x` has tensor type 4294967295"),
        (two(fine, start(1)), "tensor `second` begins at byte 1 of the data"),
        (two(fine, start(64)), "tensor `second` needs 32 bytes where 0 are left"),
        (two(fine, start(MAX - 31)), "tensor `second` needs 32 bytes where 0 are left"),
        (two(fine, start(32)), "overlaps tensor"),
        (two((&[9], F32, 0), fine), "tensor `second` overlaps tensor `first`"),
        (
            Raw::new(2, 0).tensor("x", &[8], F32, 0).tensor("x", &[8], F32, 32).data(64),
            "tensor `x` occurs twice",
        ),
    ];
    for (raw, expected) in cases {
        let message = read_all(raw.0).expect_err(expected).to_string();
        assert!(message.starts_with("hostile.gguf"), "{message}");
        assert!(message.contains(expected), "`{message}` does not say `{expected}`");
    }
}

#[test]
fn the_files_that_the_lies_are_made_from_are_fine() {
    read_all(two((&[8], F32, 0), (&[8], F32, 32)).0).unwrap();
    read_all(two((&[8], F32, 32), (&[8], F32, 0)).0).unwrap();
    read_all(nested(8).0).unwrap();
    read_all(Raw::new(0, 0).0).unwrap();
    read_all(Raw::new(1, 0).tensor("", &[], F32, 0).data(4).0).unwrap();
    let mut second_version = fs::read(golden("types.gguf")).unwrap();
    second_version[4] = 2;
    assert_eq!(read_all(second_version).unwrap().version(), 2);
}

#[test]
fn a_type_that_is_not_decoded_is_listed_and_refused_by_name() {
    let raw = Raw::new(1, 0).tensor("x", &[256, 2], 10, 0).data(168);
    let file = Gguf::from_bytes("q2.gguf".as_ref(), raw.0).unwrap();
    let tensor = file.tensor("x").unwrap();
    assert_eq!((tensor.info().kind().name(), tensor.bytes().len()), ("Q2_K", 168));
    let message = tensor.to_f32().unwrap_err().to_string();
    assert_eq!(
        message,
        "q2.gguf: tensor `x` is of type Q2_K, which cannot be dequantised; the types that can are \
         F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, BF16"
    );
}

#[test]
fn rows_and_buffers_that_do_not_fit_are_refused() {
    let file = Gguf::open(&golden("types.gguf")).unwrap();
    let tensor = file.tensor("packed.Q8_0").unwrap();
    let mut row = [0.0; 64];
    #[expect(clippy::reversed_empty_ranges, reason = "this is what is refused")]
    for rows in [3..4, 0..usize::MAX, usize::MAX..0, 2..1] {
        let error = tensor.dequantise_rows(rows, &mut row).unwrap_err();
        assert!(matches!(error, GgufError::Rows { rows: 3, .. }), "{error}");
    }
    let error = tensor.dequantise_rows(0..2, &mut row).unwrap_err();
    assert!(matches!(error, GgufError::Buffer { expected: 128, found: 64, .. }), "{error}");
    assert!(file.tensor("absent").unwrap_err().to_string().ends_with("holds no tensor `absent`"));
}

#[test]
fn what_is_no_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let empty = directory.path().join("empty.gguf");
    fs::write(&empty, []).unwrap();
    assert!(matches!(Gguf::open(&empty), Err(GgufError::NotGguf { .. })));
    assert!(matches!(Gguf::open(directory.path()), Err(GgufError::File(_))));
    assert!(matches!(Gguf::open(&directory.path().join("absent")), Err(GgufError::File(_))));
}
