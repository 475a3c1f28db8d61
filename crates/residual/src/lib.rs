//! Residual-stream policies behind one trait.
//!
//! A deep network is a depth state that flows past a row of sub-layers. A [`Residual`] policy decides
//! how a sub-layer reads from that state and how its output is written back; everything else is the
//! same for all policies and does not know which one is running. Each policy has one file with its
//! settings, initial values, equation and module; [`ResidualConfig`] and [`AnyResidual`] are the sums
//! over all of them.

pub mod attnres;
mod birkhoff;
mod config;
pub mod deepnorm;
pub mod denseformer;
mod fused;
pub mod hc;
pub mod highway;
pub mod lns;
pub mod mgr;
pub mod mhc;
pub mod mhc_lite;
pub mod mixln;
pub mod mixture_of_depths;
pub mod nag;
mod norm;
mod policy;
pub mod pool;
pub mod postnorm;
pub mod prenorm;
mod probe;
mod residual;
pub mod siamese;
mod sinkhorn;
mod site;
mod skip;
pub mod streams;
#[cfg(test)]
mod testing;
mod traversal;
mod weights;

pub use config::{AnyResidual, ResidualConfig, ShortFormError};
pub use fused::{Fused, FusedDecode, FusedOptions, Junction, Memory};
pub use norm::RmsNorm;
pub use policy::{About, BASE_STD, Cost, InitialGate, InvalidPolicy, Matrix, PolicyConfig};
pub use probe::{Place, Probe, Recorder, Signal};
pub use residual::{Read, Residual, SubLayers};
pub use site::{Dimensions, Site, SubLayerKind};
pub use skip::{Forced, SkippedKeys, Skipping, StepMode, Thresholds};
pub use traversal::Traversal;
pub use weights::{Declared, Init, Stored, Weights};
