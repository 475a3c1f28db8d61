//! Tokens without a pattern that are the same in every process.

use hadal_cpu::splitmix::{STEP, finalise};
use hadal_data::Batch;
use hadal_model::Tokens;

/// Pseudo-random tokens below `vocabulary`; `stream` tells runs of them apart.
pub(super) fn tokens(stream: u64, count: usize, vocabulary: usize) -> Vec<u32> {
    (0..count as u64).map(|i| (mixed((stream << 40) + i) % vocabulary as u64) as u32).collect()
}

/// The data of a step: rows of `seq` tokens and the token after each of them.
pub(super) fn batch(step: u64, rows: usize, seq: usize, vocabulary: usize) -> Batch {
    let ids = tokens(step, rows * (seq + 1), vocabulary);
    let cut = |from: usize| {
        let rows: Vec<u32> =
            ids.chunks_exact(seq + 1).flat_map(|row| &row[from..from + seq]).copied().collect();
        rows
    };
    let rows_of = |ids| Tokens::rows(ids, rows).expect("every row is as long as the others");
    Batch { input: rows_of(cut(0)), target: rows_of(cut(1)), scored: Vec::new() }
}

fn mixed(value: u64) -> u64 {
    finalise(value.wrapping_add(STEP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_the_tokens_behind() {
        let batch = batch(3, 2, 5, 100);
        assert_eq!((batch.input.batch(), batch.input.time()), (2, 5));
        for row in [0, 5] {
            assert_eq!(batch.input.ids()[row + 1..row + 5], batch.target.ids()[row..row + 4]);
        }
    }

    #[test]
    fn steps_differ_and_repeat() {
        assert_eq!(tokens(1, 50, 512), tokens(1, 50, 512));
        assert_ne!(tokens(1, 50, 512), tokens(2, 50, 512));
        assert!(tokens(1, 1000, 7).iter().all(|&token| token < 7));
    }
}
