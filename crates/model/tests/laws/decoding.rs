//! One forward pass serves training, prefill and decode steps.

use crate::support::{
    DESERTED, assert_close, base, columns, configs, decoded, every, every_config, forward, random,
    skips, text, values, with_policy,
};
use hadal_kernels::{fuses, plainly};
use hadal_model::{Cache, Decoder, Device, ModelConfig, Pass, PassError, Tokens};
use hadal_residual::{Recorder, Signal, Site, Thresholds};

const TOLERANCE: f32 = 1e-4;

fn extend(decoder: &Decoder, tokens: &Tokens, cache: &mut Cache) -> Vec<f32> {
    let pass = Pass { cache: Some(cache), ..Pass::default() };
    values(decoder.logits(tokens, pass).unwrap())
}

#[test]
fn token_by_token_equals_one_pass() {
    every_config(|config| {
        let (decoder, tokens) = (random(config, &Device::flex()), text(2, 7));
        let whole = forward(&decoder, &tokens);
        assert_close(decoded(&decoder, &tokens, &[1; 7], &[]), whole, TOLERANCE);
    });
}

#[test]
fn uneven_chunks_equal_one_pass() {
    every_config(|config| {
        let (decoder, tokens) = (random(config, &Device::flex()), text(2, 9));
        let whole = forward(&decoder, &tokens);
        // The first outgrows the room twice, the second fills what doubling left.
        for chunks in [&[1, 4, 3, 1][..], &[3, 2, 1, 3][..]] {
            let parts = decoded(&decoder, &tokens, chunks, &[]);
            assert_close(parts, whole.clone(), TOLERANCE);
        }
    });
}

#[test]
fn only_last_is_the_last_row() {
    every_config(|config| {
        let (decoder, tokens) = (random(config, &Device::flex()), text(2, 6));
        let pass = Pass { only_last: true, ..Pass::default() };
        let last = decoder.logits(&tokens, pass).unwrap();
        assert_close(last, forward(&decoder, &tokens).narrow(1, 5, 1), 1e-5);
    });
}

#[test]
fn thresholds_make_some_tokens_skip_what_others_run() {
    let somebody_skips = |config: &&ModelConfig| skips(config) && !skips_nobody(config);
    let skipping: Vec<_> = configs().iter().filter(somebody_skips).cloned().collect();
    every(&skipping, |config| {
        let decoder = random(config, &Device::flex());
        let mut probe = Recorder::of(&[Signal::Skipped]);
        let pass = Pass { probe: Some(&mut probe), ..Pass::default() };
        decoder.logits(&text(2, 7), pass).unwrap();
        let shares: Vec<f32> =
            probe.seen.into_iter().map(|(_, _, skipped)| values(skipped.mean())[0]).collect();
        assert!(shares.iter().all(|&share| share < 1.0), "a sub-layer never runs: {shares:?}");
        let mixed = shares.iter().filter(|&&share| share > 0.0).count();
        assert!(2 * mixed >= shares.len(), "hardly anybody skips: {shares:?}");
    });
}

fn skips_nobody(config: &ModelConfig) -> bool {
    let skipping = config.residual.skipping();
    skipping.is_none_or(|skipping| skipping.thresholds == Thresholds::One(0.0))
}

#[test]
fn a_long_prompt_and_what_follows_skip_as_in_one_pass() {
    let deserted = DESERTED.map(with_policy).into_iter();
    let skipping: Vec<_> = configs().into_iter().filter(skips).chain(deserted).collect();
    every(&skipping, |config| {
        let (decoder, tokens) = (random(config, &Device::flex()), text(2, 13));
        let whole = forward(&decoder, &tokens);
        let parts = decoded(&decoder, &tokens, &[10, 1, 2], &[]);
        assert_close(parts, whole.clone(), TOLERANCE);
        let plain = plainly(|| decoded(&decoder, &tokens, &[10, 1, 2], &[]));
        assert_close(plain, whole, TOLERANCE);
    });
}

