//! Pools of one source, of blocks and of everything, against worked numbers and other policies.

use super::*;
use crate::policies::prenorm::PreNormConfig;
use crate::pool::pool;
use crate::probe::Recorder;
use crate::testing::{
    Stand, assert_close, assert_gradients, assert_tokens_are_independent, chosen, dimensions,
    drawn, fresh, normal, random, traverse, values, watched, watching,
};
use burn::tensor::Device;

fn blocks(blocks: usize) -> AttentionResidualsConfig {
    AttentionResidualsConfig { blocks, ..Default::default() }
}

/// How many sources each sub-layer and then the head pools; 0 where there is no pool.
fn pooled(blocks: usize, dimensions: &Dimensions, absent: &[usize]) -> Vec<usize> {
    let mut recorder = Recorder::of(&[Signal::PoolWeights]);
    let mut layers = Stand::without(dimensions, absent);
    let embedding = normal("tokens", [1, 2, dimensions.width]);
    random(&self::blocks(blocks), dimensions).traverse(
        embedding,
        &mut layers,
        &mut watching(&mut recorder),
    );
    dimensions
        .each_site()
        .map(Place::Site)
        .chain([Place::Out])
        .map(|place| recorder.get(place, Signal::PoolWeights).map_or(0, |w| w.dims()[2]))
        .collect()
}

/// The weights of a reader as [`random`] draws them.
fn drawn_query(place: &str, width: usize) -> Tensor<1> {
    let part = |part: &str| drawn(&format!("residual.{place}.{part}"), &[width]);
    let elements = part("query").into_iter().zip(part("key_norm")).map(|(q, g)| q * g);
    Tensor::from_floats(elements.collect::<Vec<_>>().as_slice(), &Device::flex())
}

fn signal(recorder: &Recorder, place: Place, signal: Signal) -> Tensor<3> {
    recorder.get(place, signal).unwrap().squeeze_dim(2)
}

#[test]
fn zero_queries_compute_what_prenorm_computes() {
    // Means and sums differ by a factor that only epsilon lets through the norms.
    let dimensions = Dimensions { norm_eps: 1e-12, ..dimensions(8, 5) };
    let gains = |name: &str, shape: &[usize]| name.contains("norm").then(|| drawn(name, shape));
    let embedding = normal("tokens", [2, 3, 8]);
    let prenorm = chosen(&PreNormConfig::default(), &dimensions, gains);
    let expected = traverse(&prenorm, embedding.clone(), &dimensions);
    for count in [0, 1, 2, 3, 4, 10, 99] {
        let policy = chosen(&blocks(count), &dimensions, gains);
        let out = traverse(&policy, embedding.clone(), &dimensions);
        assert_close(out, expected.clone(), 1e-5);
    }
}

#[test]
fn queries_that_are_not_zero_compute_something_else() {
    let dimensions = dimensions(8, 3);
    let embedding = normal("tokens", [2, 3, 8]);
    let out = |config: &AttentionResidualsConfig| {
        values(traverse(&random(config, &dimensions), embedding.clone(), &dimensions))
    };
    let prenorm = random(&PreNormConfig::default(), &dimensions);
    let prenorm = values(traverse(&prenorm, embedding.clone(), &dimensions));
    for count in [0, 1, 2] {
        let most = out(&blocks(count))
            .iter()
            .zip(&prenorm)
            .map(|(a, p)| (a - p).abs())
            .fold(0.0, f32::max);
        assert!(most > 0.05, "{count} blocks differ from prenorm by {most} only");
    }
}

#[test]
fn as_many_blocks_as_sub_layers_are_the_full_form() {
    let dimensions = dimensions(8, 3);
    let embedding = normal("tokens", [2, 3, 8]);
    let out = |count| {
        let policy = random(&blocks(count), &dimensions);
        traverse(&policy, embedding.clone(), &dimensions)
    };
    assert_close(out(6), out(0), 0.0);
    assert_close(out(50), out(0), 0.0);
}

