//! At which level a difference may be tested when it is looked at several times.
//!
//! A spending function says how much of the error may be used up when a share of all pairs is there (Lan and DeMets,
//! Biometrika 70, 1983). The level of a look is that at which a new, false discovery has just the probability that is
//! spent there, given that all earlier looks saw nothing. Levels are those of Student's t with the pairs that are there, not
//! of the normal distribution: for few pairs the latter would spend 10 to 20 % more than it should.
//!
//! Without a difference, the t statistics of growing numbers of pairs are a Markov chain: the sum of squares is
//! independent of the direction `c = mean sqrt(n) / sqrt(sum of squares)` and of all earlier ones. With an angle `a`,
//! `c = sin a` and `t = sqrt(n-1) tan a`, another pair brings
//!
//! ```text
//! sin a' = (sqrt(n) sin a cos f + sin f) / sqrt(n + 1),    f like an angle of n + 1 pairs, independent of a
//! ```
//!
//! So one distribution over `|t|`, in narrow cells, is carried from pair to pair; there is no simulation and no table.
//! What is approximate: the width of the cells (the test holds the error to 1 %), and that differences are normal, as
//! every t test has it.

use super::{normal, student};
use serde::{Deserialize, Serialize};
use std::f64::consts::FRAC_PI_2;

/// How the error is spent over the looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spending {
    /// `a ln(1 + (e - 1) s)` at a share `s` of all pairs: about the same level at every look. The default: with few
    /// seeds a first look that spends next to nothing could decide nothing.
    #[default]
    Pocock,
    /// `4 (1 - F(F^-1(1 - a/4) / sqrt(s)))`: very little at first, nearly all of it at the end.
    ObrienFleming,
}

impl Spending {
    /// What may be spent of `alpha`, two-sided, when this share of all pairs is there.
    pub fn spent(self, alpha: f64, share: f64) -> f64 {
        let share = share.clamp(0.0, 1.0);
        let spent = match self {
            Self::Pocock => alpha * (share * (std::f64::consts::E - 1.0)).ln_1p(),
            Self::ObrienFleming if share == 0.0 => 0.0,
            Self::ObrienFleming => {
                2.0 * normal::two_sided(normal::distance(alpha / 2.0) / share.sqrt())
            }
        };
        spent.min(alpha)
    }
}

/// Cells in units of a normal deviate, and how many of them; the last one takes all that lies beyond.
const WIDTH: f64 = 0.025;
const CELLS: usize = 300;
/// Errors for which levels are computed; those between are interpolated.
const ERRORS: usize = 96;
const LEAST: f64 = 1e-12;

/// The levels of looks after these numbers of pairs, for any error.
#[derive(Clone, Debug)]
pub(super) struct Boundary {
    /// Logarithms of errors, rising to that of one.
    errors: Vec<f64>,
    /// For each of them, the logarithms of the levels of all looks.
    levels: Vec<Vec<f64>>,
}

impl Boundary {
    /// Looks after rising numbers of pairs, two or more, of which there would be `most`.
    pub(super) fn new(pairs: &[usize], most: usize, spending: Spending) -> Self {
        let errors: Vec<f64> =
            (0..ERRORS).map(|i| LEAST.ln() * (1.0 - i as f64 / (ERRORS - 1) as f64)).collect();
        let chain = Chain::new(pairs);
        let levels = errors.iter().map(|error| {
            let spent = |n: usize| spending.spent(error.exp(), n as f64 / most.max(1) as f64);
            let spent: Vec<f64> = pairs.iter().map(|&n| spent(n)).collect();
            chain.levels(pairs, &spent).into_iter().map(f64::ln).collect()
        });
        Self { levels: levels.collect(), errors }
    }

    /// The level of a look if the error is `alpha` in all.
    pub(super) fn level(&self, look: usize, alpha: f64) -> f64 {
        let at = alpha.ln().clamp(self.errors[0], 0.0);
        let above = self.errors.partition_point(|&error| error < at).clamp(1, ERRORS - 1);
        let (low, high) = (self.errors[above - 1], self.errors[above]);
        let part = (at - low) / (high - low);
        let (low, high) = (self.levels[above - 1][look], self.levels[above][look]);
        (low + part * (high - low)).exp().min(1.0)
    }

    /// The smallest error at which a look that finds `p` would be a discovery.
    pub(super) fn error(&self, look: usize, p: f64) -> f64 {
        if p.is_nan() || p >= 1.0 {
            return 1.0;
        }
        let (mut low, mut high) = (self.errors[0], 0.0);
        if self.level(look, low.exp()) >= p {
            return low.exp();
        }
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if self.level(look, middle.exp()) < p { low = middle } else { high = middle }
        }
        high.exp()
    }
}

/// How `|t|` moves from pair to pair.
#[derive(Debug)]
struct Chain {
    /// From which number of pairs.
    first: usize,
    /// For each pair more, where each cell's probability goes: rows of [`CELLS`].
    steps: Vec<Vec<f64>>,
}

