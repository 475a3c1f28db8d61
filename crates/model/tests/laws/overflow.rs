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
        let logits = values(forward(&decoder, &Tokens::row(&[1, 2, HUGE])));
        let tokens: Vec<&[f32]> = logits.chunks(logits.len() / 3).collect();
        assert!(tokens[..2].concat().iter().all(|logit| logit.is_finite()));
        assert!(tokens[2].iter().all(|logit| !logit.is_finite()), "{:?}", tokens[2]);
    });
}
