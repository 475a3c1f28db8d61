//! Operations that deserve one pass over memory.
//!
//! One file per operation. Each has a plain-tensor twin that any Burn backend runs, and the tests
//! hold the two together: the fused form is never the only definition of what is computed.

mod rms;

pub use rms::{inverse_rms, rms};
