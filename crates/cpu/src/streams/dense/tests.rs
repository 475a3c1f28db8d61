use super::*;
use crate::streams::reference::{Case, rms};

/// Large, so that little cancels.
const EPS: f32 = 0.1;

fn settings(width: usize, dynamic: bool, norms: bool) -> DenseSettings {
    DenseSettings { width, eps: EPS, dynamic, norms }
}

/// Two blocks of two sub-layers, and one that lacks one of them.
fn junctions(ways: usize) -> Vec<DenseJunction> {
    let none = DenseJunction::default();
    let end = |ways, apart| DenseJunction { ways, apart };
    match ways {
        1 => vec![none, none, end(1, false), none, end(1, false), end(1, false)],
        // The attention after the second block is absent.
        ways => vec![none, none, end(ways, true), none, end(ways, false), end(1, false)],
    }
}

fn stream(settings: DenseSettings, ways: usize, keep: bool) -> Dense {
    Dense::new(settings, junctions(ways), keep)
}

fn case(tokens: usize, settings: DenseSettings, ways: usize) -> Case {
    let stream = stream(settings, ways, false);
    let params: Vec<_> =
        (0..junctions(ways).len()).map(|junction| stream.params(junction)).collect();
    let inputs = junctions(ways).iter().map(|junction| junction.inputs()).collect();
    let mut case = Case::random(tokens, settings.width, &params).with_inputs(inputs);
    // Weights of both signs, and hidden units on both sides of zero; small enough for the rounding of gelu not to be
    // multiplied.
    for (junction, params) in case.params.iter_mut().enumerate() {
        let [weights, down, up, ..] = stream.policy.lengths(junction);
        let (own, _) = params.split_at_mut(weights + down + up);
        own.iter_mut().for_each(|param| *param *= 0.3);
        own.iter_mut().step_by(2).for_each(|param| *param = 0.1 - *param);
    }
    case
}

/// The error function by its series, which is exact for what occurs here.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..80 {
        let n = f64::from(n);
        term *= -x * x / n;
        sum += term / (2.0 * n + 1.0);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2))
}

fn products(rows: &[f64], x: &[f64]) -> Vec<f64> {
    rows.chunks(x.len()).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
}

fn sum(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

fn reference(
    settings: DenseSettings,
    junctions: &[DenseJunction],
    writes: &[Vec<f64>],
    params: &[Vec<f64>],
) -> Vec<Vec<f64>> {
    let DenseSettings { width, dynamic, norms, .. } = settings;
    let eps = f64::from(EPS);
    let ones = vec![1.0; width];
    let (mut x, mut sources): (Vec<f64>, Vec<Vec<f64>>) = (vec![0.0; width], Vec::new());
    let mut outputs = Vec::new();
    for (junction, step) in junctions.iter().enumerate() {
        let mut rest = params[junction].as_slice();
        let mut take = |count: usize| {
            let (part, others) = rest.split_at(count);
            rest = others;
            part.to_vec()
        };
        x = sum(&x, &writes[junction]);
        let mut read = vec![x.clone()];
        if junction == 0 {
            sources.push(if norms { rms(&x, &take(width), eps) } else { x.clone() });
        }
        if step.ways > 0 {
            let count = sources.len() + 1;
            let m = step.ways * count;
            let mut weights = take(m);
            let (down, up) =
                if dynamic { (take(m * width), take(m * m)) } else { Default::default() };
            let source_norm = if norms { take(width) } else { ones.clone() };
            let weight_norm = if norms && dynamic { take(width) } else { ones.clone() };
            let out_norm = if norms { take(width) } else { Vec::new() };
            if dynamic {
                let hidden: Vec<f64> =
                    products(&down, &rms(&x, &weight_norm, eps)).into_iter().map(gelu).collect();
                weights = sum(&weights, &products(&up, &hidden));
            }
            sources.push(if norms { rms(&x, &source_norm, eps) } else { x.clone() });
            let mut ways: Vec<Vec<f64>> = weights
                .chunks(count)
                .map(|weights| {
                    let parts = weights.iter().zip(&sources);
                    parts.fold(vec![0.0; width], |all, (weight, source)| {
                        sum(&all, &source.iter().map(|x| weight * x).collect::<Vec<_>>())
                    })
                })
                .collect();
            if norms {
                let last = ways.pop().unwrap();
                ways.push(rms(&last, &out_norm, eps));
                ways = ways.iter().map(|way| sum(&x, way)).collect();
            }
            x = ways.pop().unwrap();
            read = if step.apart { ways } else { vec![x.clone()] };
        }
        let output = read.iter().flat_map(|h| rms(h, &take(width), eps)).collect();
        outputs.push(output);
    }
    outputs
}

/// Which streams there are: DenseFormer, and MUDDFormer of one and four ways, with norms and without.
const FORMS: [(usize, bool, bool); 5] =
    [(1, false, false), (1, true, false), (4, true, false), (1, true, true), (4, true, true)];

#[test]
fn outputs_and_gradients_are_those_of_the_averages() {
    for (ways, dynamic, norms) in FORMS {
        for (tokens, width) in [(2, 5), (3, 9)] {
            let settings = settings(width, dynamic, norms);
            case(tokens, settings, ways).check(stream(settings, ways, true), &|writes, params| {
                reference(settings, &junctions(ways), writes, params)
            });
        }
    }
}

#[test]
fn forms_threads_keeping_and_single_tokens_make_no_difference() {
    for (ways, dynamic, norms) in FORMS {
        // Several tiles and sums, and columns that fill no register.
        let settings = settings(67, dynamic, norms);
        case(150, settings, ways).check_laws(|keep| stream(settings, ways, keep));
    }
}

#[test]
#[should_panic(expected = "no block ends at first")]
fn no_block_ends_before_the_first_sub_layer() {
    let end = DenseJunction { ways: 1, apart: false };
    Dense::new(settings(4, false, false), vec![end], false);
}
