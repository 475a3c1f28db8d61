//! Linear equations with a symmetric, positive matrix.

use rayon::prelude::*;

/// The lower factor L of `A = L L^T`, `[n, n]`; what is above its diagonal means nothing.
pub(crate) struct Cholesky(pub(crate) Vec<f64>);

/// None if the matrix is not positive.
pub(crate) fn cholesky(mut a: Vec<f64>, n: usize) -> Option<Cholesky> {
    for j in 0..n {
        let (above, below) = a.split_at_mut((j + 1) * n);
        let row = &mut above[j * n..];
        let pivot = row[j] - row[..j].iter().map(|x| x * x).sum::<f64>();
        if !(pivot > 0.0 && pivot.is_finite()) {
            return None;
        }
        row[j] = pivot.sqrt();
        let row = &*row;
        below.par_chunks_mut(n).for_each(|other| {
            let along: f64 = row[..j].iter().zip(&other[..j]).map(|(x, y)| x * y).sum();
            other[j] = (other[j] - along) / row[j];
        });
    }
    Some(Cholesky(a))
}

impl Cholesky {
    /// Solves `A X = B` in the place of B, `[n, columns]`.
    pub(crate) fn solve(&self, b: &mut [f64], columns: usize) {
        let n = b.len() / columns.max(1);
        let factor = |i: usize, j: usize| self.0[i * n + j];
        for i in 0..n {
            let (above, below) = b.split_at_mut(i * columns);
            let row = &mut below[..columns];
            for (j, known) in above.chunks(columns).enumerate() {
                let l = factor(i, j);
                row.iter_mut().zip(known).for_each(|(x, y)| *x -= l * y);
            }
            row.iter_mut().for_each(|x| *x /= factor(i, i));
        }
        for i in (0..n).rev() {
            let (above, below) = b.split_at_mut((i + 1) * columns);
            let row = &mut above[i * columns..];
            for (j, known) in below.chunks(columns).enumerate() {
                let l = factor(i + 1 + j, i);
                row.iter_mut().zip(known).for_each(|(x, y)| *x -= l * y);
            }
            row.iter_mut().for_each(|x| *x /= factor(i, i));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_solved_solves_the_equations() {
        // M^T M of a matrix of full rank.
        let (n, columns) = (7, 3);
        let m: Vec<f64> = (0..n * n)
            .map(|k| {
                ((k * k * 7 + 3 * k) % 13) as f64 + f64::from(u8::from(k % (n + 1) == 0)) * 9.0
            })
            .collect();
        let at = |i: usize, j: usize| (0..n).map(|k| m[k * n + i] * m[k * n + j]).sum::<f64>();
        let a: Vec<f64> = (0..n * n).map(|k| at(k / n, k % n)).collect();
        let b: Vec<f64> = (0..n * columns).map(|k| (k % 5) as f64 - 1.5).collect();
        let mut x = b.clone();
        cholesky(a.clone(), n).unwrap().solve(&mut x, columns);
        for i in 0..n {
            for c in 0..columns {
                let found: f64 = (0..n).map(|j| a[i * n + j] * x[j * columns + c]).sum();
                assert!((found - b[i * columns + c]).abs() < 1e-8, "{found}");
            }
        }
        assert!(cholesky(vec![1.0, 2.0, 2.0, 1.0], 2).is_none());
    }
}
