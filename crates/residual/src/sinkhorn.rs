//! Sinkhorn-Knopp: alternating column and row normalisation towards a doubly stochastic matrix.

use burn::tensor::Tensor;

/// `exp(logits)`, then `iterations` times columns to sum one and rows to sum one. Rows come last,
/// so they sum to one exactly and columns approximately. Done on logarithms, where no logit is
/// large enough to overflow.
///
/// # Shapes
/// - `logits` and output: `[B, T, n, n]`
pub(crate) fn sinkhorn(logits: Tensor<4>, iterations: usize) -> Tensor<4> {
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
        let mixing = sinkhorn(matrix([[1.0, 0.0], [-1.0, 2.0]]), 100);
        let (stay, cross) = (0.880_797_08, 0.119_202_92);
        assert_near(&values(mixing), &[stay, cross, cross, stay], 1e-6);
    }

    #[test]
    fn gradients_are_those_of_the_closed_form() {
        let logits = matrix([[1.0, 0.0], [-1.0, 2.0]]).autodiff().require_grad();
        let mixing = sinkhorn(logits.clone(), 100);
        let gradients = mixing.narrow(2, 0, 1).narrow(3, 0, 1).sum().backward();
        // d stay / d m_11 = stay (1 - stay) / 2, and crossing logits push the other way.
        let slope = 0.880_797_08 * 0.119_202_92 / 2.0;
        let found = values(logits.grad(&gradients).unwrap());
        assert_near(&found, &[slope, -slope, -slope, slope], 1e-4);
    }

    #[test]
    fn columns_come_first_and_rows_last() {
        let logits = [[1.0f32, 2.0], [3.0, 4.0]].map(|row| row.map(f32::ln));
        let once = values(sinkhorn(matrix(logits), 1));
        assert_near(&once, &[3.0 / 7.0, 4.0 / 7.0, 9.0 / 17.0, 8.0 / 17.0], 1e-6);
    }

    #[test]
    fn rows_are_exact_and_columns_converge() {
        let logits = normal("logits", [3, 5, 4, 4]);
        let early = sinkhorn(logits.clone(), 1);
        let late = sinkhorn(logits, 20);
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
        let mixing = sinkhorn(matrix([[80.0, 80.0], [-80.0, -80.0]]), 20);
        assert_near(&values(mixing), &[0.5; 4], 1e-5);
        let mixing = sinkhorn(matrix([[1000.0, -1000.0], [-1000.0, 1000.0]]), 20);
        assert_near(&values(mixing), &[1.0, 0.0, 0.0, 1.0], 1e-6);
        let mixing = sinkhorn(normal("logits", [2, 3, 4, 4]).sign() * 80.0, 20);
        assert_near(&rows(&mixing), &[1.0; 24], 1e-5);
    }

    #[test]
    fn a_single_stream_stays_itself() {
        assert_eq!(values(sinkhorn(normal("logits", [2, 3, 1, 1]) * 50.0, 20)), [1.0; 6]);
    }
}
