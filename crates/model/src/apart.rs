//! Whether two models compute the same: tokens to try them on, and how far their logits are apart.

use crate::config::ModelConfig;
use crate::pass::{PassError, Tokens};

/// Rows and their length.
const ROWS: usize = 2;
const LENGTH: usize = 32;

/// Tokens on which two models of this vocabulary can be compared. Any will do, as long as they differ.
pub fn some_tokens(config: &ModelConfig) -> Result<Tokens, PassError> {
    let length = LENGTH.min(config.max_seq_len);
    let id = |i: usize| ((i * i * 31 + 17 * i + 5) % config.vocab_size) as u32;
    Tokens::rows((0..ROWS * length).map(id).collect(), ROWS).ok_or(PassError::Empty)
}

/// The largest difference, relative to the largest of `a`. Infinite if it is not known.
pub fn apart(a: &[f32], b: &[f32]) -> f32 {
    let largest = a.iter().fold(f32::MIN_POSITIVE, |most, value| most.max(value.abs()));
    let apart = a.iter().zip(b).fold(0f32, |most, (x, y)| {
        // What is not a number must not pass for equal.
        if x == y { most } else { most.max((x - y).abs().max(f32::MIN_POSITIVE)) }
    });
    // An empty comparison proves nothing.
    let broken =
        a.is_empty() || a.len() != b.len() || a.iter().chain(b).any(|value| !value.is_finite());
    if broken { f32::INFINITY } else { apart / largest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_compared_can_be_the_same() {
        assert_eq!(apart(&[1.0, -2.0], &[1.0, -2.0]), 0.0);
        assert_eq!(apart(&[1.0, -2.0], &[1.5, -2.0]), 0.25);
        for (a, b) in [(vec![], vec![]), (vec![1.0], vec![]), (vec![f32::NAN], vec![f32::NAN])] {
            assert_eq!(apart(&a, &b), f32::INFINITY, "{a:?} and {b:?}");
        }
    }
}
