//! Singular values of small and middle-sized matrices, and ranks that follow from them.

/// Rounds of the QL iteration for one eigenvalue; a handful is usual.
const ROUNDS: usize = 200;

/// Eigenvalues of a symmetric matrix `[n, n]`, in no order: Householder's tridiagonal form, then QL with implicit shifts.
pub(crate) fn eigenvalues(mut a: Vec<f64>, n: usize) -> Vec<f64> {
    let (mut diagonal, mut beside) = (vec![0.0; n], vec![0.0; n]);
    for i in (1..n).rev() {
        let scale: f64 = (0..i).map(|k| a[i * n + k].abs()).sum();
        if i == 1 || scale == 0.0 {
            beside[i] = a[i * n + i - 1];
            continue;
        }
        let mut square = 0.0;
        for k in 0..i {
            a[i * n + k] /= scale;
            square += a[i * n + k] * a[i * n + k];
        }
        let last = a[i * n + i - 1];
        let root = -square.sqrt().copysign(last);
        beside[i] = scale * root;
        square -= last * root;
        a[i * n + i - 1] = last - root;
        let mut along = 0.0;
        for j in 0..i {
            let below: f64 = (0..=j).map(|k| a[j * n + k] * a[i * n + k]).sum();
            let above: f64 = (j + 1..i).map(|k| a[k * n + j] * a[i * n + k]).sum();
            beside[j] = (below + above) / square;
            along += beside[j] * a[i * n + j];
        }
        let half = along / (2.0 * square);
        for j in 0..i {
            let f = a[i * n + j];
            let g = beside[j] - half * f;
            beside[j] = g;
            for k in 0..=j {
                a[j * n + k] -= f * beside[k] + g * a[i * n + k];
            }
        }
    }
    (0..n).for_each(|i| diagonal[i] = a[i * n + i]);
    beside.rotate_left(1.min(n));
    tridiagonal(&mut diagonal, &mut beside);
    diagonal
}

/// QL with implicit shifts; `beside[i]` stands between places i and i + 1.
fn tridiagonal(d: &mut [f64], e: &mut [f64]) {
    let n = d.len();
    if let Some(last) = e.last_mut() {
        *last = 0.0;
    }
    for l in 0..n {
        for _ in 0..ROUNDS {
            let small = |m: usize| {
                e[m].abs() <= f64::EPSILON * (d[m].abs() + d[m + 1].abs()) || e[m] == 0.0
            };
            let m = (l..n - 1).find(|&m| small(m)).unwrap_or(n - 1);
            if m == l {
                break;
            }
            let mut g = (d[l + 1] - d[l]) / (2.0 * e[l]);
            let mut r = g.hypot(1.0);
            g = d[m] - d[l] + e[l] / (g + r.copysign(g));
            let (mut s, mut c, mut p) = (1.0, 1.0, 0.0);
            let mut cut = false;
            for i in (l..m).rev() {
                let (f, b) = (s * e[i], c * e[i]);
                r = f.hypot(g);
                e[i + 1] = r;
                if r == 0.0 {
                    d[i + 1] -= p;
                    e[m] = 0.0;
                    cut = true;
                    break;
                }
                (s, c) = (f / r, g / r);
                g = d[i + 1] - p;
                r = (d[i] - g) * s + 2.0 * c * b;
                p = s * r;
                d[i + 1] = g + p;
                g = c * r - b;
            }
            if !cut {
                d[l] -= p;
                e[l] = g;
                e[m] = 0.0;
            }
        }
    }
}

/// Singular values of a matrix `[rows, columns]`, the largest first. Those below about 1e-8 of the largest are noise.
pub(crate) fn singular_values(matrix: &[f64], rows: usize, columns: usize) -> Vec<f64> {
    let n = rows.min(columns);
    let at = |i: usize, j: usize| matrix[i * columns + j];
    let mut gram = vec![0.0; n * n];
    if columns <= rows {
        for i in 0..rows {
            let row = &matrix[i * columns..(i + 1) * columns];
            for j in 0..n {
                for k in 0..=j {
                    gram[j * n + k] += row[j] * row[k];
                }
            }
        }
    } else {
        for j in 0..n {
            for k in 0..=j {
                gram[j * n + k] = (0..columns).map(|c| at(j, c) * at(k, c)).sum();
            }
        }
    }
    let mut values: Vec<f64> =
        eigenvalues(gram, n).into_iter().map(|value| value.max(0.0).sqrt()).collect();
    values.sort_unstable_by(|a, b| b.total_cmp(a));
    values
}

/// How many of the values count: `exp(-sum p ln p)` with `p` their shares. None without any.
pub(crate) fn effective(weights: impl Iterator<Item = f64> + Clone) -> Option<f64> {
    let sum: f64 = weights.clone().sum();
    if !(sum > 0.0 && sum.is_finite()) {
        return None;
    }
    let entropy: f64 = weights.map(|w| w / sum).filter(|&p| p > 0.0).map(|p| -p * p.ln()).sum();
    Some(entropy.exp())
}

