//! Rows never see each other, and no token sees a later one.

use crate::support::{assert_close, columns, every_config, forward, random, skips, text, values};
use burn::tensor::Tensor;
use hadal_model::{Device, Tokens};
use hadal_residual::SkippedKeys;

const TIME: usize = 6;

fn changed(tokens: &Tokens, at: impl Fn(usize) -> bool) -> Tokens {
    let change = |(i, &id): (usize, &u32)| if at(i) { (id + 1) % 19 } else { id };
    let ids = tokens.ids().iter().enumerate().map(change).collect();
    Tokens::rows(ids, tokens.batch()).unwrap()
}

#[test]
fn changing_one_row_leaves_the_others_bit_identical() {
    every_config(|config| {
        let (decoder, tokens) = (random(config, &Device::flex()), text(3, TIME));
        let before = forward(&decoder, &tokens);
        let middle = TIME..2 * TIME;
        let after = forward(&decoder, &changed(&tokens, |i| middle.contains(&i)));
        for row in 0..3 {
            let [before, after] = [&before, &after].map(|logits| logits.clone().narrow(0, row, 1));
            let same = values(before.clone()) == values(after.clone());
            match row {
                1 => assert!(!same, "row 1 is ignored"),
                _ if skips(config) => assert_close(after, before, 1e-5),
                _ => assert!(same, "row {row}"),
            }
        }
    });
}

#[test]
fn a_later_token_changes_nothing_earlier() {
    every_config(|config| {
        let (decoder, tokens) = (random(config, &Device::flex()), text(2, TIME));
        let before = forward(&decoder, &tokens);
        for at in 1..TIME {
            let after = forward(&decoder, &changed(&tokens, |i| i % TIME == at));
            let earlier = |logits: &Tensor<3>| logits.clone().narrow(1, 0, at);
            match skips(config) {
                true => assert_close(earlier(&after), earlier(&before), 1e-5),
                false => {
                    assert_eq!(values(earlier(&before)), values(earlier(&after)), "token {at}")
                }
            }
            assert_ne!(values(before.clone()), values(after), "token {at} is ignored");
        }
    });
}

#[test]
fn an_earlier_token_changes_everything_later() {
    every_config(|config| {
        // No token sees one that skips every attention and leaves no keys, and few see one that is out of every window.
        let unseen = config.residual.skipped_keys() == SkippedKeys::Drop;
        if unseen || config.sliding_window.is_some() {
            return;
        }
        let (decoder, tokens) = (random(config, &Device::flex()), text(1, TIME));
        let before = forward(&decoder, &tokens);
        let after = forward(&decoder, &changed(&tokens, |i| i == 0));
        for at in 0..TIME {
            let row = |logits: &Tensor<3>| values(logits.clone().narrow(1, at, 1));
            assert_ne!(row(&before), row(&after), "token {at} cannot see the first");
        }
    });
}

#[test]
fn a_shorter_text_is_the_beginning_of_a_longer_one() {
    every_config(|config| {
        let (decoder, tokens) = (random(config, &Device::flex()), text(2, TIME));
        let whole = forward(&decoder, &tokens);
        let part = forward(&decoder, &columns(&tokens, 0, 4));
        assert_close(part, whole.narrow(1, 0, 4), 1e-5);
    });
}

#[test]
fn swapping_rows_swaps_results() {
    every_config(|config| {
        let (decoder, tokens) = (random(config, &Device::flex()), text(2, TIME));
        let (first, second) = tokens.ids().split_at(TIME);
        let swapped = Tokens::rows([second, first].concat(), 2).unwrap();
        let logits = forward(&decoder, &tokens);
        assert_close(forward(&decoder, &swapped), logits.flip([0]), 1e-5);
    });
}

#[test]
fn a_row_alone_is_the_row_of_a_batch() {
    every_config(|config| {
        let (decoder, tokens) = (random(config, &Device::flex()), text(2, TIME));
        let logits = forward(&decoder, &tokens);
        for (row, ids) in tokens.ids().chunks(TIME).enumerate() {
            let alone = forward(&decoder, &Tokens::row(ids));
            assert_close(alone, logits.clone().narrow(0, row, 1), 1e-5);
        }
    });
}
