//! k-hop induction: an induction head applied k times.
//!
//! One hop from position t finds the latest earlier position that holds the token of t, and moves to
//! the position right after it. The answer at t is the token k hops away:
//! `hop(t) = 1 + max { s < t : x_s = x_t }`, `answer(t) = x_{hop^k(t)}`.
//! A transformer of depth `2 + log2 k` can do this, and a much shallower one cannot. Sanford, Hsu and
//! Telgarsky, "Transformers, parallel computation, and logarithmic depth", arXiv 2402.09268.
//!
//! Unlike in the other tasks, the target at a scored position is the answer *instead of* the next
//! token, as in the paper: the sequence is random, and every position from which all k hops exist is
//! a question. Neighbours always differ, as in the paper's experiments: the second of two equal
//! neighbours would hop to itself, and answer itself for every k.
//!
//! | token | meaning |
//! |---|---|
//! | 0 | padding: the unscored target after the last token |
//! | 1 ..= alphabet | symbols |

use super::{Draw, Example, PADDING, Task, TaskError, within};
use serde::{Deserialize, Serialize};

/// Settings of k-hop induction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KhopConfig {
    /// Hops from a question to its answer.
    pub k: usize,
    /// Different symbols. More of them make hops longer and chains rarer.
    pub alphabet: usize,
    /// Symbols in a sequence.
    pub length: usize,
}

impl Default for KhopConfig {
    /// The paper's alphabet and length.
    fn default() -> Self {
        Self { k: 2, alphabet: 4, length: 100 }
    }
}

impl Task for KhopConfig {
    fn name(&self) -> &'static str {
        "khop"
    }

    fn describe(&self) -> String {
        let Self { k, alphabet, length } = self;
        format!("khop: {k}-hop induction in sequences of {length} over {alphabet} symbols")
    }

    fn vocab_size(&self) -> usize {
        1 + self.alphabet
    }

    fn seq_len(&self) -> usize {
        self.length
    }

    fn check_ranges(&self) -> Result<(), TaskError> {
        let check =
            |setting, value, allowed, reason| within("khop", setting, value, allowed, reason);
        check("k", self.k, 1..=256, "no hop is no question, and more do not fit a sequence")?;
        check("alphabet", self.alphabet, 3..=255, "two symbols whose neighbours differ alternate")?;
        let shortest = (self.k + 1) * self.alphabet;
        let reason = "a hop goes back `alphabet - 1` positions on average and k of them must fit";
        check("length", self.length, shortest..=65_536, reason)
    }

    fn instances(&self) -> (f64, &'static str) {
        let following = ((self.alphabet - 1) as f64).log2() * (self.length - 1) as f64;
        ((self.alphabet as f64).log2() + following, "`length`")
    }

    fn numbers(&self) -> Vec<u64> {
        vec![self.k as u64, self.alphabet as u64, self.length as u64]
    }

    fn draw(&self, draw: &mut Draw) -> Example {
        let mut input: Vec<u32> = Vec::with_capacity(self.length);
        for _ in 0..self.length {
            let symbol = match input.last() {
                None => draw.below(self.alphabet),
                Some(previous) => *previous as usize + draw.below(self.alphabet - 1),
            };
            input.push((1 + symbol % self.alphabet) as u32);
        }

        let hop = hops(&input, self.alphabet);
        let mut target: Vec<u32> = input.iter().copied().skip(1).chain([PADDING]).collect();
        let mut scored = vec![false; input.len()];
        for start in 0..input.len() {
            if let Some(end) = (0..self.k).try_fold(start, |position, _| hop[position]) {
                target[start] = input[end];
                scored[start] = true;
            }
        }
        Example { input, target, scored }
    }
}

/// Where one hop leads from each position: right after the latest earlier place of its symbol.
fn hops(input: &[u32], alphabet: usize) -> Vec<Option<usize>> {
    let mut after_latest = vec![None; 1 + alphabet];
    input
        .iter()
        .enumerate()
        .map(|(position, symbol)| after_latest[*symbol as usize].replace(position + 1))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Split, TaskConfig};
    use super::*;

    /// The definition, read backwards one position at a time.
    fn solve(input: &[u32], start: usize, k: usize) -> Option<u32> {
        let mut position = start;
        for _ in 0..k {
            let mut earlier = position;
            loop {
                if earlier == 0 {
                    return None;
                }
                earlier -= 1;
                if input[earlier] == input[position] {
                    break;
                }
            }
            position = earlier + 1;
        }
        Some(input[position])
    }

    #[test]
    fn every_answer_is_k_hops_away_and_every_such_position_is_scored() {
        for (k, alphabet, length) in [(1, 3, 12), (2, 4, 100), (5, 3, 40), (8, 6, 64), (16, 4, 99)]
        {
            let task = TaskConfig::Khop(KhopConfig { k, alphabet, length });
            task.check().unwrap();
            for index in 0..100 {
                let Example { input, target, scored } = task.example(Split::Train, 3, index);
                for position in 0..length {
                    let answer = solve(&input, position, k);
                    assert_eq!(scored[position], answer.is_some());
                    let next = input.get(position + 1).copied().unwrap_or(PADDING);
                    assert_eq!(target[position], answer.unwrap_or(next));
                }
            }
        }
    }

    #[test]
    fn a_hand_worked_sequence_hops_as_the_paper_says() {
        //           0  1  2  3  4  5  6
        let input = [1, 2, 3, 1, 3, 2, 1];
        assert_eq!(hops(&input, 3), [None, None, None, Some(1), Some(3), Some(2), Some(4)]);
        assert_eq!(solve(&input, 6, 1), Some(3));
        assert_eq!(solve(&input, 6, 2), Some(1));
        assert_eq!(solve(&input, 6, 3), Some(2));
        assert_eq!(solve(&input, 6, 4), None);
    }

    #[test]
    fn neighbours_differ() {
        let task = TaskConfig::Khop(KhopConfig::default());
        for index in 0..200 {
            let input = task.example(Split::HeldOut, 0, index).input;
            assert!(input.windows(2).all(|pair| pair[0] != pair[1]));
        }
    }

    #[test]
    fn the_shortest_allowed_sequences_ask_something() {
        for (k, alphabet) in [(1, 100), (3, 20), (40, 3)] {
            let length = (k + 1) * alphabet;
            let task = TaskConfig::Khop(KhopConfig { k, alphabet, length });
            task.check().unwrap();
            assert!((0..50).all(|i| task.example(Split::HeldOut, 0, i).scored.contains(&true)));
        }
    }
}
