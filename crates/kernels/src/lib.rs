//! The operations in which all models spend their time.
//!
//! Each exists twice: fused, as a call of `hadal-cpu`'s kernels with their own backward pass, and plain, as
//! tensor operations that any Burn backend runs and that define what is computed. Small ones have both forms
//! here; the plain form of attention is in `hadal-model`, and that of a junction is a policy's `read` and
//! `write`. The fused form is taken wherever tensors live on the Flex backend, unless [`plainly`] forbids
//! it; tests hold the two together. On Burn's CubeCL backends what happens between sub-layers has a third form, kernels of
//! our own in `cube`; tests hold them to the plain form, too.
//!
//! Matrix products round their operands as [`with_precision`] says. The scope in which an operation is recorded decides for
//! its backward pass too.

mod attention;
mod bridge;
#[cfg(feature = "gpu")]
mod cube;
mod embed;
mod junction;
mod linear;
mod lock;
mod loss;
mod mlp;
mod path;
mod product;
mod read_back;
mod rms;
mod route;
mod seen;
mod step;
mod streams;
mod tensors;
mod total;

pub use attention::{
    Asking, AttentionCall, AttentionShape, AttentionWeights, DepthSlots, FirstValues, HeadGains,
    Keys, Projections, RopeTables, attention, continued_attention, mix_heads, mix_values,
    project_heads,
};
pub use bridge::lend;
pub use embed::embed;
pub use hadal_cpu::{Precision, Route, Rows};
pub use junction::Junctions;
pub use linear::linear;
pub use loss::{Targets, head_loss};
pub use mlp::{MlpBiases, MlpWeights, mlp};
pub use path::{
    Planes, cube_calls, fused_calls, fuses, plainly, precision, takes_cubes, with_planes,
    with_precision,
};
pub use product::{has_bf16, matmul};
pub use read_back::{ReadBackError, read_back};
pub use rms::{inverse_rms, rms, rms_norm, root_mean_square};
pub use route::{gather, indices, scatter};
pub use seen::{SeenRows, SeenTokens};
pub use step::{AttentionStep, LinearStep, MlpStep, Room, ValueStep};
pub use streams::{
    GateWeights, MOST_GATED_STREAMS, MOST_POOLED_GROUPS, gated_write, mix_streams,
    pool_and_gate_streams, pool_sources, pool_streams, read_streams, turn, turning_part,
};
pub use tensors::{change_values, take_gradient};
pub use total::total;
