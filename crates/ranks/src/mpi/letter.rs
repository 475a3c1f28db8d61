//! The small messages between couriers.

use crate::{Member, RankError};

/// No letter is longer. MPI libraries send what is this short at once, whether or not somebody waits for it.
pub(super) const LONGEST: usize = 3072;
/// A part of up to this many bytes travels in the letter that announces it.
pub(super) const SHORT: usize = 2048;

/// What a courier tells another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Letter {
    /// The sender lives.
    Alive,
    /// Its next part has this length, and follows in pieces.
    Announced(u64),
    /// Its next part, which is short.
    Part(Vec<u8>),
    /// The sender leaves, after this many exchanges.
    Leaves(u64, End),
}

/// Why a rank leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// Its work is done.
    Done,
    /// Its last words.
    Failed(String),
    /// Another rank is lost.
    Lost(Member, String),
}

impl End {
    /// What the rank itself says, if anything.
    pub(super) fn words(&self) -> Option<String> {
        match self {
            Self::Done => None,
            Self::Failed(said) => Some(said.clone()),
            Self::Lost(member, how) => {
                Some(RankError::Lost { member: member.clone(), how: how.clone() }.to_string())
            }
        }
    }
}

const ALIVE: u8 = 0;
const ANNOUNCED: u8 = 1;
const PART: u8 = 2;
const DONE: u8 = 3;
const FAILED: u8 = 4;
const LOST: u8 = 5;

impl Letter {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Alive => bytes.push(ALIVE),
            Self::Announced(length) => {
                bytes.push(ANNOUNCED);
                bytes.extend(length.to_le_bytes());
            }
            Self::Part(part) => {
                bytes.push(PART);
                bytes.extend(part);
            }
            Self::Leaves(entered, end) => {
                bytes.push(match end {
                    End::Done => DONE,
                    End::Failed(_) => FAILED,
                    End::Lost(..) => LOST,
                });
                bytes.extend(entered.to_le_bytes());
                match end {
                    End::Done => {}
                    End::Failed(said) => bytes.extend(said.as_bytes()),
                    End::Lost(member, how) => {
                        bytes.extend((member.rank as u32).to_le_bytes());
                        bytes.extend(member.process.to_le_bytes());
                        bytes.extend(format!("{}\n{how}", member.host).as_bytes());
                    }
                }
            }
        }
        bytes.truncate(LONGEST);
        bytes
    }

    /// `None` if no courier of this version has written it.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        match kind {
            ALIVE => return Some(Self::Alive),
            PART => return Some(Self::Part(rest.to_vec())),
            _ => {}
        }
        let (number, rest) = rest.split_first_chunk()?;
        let number = u64::from_le_bytes(*number);
        // Last words may have been cut within a character.
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        Some(match kind {
            ANNOUNCED => Self::Announced(number),
            DONE => Self::Leaves(number, End::Done),
            FAILED => Self::Leaves(number, End::Failed(text(rest))),
            LOST => {
                let (rank, rest) = rest.split_first_chunk()?;
                let (process, rest) = rest.split_first_chunk()?;
                let rank = u32::from_le_bytes(*rank) as usize;
                let process = u32::from_le_bytes(*process);
                let (host, how) = text(rest).split_once('\n').map(|(a, b)| (a.into(), b.into()))?;
                Self::Leaves(number, End::Lost(Member { rank, host, process }, how))
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_read_as_they_were_written() {
        let member = Member { rank: 3, host: "node7".into(), process: 4711 };
        let ends = [
            End::Done,
            End::Failed("the disk is full".into()),
            End::Lost(member, "silent for 60 s".into()),
        ];
        let mut letters = vec![
            Letter::Alive,
            Letter::Announced(5 << 30),
            Letter::Part(Vec::new()),
            Letter::Part(vec![7; SHORT]),
        ];
        letters.extend(ends.map(|end| Letter::Leaves(9, end)));
        for letter in letters {
            assert!(letter.bytes().len() <= LONGEST);
            assert_eq!(Letter::read(&letter.bytes()), Some(letter));
        }
    }

    #[test]
    fn long_words_are_cut_and_nonsense_is_none() {
        let long = Letter::Leaves(1, End::Failed("ö".repeat(LONGEST)));
        assert_eq!(long.bytes().len(), LONGEST);
        let Some(Letter::Leaves(1, End::Failed(said))) = Letter::read(&long.bytes()) else {
            panic!("not read");
        };
        assert!(said.starts_with("öö"));
        for nonsense in [&[][..], &[9; 20], &[ANNOUNCED, 1], &[LOST, 0, 0, 0, 0, 0, 0, 0, 0, 1]] {
            assert_eq!(Letter::read(nonsense), None, "{nonsense:?}");
        }
    }
}
