//! Numbers that are finite but whose squares are not.

use crate::support::{built, every_config, forward, random_values, values};
use hadal_model::{Device, Tokens};

const HUGE: u32 = 7;

/// A norm must not make zeros of a row that is too large: the guard of a run looks for what is not finite.
#[test]
fn a_row_that_is_too_large_for_its_squares_is_seen_at_the_end() {
    every_config(|config| {
        let width = config.d_model;
        let decoder = built(config, &Device::flex(), |name, shape| {
            let mut values = random_values(name, shape);
            if name.starts_with("embed") {
                let row = &mut values[HUGE as usize * width..][..width];
                row.iter_mut().for_each(|x| *x *= 1e21);
            }
            Some(values)
        });
        // The other row of the batch never meets it. Tokens before it do: attention multiplies what they do not see by zero.
        let tokens = Tokens::rows(vec![1, 2, 3, 4, 5, HUGE], 2).unwrap();
        let logits = values(forward(&decoder, &tokens));
        let tokens: Vec<&[f32]> = logits.chunks(logits.len() / 6).collect();
        assert!(tokens[..3].concat().iter().all(|logit| logit.is_finite()), "the other row");
        assert!(tokens[5].iter().all(|logit| !logit.is_finite()), "{:?}", tokens[5]);
    });
}
