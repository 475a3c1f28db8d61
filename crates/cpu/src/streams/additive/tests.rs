use super::*;
use crate::streams::reference::{Case, rms};

/// Large, so that little cancels where the width is one.
const EPS: f32 = 0.1;

fn step(carry: f32, post: bool, pre: Option<f32>) -> AdditiveStep {
    AdditiveStep { write_norm: None, carry, post, pre }
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
    let normed = |step| AdditiveStep { write_norm: Some(0.9), ..step };
    let steps = [step(1.0, true, Some(1.0)), step(1.2, false, None), step(1.0, true, Some(0.8))];
    [step(1.0, true, Some(1.0))].into_iter().chain(steps.map(normed)).chain(mixed()).collect()
}

fn all() -> [Vec<AdditiveStep>; 4] {
    [pre_only(), post_only(), mixed(), sandwich()]
}

fn case(tokens: usize, width: usize, steps: &[AdditiveStep]) -> Case {
    let params: Vec<_> = steps.iter().map(|step| step.params(width)).collect();
    Case::random(tokens, width, &params)
}

fn reference(steps: &[AdditiveStep], writes: &[Vec<f64>], params: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let eps = f64::from(EPS);
    let mut x = vec![0.0; writes[0].len()];
    let mut outputs = Vec::new();
    for ((step, write), gains) in steps.iter().zip(writes).zip(params) {
        let mut gains = gains.chunks(x.len());
        let y: Vec<f64> = match step.write_norm {
            None => write.clone(),
            Some(scale) => {
                let normed = rms(write, gains.next().unwrap(), eps);
                normed.iter().map(|y| f64::from(scale) * y).collect()
            }
        };
        x = x.iter().zip(y).map(|(x, y)| f64::from(step.carry) * x + y).collect();
        if step.post {
            x = rms(&x, gains.next().unwrap(), eps);
        }
        outputs.push(match step.pre {
            None => x.clone(),
            Some(scale) => {
                let normed = rms(&x, gains.next().unwrap(), eps);
                normed.iter().map(|value| f64::from(scale) * value).collect()
            }
        });
    }
    outputs
}

#[test]
fn outputs_and_gradients_are_those_of_the_reference() {
    for steps in all() {
        for (tokens, width) in [(1, 1), (3, 5), (70, 37), (33, 64)] {
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
    let step = AdditiveStep { write_norm: Some(1.0), ..AdditiveStep::default() };
    Additive::new(2, EPS, vec![step], false);
}
