use super::*;
use crate::streams::reference::{Case, Lists, rms};
use crate::testing::{assert_close, noise};

/// Large, so that little cancels where the width is one.
const EPS: f32 = 0.1;
const SITES: usize = 3;

#[derive(Clone, Copy)]
struct Sizes {
    tokens: usize,
    width: usize,
    streams: usize,
    rank: usize,
}

const SIZES: [Sizes; 4] = [
    Sizes { tokens: 1, width: 1, streams: 1, rank: 1 },
    Sizes { tokens: 5, width: 9, streams: 2, rank: 3 },
    Sizes { tokens: 37, width: 6, streams: 4, rank: 2 },
    Sizes { tokens: 9, width: 20, streams: 3, rank: 17 },
];

impl Sizes {
    fn settings(self) -> GrSettings {
        let Self { width, streams, rank, .. } = self;
        GrSettings { width, streams, rank, eps: EPS, exact: false, skip: None }
    }

    fn case(self) -> Case {
        let Self { tokens, width, streams: n, rank } = self;
        let wide = n * width;
        let matrix = |name: &str, rows: usize, columns: usize| -> Vec<f32> {
            let scale = 3.0 / (columns as f32).sqrt();
            noise(name, rows * columns).into_iter().map(|x| scale * x).collect()
        };
        let params: Vec<Vec<f32>> = (0..=SITES)
            .map(|junction| {
                let gain = noise(&format!("gain {junction}"), wide);
                let gain = gain.into_iter().map(|x| 1.0 + 0.5 * x).collect();
                let rows = if junction < SITES { rank + n } else { rank };
                // The product is divided by n.
                let down = matrix(&format!("down {junction}"), rows, wide);
                let down = down.into_iter().map(|x| n as f32 * x).collect();
                [gain, down, matrix(&format!("up {junction}"), wide, rank)].concat()
            })
            .collect();
        let lengths: Vec<usize> = params.iter().map(Vec::len).collect();
        Case { params, ..Case::random(tokens, width, &lengths) }
    }

    fn stream(self, keep: bool) -> Gr {
        Gr::new(self.settings(), SITES, keep)
    }
}

fn open(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The equations at their word. Tokens skip where their widest gate is below the threshold; others lose a share of it.
fn reference(
    sizes: Sizes,
    [threshold, shrink]: [f64; 2],
) -> impl Fn(&Lists, &Lists) -> Vec<Vec<f64>> {
    move |writes: &Lists, params: &Lists| {
        let Sizes { width, streams: n, rank, .. } = sizes;
        let wide = n * width;
        let mut state = vec![writes[0].clone(); n];
        let mut outputs = Vec::new();
        for (junction, params) in params.iter().enumerate() {
            let (gain, rest) = params.split_at(wide);
            let (down, up) = rest.split_at(rest.len() - wide * rank);
            let each = state.iter().zip(gain.chunks(width));
            let v: Vec<f64> = each.flat_map(|(x, gain)| rms(x, gain, f64::from(EPS))).collect();
            let dot = |row: &[f64], x: &[f64]| row.iter().zip(x).map(|(a, b)| a * b).sum::<f64>();
            let logits: Vec<f64> = down.chunks(wide).map(|row| dot(row, &v) / n as f64).collect();
            let a: Vec<f64> = logits[..rank].iter().map(|z| z * open(*z)).collect();
            let read = up.chunks(rank).zip(&v).map(|(row, v)| open(dot(row, &a)) * v / n as f64);
            let read: Vec<f64> = read.collect();
            let stream = |c: usize| (0..n).map(|i| read[i * width + c]).sum();
            outputs.push((0..width).map(stream).collect());
            let Some(write) = writes.get(junction + 1) else { break };
            let gates: Vec<f64> = logits[rank..].iter().map(|w| 2.0 * open(*w)).collect();
            let widest = gates.iter().copied().fold(0.0, f64::max);
            if widest < threshold {
                continue;
            }
            for (x, gate) in state.iter_mut().zip(gates) {
                let gate = gate * (widest - shrink * threshold) / widest;
                x.iter_mut().zip(write).for_each(|(x, f)| *x += gate * f);
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
fn streams_that_are_copied_give_the_gradients_of_those_that_are_taken_back() {
    let sizes = Sizes { tokens: 40, ..SIZES[2] };
    let case = sizes.case();
    let run = |exact: bool| {
        let mut stream = Gr::new(GrSettings { exact, ..sizes.settings() }, SITES, true);
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

/// About half of the tokens have all of their gates below it.
const THRESHOLD: f32 = 1.25;

fn skipping(sizes: Sizes, shrink: f32, keep: bool) -> Gr {
    let skip = Some(Skip { shrink, ..Skip::hard(vec![THRESHOLD; SITES]) });
    Gr::new(GrSettings { skip, ..sizes.settings() }, SITES, keep)
}

#[test]
fn tokens_whose_gates_are_small_stay_as_they_are() {
    for (sizes, shrink) in [(SIZES[1], 0.0), (SIZES[2], 1.0), (SIZES[1], 0.5)] {
        let sizes = Sizes { tokens: 37, ..sizes };
        let (case, mut stream) = (sizes.case(), skipping(sizes, shrink, true));
        let mut skipped = 0;
        for (f, params) in case.writes.iter().zip(&case.params) {
            use crate::streams::Stream;
            stream.forward(std::sync::Arc::new(f.clone()), params);
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
fn nothing_but_the_streams_stays_where_nothing_is_kept() {
    let sizes = SIZES[1];
    let mut stream = sizes.stream(false);
    sizes.case().forward(&mut stream);
    assert_eq!(stream.levels.len(), 1);
    assert!(stream.levels[0].record[0].is_empty());
}
