//! Fair tuning: every variant enters the table at its own best.
//!
//! `[tune]` in a suite has a grid: keys of a run with a list of values each, `lr_scale` for the learning rate among
//! them. Every point of it is trained on seeds that the table does not use; the point with the lowest mean held-out loss
//! is what the variant's runs in the table are made with. With several rounds only the better points go on to longer
//! runs (successive halving: Jamieson and Talwalkar 2016). DepthBench (2609.32534) tunes the rate in this way for each
//! architecture.
//!
//! The runs are ordinary ones, in `DIR/tune`, and are called by their settings. So a grid that grew reuses what was
//! trained before, and the choice follows from the runs alone: `tune.json` is written, and never read.

mod aside;
mod choice;
mod figures;
mod grid;
mod plan;
mod results;
mod section;
mod stage;
#[cfg(test)]
mod tests;
mod words;

pub use choice::{Edge, Side};
pub use grid::GridPoint;
pub use plan::TuningRound;
pub use results::{Spent, TunedPoint, TunedVariant, Tuning};
pub(crate) use section::{Around, parse};
pub use section::{Per, Tune};
pub(crate) use stage::{Whole, tuned};

/// The folder of tuning runs in a suite's folder.
pub(crate) const FOLDER: &str = "tune";
/// What was chosen, with every point.
pub(crate) const FILE: &str = "tune.json";
