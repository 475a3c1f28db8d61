//! Changes of JSON and of what can be read as such.

use super::random::Random;
use serde_json::{Map, Value, json};

/// Integers at which programs break.
pub(super) const HOSTILE: [i128; 20] = [
    0,
    1,
    -1,
    2,
    3,
    7,
    64,
    255,
    4096,
    65_535,
    65_536,
    1 << 31,
    (1 << 31) - 1,
    (1 << 32) - 1,
    1 << 32,
    4_000_000_000,
    1 << 53,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
];

/// Numbers at which programs break.
pub(super) const HOSTILE_FLOATS: [f64; 10] =
    [0.0, -0.0, 0.5, -1.0, 1e-50, 1e-308, 1e39, 1e308, -1e308, 5e-324];

/// Changes one place.
pub(super) fn change(value: &mut Value, words: &[&str], random: &mut Random) {
    let all = count(value);
    let donor = nth(value, &mut random.below(all)).cloned().unwrap_or_default();
    let Some(place) = nth_mut(value, &mut random.below(all)) else { return };
    match place {
        Value::Object(map) => change_map(map, donor, words, random),
        Value::Array(list) => change_list(list, donor, words, random),
        Value::String(text) if random.one_in(3) => change_text(text, words, random),
        Value::Number(_) if random.one_in(3) => change_number(place, random),
        Value::Bool(flag) => *flag = !*flag,
        _ if random.one_in(4) => *place = donor,
        _ => *place = hostile(words, random),
    }
}

fn change_map(map: &mut Map<String, Value>, donor: Value, words: &[&str], random: &mut Random) {
    let keys: Vec<String> = map.keys().cloned().collect();
    let old = random.of(&keys).cloned().unwrap_or_default();
    match random.below(4) {
        0 => drop(map.remove(&old)),
        1 => {
            if let (Some(value), Some(word)) = (map.remove(&old), random.of(words)) {
                map.insert((*word).to_owned(), value);
            }
        }
        2 => drop(map.insert(old, donor)),
        _ => {
            if let Some(word) = random.of(words) {
                map.insert((*word).to_owned(), hostile(words, random));
            }
        }
    }
}

fn change_list(list: &mut Vec<Value>, donor: Value, words: &[&str], random: &mut Random) {
    let at = random.below(list.len());
    match random.below(6) {
        0 if !list.is_empty() => drop(list.remove(at)),
        1 => list.truncate(at),
        2 => list.insert(at, donor),
        3 if !list.is_empty() => {
            // The same many times, because lists are compared with numbers.
            let again = list[at].clone();
            let times = random.below(200);
            list.extend(std::iter::repeat_n(again, times));
        }
        4 if !list.is_empty() => list.swap(at, 0),
        _ => list.insert(at, hostile(words, random)),
    }
}

fn change_text(text: &mut String, words: &[&str], random: &mut Random) {
    match random.below(6) {
        0 => text.clear(),
        1 => *text = text.repeat(2),
        2 => text.push(char::from(random.next() as u8)),
        3 => text
            .push_str(["/../x", "\u{1b}]0;x\u{7}", "\u{feff}", ".0", "\0", " "][random.below(6)]),
        4 => drop(text.pop()),
        _ => *text = random.of(words).map_or("", |word| *word).to_owned(),
    }
}

/// A little more or less, since many checks are off by one.
fn change_number(place: &mut Value, random: &mut Random) {
    let changed = match (place.as_i64(), place.as_f64()) {
        (Some(old), _) => match random.below(5) {
            0 => json!(old.wrapping_add(1)),
            1 => json!(old.wrapping_sub(1)),
            2 => json!(old.wrapping_mul(2)),
            3 => json!(old.wrapping_neg()),
            _ => json!(old as f64 + 0.5),
        },
        (_, Some(old)) => json!([old * 2.0, -old, old + 1.0, 1.0 / old][random.below(4)]),
        _ => Value::Null,
    };
    *place = changed;
}

fn hostile(words: &[&str], random: &mut Random) -> Value {
    match random.below(10) {
        0 => Value::Null,
        1 => json!(random.one_in(2)),
        2 => json!(random.of(words).copied().unwrap_or_default()),
        3 => json!([]),
        4 => json!({}),
        5 => random.of(&HOSTILE_FLOATS).map_or(Value::Null, |&number| json!(number)),
        _ => {
            let number = random.of(&HOSTILE).copied().unwrap_or_default();
            u64::try_from(number).map_or_else(|_| json!(number as i64), |number| json!(number))
        }
    }
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(count).sum(),
        Value::Object(map) => map.values().map(count).sum(),
        _ => 0,
    }
}

fn nth<'a>(value: &'a Value, left: &mut usize) -> Option<&'a Value> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    match value {
        Value::Array(list) => list.iter().find_map(|value| nth(value, left)),
        Value::Object(map) => map.values().find_map(|value| nth(value, left)),
        _ => None,
    }
}

fn nth_mut<'a>(value: &'a mut Value, left: &mut usize) -> Option<&'a mut Value> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    match value {
        Value::Array(list) => list.iter_mut().find_map(|value| nth_mut(value, left)),
        Value::Object(map) => map.values_mut().find_map(|value| nth_mut(value, left)),
        _ => None,
    }
}
