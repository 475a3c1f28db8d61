use super::*;
use crate::streams::Stream;
use crate::streams::reference::{Case, Lists, rms};
use crate::testing::{assert_close, noise};
use std::sync::Arc;

/// Large, so that little cancels where the width is one.
const EPS: f32 = 0.1;
const SITES: usize = 3;

#[derive(Clone, Copy)]
struct Sizes {
    tokens: usize,
    width: usize,
    channels: usize,
    target: Target,
}

const SIZES: [Sizes; 6] = [
    Sizes { tokens: 1, width: 2, channels: 1, target: Target::Sigmoid },
    Sizes { tokens: 5, width: 9, channels: 1, target: Target::Linear },
    Sizes { tokens: 70, width: 37, channels: 1, target: Target::Sigmoid },
    Sizes { tokens: 33, width: 16, channels: 2, target: Target::Linear },
    Sizes { tokens: 7, width: 11, channels: 4, target: Target::Sigmoid },
    Sizes { tokens: 3, width: 64, channels: 3, target: Target::Linear },
];

impl Sizes {
    fn settings(self) -> DdlSettings {
        let Self { width, channels, target, .. } = self;
        DdlSettings { width, channels, target, eps: EPS, exact: false, skip: None }
    }

    fn stream(self, keep: bool) -> Ddl {
        Ddl::new(self.settings(), SITES, keep)
    }

    fn case(self) -> Case {
        let Self { tokens, width, channels: n, .. } = self;
        let scale = 1.5 / (width as f32).sqrt();
        let params: Vec<Vec<f32>> = (0..=SITES)
            .map(|junction| {
                let lengths = self.stream(false).policy.lengths(junction);
                let scales = [0.5, scale, 0.5, scale, 0.5, 0.5 / n as f32];
                let centres = [1.0, 0.0, 0.1, 0.0, -0.5, 1.0 / n as f32];
                let part = |part: usize| {
                    let values = noise(&format!("part {part} of {junction}"), lengths[part]);
                    values.into_iter().map(move |x| centres[part] + scales[part] * x)
                };
                (0..6).flat_map(part).collect()
            })
            .collect();
        let lengths: Vec<usize> = params.iter().map(Vec::len).collect();
        Case { params, ..Case::random(tokens, width, &lengths) }
    }
}

fn open(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The equations at their word. Tokens skip where beta is below the threshold; others lose a share of it.
fn reference(
    sizes: Sizes,
    [threshold, shrink]: [f64; 2],
) -> impl Fn(&Lists, &Lists) -> Vec<Vec<f64>> {
    move |writes: &Lists, params: &Lists| {
        let Sizes { width, channels: n, target, .. } = sizes;
        let mut state = vec![writes[0].clone(); n];
        let mut outputs = Vec::new();
        let policy = sizes.stream(false).policy;
        for (junction, params) in params.iter().enumerate() {
            let mut rest = &params[..];
            let [gain, w, b, t, c, read] = policy.lengths(junction).map(|length| {
                let (part, others) = rest.split_at(length);
                rest = others;
                part
            });
            let weight = |j: usize, i: usize| if n == 1 { 1.0 } else { read[j * width + i] };
            let h: Vec<f64> =
                (0..width).map(|i| (0..n).map(|j| weight(j, i) * state[j][i]).sum()).collect();
            let normed = rms(&h, &vec![1.0; width], f64::from(EPS));
            outputs.push(normed.iter().zip(gain).map(|(x, gain)| x * gain).collect());
            let Some(f) = writes.get(junction + 1) else { break };
            let beta = 2.0 * open(dot(w, &normed) + b[0]);
            let targets: Vec<f64> = (0..n)
                .map(|j| match target {
                    Target::Sigmoid => 4.0 * open(dot(&t[j * width..(j + 1) * width], &h) + c[j]),
                    Target::Linear => dot(&t[j * width..(j + 1) * width], &normed),
                })
                .collect();
            if beta < threshold {
                continue;
            }
            let beta = beta - shrink * threshold;
            let k: Vec<f64> = f.iter().map(|x| x / (dot(f, f) + 1e-10).sqrt()).collect();
            for (x, target) in state.iter_mut().zip(targets) {
                let step = beta * (target - dot(&k, x));
                x.iter_mut().zip(&k).for_each(|(x, k)| *x += step * k);
            }
        }
        outputs
    }
}

#[test]
fn outputs_and_gradients_are_those_of_the_reference() {
    for sizes in SIZES {
        sizes.case().check(sizes.stream(true), &reference(sizes, [0.0; 2]));
    }
}

#[test]
fn the_laws_of_streams_hold() {
    for sizes in SIZES.into_iter().skip(1) {
        let sizes = Sizes { tokens: 70, ..sizes };
        sizes.case().check_laws(|keep| sizes.stream(keep));
    }
}

#[test]
fn channels_that_are_copied_give_the_gradients_of_those_that_are_taken_back() {
    for sizes in SIZES {
        let case = sizes.case();
        let run = |exact: bool| {
            let mut stream = Ddl::new(DdlSettings { exact, ..sizes.settings() }, SITES, true);
            let outputs = case.forward(&mut stream);
            (outputs, case.backward(&mut stream))
        };
        let ((kept, d_kept), (taken, d_taken)) = (run(true), run(false));
        assert_eq!(kept, taken);
        for (kept, taken) in d_kept.iter().zip(&d_taken) {
            assert_close(&taken.write, &kept.write, 1e-5);
            assert_close(&taken.params, &kept.params, 1e-5);
        }
    }
}

/// About half of the tokens have their gate below it.
const THRESHOLD: f32 = 1.0;

fn skipping(sizes: Sizes, shrink: f32, keep: bool) -> Ddl {
    let skip = Some(Skip { shrink, ..Skip::hard(vec![THRESHOLD; SITES]) });
    Ddl::new(DdlSettings { skip, ..sizes.settings() }, SITES, keep)
}

#[test]
fn tokens_whose_gate_is_small_stay_as_they_are() {
    for (sizes, shrink) in [(SIZES[2], 0.0), (SIZES[3], 1.0), (SIZES[4], 0.5)] {
        let sizes = Sizes { tokens: 37, ..sizes };
        let (case, mut stream) = (sizes.case(), skipping(sizes, shrink, true));
        let mut skipped = 0;
        for (f, params) in case.writes.iter().zip(&case.params) {
            stream.forward(Arc::new(f.clone()), params);
            let runs = stream.route().map(|route| route.decisions()).unwrap_or_default();
            skipped += runs.iter().filter(|&&runs| !runs).count();
        }
        assert!((10..100).contains(&skipped), "{skipped} of {} skip", 3 * 37);
        let limits = [f64::from(THRESHOLD), f64::from(shrink)];
        case.check(skipping(sizes, shrink, true), &reference(sizes, limits));
        case.check_laws(|keep| skipping(sizes, shrink, keep));
    }
}

#[test]
fn a_write_of_nothing_changes_nothing_and_takes_a_finite_gradient() {
    let sizes = SIZES[3];
    let mut case = sizes.case();
    case.writes[1].fill(0.0);
    let mut stream = sizes.stream(true);
    case.forward(&mut stream);
    assert!(stream.levels[1].record[3].iter().all(|value| value.is_finite()));
    let gradients = case.backward(&mut stream);
    assert!(gradients.iter().all(|d| d.write.iter().all(|value| value.is_finite())));
}
