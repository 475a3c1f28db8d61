//! The network for a single token, in memory that is used again.

use super::{Mlp, square_relu};
use crate::bias;
use crate::linear::{self, Weight};
use crate::simd::exp;

/// What is added behind each product.
#[derive(Clone, Copy, Debug)]
pub struct Biases<'a> {
    /// `[hidden]`
    pub up: &'a [f32],
    /// `[hidden]`, of the gated form.
    pub gate: Option<&'a [f32]>,
    /// `[width]`
    pub down: &'a [f32],
}

/// Hidden values of one token.
#[derive(Debug, Default)]
pub struct Room {
    up: Vec<f32>,
    gate: Vec<f32>,
}

/// [`super::forward`] for a single token, whose row is written to `y`, with biases if there are any.
pub fn step(x: &[f32], mlp: &Mlp, biases: Option<Biases>, room: &mut Room, y: &mut [f32]) {
    let Room { up, gate } = room;
    up.resize(mlp.hidden, 0.0);
    apply(x, mlp.weight(mlp.up), biases.map(|biases| biases.up), up);
    match mlp.gate {
        None => square_relu(up),
        Some(weight) => {
            gate.resize(mlp.hidden, 0.0);
            apply(x, mlp.weight(weight), biases.and_then(|biases| biases.gate), gate);
            let_through(up, gate);
        }
    }
    let down = Weight { values: mlp.down, out: mlp.width };
    apply(up, down, biases.map(|biases| biases.down), y);
}

fn apply(x: &[f32], weight: Weight, bias: Option<&[f32]>, y: &mut [f32]) {
    linear::step(x, &[weight], y);
    if let Some(bias) = bias {
        bias::add(y, bias);
    }
}

simd! {
    /// `up = silu(gate) * up`.
    fn let_through(up: &mut [f32], gate: &[f32]) {
        for (up, gate) in up.iter_mut().zip(gate) {
            *up = *up * gate / (1.0 + exp(-gate));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mlp::forward;
    use crate::precision::Precision;
    use crate::testing::{assert_close, noise};

    const WIDTH: usize = 9;
    const HIDDEN: usize = 21;

    #[test]
    fn a_single_token_is_one_of_many() {
        let matrix = |name: &str| noise(name, WIDTH * HIDDEN);
        let (up, gate, down) = (matrix("up"), matrix("gate"), matrix("down"));
        let x = noise("x", 2 * WIDTH);
        let (mut room, mut y) = (Room::default(), [f32::NAN; WIDTH]);
        for gate in [None, Some(gate.as_slice())] {
            let mlp = Mlp { width: WIDTH, hidden: HIDDEN, up: &up, gate, down: &down };
            let want = forward(&x, &mlp, Precision::F32).y;
            for (x, want) in x.chunks(WIDTH).zip(want.chunks(WIDTH)) {
                step(x, &mlp, None, &mut room, &mut y);
                assert_close(&y, want, 1e-6);
            }
        }
    }

    /// A bias is a weight of an input that is one.
    #[test]
    fn biases_are_added_behind_each_product() {
        let wider = |rows: &[f32], inputs: usize, bias: &[f32]| -> Vec<f32> {
            let rows = rows.chunks(inputs).zip(bias);
            rows.flat_map(|(row, bias)| row.iter().chain([bias]).copied().collect::<Vec<_>>())
                .collect()
        };
        let matrix = |name: &str| noise(name, WIDTH * HIDDEN);
        let (up, gate, down) = (matrix("up"), matrix("gate"), matrix("down"));
        let [up_bias, gate_bias] = ["up bias", "gate bias"].map(|name| noise(name, HIDDEN));
        let (x, down_bias) = (noise("x", WIDTH), noise("down bias", WIDTH));
        let x_and_one = [x.as_slice(), &[1.0]].concat();
        for gated in [false, true] {
            let mlp = Mlp {
                width: WIDTH,
                hidden: HIDDEN,
                up: &up,
                gate: gated.then_some(&gate),
                down: &down,
            };
            let gate_bias = gated.then_some(gate_bias.as_slice());
            let biases = Biases { up: &up_bias, gate: gate_bias, down: &down_bias };
            let mut y = [f32::NAN; WIDTH];
            step(&x, &mlp, Some(biases), &mut Room::default(), &mut y);

            let (up, gate) =
                (wider(&up, WIDTH, &up_bias), gate_bias.map(|b| wider(&gate, WIDTH, b)));
            let mut hidden = vec![0.0; HIDDEN];
            linear::step(&x_and_one, &[Weight::new(&up, WIDTH + 1)], &mut hidden);
            match gate {
                None => square_relu(&mut hidden),
                Some(gate) => {
                    let mut open = vec![0.0; HIDDEN];
                    linear::step(&x_and_one, &[Weight::new(&gate, WIDTH + 1)], &mut open);
                    let_through(&mut hidden, &open);
                }
            }
            hidden.push(1.0);
            let down = wider(&down, HIDDEN, &down_bias);
            let mut want = [0.0; WIDTH];
            linear::step(&hidden, &[Weight::new(&down, HIDDEN + 1)], &mut want);
            assert_close(&y, &want, 1e-5);
        }
    }
}
