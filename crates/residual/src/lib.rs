//! Residual-stream policies under one trait.
//!
//! A deep network is a depth state that flows past a row of sub-layers. A [`Residual`] policy decides
//! how a sub-layer reads from that state and how its output is written back; everything else is the
//! same for all policies and does not know which one is running. Each policy has one file with its
//! settings, initial values, equation and module; [`ResidualConfig`] and [`AnyResidual`] are the sums
//! over all of them.

mod additive;
mod as_prenorm;
mod averages;
mod birkhoff;
mod config;
mod fused;
mod manifold;
mod nearest;
mod norm;
mod plain_words;
mod policies;
mod policy;
mod pool;
mod probe;
mod residual;
mod sinkhorn;
mod site;
mod skip;
mod streams;
#[cfg(test)]
mod testing;
mod traversal;
mod unset;
mod weights;

pub use as_prenorm::{Chosen, PreNormModel};
pub use config::ShortFormError;
pub use fused::{Fused, FusedDecode, FusedOptions, Junction, Memory};
pub use hadal_cpu::streams::{Footprint, Held};
pub use manifold::StreamReadOut;
pub use nearest::{nearest, unknown};
pub use norm::RmsNorm;
pub use plain_words::plain_words;
pub use policies::{AnyResidual, ResidualConfig, kinds_that};
pub use policy::{
    About, BASE_STD, Cost, Growth, InitialGate, InvalidPolicy, Matrix, Numbering, PolicyConfig,
    RecipeKey, Released, Tables, Update,
};
pub use probe::{Place, Probe, Recorder, Signal};
pub use residual::{Read, Residual, SubLayers};
pub use site::{Dimensions, Site, SubLayerKind};
pub use skip::{Forced, SkippedKeys, Skipping, StepMode, Thresholds};
pub use traversal::Traversal;
pub use weights::{Declared, Init, RowRule, Stored, Weights};
