use super::*;
use crate::streams::reference::{Case, rms};

/// Large, so that little cancels where the width is one.
const EPS: f32 = 0.1;
const WRITE_SCALES: [f32; 3] = [0.7, 0.5, 1.2];

fn stream(width: usize, keep: bool) -> Siamese {
    Siamese::new(width, EPS, WRITE_SCALES.to_vec(), keep)
}

fn case(tokens: usize, width: usize) -> Case {
    Case::random(tokens, width, &[3 * width; WRITE_SCALES.len() + 1])
}

fn reference(writes: &[Vec<f64>], params: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let eps = f64::from(EPS);
    let sum = |a: &[f64], scale: f64, b: &[f64]| -> Vec<f64> {
        a.iter().zip(b).map(|(a, b)| a + scale * b).collect()
    };
    let (mut x, mut y) = (writes[0].clone(), writes[0].clone());
    let mut outputs = Vec::new();
    for (junction, gains) in params.iter().enumerate() {
        let gains: Vec<_> = gains.chunks(x.len()).collect();
        x = rms(&x, gains[0], eps);
        let h = sum(&x, 1.0, &rms(&y, gains[1], eps));
        outputs.push(rms(&h, gains[2], eps));
        if let Some(z) = writes.get(junction + 1) {
            x = sum(&x, f64::from(WRITE_SCALES[junction]), z);
            y = sum(&y, 1.0, z);
        }
    }
    outputs
}

#[test]
fn outputs_and_gradients_are_those_of_the_reference() {
    for (tokens, width) in [(1, 1), (3, 5), (70, 37), (33, 64)] {
        case(tokens, width).check(stream(width, true), &reference);
    }
}

#[test]
fn the_laws_of_streams_hold() {
    case(70, 37).check_laws(|keep| stream(37, keep));
}

#[test]
fn only_the_last_streams_stay_where_nothing_is_kept() {
    let mut stream = stream(5, false);
    case(3, 5).forward(&mut stream);
    assert_eq!(stream.levels.len(), 1);
}
