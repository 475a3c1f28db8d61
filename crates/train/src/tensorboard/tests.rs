//! An independent reader decodes what the writer wrote.

use super::*;
use std::collections::BTreeMap;

/// The checksum bit by bit, without the table.
fn slow_masked_crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            let carry = crc & 1;
            crc >>= 1;
            if carry == 1 {
                crc ^= 0x82f6_3b78;
            }
        }
    }
    let crc = crc ^ u32::MAX;
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The data of every record; panics where a checksum is wrong.
fn read_records(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(number(4), 0, "no record is that long");
        let length = number(0) as usize;
        assert_eq!(number(8), slow_masked_crc32c(&bytes[..8]));
        let data = &bytes[12..12 + length];
        assert_eq!(number(12 + length), slow_masked_crc32c(data));
        records.push(data.to_vec());
        bytes = &bytes[16 + length..];
    }
    records
}

#[derive(Clone, Debug, PartialEq)]
enum Field {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(Vec<u8>),
    Fixed32([u8; 4]),
}

fn read_varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return value;
        }
    }
    panic!("a varint has at most ten bytes");
}

fn take(count: usize, bytes: &mut &[u8]) -> Vec<u8> {
    let (head, tail) = bytes.split_at(count);
    *bytes = tail;
    head.to_vec()
}

fn read_message(mut bytes: &[u8]) -> BTreeMap<u64, Field> {
    let mut fields = BTreeMap::new();
    while !bytes.is_empty() {
        let key = read_varint(&mut bytes);
        let field = match key & 7 {
            0 => Field::Varint(read_varint(&mut bytes)),
            1 => Field::Fixed64(take(8, &mut bytes).try_into().unwrap()),
            2 => {
                let length = read_varint(&mut bytes) as usize;
                Field::Bytes(take(length, &mut bytes))
            }
            5 => Field::Fixed32(take(4, &mut bytes).try_into().unwrap()),
            other => panic!("wire type {other}"),
        };
        assert_eq!(fields.insert(key >> 3, field), None, "no field twice");
    }
    fields
}

fn message(field: &Field) -> BTreeMap<u64, Field> {
    match field {
        Field::Bytes(bytes) => read_message(bytes),
        other => panic!("{other:?} is no message"),
    }
}

/// Tag, step, value and time of each scalar, after the version event.
fn read_scalars(path: &Path) -> Vec<(String, u64, f32, f64)> {
    let records = read_records(&std::fs::read(path).unwrap());
    let version = read_message(&records[0]);
    assert_eq!(version[&3], Field::Bytes(b"brain.Event:2".to_vec()));
    let mut scalars = Vec::new();
    for record in &records[1..] {
        let event = read_message(record);
        let point = message(&message(&event[&5])[&1]);
        match (&point[&1], &event[&2], &point[&2], &event[&1]) {
            (
                Field::Bytes(tag),
                Field::Varint(step),
                Field::Fixed32(value),
                Field::Fixed64(time),
            ) => scalars.push((
                String::from_utf8(tag.clone()).unwrap(),
                *step,
                f32::from_le_bytes(*value),
                f64::from_le_bytes(*time),
            )),
            other => panic!("{other:?} is no scalar"),
        }
    }
    scalars
}

#[test]
fn the_checksum_has_its_published_values() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(crc32c(b""), 0);
    assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    assert_eq!(masked_crc32c(b"hadal"), slow_masked_crc32c(b"hadal"));
}

#[test]
fn a_scalar_has_the_bytes_that_protobuf_prescribes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.out.tfevents.0.hadal");
    let mut writer = EventWriter::create(&path).unwrap();
    writer.scalar("loss", 300, 1.0, 2.0).unwrap();
    writer.flush().unwrap();
    let records = read_records(&std::fs::read(&path).unwrap());
    let expected = [
        &[0x09, 0, 0, 0, 0, 0, 0, 0, 0x40][..], // wall_time 2.0
        &[0x10, 0xac, 0x02],                    // step 300
        &[0x2a, 13, 0x0a, 11],                  // summary, its value
        &[0x0a, 4, b'l', b'o', b's', b's'],     // tag
        &[0x15, 0, 0, 0x80, 0x3f],              // simple_value 1.0
    ]
    .concat();
    assert_eq!(records[1], expected);
}

