//! Seeds until a comparison is decided: looks that were planned, and what each of them may conclude.
//!
//! Adding seeds until something is significant finds differences that are not there: with four looks at 5 % in one of
//! seven comparisons of equals. Here the looks are planned before the first run, and share one error ([`Spending`]).
//!
//! A comparison's sequential p-value is the smallest error at which some look so far would have been a discovery (Liu and
//! Anderson, J. Am. Stat. Assoc. 103, 2008). It is a p-value, whenever one stops; so [`super::holm`] corrects for several
//! comparisons as usual, and passes on the error of those that are decided (Ye et al., Stat. Med. 32, 2013). It never
//! rises, so what is decided stays so.

use super::boundary::{Boundary, Spending};
use super::{Better, LEVEL, Paired, Verdict, judged, student};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// When seeds are looked at, and which error all looks share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The first seed; the others follow it.
    pub first: u64,
    /// After how many seeds there is a look, rising. The last is the most that are run.
    pub looks: Vec<usize>,
    /// The chance of even one false discovery, over all looks and comparisons.
    pub alpha: f64,
    /// How it is spent.
    pub spending: Spending,
}

/// With more seeds their levels would take long to compute, and nobody trains as many.
const MOST: usize = 100;

impl Rule {
    /// Refuses looks that decide nothing, with the key of a suite and what is wrong with it.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let first = self.looks.first().copied().unwrap_or(0);
        if first < 2 {
            return Err(("first", format!("is {first}; a test needs two seeds or more")));
        }
        if self.looks.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(("every", "must lead from one look to a later one".into()));
        }
        if self.most() > MOST {
            return Err(("most", format!("is {}; write {MOST} or less", self.most())));
        }
        if !(self.alpha >= 1e-6 && self.alpha <= 0.5) {
            return Err(("alpha", format!("is {}; write 0.05, or 0.000001 to 0.5", self.alpha)));
        }
        Ok(())
    }

    /// The most seeds that are run.
    pub fn most(&self) -> usize {
        self.looks.last().copied().unwrap_or(0)
    }

    /// All seeds that may be run, in their order.
    pub fn seeds(&self) -> Vec<u64> {
        (0..self.most() as u64).map(|seed| self.first.saturating_add(seed)).collect()
    }
}

/// One look at one comparison.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Look {
    /// Seeds that were run.
    pub seeds: usize,
    /// Pairs that count; a run that diverged has none.
    pub pairs: usize,
    /// Their mean difference.
    pub mean_difference: f64,
    /// The t test's p-value with these pairs.
    pub p: f64,
    /// The level at which this comparison is tested if all others are undecided: Holm's correction can only raise it.
    pub level: f64,
}

/// A comparison under a rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sequential {
    /// Looks so far that had new pairs.
    pub looks: Vec<Look>,
    /// The sequential p-value; `None` before the first look.
    pub p: Option<f64>,
    /// The level of the last look (or the first, if there was none) for an error of 5 % in this comparison alone: that of
    /// its interval, whatever the rule's error is.
    #[serde(skip)]
    pub interval_level: Option<f64>,
}

/// Tests comparisons under a rule. Levels of the same numbers of pairs are computed once.
#[derive(Debug)]
pub struct Looks<'a> {
    rule: &'a Rule,
    /// Looks that were taken.
    taken: usize,
    comparisons: usize,
    known: RefCell<BTreeMap<Vec<usize>, Rc<Boundary>>>,
}

impl<'a> Looks<'a> {
    /// After so many looks at so many comparisons.
    pub fn new(rule: &'a Rule, taken: usize, comparisons: usize) -> Self {
        let taken = taken.min(rule.looks.len());
        Self { rule, taken, comparisons: comparisons.max(1), known: RefCell::default() }
    }

