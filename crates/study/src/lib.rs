//! Studies of a model: proving that it computes what the papers say, looking into it, making it smaller or
//! faster, and measuring how good it is.

pub mod diagnose;
mod estimate;
mod kept;
mod parity;
pub mod perplexity;
pub mod prune;
mod samples;
mod saved;
pub mod skip;
mod subject;
pub mod timing;
mod words;

pub use estimate::Estimate;
pub use kept::{discard_measurements, measurements_of};
pub use parity::{
    BF16_TOLERANCE, Comparison, DEFAULT_TOLERANCE, GRADIENT_FLOOR, ParityError, ParityReport,
    parity,
};
pub use samples::Samples;
pub(crate) use saved::save_into;
pub use subject::Subject;
