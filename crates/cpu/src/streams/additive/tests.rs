use super::*;
use crate::streams::reference::{Case, rms};

/// Large, so that little cancels where the width is one.
const EPS: f32 = 0.1;

fn step(skip: f32, post: bool, pre: Option<f32>) -> AdditiveStep {
    AdditiveStep { skip, post, pre }
}

/// Norms before the readers only, each with its own constant, as in PreNorm and LayerNorm Scaling.
fn pre_only() -> Vec<AdditiveStep> {
    [1.0, 0.7, 0.5, 1.0].map(|scale| step(1.0, false, Some(scale))).to_vec()
}

/// Norms after the sums only, with a weight on the skip, as in DeepNorm.
fn post_only() -> Vec<AdditiveStep> {
    [false, true, true, true].map(|post| step(1.7, post, None)).to_vec()
}

/// From PostNorm to PreNorm, as in Mix-LN, but with other weights on the skip.
fn mixed() -> Vec<AdditiveStep> {
    vec![
        step(1.0, false, None),
        step(0.9, true, None),
        step(1.3, true, Some(0.8)),
        step(1.1, false, None),
        step(0.6, false, Some(1.0)),
    ]
}

fn all() -> [Vec<AdditiveStep>; 3] {
    [pre_only(), post_only(), mixed()]
}

fn case(tokens: usize, width: usize, steps: &[AdditiveStep]) -> Case {
    let params: Vec<_> = steps.iter().map(|step| step.params(width)).collect();
    Case::random(tokens, width, &params)
}

fn reference(steps: &[AdditiveStep], writes: &[Vec<f64>], params: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let eps = f64::from(EPS);
    let mut x = vec![0.0; writes[0].len()];
    let mut answers = Vec::new();
    for ((step, write), gains) in steps.iter().zip(writes).zip(params) {
        let skip = f64::from(step.skip);
        x = x.iter().zip(write).map(|(x, f)| skip * x + f).collect();
        let mut gains = gains.chunks(x.len());
        if step.post {
            x = rms(&x, gains.next().unwrap(), eps);
        }
        answers.push(match step.pre {
            None => x.clone(),
            Some(scale) => {
                let normed = rms(&x, gains.next().unwrap(), eps);
                normed.iter().map(|value| f64::from(scale) * value).collect()
            }
        });
    }
    answers
}

#[test]
fn answers_and_gradients_are_those_of_the_reference() {
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
fn a_stream_that_keeps_nothing_answers_the_same() {
    for steps in all() {
        let stream = |keep| Additive::new(37, EPS, steps.clone(), keep);
        case(70, 37, &steps).check_inference(stream(true), stream(false));
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
fn both_forms_agree() {
    for steps in all() {
        case(40, 69, &steps).check_forms(|| Additive::new(69, EPS, steps.clone(), true));
    }
}

#[test]
fn the_number_of_threads_does_not_matter() {
    for steps in all() {
        case(200, 37, &steps).check_threads(|| Additive::new(37, EPS, steps.clone(), true));
    }
}

#[test]
fn what_is_not_a_number_stays_with_its_token() {
    for steps in all() {
        for poison in [f32::NAN, f32::INFINITY] {
            let mut case = case(40, 8, &steps);
            case.writes[1][35 * 8 + 2] = poison;
            let mut stream = Additive::new(8, EPS, steps.clone(), true);
            let answers = case.forward(&mut stream);
            let gradients = case.backward(&mut stream);
            for rows in answers[1..].iter().chain([&gradients[1].write]) {
                for (token, row) in rows.chunks(8).enumerate() {
                    assert_eq!(row.iter().all(|value| value.is_finite()), token != 35);
                }
            }
        }
    }
}

#[test]
fn one_token_at_a_time_gets_the_same_answers() {
    for steps in all() {
        case(3, 69, &steps).check_walk(|| Additive::new(69, EPS, steps.clone(), false));
    }
}
