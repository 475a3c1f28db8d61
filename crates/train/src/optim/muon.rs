//! Muon: the momentum of a matrix, with all its singular values brought close to one.
//!
//! `m = mu m + (1 - mu) g`, `u = (1 - mu) g + mu m` (Nesterov), `O = orth(u)`,
//! `w = w (1 - rate decay) - rate scale O`. `orth` repeats `X = a X + (b A + c A^2) X`, `A = X X^T`, on
//! the wide orientation, with coefficients either fixed (Jordan) or optimal for each step (Polar
//! Express, arXiv 2505.16932).

use super::Slot;
use hadal_cpu::muon::{Muon, Polynomials};
use serde::{Deserialize, Serialize};

/// Which polynomials orthogonalise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Coefficients {
    /// A different optimal polynomial at each step.
    #[default]
    PolarExpress,
    /// Jordan's one polynomial for all steps.
    Jordan,
}

/// How far an orthogonal step of a given shape should go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MuonScale {
    /// `sqrt(max(1, rows / columns))` (Jordan).
    #[default]
    Jordan,
    /// `0.2 sqrt(max(rows, columns))`, which has AdamW's update size (Moonlight).
    Moonlight,
}

/// Settings of Muon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MuonConfig {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the running mean.
    pub momentum: f64,
    /// Decay of the matrices.
    pub weight_decay: f64,
    /// Polynomial steps.
    pub steps: usize,
    /// Which polynomials.
    pub coefficients: Coefficients,
    /// How far a step goes.
    pub scale: MuonScale,
}

impl Default for MuonConfig {
    fn default() -> Self {
        Self {
            lr: 1e-2,
            momentum: 0.95,
            weight_decay: 0.1,
            steps: 5,
            coefficients: Coefficients::default(),
            scale: MuonScale::default(),
        }
    }
}

/// The Polar Express sequence.
const POLAR_EXPRESS: [[f64; 3]; 7] = [
    [8.28721201814563, -23.595886519098837, 17.300387312530933],
    [4.107059111542203, -2.9478499167379106, 0.5448431082926601],
    [3.9486908534822946, -2.908902115962949, 0.5518191394370137],
    [3.3184196573706015, -2.488488024314874, 0.51004894012372],
    [2.300652019954817, -1.6689039845747493, 0.4188073119525673],
    [1.891301407787398, -1.2679958271945868, 0.37680408948524835],
    [1.8750014808534479, -1.2500016453999487, 0.3750001645474248],
];
/// The polynomial that the sequence ends in: it has converged and needs no safety.
const LAST: [f64; 3] = [1.875, -1.25, 0.375];
const JORDAN: [f64; 3] = [3.4445, -4.7750, 2.0315];
/// Polar Express divides by a little more than the norm, so that rounding cannot push a singular
/// value beyond one, where its polynomials diverge.
const SAFETY: f64 = 1.01;

impl Coefficients {
    /// `a, b, c` of each step.
    fn sequence(self, steps: usize) -> Vec<[f64; 3]> {
        (0..steps)
            .map(|i| match self {
                Self::Jordan => JORDAN,
                Self::PolarExpress => match POLAR_EXPRESS.get(i) {
                    Some([a, b, c]) => [a / SAFETY, b / SAFETY.powi(3), c / SAFETY.powi(5)],
                    None => LAST,
                },
            })
            .collect()
    }

    pub(super) fn in_f32(self, steps: usize) -> Vec<[f32; 3]> {
        self.sequence(steps).into_iter().map(|abc| abc.map(|x| x as f32)).collect()
    }

    pub(super) fn margin(self) -> f64 {
        match self {
            Self::PolarExpress => SAFETY,
            Self::Jordan => 1.0,
        }
    }
}

/// The nearest matrix with singular values close to one.
///
/// # Shapes
/// - `matrix` and output: `[rows, columns]`
pub fn orthogonalise(
    matrix: Vec<f32>,
    shape: [usize; 2],
    steps: usize,
    coefficients: Coefficients,
) -> Vec<f32> {
    let sequence = coefficients.in_f32(steps);
    Polynomials { margin: coefficients.margin(), coefficients: &sequence }
        .orthogonalise(matrix, shape)
}

impl MuonConfig {
    /// One step; `rate` multiplies the learning rate.
    pub(super) fn step(&self, values: &mut [f32], slot: &mut Slot, gradient: &[f32], rate: f64) {
        let shape = [slot.shape[0], slot.shape[1]];
        let lr = self.lr * rate;
        let coefficients = self.coefficients.in_f32(self.steps);
        let rule = Muon {
            momentum: self.momentum as f32,
            keep: (1.0 - lr * self.weight_decay) as f32,
            size: (lr * self.scale.factor(shape)) as f32,
            polynomials: Polynomials {
                margin: self.coefficients.margin(),
                coefficients: &coefficients,
            },
        };
        rule.step(values, &mut slot.first, gradient, shape);
    }
}

