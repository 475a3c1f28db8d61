//! Numbers in Thrift's compact protocol, in which parquet describes its pages and columns. The library believes them
//! when it asks for memory, so they are looked at before.

/// Deeper than any description is nested.
const DEEPEST: usize = 64;

/// Structures, lists and so on are told apart by these.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;

/// The numbers of the fields that lead to a value; an element of a list has the number 0.
type Found<'a> = &'a mut dyn FnMut(&[i16], Kind, i64);

/// Calls `found` with every field of a structure: where it is, of which kind, and its value if it is a whole number.
/// `None` if the bytes are something else or end too early.
pub(super) fn fields(bytes: &[u8], found: Found) -> Option<()> {
    let mut walk = Walk { rest: bytes, path: Vec::new(), found };
    walk.structure()
}

/// What a value is, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bool,
    Integer,
    Structure,
    Other,
}

impl Kind {
    fn of(kind: u8) -> Self {
        match kind {
            TRUE | FALSE => Self::Bool,
            I16..=I64 => Self::Integer,
            STRUCT => Self::Structure,
            _ => Self::Other,
        }
    }
}

struct Walk<'a> {
    rest: &'a [u8],
    path: Vec<i16>,
    found: Found<'a>,
}

impl Walk<'_> {
    fn structure(&mut self) -> Option<()> {
        if self.path.len() >= DEEPEST {
            return None;
        }
        let mut field = 0i16;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(());
            }
            field = match head >> 4 {
                0 => i16::try_from(self.zigzag()?).ok()?,
                step => field.checked_add(i16::from(step))?,
            };
            self.path.push(field);
            match head & 15 {
                // In a field, the kind itself is the value.
                kind @ (TRUE | FALSE) => {
                    (self.found)(&self.path, Kind::Bool, (kind == TRUE).into())
                }
                kind => {
                    let value = self.value(kind)?;
                    (self.found)(&self.path, Kind::of(kind), value);
                }
            }
            self.path.pop();
        }
    }

    /// The value if it is a whole number, or else 0.
    fn value(&mut self, kind: u8) -> Option<i64> {
        match kind {
            I16..=I64 => return self.zigzag(),
            TRUE | FALSE | BYTE => self.skip(1),
            DOUBLE => self.skip(8),
            BINARY => {
                let length = usize::try_from(self.number()?).ok()?;
                self.skip(length)
            }
            LIST | SET => {
                let head = self.byte()?;
                let count = match head >> 4 {
                    15 => self.number()?,
                    count => u64::from(count),
                };
                self.elements(count, &[head & 15])
            }
            MAP => match self.number()? {
                0 => Some(()),
                count => {
                    let kinds = self.byte()?;
                    self.elements(count, &[kinds >> 4, kinds & 15])
                }
            },
            STRUCT => self.structure(),
            _ => None,
        }?;
        Some(0)
    }

    /// Every element takes at least a byte, so this ends.
    fn elements(&mut self, count: u64, kinds: &[u8]) -> Option<()> {
        if count > self.rest.len() as u64 || self.path.len() >= DEEPEST {
            return None;
        }
        self.path.push(0);
        for _ in 0..count {
            kinds.iter().try_for_each(|&kind| self.value(kind).map(drop))?;
        }
        self.path.pop();
        Some(())
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.rest = self.rest.get(count..)?;
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for place in 0..10 {
            let byte = self.byte()?;
            number |= u64::from(byte & 127).checked_shl(7 * place)?;
            if byte < 128 {
                return Some(number);
            }
        }
        None
    }

    fn zigzag(&mut self) -> Option<i64> {
        let number = self.number()?;
        Some((number >> 1) as i64 ^ -((number & 1) as i64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_wherever_they_are() {
        // 1: 3, 2: "ab", 5: {1: -2, 3: true}, 6: [7, 8], 20 (spelled out): 300
        let bytes = [
            0x15, 6, 0x18, 2, b'a', b'b', 0x3c, 0x15, 3, 0x21, 0, 0x19, 0x25, 14, 16, 0x05, 40,
            0xd8, 4, 0,
        ];
        let mut seen = Vec::new();
        fields(&bytes, &mut |path, kind, value| seen.push((path.to_vec(), kind, value))).unwrap();
        let expected = [
            (vec![1], Kind::Integer, 3),
            (vec![2], Kind::Other, 0),
            (vec![5, 1], Kind::Integer, -2),
            (vec![5, 3], Kind::Bool, 1),
            (vec![5], Kind::Structure, 0),
            (vec![6], Kind::Other, 0),
            (vec![20], Kind::Integer, 300),
        ];
        assert_eq!(seen, expected);
        for length in 0..bytes.len() {
            assert!(fields(&bytes[..length], &mut |_, _, _| ()).is_none(), "{length}");
        }
        // Nested without end, and a list of more elements than there are bytes.
        assert!(fields(&[0x1c; 1 << 16], &mut |_, _, _| ()).is_none());
        assert!(fields(&[0x19, 0xf5, 255, 255, 3, 0], &mut |_, _, _| ()).is_none());
    }
}
