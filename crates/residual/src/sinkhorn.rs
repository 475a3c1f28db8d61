//! Sinkhorn-Knopp: alternating column and row normalisation towards a doubly stochastic matrix.

use burn::tensor::{Tensor, activation::softmax};

/// `exp(logits)`, then `iterations` times columns to sum one and rows to sum one. Rows come last,
/// so they sum to one exactly and columns approximately. Done on logarithms, where no logit is
/// large enough to overflow.
///
/// DeepSeek's form has an `epsilon` above zero: it is added to all elements once columns sum to one for the first
/// time, and to every sum after that. Nothing can vanish then, and logarithms are not needed. Rows end at
/// `S / (S + epsilon)`.
///
/// # Shapes
/// - `logits` and output: `[B, T, n, n]`
pub(crate) fn sinkhorn(logits: Tensor<4>, iterations: usize, epsilon: f64) -> Tensor<4> {
    if epsilon > 0.0 {
        let divided = |x: Tensor<4>, dim: usize| x.clone() / (x.sum_dim(dim) + epsilon);
        let mut mixing = divided(softmax(logits, 2) + epsilon, 3);
        for _ in 1..iterations {
            mixing = divided(divided(mixing, 2), 3);
        }
        return mixing;
    }
    let mut log = logits;
    for _ in 0..iterations {
        log = log.clone() - log_sum_exp(log, 2);
        log = log.clone() - log_sum_exp(log, 3);
    }
    log.exp()
}

fn log_sum_exp(x: Tensor<4>, dim: usize) -> Tensor<4> {
    // The shift cancels out of the result, so it needs no gradient.
    let largest = x.clone().detach().max_dim(dim);
    (x - largest.clone()).exp().sum_dim(dim).log() + largest
}

/// The smallest logit that is of use: its exponential is nothing beside one in f32.
const LEAST: f64 = -60.0;
/// Rounds of correction; each takes away about as much as a round of Sinkhorn would.
const CORRECTIONS: usize = 100;

/// Logits of which the iteration makes this matrix, or the nearest that it can make. A mean of what it returns is almost
/// doubly stochastic, so its logarithm is nearly a fixed point; what is missing is added until nothing is.
///
/// # Shapes
/// - `matrix`: `[n, n]`, row by row
pub(crate) fn logits_of(matrix: &[f64], iterations: usize, epsilon: f64) -> Vec<f32> {
    let n = matrix.len().isqrt();
    let log = |x: f64| x.max(f64::MIN_POSITIVE).ln();
    let wanted: Vec<f64> = matrix.iter().map(|&x| log(x)).collect();
    let mut logits = wanted.clone();
    let mut best = (f64::INFINITY, Vec::new());
    for _ in 0..CORRECTIONS {
        shift_columns(&mut logits, n);
        let found = iterate(&logits, n, iterations, epsilon);
        let off = found.iter().zip(matrix).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        if off < best.0 {
            best = (off, logits.clone());
        }
        for ((logit, wanted), found) in logits.iter_mut().zip(&wanted).zip(&found) {
            *logit += wanted - log(*found);
        }
    }
    best.1.into_iter().map(|logit| logit as f32).collect()
}

/// The largest logit of each column becomes zero, which changes nothing, and none is smaller than is of use.
fn shift_columns(logits: &mut [f64], n: usize) {
    for j in 0..n {
        let largest = logits.iter().skip(j).step_by(n).fold(f64::NEG_INFINITY, |a, &b| a.max(b));
        for logit in logits.iter_mut().skip(j).step_by(n) {
            *logit = (*logit - largest).max(LEAST);
        }
    }
}

