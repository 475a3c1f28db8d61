//! Birkhoff's theorem as a parametrisation: every convex combination of permutation matrices is
//! doubly stochastic, exactly and for any logits.

/// All permutations of `0..n` in lexicographic order.
pub(crate) fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    let mut current: Vec<usize> = (0..n).collect();
    loop {
        all.push(current.clone());
        // The next permutation raises the last position that can still grow.
        let Some(pivot) = (1..n).rev().find(|&i| current[i - 1] < current[i]) else {
            return all;
        };
        let swap = (pivot..n).rev().find(|&i| current[i] > current[pivot - 1]).unwrap_or(pivot);
        current.swap(pivot - 1, swap);
        current[pivot..].reverse();
    }
}

/// The permutation matrices as rows of an `[n!, n n]` matrix: `P_k[i][perm_k(i)] = 1`.
pub(crate) fn permutation_matrices(n: usize) -> Vec<f32> {
    let mut rows = Vec::new();
    for permutation in permutations(n) {
        for target in permutation {
            rows.extend((0..n).map(|j| if j == target { 1.0 } else { 0.0 }));
        }
    }
    rows
}

/// Logit of a permutation that has no weight.
const NO_WEIGHT: f32 = -60.0;
/// Weight that rounding leaves over.
const REST: f64 = 1e-9;

/// Logits of all permutations, whose mixture is this doubly stochastic matrix: Birkhoff's theorem. The permutation that
/// can have the largest weight gets it, again and again.
///
/// # Shapes
/// - `matrix`: `[n, n]`, row by row
/// - output: `[n!]`
pub(crate) fn logits_of(matrix: &[f64], n: usize) -> Vec<f32> {
    let all = permutations(n);
    let mut rest = matrix.to_vec();
    let mut weights = vec![0.0; all.len()];
    let weight = |rest: &[f64], permutation: &[usize]| {
        permutation.iter().enumerate().map(|(i, &j)| rest[i * n + j]).fold(f64::INFINITY, f64::min)
    };
    // Each of them leaves a zero where there was none.
    for _ in 0..=n * n {
        let largest = (0..all.len())
            .map(|k| (k, weight(&rest, &all[k])))
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .filter(|&(_, weight)| weight > REST && weight.is_finite());
        let Some((k, weight)) = largest else { break };
        weights[k] += weight;
        all[k].iter().enumerate().for_each(|(i, &j)| rest[i * n + j] -= weight);
    }
    weights
        .iter()
        .map(|&weight| if weight > 0.0 { weight.ln() as f32 } else { NO_WEIGHT })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubly_stochastic_matrix_is_taken_apart_and_comes_back() {
        let n = 4;
        let matrices = permutation_matrices(n);
        // More permutations than are needed, with weights that add up to one.
        let weights: Vec<f64> = (0..24).map(|k| f64::from(k * k % 7) / 78.0).collect();
        let all: f64 = weights.iter().sum();
        let mix = |weights: &[f64]| -> Vec<f64> {
            (0..n * n)
                .map(|e| {
                    let part = |k: usize| weights[k] * f64::from(matrices[k * n * n + e]);
                    (0..24).map(part).sum()
                })
                .collect()
        };
        let wanted = mix(&weights.iter().map(|weight| weight / all).collect::<Vec<_>>());
        let exps: Vec<f64> =
            logits_of(&wanted, n).iter().map(|&logit| f64::from(logit).exp()).collect();
        let sum: f64 = exps.iter().sum();
        let found = mix(&exps.iter().map(|exp| exp / sum).collect::<Vec<_>>());
        for (found, wanted) in found.iter().zip(&wanted) {
            assert!((found - wanted).abs() < 1e-6, "{found} is not {wanted}");
        }
        let identity: Vec<f64> = (0..9).map(|k| if k / 3 == k % 3 { 1.0 } else { 0.0 }).collect();
        let logits = logits_of(&identity, 3);
        assert_eq!(logits, [0.0, NO_WEIGHT, NO_WEIGHT, NO_WEIGHT, NO_WEIGHT, NO_WEIGHT]);
    }

    #[test]
    fn permutations_are_lexicographic_and_complete() {
        let all = permutations(4);
        assert_eq!(all.len(), 24);
        assert_eq!(all[0], [0, 1, 2, 3]);
        assert_eq!(all[1], [0, 1, 3, 2]);
        assert_eq!(all[23], [3, 2, 1, 0]);
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn rows_of_a_permutation_matrix_point_at_its_targets() {
        // The permutation 1, 2, 0 is the fourth of three.
        let matrix = &permutation_matrices(3)[3 * 9..4 * 9];
        assert_eq!(matrix, [0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    }
}