impl Chain {
    fn new(pairs: &[usize]) -> Self {
        let (first, last) =
            (pairs.first().copied().unwrap_or(2), pairs.last().copied().unwrap_or(2));
        let edges: Vec<f64> = (0..=CELLS).map(|i| normal::two_sided(WIDTH * i as f64)).collect();
        let middles: Vec<f64> =
            (0..CELLS).map(|i| normal::two_sided(WIDTH * (i as f64 + 0.5))).collect();
        let mut from = Angles::of(first);
        let mut steps = Vec::new();
        for n in first..last {
            let to = Angles::of(n + 1);
            let (root, next) = ((n as f64).sqrt(), ((n + 1) as f64).sqrt());
            let ends: Vec<f64> = edges.iter().map(|&tail| to.distance(tail).cos()).collect();
            let mut step = Vec::with_capacity(CELLS * CELLS);
            for &tail in &middles {
                let reach = root * from.distance(tail).cos();
                let (turn, length) = (reach.atan(), reach.hypot(1.0));
                // The probability of at most this sine.
                let below = |sine: f64| {
                    let y = sine * next / length;
                    if y >= 1.0 || y <= -1.0 {
                        return if y > 0.0 { 1.0 } else { 0.0 };
                    }
                    let angle = y.asin();
                    to.below(angle - turn) + 1.0 - to.below(std::f64::consts::PI - angle - turn)
                };
                let within: Vec<f64> = ends.iter().map(|&end| below(end) - below(-end)).collect();
                step.extend((0..CELLS).map(|cell| {
                    let to = if cell + 1 == CELLS { 1.0 } else { within[cell + 1] };
                    (to - within[cell]).max(0.0)
                }));
            }
            steps.push(step);
            from = to;
        }
        Self { first, steps }
    }

    /// The levels of looks that spend so much, all in all, up to each of them.
    fn levels(&self, pairs: &[usize], spent: &[f64]) -> Vec<f64> {
        let edge = |i: usize| normal::two_sided(WIDTH * i as f64);
        let mut share: Vec<f64> =
            (0..CELLS).map(|i| edge(i) - if i + 1 == CELLS { 0.0 } else { edge(i + 1) }).collect();
        let (mut before, mut at) = (0.0, self.first);
        let mut levels = Vec::new();
        for (&n, &spent) in pairs.iter().zip(spent) {
            while at < n {
                share = self.step(at, &share);
                at += 1;
            }
            let mut left = (spent - before).max(0.0);
            before = before.max(spent);
            // From the outermost cell inwards, until all of it is spent.
            let mut bound = 0.0;
            for cell in (0..CELLS).rev() {
                if share[cell] > left {
                    let part = left / share[cell];
                    share[cell] -= left;
                    bound = cell as f64 + 1.0 - part;
                    break;
                }
                left -= share[cell];
                share[cell] = 0.0;
            }
            levels.push(normal::two_sided(WIDTH * bound).max(f64::MIN_POSITIVE));
        }
        levels
    }

    fn step(&self, at: usize, share: &[f64]) -> Vec<f64> {
        let mut next = vec![0.0; CELLS];
        for (row, &share) in self.steps[at - self.first].chunks(CELLS).zip(share) {
            if share > 0.0 {
                next.iter_mut().zip(row).for_each(|(next, part)| *next += share * part);
            }
        }
        next
    }
}

/// The angles of `n` pairs, of density `cos^(n-2)`, as a table: `P(|a| >= pi/2 - d)` at rising distances `d`.
#[derive(Debug)]
struct Angles {
    /// Logarithms of the probabilities.
    tails: Vec<f64>,
}

/// Points of the table, evenly spaced in the logarithm of the distance.
const POINTS: usize = 3000;
const NEAREST: f64 = 1e-14;

impl Angles {
    fn of(n: usize) -> Self {
        let degrees = (n - 1) as f64;
        let tail = |i: usize| {
            let distance = Self::point(i as f64);
            student::two_sided(degrees.sqrt() / distance.tan(), degrees).max(1e-300).ln()
        };
        Self { tails: (0..POINTS).map(tail).collect() }
    }

    fn point(i: f64) -> f64 {
        FRAC_PI_2 * (NEAREST.ln() * (1.0 - i / (POINTS - 1) as f64)).exp()
    }

    /// How far from a right angle this much probability lies beyond.
    fn distance(&self, tail: f64) -> f64 {
        let tail = tail.ln();
        let above = self.tails.partition_point(|&known| known < tail).clamp(1, POINTS - 1);
        let (low, high) = (self.tails[above - 1], self.tails[above]);
        let part = if high > low { ((tail - low) / (high - low)).clamp(0.0, 1.0) } else { 1.0 };
        Self::point((above - 1) as f64 + part)
    }

    /// Probability of an angle at most this one.
    fn below(&self, angle: f64) -> f64 {
        let distance = FRAC_PI_2 - angle.abs();
        let tail = if distance <= 0.0 {
            0.0
        } else {
            let place = 1.0 - (distance / FRAC_PI_2).ln() / NEAREST.ln();
            let place = (place * (POINTS - 1) as f64).clamp(0.0, (POINTS - 1) as f64);
            let low = (place.floor() as usize).min(POINTS - 2);
            let part = place - low as f64;
            (self.tails[low] + part * (self.tails[low + 1] - self.tails[low])).exp()
        };
        if angle > 0.0 { 1.0 - tail / 2.0 } else { tail / 2.0 }
    }
}
