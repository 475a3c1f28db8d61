//! What is shown of runs: figures, statistics, run folders as data, and pages. No tensors.

pub mod comparison;
pub mod figure;
pub mod find;
pub mod page;
pub mod palette;
pub mod provenance;
pub mod run;
pub mod statistics;
pub mod suite;
mod words;
