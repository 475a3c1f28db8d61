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

#[cfg(test)]
mod tests {
    use super::*;

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