#[test]
fn dropped_keys_do_not_survive_a_change_of_path() {
    if !fuses(&Device::flex()) {
        // There is only one path.
        return;
    }
    let config = with_policy("nag:directions=3,skip_threshold=0.25,skip_kv=drop");
    let decoder = random(&config, &Device::flex());
    let mut cache = Cache::new(&config);
    extend(&decoder, &text(2, 3), &mut cache);
    let pass = Pass { cache: Some(&mut cache), ..Pass::default() };
    let error = plainly(|| decoder.logits(&text(2, 1), pass)).unwrap_err();
    assert!(error.to_string().contains("dropped keys"), "{error}");
}

#[test]
fn the_pass_advances_the_cache_by_its_tokens() {
    every_config(|config| {
        let decoder = random(config, &Device::flex());
        let mut cache = Cache::new(config);
        assert!(cache.is_empty());
        for (count, seen) in [(3, 3), (1, 4), (2, 6)] {
            extend(&decoder, &text(2, count), &mut cache);
            assert_eq!(cache.len(), seen);
        }
    });
}

#[test]
fn the_clock_goes_on_where_every_sub_layer_is_absent() {
    let decoder = random(&base(), &Device::flex());
    let mut cache = Cache::new(decoder.config());
    let absent: Vec<Site> = (0..6).map(Site::new).collect();
    let pass = Pass { cache: Some(&mut cache), absent: &absent, ..Pass::default() };
    decoder.logits(&text(1, 3), pass).unwrap();
    assert_eq!(cache.len(), 3);
}

#[test]
fn a_refused_pass_leaves_the_cache_alone() {
    let decoder = random(&base(), &Device::flex());
    let tokens = text(1, 32);
    let mut cache = Cache::new(decoder.config());
    extend(&decoder, &columns(&tokens, 0, 31), &mut cache);
    let untouched = cache.clone();

    let mut refused = |tokens: &Tokens| {
        let pass = Pass { cache: Some(&mut cache), ..Pass::default() };
        decoder.logits(tokens, pass).unwrap_err()
    };
    assert_eq!(refused(&text(1, 2)), PassError::TooLong { length: 33, max_seq_len: 32 });
    assert_eq!(refused(&Tokens::row(&[19])), PassError::UnknownToken { id: 19, vocab_size: 19 });
    assert_eq!(refused(&Tokens::row(&[])), PassError::Empty);

    let last = columns(&tokens, 31, 1);
    let expected = extend(&decoder, &last, &mut untouched.clone());
    assert_eq!(extend(&decoder, &last, &mut cache), expected);
    assert_eq!(cache.len(), 32, "max_seq_len itself fits");
}

#[test]
fn a_cloned_cache_goes_its_own_way() {
    let decoder = random(&base(), &Device::flex());
    let mut cache = Cache::new(decoder.config());
    extend(&decoder, &text(1, 3), &mut cache);
    // Grown once, so that there is room into which both could write.
    extend(&decoder, &Tokens::row(&[4]), &mut cache);
    let mut other = cache.clone();
    let mut alone = cache.clone();

    extend(&decoder, &Tokens::row(&[7]), &mut other);
    extend(&decoder, &Tokens::row(&[5]), &mut cache);
    extend(&decoder, &Tokens::row(&[5]), &mut alone);
    let next = Tokens::row(&[6]);
    let expected = extend(&decoder, &next, &mut alone);
    assert_eq!(extend(&decoder, &next, &mut cache), expected);
    assert_ne!(extend(&decoder, &next, &mut other), expected);
}

#[test]
fn a_cleared_cache_is_a_new_one() {
    let decoder = random(&base(), &Device::flex());
    let mut cache = Cache::new(decoder.config());
    extend(&decoder, &text(2, 5), &mut cache);
    cache.clear();
    assert!(cache.is_empty());
    let (tokens, mut fresh) = (text(1, 4), Cache::new(decoder.config()));
    assert_eq!(extend(&decoder, &tokens, &mut cache), extend(&decoder, &tokens, &mut fresh));
}
