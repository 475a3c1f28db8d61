//! What is done with models: so far, proving that they compute what the papers say.

mod parity;

pub use parity::{
    Comparison, DEFAULT_TOLERANCE, GRADIENT_FLOOR, ParityError, ParityReport, parity,
};