#[test]
fn what_is_written_is_read_back_also_after_appending() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.out.tfevents.0.hadal");
    let points = [
        ("train/loss", 0, 10.5, 1e9),
        ("train/loss", 127, f32::MIN_POSITIVE, 1e9 + 0.25),
        ("größe", 128, f32::INFINITY, 0.0),
        ("", u64::from(u32::MAX) + 1, -0.0, -1.0),
    ]
    .map(|(tag, step, value, time)| (tag.to_owned(), step, value, time));
    let mut writer = EventWriter::create(&path).unwrap();
    for (count, (tag, step, value, time)) in points.iter().enumerate() {
        if count == 2 {
            drop(writer);
            let length = std::fs::metadata(&path).unwrap().len();
            let (again, warning) = EventWriter::append(&path, length).unwrap();
            assert_eq!(warning, None);
            writer = again;
        }
        writer.scalar(tag, *step, *value, *time).unwrap();
    }
    drop(writer);
    assert_eq!(read_scalars(&path), points);
}

#[test]
fn appending_cuts_off_a_half_written_record_wherever_it_was_torn() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.out.tfevents.0.hadal");
    let mut writer = EventWriter::create(&path).unwrap();
    writer.scalar("loss", 1, 1.0, 1.0).unwrap();
    writer.flush().unwrap();
    let kept = std::fs::read(&path).unwrap().len();
    writer.scalar("loss", 2, 2.0, 2.0).unwrap();
    drop(writer);
    let whole = std::fs::read(&path).unwrap();
    for torn in kept..whole.len() {
        std::fs::write(&path, &whole[..torn]).unwrap();
        let (mut writer, warning) = EventWriter::append(&path, whole.len() as u64).unwrap();
        assert!(warning.unwrap().contains(&format!("{kept} of {} bytes", whole.len())));
        writer.scalar("loss", 3, 3.0, 3.0).unwrap();
        drop(writer);
        let steps: Vec<u64> = read_scalars(&path).iter().map(|scalar| scalar.1).collect();
        assert_eq!(steps, [1, 3], "torn after {torn} bytes");
    }
}

#[test]
fn what_was_written_later_is_cut_off_without_a_word() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.out.tfevents.0.hadal");
    let mut writer = EventWriter::create(&path).unwrap();
    writer.scalar("loss", 1, 1.0, 1.0).unwrap();
    let length = writer.sync().unwrap();
    writer.scalar("loss", 2, 2.0, 2.0).unwrap();
    drop(writer);
    let (mut writer, warning) = EventWriter::append(&path, length).unwrap();
    assert_eq!(warning, None);
    writer.scalar("loss", 3, 3.0, 3.0).unwrap();
    drop(writer);
    let steps: Vec<u64> = read_scalars(&path).iter().map(|scalar| scalar.1).collect();
    assert_eq!(steps, [1, 3]);
}

#[test]
fn a_file_that_is_missing_or_has_no_whole_record_begins_anew_with_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.out.tfevents.0.hadal");
    for contents in [None, Some(&b""[..]), Some(b"notes about a run"), Some(&[0; 64])] {
        let _ = std::fs::remove_file(&path);
        if let Some(contents) = contents {
            std::fs::write(&path, contents).unwrap();
        }
        let (mut writer, warning) = EventWriter::append(&path, 64).unwrap();
        assert!(warning.unwrap().contains("0 of 64 bytes can be used"));
        writer.scalar("loss", 3, 3.0, 3.0).unwrap();
        drop(writer);
        assert_eq!(read_scalars(&path).len(), 1);
    }
}
