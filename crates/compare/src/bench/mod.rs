//! How fast a model trains and writes on this machine, and how much memory it takes.
//!
//! Every policy runs in a process of its own ([`serve()`]), so that its peak memory is its own; the
//! parent ([`alternate()`]) asks them for one step after another in turn, so that a noisy neighbour
//! disturbs all of them alike. Both sides speak lines of JSON ([`protocol`]), which any other
//! program can speak too: `benches/pytorch` does.

mod alternate;
mod decode;
mod error;
mod job;
mod peak;
pub mod protocol;
mod report;
mod serve;
mod shape;
mod skip;
mod step;
#[cfg(test)]
mod testing;
mod tokens;
mod weights;
mod worker;

pub use alternate::{Measured, WARM_UP, alternate};
pub use decode::{DECODED, contexts};
pub use error::BenchError;
pub use job::{Activity, Job, SkipRate};
pub use report::{ContextReport, DecodeReport, TrainingReport};
pub use serve::serve;
pub use shape::{Shape, VOCABULARY};
pub use skip::SkipReport;
