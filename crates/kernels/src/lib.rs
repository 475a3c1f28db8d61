//! The operations that all models spend their time in, one file each.
//!
//! So far they are plain tensor operations that any Burn backend runs. A fused form joins its plain
//! twin in the same file, and the tests hold the two together: the fused form is never the only
//! definition of what is computed.

mod rms;

pub use rms::{inverse_rms, rms};