/// [`sinkhorn`] in f64 for one matrix, whose logits are no larger than zero, with one in each column.
fn iterate(logits: &[f64], n: usize, iterations: usize, epsilon: f64) -> Vec<f64> {
    let mut x: Vec<f64> = logits.iter().map(|logit| logit.exp()).collect();
    let columns = |x: &mut [f64], more: f64| {
        for j in 0..n {
            let sum: f64 = x.iter().skip(j).step_by(n).sum::<f64>() + more;
            x.iter_mut().skip(j).step_by(n).for_each(|value| *value /= sum);
        }
    };
    for round in 0..iterations {
        columns(&mut x, if round == 0 { 0.0 } else { epsilon });
        if round == 0 {
            x.iter_mut().for_each(|value| *value += epsilon);
        }
        for row in x.chunks_mut(n.max(1)) {
            let sum = row.iter().sum::<f64>() + epsilon;
            row.iter_mut().for_each(|value| *value /= sum);
        }
    }
    x
}

// The constants are those of the spec, digit by digit.
#[cfg(test)]
#[allow(clippy::excessive_precision)]
mod tests {
    use super::*;
    use crate::testing::{assert_near, normal, values};
    use burn::tensor::{Device, TensorData};

    fn matrix<const N: usize>(logits: [[f32; N]; N]) -> Tensor<4> {
        let data = TensorData::new(logits.concat(), [1, 1, N, N]);
        Tensor::from_data(data, &Device::flex())
    }

    fn columns(mixing: &Tensor<4>) -> Vec<f32> {
        values(mixing.clone().sum_dim(2))
    }

    fn rows(mixing: &Tensor<4>) -> Vec<f32> {
        values(mixing.clone().sum_dim(3))
    }

    #[test]
    fn two_streams_have_a_closed_form() {
        // Far more than the paper's 20 rounds: here the error halves with each.
        let mixing = sinkhorn(matrix([[1.0, 0.0], [-1.0, 2.0]]), 100, 0.0);
        let (stay, cross) = (0.880_797_08, 0.119_202_92);
        assert_near(&values(mixing), &[stay, cross, cross, stay], 1e-6);
    }

    #[test]
    fn gradients_are_those_of_the_closed_form() {
        let logits = matrix([[1.0, 0.0], [-1.0, 2.0]]).autodiff().require_grad();
        let mixing = sinkhorn(logits.clone(), 100, 0.0);
        let gradients = mixing.narrow(2, 0, 1).narrow(3, 0, 1).sum().backward();
        // d stay / d m_11 = stay (1 - stay) / 2, and crossing logits push the other way.
        let slope = 0.880_797_08 * 0.119_202_92 / 2.0;
        let found = values(logits.grad(&gradients).unwrap());
        assert_near(&found, &[slope, -slope, -slope, slope], 1e-4);
    }

    #[test]
    fn columns_come_first_and_rows_last() {
        let logits = [[1.0f32, 2.0], [3.0, 4.0]].map(|row| row.map(f32::ln));
        let once = values(sinkhorn(matrix(logits), 1, 0.0));
        assert_near(&once, &[3.0 / 7.0, 4.0 / 7.0, 9.0 / 17.0, 8.0 / 17.0], 1e-6);
    }

    #[test]
    fn rows_are_exact_and_columns_converge() {
        let logits = normal("logits", [3, 5, 4, 4]);
        let early = sinkhorn(logits.clone(), 1, 0.0);
        let late = sinkhorn(logits, 20, 0.0);
        let ones = [1.0; 60];
        // One rounding for each of the four summands.
        assert_near(&rows(&early), &ones, 1e-6);
        assert_near(&rows(&late), &ones, 1e-6);
        assert_near(&columns(&late), &ones, 1e-3);
        assert!(columns(&early).iter().any(|sum| (sum - 1.0).abs() > 1e-2));
    }

    #[test]
    fn large_logits_do_not_overflow() {
        // Without logarithms the small row would underflow to zero and divide zero by zero.
        let mixing = sinkhorn(matrix([[80.0, 80.0], [-80.0, -80.0]]), 20, 0.0);
        assert_near(&values(mixing), &[0.5; 4], 1e-5);
        let mixing = sinkhorn(matrix([[1000.0, -1000.0], [-1000.0, 1000.0]]), 20, 0.0);
        assert_near(&values(mixing), &[1.0, 0.0, 0.0, 1.0], 1e-6);
        let mixing = sinkhorn(normal("logits", [2, 3, 4, 4]).sign() * 80.0, 20, 0.0);
        assert_near(&rows(&mixing), &[1.0; 24], 1e-5);
    }

