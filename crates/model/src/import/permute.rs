//! llama.cpp rotates neighbouring dimensions together where we rotate halves, and its files of the `llama` architecture
//! have the rows of queries and keys reordered for that.

/// The rows of heads in our order: in each head, row `2j + a` becomes row `a * head_dim / 2 + j`.
pub(super) fn unpermute(values: &[f32], head_dim: usize, columns: usize) -> Vec<f32> {
    let half = head_dim / 2;
    let mut out = Vec::with_capacity(values.len());
    for head in values.chunks_exact(head_dim * columns) {
        for a in 0..2 {
            for j in 0..half {
                let row = (2 * j + a) * columns;
                out.extend_from_slice(&head[row..row + columns]);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_rows_of_a_head_come_first() {
        let values: Vec<f32> = (0..16).map(|x| x as f32).collect();
        let want = [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15].map(|x| x as f32);
        assert_eq!(unpermute(&values, 4, 2), want);
    }
}
