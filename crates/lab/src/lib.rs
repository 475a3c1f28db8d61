//! What is done with models: proving that they compute what the papers say, training and comparing
//! them, looking into them, and measuring how fast they are.

pub mod bench;
pub mod compare;
pub mod data;
pub mod diagnose;
pub mod hub;
pub mod optim;
mod parity;
pub mod perplexity;
pub mod pool;
pub mod prune;
pub mod skip;
mod splitmix;
pub mod tasks;
pub mod train;

pub use parity::{
    Comparison, DEFAULT_TOLERANCE, GRADIENT_FLOOR, ParityError, ParityReport, parity,
};