#[test]
fn full_readers_see_the_embedding_and_every_earlier_output() {
    assert_eq!(pooled(0, &dimensions(4, 3), &[]), [0, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn block_readers_see_the_embedding_closed_blocks_and_the_open_one() {
    let six = dimensions(4, 3);
    assert_eq!(pooled(1, &six, &[]), [0, 2, 2, 2, 2, 2, 2]);
    assert_eq!(pooled(2, &six, &[]), [0, 2, 2, 2, 3, 3, 3]);
    assert_eq!(pooled(3, &six, &[]), [0, 2, 2, 3, 3, 4, 4]);
}

#[test]
fn a_shorter_last_block_is_a_source_of_its_own() {
    assert_eq!(pooled(4, &dimensions(4, 5), &[]), [0, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5]);
}

#[test]
fn the_state_of_the_cost_is_the_largest_number_of_sources() {
    let dimensions = dimensions(4, 5);
    for count in [0, 1, 2, 4, 7, 10] {
        let most = *pooled(count, &dimensions, &[]).iter().max().unwrap();
        assert_eq!(blocks(count).cost(&dimensions).state, (most * 4) as u64, "{count} blocks");
    }
}

#[test]
fn the_first_sub_layer_reads_the_embedding() {
    let dimensions = dimensions(8, 1);
    let embedding = normal("tokens", [2, 3, 8]);
    let mut recorder = Recorder::of(&[Signal::Reading]);
    watched(&random(&blocks(0), &dimensions), embedding.clone(), &dimensions, &mut recorder);
    let read = signal(&recorder, Place::Site(Site::new(0)), Signal::Reading);
    assert_close(read, embedding, 0.0);
}

#[test]
fn full_readers_pool_raw_outputs_with_their_own_query() {
    let dimensions = dimensions(8, 2);
    let embedding = normal("tokens", [2, 3, 8]);
    let mut recorder = Recorder::of(&[Signal::Reading, Signal::Write]);
    watched(&random(&blocks(0), &dimensions), embedding.clone(), &dimensions, &mut recorder);
    let mut sources = vec![Source::new(embedding, 1e-6)];
    for site in dimensions.each_site() {
        let write = signal(&recorder, Place::Site(site), Signal::Write);
        sources.push(Source::new(write, 1e-6));
        let reader = Site::new(site.index + 1);
        let (name, place) = match reader.index {
            4 => ("out".into(), Place::Out),
            index => (index.to_string(), Place::Site(reader)),
        };
        let expected = pool(&sources, drawn_query(&name, 8)).value;
        assert_close(signal(&recorder, place, Signal::Reading), expected, 1e-6);
    }
}

#[test]
fn block_readers_pool_sums_of_outputs() {
    let dimensions = dimensions(8, 3);
    let embedding = normal("tokens", [2, 3, 8]);
    let mut recorder = Recorder::of(&[Signal::Reading, Signal::Write]);
    watched(&random(&blocks(2), &dimensions), embedding.clone(), &dimensions, &mut recorder);
    let sum = |sites: std::ops::Range<usize>| {
        let sum = sites
            .map(|i| signal(&recorder, Place::Site(Site::new(i)), Signal::Write))
            .reduce(|sum, write| sum + write)
            .unwrap();
        Source::new(sum, 1e-6)
    };
    let inside = [Source::new(embedding, 1e-6), sum(0..3), sum(3..5)];
    let expected = pool(&inside, drawn_query("5", 8)).value;
    let read = signal(&recorder, Place::Site(Site::new(5)), Signal::Reading);
    assert_close(read, expected, 1e-6);

    let [embedding, first, _] = inside;
    let expected = pool(&[embedding, first, sum(3..6)], drawn_query("out", 8)).value;
    assert_close(signal(&recorder, Place::Out, Signal::Reading), expected, 1e-6);
}

#[test]
fn a_block_ends_at_the_same_sub_layer_when_some_are_absent() {
    let without = |absent: &[usize]| pooled(3, &dimensions(4, 3), absent);
    // The last of the first block: sub-layer 2 opens the next block all the same.
    assert_eq!(without(&[1]), [0, 0, 2, 3, 3, 4, 4]);
    // The first of the second block: sub-layer 3 begins the sum instead.
    assert_eq!(without(&[2]), [0, 2, 0, 2, 3, 4, 4]);
    // A whole absent block leaves no source.
    assert_eq!(without(&[2, 3]), [0, 2, 0, 0, 2, 3, 3]);
    // The very first: sub-layer 1 has the embedding alone.
    assert_eq!(without(&[0]), [0, 1, 2, 3, 3, 4, 4]);
}

#[test]
fn an_absent_sub_layer_adds_nothing_to_its_block() {
    let dimensions = dimensions(8, 1);
    let embedding = normal("tokens", [2, 3, 8]);
    let policy = random(&blocks(1), &dimensions);
    let mut recorder = Recorder::of(&[Signal::Write, Signal::Reading]);
    let mut layers = Stand::without(&dimensions, &[1]);
    policy.traverse(embedding.clone(), &mut layers, &mut watching(&mut recorder));
    let write = signal(&recorder, Place::Site(Site::new(0)), Signal::Write);
    let sources = [embedding, write].map(|v| Source::new(v, 1e-6));
    let expected = pool(&sources, drawn_query("out", 8)).value;
    assert_close(signal(&recorder, Place::Out, Signal::Reading), expected, 1e-6);
}

#[test]
fn without_any_sub_layer_the_head_reads_the_embedding() {
    let dimensions = dimensions(8, 1);
    let policy = fresh(&blocks(0), &dimensions);
    let embedding = normal("tokens", [2, 3, 8]);
    let mut layers = Stand::without(&dimensions, &[0, 1]);
    let out = policy.traverse(embedding.clone(), &mut layers, &mut Traversal::default());
    assert_close(out, hadal_kernels::rms(embedding, dimensions.norm_eps), 1e-6);
}

#[test]
fn tokens_are_independent() {
    let dimensions = dimensions(8, 3);
    assert_tokens_are_independent(&random(&blocks(0), &dimensions), &dimensions);
    assert_tokens_are_independent(&random(&blocks(2), &dimensions), &dimensions);
}

#[test]
fn gradients_agree_with_central_differences() {
    assert_gradients(&blocks(0), &dimensions(6, 2));
    assert_gradients(&blocks(2), &dimensions(6, 2));
}

fn form(text: &str) -> AttentionResidualsConfig {
    serde_json::from_str(text).unwrap()
}

#[test]
fn forms_have_gradients_that_agree_with_central_differences() {
    for text in [
        r#"{"block_size":3}"#,
        r#"{"heads":2}"#,
        r#"{"normed":true,"block_size":2}"#,
        r#"{"delta":true,"heads":3}"#,
        r#"{"delta":true,"gated":true,"blocks":2}"#,
    ] {
        assert_gradients(&form(text), &dimensions(6, 2));
    }
}

#[test]
fn a_head_for_all_channels_is_the_pool_itself() {
    let sources: Vec<_> =
        (0..3).map(|i| Source::new(normal(&format!("{i}"), [2, 3, 8]), 1e-6)).collect();
    let query = normal("query", [8]);
    // Groups whose queries are zero but for one read the mean elsewhere.
    let mut only_first = values(query.clone());
    only_first[4..].fill(0.0);
    let two =
        pool_in_groups(&sources, Tensor::from_floats(only_first.as_slice(), &Device::flex()), 2);
    let one = pool(&sources, Tensor::from_floats(only_first.as_slice(), &Device::flex()));
    assert_close(two.value.clone().narrow(2, 0, 4), one.value.narrow(2, 0, 4), 1e-6);
    let mean = sources.iter().map(|s| s.value.clone()).reduce(|a, b| a + b).unwrap() / 3.0;
    assert_close(two.value.narrow(2, 4, 4), mean.narrow(2, 4, 4), 1e-6);
}

#[test]
fn an_attention_with_three_ways_pools_the_same_sources_with_three_queries() {
    let dimensions = dimensions(8, 2);
    let policy = random(&form(r#"{"ways":3}"#), &dimensions);
    let embedding = normal("tokens", [2, 3, 8]);
    let mut recorder =
        Recorder::of(&[Signal::Reading, Signal::Ways, Signal::Write, Signal::PoolWeights]);
    watched(&policy, embedding.clone(), &dimensions, &mut recorder);
    let write = |i| signal(&recorder, Place::Site(Site::new(i)), Signal::Write);
    let sources = [embedding, write(0), write(1)].map(|v| Source::new(v, 1e-6));
    let place = Place::Site(Site::new(2));
    let others = recorder.get(place, Signal::Ways).unwrap();
    let (queries, gain) = (drawn("residual.2.query", &[3, 8]), drawn("residual.2.key_norm", &[8]));
    for kind in 0..3 {
        let query: Vec<f32> =
            queries[kind * 8..].iter().zip(&gain).map(|(query, gain)| query * gain).collect();
        let pooled = pool(&sources, Tensor::from_floats(query.as_slice(), &Device::flex()));
        let shown = match kind {
            0 => signal(&recorder, place, Signal::Reading),
            _ => others.clone().narrow(2, kind - 1, 1).squeeze_dim(2),
        };
        assert_close(shown, pooled.value, 1e-6);
    }
    // The others have one.
    for site in [0, 1, 3] {
        assert!(recorder.get(Place::Site(Site::new(site)), Signal::Ways).is_none());
    }
}

#[test]
fn a_normed_reading_is_no_longer_than_one() {
    let dimensions = dimensions(8, 3);
    let mut recorder = Recorder::of(&[Signal::Reading]);
    let policy = random(&form(r#"{"normed":true}"#), &dimensions);
    watched(&policy, normal("tokens", [2, 3, 8]) * 5.0, &dimensions, &mut recorder);
    for site in dimensions.each_site().skip(1) {
        let read = signal(&recorder, Place::Site(site), Signal::Reading);
        let square = values(read.square().mean_dim(2));
        assert!(square.iter().all(|&square| square <= 1.0 + 1e-5), "{site}: {square:?}");
    }
}

#[test]
fn the_delta_form_adds_the_pool_to_the_reading_and_not_to_the_stream() {
    let dimensions = dimensions(8, 2);
    let embedding = normal("tokens", [2, 3, 8]);
    let mut recorder = Recorder::of(&[Signal::Reading, Signal::Write]);
    let policy = random(&form(r#"{"delta":true,"blocks":2}"#), &dimensions);
    watched(&policy, embedding.clone(), &dimensions, &mut recorder);
    let write = |i| signal(&recorder, Place::Site(Site::new(i)), Signal::Write);
    let read = |i| signal(&recorder, Place::Site(Site::new(i)), Signal::Reading);
    // Before the first block is finished there is one source, the embedding.
    assert_close(read(1), embedding.clone() * 2.0 + write(0), 1e-6);
    let stream = embedding.clone() + write(0) + write(1);
    let sources = [embedding, write(0) + write(1)].map(|v| Source::new(v, 1e-6));
    let pooled = pool(&sources, drawn_query("2", 8)).value;
    assert_close(read(2), stream.clone() + pooled, 1e-6);
    let out = signal(&recorder, Place::Out, Signal::Reading);
    assert_close(out, stream + write(2) + write(3), 1e-5);
}

#[test]
fn forms_that_make_no_model_are_refused_by_name() {
    for (text, word) in [
        (r#"{"blocks":2,"block_size":4}"#, "block_size"),
        (r#"{"heads":3}"#, "heads is 3"),
        (r#"{"heads":0}"#, "heads is 0"),
        (r#"{"gated":true}"#, "delta"),
        (r#"{"normed":true,"delta":true}"#, "normed"),
        (r#"{"normed":true,"heads":2}"#, "heads 2"),
        (r#"{"ways":2}"#, "ways is 2"),
        (r#"{"ways":3,"delta":true}"#, "delta"),
    ] {
        let refusal = form(text).check(&dimensions(8, 3)).unwrap_err().to_string();
        assert!(refusal.contains(word), "{refusal}");
    }
}

#[test]
fn settings_that_are_not_used_are_not_written() {
    assert_eq!(serde_json::to_string(&blocks(3)).unwrap(), r#"{"blocks":3}"#);
}
