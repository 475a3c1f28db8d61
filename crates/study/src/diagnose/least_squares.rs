//! A vector as a weighted sum of others that come one after another.

/// A source whose part of its own is less than this share of its square adds nothing that can be told.
const DEPENDENT: f64 = 1e-9;
/// Rounding of a reading, relative to its norm, with room to spare.
const ROUNDING: f64 = 1e-6;
/// A weight is certain if rounding moves it by less than this.
const CERTAIN: f64 = 0.02;

/// The sources so far, and the inverse of the matrix of their cosines. It grows by bordering, so that each of L fits takes
/// L^2 steps and not L^3.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeastSquares {
    sources: Vec<Source>,
    /// `[i][j]`, symmetric.
    inverse: Vec<Vec<f64>>,
}

#[derive(Clone, Debug)]
struct Source {
    name: usize,
    values: Vec<f32>,
    norm: f64,
}

/// A weighted sum.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fit {
    pub(crate) terms: Vec<Term>,
    /// Share of the square that the sum leaves.
    pub(crate) unexplained: f64,
}

/// One source in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Term {
    pub(crate) source: usize,
    pub(crate) weight: f64,
    /// Its part of the square.
    pub(crate) share: f64,
    /// Whether rounding leaves the weight as it is.
    pub(crate) is_certain: bool,
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    // Four sums, so that the processor need not wait for one.
    let mut sums = [0.0; 4];
    let (a, b) = (a.chunks(4), b.chunks(4));
    for (a, b) in a.zip(b) {
        for (sum, (&x, &y)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += f64::from(x) * f64::from(y);
        }
    }
    sums.iter().sum()
}

impl LeastSquares {
    /// Adds a source, unless it is a sum of others or nothing.
    pub(crate) fn add(&mut self, name: usize, values: Vec<f32>) {
        let norm = dot(&values, &values).sqrt();
        if !(norm > 0.0 && norm.is_finite()) {
            return;
        }
        let cosines = self.along(&values, norm);
        let solved = self.solve(&cosines);
        let own = 1.0 - cosines.iter().zip(&solved).map(|(a, b)| a * b).sum::<f64>();
        if own < DEPENDENT {
            return;
        }
        for (row, a) in self.inverse.iter_mut().zip(&solved) {
            row.iter_mut().zip(&solved).for_each(|(entry, b)| *entry += a * b / own);
            row.push(-a / own);
        }
        let last = solved.iter().map(|a| -a / own).chain([1.0 / own]).collect();
        self.inverse.push(last);
        self.sources.push(Source { name, values, norm });
    }

    /// Products with the sources of unit length, over `scale`.
    fn along(&self, values: &[f32], scale: f64) -> Vec<f64> {
        self.sources.iter().map(|s| dot(&s.values, values) / (s.norm * scale)).collect()
    }

    fn solve(&self, right: &[f64]) -> Vec<f64> {
        let row = |row: &Vec<f64>| row.iter().zip(right).map(|(a, b)| a * b).sum();
        self.inverse.iter().map(row).collect()
    }

    /// The weighted sum nearest to these values. None of nothing.
    pub(crate) fn fit(&self, values: &[f32]) -> Option<Fit> {
        let norm = dot(values, values).sqrt();
        if !(norm > 0.0 && norm.is_finite()) || self.sources.is_empty() {
            return None;
        }
        let cosines = self.along(values, norm);
        let weights = self.solve(&cosines);
        let explained: f64 = weights.iter().zip(&cosines).map(|(a, b)| a * b).sum();
        let term = |(i, source): (usize, &Source)| {
            let scale = norm / source.norm;
            let moved = ROUNDING * scale * self.inverse[i][i].max(0.0).sqrt();
            Term {
                source: source.name,
                weight: weights[i] * scale,
                share: weights[i] * cosines[i],
                is_certain: moved < CERTAIN,
            }
        };
        Some(Fit {
            terms: self.sources.iter().enumerate().map(term).collect(),
            unexplained: (1.0 - explained).clamp(0.0, 1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources() -> [Vec<f32>; 3] {
        [
            vec![1.0, 2.0, 0.0, -1.0, 3.0],
            vec![0.5, 1.0, 2.0, 0.0, 1.0],
            vec![2.0, 0.0, 1.0, 1.0, 1.0],
        ]
    }

    fn fitted(values: &[f32]) -> Fit {
        let mut squares = LeastSquares::default();
        sources().into_iter().enumerate().for_each(|(i, source)| squares.add(i, source));
        squares.fit(values).unwrap()
    }

    #[test]
    fn a_weighted_sum_gives_its_weights() {
        let [a, b, c] = sources();
        let sum: Vec<f32> = (0..5).map(|i| 2.0 * a[i] - 0.5 * b[i] + 0.25 * c[i]).collect();
        let fit = fitted(&sum);
        for (term, expected) in fit.terms.iter().zip([2.0, -0.5, 0.25]) {
            assert!((term.weight - expected).abs() < 1e-12 && term.is_certain, "{term:?}");
        }
        assert!(fit.unexplained < 1e-14);
        assert!((fit.terms.iter().map(|term| term.share).sum::<f64>() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn what_is_no_sum_is_left_over() {
        // (0, 0, 0, .., 1) and a source along the first axis: nothing in common.
        let mut squares = LeastSquares::default();
        squares.add(0, vec![2.0, 0.0]);
        let fit = squares.fit(&[3.0, 4.0]).unwrap();
        assert!((fit.terms[0].weight - 1.5).abs() < 1e-12);
        assert!((fit.unexplained - 16.0 / 25.0).abs() < 1e-12);
        assert_eq!(squares.fit(&[0.0, 0.0]), None);
        assert_eq!(LeastSquares::default().fit(&[1.0]), None);
    }

    #[test]
    fn sources_that_say_nothing_new_are_left_out() {
        let mut squares = LeastSquares::default();
        squares.add(0, vec![1.0, 1.0, 0.0]);
        squares.add(1, vec![0.0; 3]);
        squares.add(2, vec![-2.0, -2.0, 0.0]);
        squares.add(3, vec![0.0, 1.0, 1.0]);
        let fit = squares.fit(&[1.0, 3.0, 2.0]).unwrap();
        let names: Vec<usize> = fit.terms.iter().map(|term| term.source).collect();
        assert_eq!(names, [0, 3]);
        assert!((fit.terms[1].weight - 2.0).abs() < 1e-12);
    }

    #[test]
    fn a_tiny_source_has_no_certain_weight() {
        let mut squares = LeastSquares::default();
        squares.add(0, vec![1e3, 0.0]);
        squares.add(1, vec![0.0, 1e-2]);
        let fit = squares.fit(&[1e3, 1e-2]).unwrap();
        assert_eq!(fit.terms.iter().map(|term| term.is_certain).collect::<Vec<_>>(), [true, false]);
    }
}