    /// Tests the differences of the seeds that count.
    pub fn test(&self, differences: &[(u64, f64)]) -> Sequential {
        let mut looks: Vec<(usize, Vec<f64>)> = Vec::new();
        for &seeds in &self.rule.looks[..self.taken] {
            let is_seen =
                |seed: u64| seed.checked_sub(self.rule.first).is_some_and(|at| at < seeds as u64);
            let seen =
                differences.iter().filter(|(seed, value)| is_seen(*seed) && value.is_finite());
            let seen: Vec<f64> = seen.map(|(_, value)| *value).collect();
            // A look without a new pair tests nothing.
            if seen.len() >= 2 && looks.last().is_none_or(|(_, before)| seen.len() > before.len()) {
                looks.push((seeds, seen));
            }
        }
        let [_, ..] = &looks[..] else {
            let planned = &self.rule.looks[..self.rule.looks.len().min(1)];
            let first = self.boundary(planned).map(|planned| planned.level(0, LEVEL));
            return Sequential { interval_level: first, ..Sequential::default() };
        };
        let pairs: Vec<usize> = looks.iter().map(|(_, seen)| seen.len()).collect();
        let Some(boundary) = self.boundary(&pairs) else { return Sequential::default() };
        let alone = self.rule.alpha / self.comparisons as f64;
        let mut p = 1.0_f64;
        let looks: Vec<Look> = looks
            .into_iter()
            .enumerate()
            .map(|(at, (seeds, seen))| {
                let found = p_value(&seen);
                p = p.min(boundary.error(at, found));
                Look {
                    seeds,
                    pairs: seen.len(),
                    mean_difference: super::summary(&seen).mean,
                    p: found,
                    level: boundary.level(at, alone),
                }
            })
            .collect();
        let level = boundary.level(looks.len() - 1, LEVEL);
        Sequential { looks, p: Some(p), interval_level: Some(level) }
    }

    /// The levels of the looks so far for a comparison in which every run counts.
    pub fn levels(&self) -> Vec<f64> {
        let looks = &self.rule.looks[..self.taken];
        let alone = self.rule.alpha / self.comparisons as f64;
        let boundary = self.boundary(looks);
        boundary.map_or_else(Vec::new, |boundary| {
            (0..looks.len()).map(|at| boundary.level(at, alone)).collect()
        })
    }

    fn boundary(&self, pairs: &[usize]) -> Option<Rc<Boundary>> {
        if pairs.first().is_none_or(|&first| first < 2) {
            return None;
        }
        let mut known = self.known.borrow_mut();
        let boundary = known
            .entry(pairs.to_vec())
            .or_insert_with(|| Rc::new(Boundary::new(pairs, self.rule.most(), self.rule.spending)));
        Some(Rc::clone(boundary))
    }
}

impl Sequential {
    /// Judges by [`Sequential::p`] after its correction, at the error of the rule. The side is that of the look with the
    /// smallest p-value: later seeds do not turn a decision round.
    pub fn verdict(&self, paired: &Paired, p: Option<f64>, better: Better, alpha: f64) -> Verdict {
        let decisive = self.looks.iter().min_by(|a, b| a.p.total_cmp(&b.p));
        let judged = decisive.zip(p).and_then(|(look, p)| {
            judged(&Paired { mean_difference: look.mean_difference, ..*paired }, p, better, alpha)
        });
        match paired.n {
            0 => Verdict::NothingToCompare,
            _ => judged.unwrap_or(Verdict::Undecided),
        }
    }

    /// The 95 % interval of the mean that holds at all looks together: repeated confidence intervals (Jennison and Turnbull,
    /// J. R. Stat. Soc. B 51, 1989).
    pub fn interval(&self, paired: &Paired) -> Option<(f64, f64)> {
        let (sd, level) = (paired.sd?, self.interval_level?);
        let n = paired.n as f64;
        let half = student::quantile(1.0 - level / 2.0, n - 1.0) * sd / n.sqrt();
        let mean = paired.mean_difference;
        Some((mean - half, mean + half))
    }
}

/// Of the t test that the mean is zero.
fn p_value(values: &[f64]) -> f64 {
    let super::Summary { n, mean, sd, .. } = super::summary(values);
    match mean.abs() / (sd.unwrap_or(f64::NAN) / (n as f64).sqrt()) {
        t if t.is_nan() => 1.0,
        t => student::two_sided(t, (n - 1) as f64),
    }
}

#[cfg(test)]
mod tests;
