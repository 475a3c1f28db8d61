//! Which point of a grid is the best, and whether the grid was wide enough to know.

use super::grid::{Axis, GridPoint};
use crate::results::RunResult;
use serde::Serialize;

/// The best value is the last of its grid: beyond it may be a better one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Edge {
    /// The key.
    pub key: String,
    /// The value.
    pub value: f64,
    /// Which end of the grid it is.
    pub side: Side,
    /// A value beyond it, as far from it as its neighbour.
    pub next: f64,
}

/// An end of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The smallest value.
    Lowest,
    /// The largest value.
    Highest,
}

/// The mean held-out loss over seeds; none unless all runs count, so that a point that fails on a seed is the worst.
pub(crate) fn mean_loss(runs: &[RunResult]) -> Option<f64> {
    let losses: Option<Vec<f64>> =
        runs.iter().map(|run| run.validation_loss.filter(|_| run.counts())).collect();
    let losses = losses.filter(|losses| !losses.is_empty())?;
    Some(losses.iter().sum::<f64>() / losses.len() as f64)
}

/// Points with a loss, the lowest first. Of equal ones the earlier is first.
pub(crate) fn ranked(losses: &[Option<f64>]) -> Vec<usize> {
    let mut known: Vec<(usize, f64)> =
        losses.iter().enumerate().filter_map(|(at, loss)| Some((at, (*loss)?))).collect();
    known.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    known.into_iter().map(|(at, _)| at).collect()
}

/// Keys whose best value is an end of their grid. One value is no grid, and nothing lies below zero.
pub(crate) fn edges(axes: &[Axis], best: &GridPoint) -> Vec<Edge> {
    let edge = |axis: &Axis| {
        let mut numbers = axis.numbers()?;
        numbers.sort_by(f64::total_cmp);
        let value = best.number(&axis.key)?;
        let [low, second, ..] = numbers[..] else { return None };
        let [.., before, high] = numbers[..] else { return None };
        let (side, next) = if value == high {
            (Side::Highest, beyond(before, high))
        } else if value == low && value != 0.0 {
            (Side::Lowest, beyond(second, low))
        } else {
            return None;
        };
        Some(Edge { key: axis.key.clone(), value, side, next })
    };
    axes.iter().filter_map(edge).collect()
}

/// One more step in the direction of the last: by the same factor, or by the same distance where there is none.
fn beyond(inner: f64, outer: f64) -> f64 {
    let next = if inner > 0.0 && outer > 0.0 { outer * outer / inner } else { 2.0 * outer - inner };
    // Two digits are what people write.
    format!("{next:.1e}").parse().unwrap_or(next)
}