impl MuonScale {
    pub(super) fn factor(self, [rows, columns]: [usize; 2]) -> f64 {
        match self {
            Self::Jordan => (rows as f64 / columns as f64).max(1.0).sqrt(),
            Self::Moonlight => 0.2 * (rows.max(columns) as f64).sqrt(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Tensor, TensorData};

    /// The same on tensors: what the kernel must compute.
    fn plain(matrix: Tensor<2>, steps: usize, coefficients: Coefficients) -> Tensor<2> {
        let [rows, columns] = matrix.dims();
        let tall = rows > columns;
        let mut x = if tall { matrix.transpose() } else { matrix };
        let norm = x.clone().square().sum().sqrt() * coefficients.margin() + 1e-7;
        x = x / norm.unsqueeze();
        for [a, b, c] in coefficients.sequence(steps) {
            let square = x.clone().matmul(x.clone().transpose());
            let poly = square.clone() * b + square.clone().matmul(square) * c;
            x = x.clone() * a + poly.matmul(x);
        }
        if tall { x.transpose() } else { x }
    }

    /// The kernel, on a tensor.
    fn orthogonalise(matrix: Tensor<2>, steps: usize, coefficients: Coefficients) -> Tensor<2> {
        let shape: [usize; 2] = matrix.dims();
        let factor = super::orthogonalise(values(matrix), shape, steps, coefficients);
        Tensor::from_data(TensorData::new(factor, shape), &Device::flex())
    }

    #[test]
    fn the_kernel_computes_what_tensors_do() {
        for (rows, columns) in [(24, 24), (8, 40), (40, 8)] {
            for coefficients in [Coefficients::PolarExpress, Coefficients::Jordan] {
                let want = values(plain(matrix(rows, columns), 5, coefficients));
                let got = values(orthogonalise(matrix(rows, columns), 5, coefficients));
                for (got, want) in got.iter().zip(want) {
                    assert!((got - want).abs() < 1e-4, "{rows}x{columns}: {got} {want}");
                }
            }
        }
    }

    fn values(tensor: Tensor<2>) -> Vec<f32> {
        tensor.try_into_vec_as().unwrap()
    }

    fn matrix(rows: usize, columns: usize) -> Tensor<2> {
        // Quasi-random, of full rank, with singular values spread over two decades.
        let value = |i: usize| ((i as f32 * 12.9898).sin() * 43_758.547).fract();
        let elements: Vec<f32> = (0..rows * columns).map(value).collect();
        Tensor::from_data(TensorData::new(elements, [rows, columns]), &Device::flex())
    }

    /// The polynomials applied to one singular value, without the initial division.
    fn scalar(coefficients: Coefficients, steps: usize, start: f64) -> f64 {
        coefficients
            .sequence(steps)
            .iter()
            .fold(start, |s, [a, b, c]| a * s + b * s.powi(3) + c * s.powi(5))
    }

    #[test]
    fn scalar_oracles_hold() {
        for (start, want) in [(0.5, 0.76544), (0.1, 0.71212), (0.01, 0.69892)] {
            let got = scalar(Coefficients::Jordan, 5, start);
            assert!((got - want).abs() < 1e-5, "jordan {start}: {got}");
        }
        for (start, want) in [(0.5, 0.93433), (0.1, 0.87493), (0.01, 1.06600), (0.001, 0.84618)] {
            let got = scalar(Coefficients::PolarExpress, 5, start);
            assert!((got - want).abs() < 1e-5, "polar express {start}: {got}");
        }
    }

    #[test]
    fn a_diagonal_stays_diagonal_with_each_value_mapped() {
        let device = Device::flex();
        let x = Tensor::<2>::from_floats([[0.6, 0.0], [0.0, 0.2]], &device);
        let norm = 0.4f64.sqrt();
        let got = values(orthogonalise(x, 5, Coefficients::Jordan));
        for (index, sigma) in [(0, 0.6), (3, 0.2)] {
            let want = scalar(Coefficients::Jordan, 5, sigma / norm);
            assert!((f64::from(got[index]) - want).abs() < 1e-4);
        }
        assert!(got[1].abs() < 1e-6 && got[2].abs() < 1e-6);
    }

    #[test]
    fn singular_values_land_in_the_published_interval() {
        for (rows, columns) in [(24, 24), (8, 40), (40, 8)] {
            let o = orthogonalise(matrix(rows, columns), 5, Coefficients::PolarExpress);
            // All eigenvalues of the Gram matrix lie between the squares of the interval's ends: x^T G x
            // over many directions, which power iteration sharpens towards the extremes.
            let o = if rows > columns { o.transpose() } else { o };
            let gram = o.clone().matmul(o.transpose());
            let n = rows.min(columns);
            let largest = extreme(gram.clone(), n, 0.0);
            let smallest = extreme(gram, n, 2.0);
            assert!(largest <= 1.124f32.powi(2) * 1.01, "{rows}x{columns}: {largest}");
            assert!(smallest >= 0.84f32.powi(2) * 0.99, "{rows}x{columns}: {smallest}");
        }
    }

    /// The eigenvalue furthest from `shift`, by power iteration on `G - shift I`.
    fn extreme(gram: Tensor<2>, n: usize, shift: f64) -> f32 {
        let shifted = gram.clone() - Tensor::<2>::eye(n, &gram.device()) * shift;
        let mut x = Tensor::<2>::ones([n, 1], &gram.device()) + matrix(n, 1);
        for _ in 0..400 {
            x = shifted.clone().matmul(x);
            let norm = x.clone().square().sum().sqrt();
            x = x / norm.unsqueeze();
        }
        values(x.clone().transpose().matmul(gram.matmul(x)))[0]
    }

    #[test]
    fn size_does_not_matter_and_transposition_commutes() {
        let x = matrix(6, 10);
        for coefficients in [Coefficients::PolarExpress, Coefficients::Jordan] {
            let base = values(orthogonalise(x.clone(), 5, coefficients));
            let larger = values(orthogonalise(x.clone() * 100.0, 5, coefficients));
            let turned = values(orthogonalise(x.clone().transpose(), 5, coefficients).transpose());
            for ((a, b), c) in base.iter().zip(larger).zip(turned) {
                assert!((a - b).abs() < 1e-4 && (a - c).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn a_tall_matrix_steps_further() {
        assert_eq!(MuonScale::Jordan.factor([16, 4]), 2.0);
        assert_eq!(MuonScale::Jordan.factor([4, 16]), 1.0);
        assert!((MuonScale::Moonlight.factor([4, 16]) - 0.8).abs() < 1e-12);
    }
}
