use super::*;
use crate::streams::reference::{Case, rms};

/// Large, so that little cancels where the width is one.
const EPS: f32 = 0.1;

fn step(carry: f32, post: bool, pre: Option<f32>) -> AdditiveStep {
    AdditiveStep { carry, post, pre, ..AdditiveStep::default() }
}

/// Norms before the readers only, each with its own constant, as in PreNorm and LayerNorm Scaling.
fn pre_only() -> Vec<AdditiveStep> {
    [1.0, 0.7, 0.5, 1.0].map(|scale| step(1.0, false, Some(scale))).to_vec()
}

/// Norms after the sums only, with a weight on the carry, as in DeepNorm.
fn post_only() -> Vec<AdditiveStep> {
    [false, true, true, true].map(|post| step(1.7, post, None)).to_vec()
}

/// From PostNorm to PreNorm, as in Mix-LN, but with other weights on the carry.
fn mixed() -> Vec<AdditiveStep> {
    vec![
        step(1.0, false, None),
        step(0.9, true, None),
        step(1.3, true, Some(0.8)),
        step(1.1, false, None),
        step(0.6, false, Some(1.0)),
    ]
}

/// Norms of the writes, as in Sandwich-LN, in front of every other combination.
fn sandwich() -> Vec<AdditiveStep> {
    let normed = |step| AdditiveStep { factor: 0.9, write_norm: true, ..step };
    let steps = [step(1.0, true, Some(1.0)), step(1.2, false, None), step(1.0, true, Some(0.8))];
    [step(1.0, true, Some(1.0))].into_iter().chain(steps.map(normed)).chain(mixed()).collect()
}

/// Writes with a factor, as in Granite.
fn multiplied() -> Vec<AdditiveStep> {
    let step = AdditiveStep { factor: 0.22, ..step(1.0, false, Some(1.0)) };
    let post = AdditiveStep { post: true, carry: 0.8, ..step };
    vec![self::step(1.0, false, Some(0.9)), step, post, step, AdditiveStep { pre: None, ..step }]
}

/// A weight for each channel of the stream, as in Muse Spark, behind every kind of stream, and with a write that is not
/// normalised.
fn weighted() -> Vec<AdditiveStep> {
    let step = AdditiveStep { weighted: true, ..step(0.9, false, Some(1.0)) };
    let normed = AdditiveStep { write_norm: true, factor: 0.7, ..step };
    vec![
        AdditiveStep { hold: Some(0), ..self::step(1.0, true, Some(1.0)) },
        normed,
        AdditiveStep { factor: 1.3, scaled: true, ..step },
        AdditiveStep { source: Some(0), ..normed },
        AdditiveStep { post: true, ..normed },
        AdditiveStep { pre: None, ..step },
        normed,
    ]
}

/// A number after every block, as in Gemma 4.
fn block_scaled() -> Vec<AdditiveStep> {
    let within = AdditiveStep { write_norm: true, ..step(1.0, false, Some(1.0)) };
    let between = AdditiveStep { scaled: true, ..within };
    vec![step(1.0, true, Some(1.0)), within, between, within, between]
}

/// Two numbers before every block and the stream in the middle taken off, as in nanochat: the first junction adds what
/// it holds itself.
fn lambdas() -> Vec<AdditiveStep> {
    let within = step(1.0, false, Some(1.0));
    let between = AdditiveStep { scaled: true, source: Some(0), ..within };
    vec![
        AdditiveStep { post: true, hold: Some(0), ..between },
        within,
        AdditiveStep { hold: Some(1), ..between },
        within,
        between,
        AdditiveStep { source: Some(1), ..within },
    ]
}

/// Everything that is not in a model, but could be.
fn unheard_of() -> Vec<AdditiveStep> {
    let first = AdditiveStep { hold: Some(0), ..AdditiveStep::default() };
    let both = AdditiveStep { scaled: true, source: Some(0), ..step(0.9, true, Some(0.8)) };
    vec![
        AdditiveStep { source: Some(0), ..first },
        both,
        AdditiveStep { write_norm: true, factor: 0.6, ..both },
        AdditiveStep { pre: None, hold: Some(1), source: Some(1), ..both },
        AdditiveStep { factor: 0.6, source: Some(1), ..step(1.1, false, None) },
        AdditiveStep { scaled: true, ..step(1.2, false, None) },
        AdditiveStep { source: Some(0), ..step(1.0, false, Some(1.0)) },
    ]
}