/// The other common count: `1 / sum p^2`.
pub(crate) fn participation(weights: impl Iterator<Item = f64> + Clone) -> Option<f64> {
    let sum: f64 = weights.clone().sum();
    if !(sum > 0.0 && sum.is_finite()) {
        return None;
    }
    Some(1.0 / weights.map(|w| (w / sum) * (w / sum)).sum::<f64>())
}

/// Ranks of a matrix by its singular values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ranks {
    /// `sum s^2 / s_1^2`
    pub(crate) stable: f64,
    /// Entropy of `s^2 / sum s^2`.
    pub(crate) of_squares: f64,
    /// Entropy of `s / sum s`.
    pub(crate) of_values: f64,
    /// `sum s / sqrt(sum s^2)`
    pub(crate) ratio: f64,
}

impl Ranks {
    /// None of a matrix of zeros, or of one that is not finite.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let squares = || values.iter().map(|s| s * s);
        let square: f64 = squares().sum();
        let first = values.first()?;
        Some(Self {
            of_squares: effective(squares())?,
            of_values: effective(values.iter().copied())?,
            stable: square / (first * first),
            ratio: values.iter().sum::<f64>() / square.sqrt(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 5e-8, "{found} is not {expected}");
    }

    #[test]
    fn weights_of_the_spec() {
        let w = [0.7, 0.1, 0.1, 0.1];
        near(effective(w.into_iter()).unwrap(), 2.5611285);
        near(participation(w.into_iter()).unwrap(), 1.9230769);
        near(effective([3.0; 4].into_iter()).unwrap(), 4.0);
        near(effective([0.0, 2.0].into_iter()).unwrap(), 1.0);
        assert_eq!(effective([0.0; 3].into_iter()), None);
        assert_eq!(participation([f64::NAN, 1.0].into_iter()), None);
    }

    #[test]
    fn tokens_of_the_spec() {
        let h = [1.0, 2.0, 0.0, 2.0, 1.0, 0.0, 0.0, 0.0, 3.0];
        let values = singular_values(&h, 3, 3);
        for (found, expected) in values.iter().zip([3.0, 3.0, 1.0]) {
            near(*found, expected);
        }
        let ranks = Ranks::of(&values).unwrap();
        near(ranks.stable, 2.1111111);
        near(ranks.of_squares, 2.3699238);
        near(ranks.ratio, 1.6059101);
        assert_eq!(Ranks::of(&[0.0, 0.0]), None);
        assert_eq!(Ranks::of(&[]), None);
    }

    /// A Toeplitz matrix whose eigenvalues are `2 - 2 cos(pi k / (n + 1))`, turned by a reflection.
    #[test]
    fn eigenvalues_of_a_turned_matrix() {
        for n in [1usize, 2, 3, 8, 41] {
            let mut a = vec![0.0; n * n];
            for i in 0..n {
                a[i * n + i] = 2.0;
                if i + 1 < n {
                    a[i * n + i + 1] = -1.0;
                    a[(i + 1) * n + i] = -1.0;
                }
            }
            let v: Vec<f64> = (0..n).map(|i| ((i * i + 3) % 7) as f64 + 0.5).collect();
            let norm: f64 = v.iter().map(|x| x * x).sum();
            let q = |i: usize, j: usize| f64::from(u8::from(i == j)) - 2.0 * v[i] * v[j] / norm;
            let mut turned = vec![0.0; n * n];
            for i in 0..n {
                for j in 0..n {
                    turned[i * n + j] = (0..n)
                        .flat_map(|k| (0..n).map(move |l| (k, l)))
                        .map(|(k, l)| q(i, k) * a[k * n + l] * q(l, j))
                        .sum();
                }
            }
            let mut found = eigenvalues(turned, n);
            found.sort_unstable_by(f64::total_cmp);
            for (k, found) in found.iter().enumerate() {
                let angle = std::f64::consts::PI * (k + 1) as f64 / (n + 1) as f64;
                assert!((found - (2.0 - 2.0 * angle.cos())).abs() < 1e-12, "{n} {k} {found}");
            }
        }
    }

    #[test]
    fn wide_and_tall_matrices_have_the_same_values() {
        let tall: Vec<f64> = (0..15).map(|i| f64::from((i * i + 2) % 7)).collect();
        let wide: Vec<f64> = (0..15).map(|i| tall[i % 5 * 3 + i / 5]).collect();
        let (a, b) = (singular_values(&tall, 5, 3), singular_values(&wide, 3, 5));
        assert_eq!(a.len(), 3);
        a.iter().zip(&b).for_each(|(a, b)| near(*a, *b));
    }
}