    #[test]
    fn an_epsilon_gives_the_numbers_of_the_spec() {
        for (rounds, epsilon, diagonal, elsewhere) in [
            (1, 0.0, 0.880_797_078_0, 0.119_202_922_0),
            (1, 0.01, 0.864_851_532_0, 0.125_439_730_1),
            (3, 0.01, 0.864_597_163_9, 0.125_402_836_1),
            (20, 1e-6, 0.880_795_435_6, 0.119_203_564_4),
        ] {
            let found = values(sinkhorn(matrix([[1.0, 0.0], [-1.0, 2.0]]), rounds, epsilon));
            assert_near(&found, &[diagonal, elsewhere, elsewhere, diagonal], 2e-7);
        }
    }

    /// With `S` the sum of a row before its last division.
    #[test]
    fn rows_with_an_epsilon_end_at_a_little_less_than_one() {
        let (logits, epsilon) = (normal("logits", [3, 5, 4, 4]), 0.03);
        for found in rows(&sinkhorn(logits.clone(), 20, epsilon)) {
            assert!(found < 1.0 && found > 1.0 - 1.1 * epsilon as f32, "{found}");
        }
        // After one round S is known: columns sum to one, and epsilon was added to each element.
        let sums = values(softmax(logits.clone(), 2).sum_dim(3) + 4.0 * epsilon);
        let expected: Vec<f32> = sums.iter().map(|s| s / (s + epsilon as f32)).collect();
        assert_near(&rows(&sinkhorn(logits, 1, epsilon)), &expected, 1e-6);
    }

    #[test]
    fn a_vanishing_epsilon_changes_nothing() {
        let logits = normal("logits", [3, 5, 4, 4]);
        let exact = values(sinkhorn(logits.clone(), 20, 0.0));
        assert_near(&values(sinkhorn(logits, 20, 1e-12)), &exact, 1e-5);
    }

    /// Means of what the iteration returns, the identity and a permutation come back, with an epsilon and without.
    #[test]
    fn logits_of_a_mixer_give_it_back() {
        let mean = |rounds, epsilon| -> Vec<f64> {
            let all = sinkhorn(normal("logits", [1, 64, 4, 4]), rounds, epsilon);
            values(all.mean_dim(1)).into_iter().map(f64::from).collect()
        };
        // With few rounds or a large epsilon, no logits give a mean exactly.
        for (rounds, epsilon, tolerance) in [(20, 0.0, 2e-6), (20, 1e-6, 2e-6), (5, 0.01, 1e-3)] {
            let mixer = mean(rounds, epsilon);
            let logits = Tensor::<1>::from_floats(
                logits_of(&mixer, rounds, epsilon).as_slice(),
                &Device::flex(),
            );
            let found = values(sinkhorn(logits.reshape([1, 1, 4, 4]), rounds, epsilon));
            let wanted: Vec<f32> = mixer.iter().map(|&x| x as f32).collect();
            assert_near(&found, &wanted, tolerance);
        }
        for order in [[0, 1, 2], [2, 0, 1]] {
            let wanted: Vec<f64> =
                (0..9).map(|k| if order[k / 3] == k % 3 { 1.0 } else { 0.0 }).collect();
            let logits =
                Tensor::<1>::from_floats(logits_of(&wanted, 20, 0.0).as_slice(), &Device::flex());
            let found = values(sinkhorn(logits.reshape([1, 1, 3, 3]), 20, 0.0));
            let wanted: Vec<f32> = wanted.iter().map(|&x| x as f32).collect();
            assert_near(&found, &wanted, 1e-12);
        }
    }

    #[test]
    fn a_single_stream_stays_itself() {
        assert_eq!(values(sinkhorn(normal("logits", [2, 3, 1, 1]) * 50.0, 20, 0.0)), [1.0; 6]);
    }
}