fn all() -> [Vec<AdditiveStep>; 9] {
    [
        pre_only(),
        post_only(),
        mixed(),
        sandwich(),
        multiplied(),
        weighted(),
        block_scaled(),
        lambdas(),
        unheard_of(),
    ]
}

fn case(tokens: usize, width: usize, steps: &[AdditiveStep]) -> Case {
    let params: Vec<_> = steps.iter().map(|step| step.params(width)).collect();
    Case::random(tokens, width, &params)
}

fn reference(steps: &[AdditiveStep], writes: &[Vec<f64>], params: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let (eps, width) = (f64::from(EPS), writes[0].len());
    let mut x = vec![0.0; width];
    let mut sources = [Vec::new(), Vec::new()];
    let mut outputs = Vec::new();
    for (junction, ((step, write), params)) in steps.iter().zip(writes).zip(params).enumerate() {
        let mut params = params.iter().copied();
        let mut gain = |count: usize| -> Vec<f64> { params.by_ref().take(count).collect() };
        let mut y = write.clone();
        if step.write_norm {
            y = rms(&y, &gain(width), eps);
        }
        y.iter_mut().for_each(|y| *y *= f64::from(step.factor));
        let weights = if step.weighted { gain(width) } else { vec![1.0; width] };
        let carried = x.iter().zip(weights).map(|(x, weight)| f64::from(step.carry) * x * weight);
        x = carried.zip(y).map(|(x, y)| x + y).collect();
        assert!(junction > 0 || x == *write);
        if step.post {
            x = rms(&x, &gain(width), eps);
        }
        if let Some(hold) = step.hold {
            sources[hold] = x.clone();
        }
        if step.scaled {
            let scale = gain(1)[0];
            x.iter_mut().for_each(|x| *x *= scale);
        }
        if let Some(source) = step.source {
            let share = gain(1)[0];
            x.iter_mut().zip(&sources[source]).for_each(|(x, source)| *x += share * source);
        }
        outputs.push(match step.pre {
            None => x.clone(),
            Some(scale) => {
                let normed = rms(&x, &gain(width), eps);
                normed.iter().map(|value| f64::from(scale) * value).collect()
            }
        });
    }
    outputs
}

#[test]
fn outputs_and_gradients_are_those_of_the_reference() {
    for steps in all() {
        // Of several tokens one is not near zero.
        for (tokens, width) in [(5, 2), (3, 5), (70, 37), (33, 64)] {
            let stream = Additive::new(width, EPS, steps.clone(), true);
            let reference = |writes: &[Vec<f64>], params: &[Vec<f64>]| {
                super::tests::reference(&steps, writes, params)
            };
            case(tokens, width, &steps).check(stream, &reference);
        }
    }
}

#[test]
fn the_laws_of_streams_hold() {
    for steps in all() {
        case(70, 37, &steps).check_laws(|keep| Additive::new(37, EPS, steps.clone(), keep));
    }
}

#[test]
fn only_the_last_sum_stays_where_nothing_is_kept() {
    let steps = mixed();
    let mut stream = Additive::new(5, EPS, steps.clone(), false);
    case(3, 5, &steps).forward(&mut stream);
    assert_eq!(stream.levels.len(), 1);
}

#[test]
#[should_panic(expected = "not as a write")]
fn the_embedding_has_no_norm_of_a_write() {
    let step = AdditiveStep { write_norm: true, ..AdditiveStep::default() };
    Additive::new(2, EPS, vec![step], false);
}

#[test]
#[should_panic(expected = "held before it is added")]
fn what_nobody_held_cannot_be_added() {
    let step = AdditiveStep { source: Some(1), ..AdditiveStep::default() };
    let first = AdditiveStep { hold: Some(0), ..AdditiveStep::default() };
    Additive::new(2, EPS, vec![first, step], false);
}

#[test]
#[should_panic(expected = "held once")]
fn a_source_that_is_held_again_would_be_lost_to_the_way_back() {
    let first = AdditiveStep { hold: Some(0), ..AdditiveStep::default() };
    Additive::new(2, EPS, vec![first, first], false);
}
