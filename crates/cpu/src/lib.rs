//! f32 kernels over slices: no tensors, no graph.
//!
//! Matrix products can take their operands with fewer bits: see [`Precision`].
//!
//! Every kernel comes as a forward and a hand-written backward. They are plain loops that the compiler
//! vectorises, compiled for any CPU, for AVX2 with FMA and for AVX-512, and chosen at run time. Work is
//! split by token tiles of fixed size, and partial sums are added in the order of the tiles, so results
//! do not depend on the number of threads.

#[macro_use]
mod pieces;
#[macro_use]
mod simd;
pub mod attention;
pub mod bias;
mod buffer;
mod gemm;
mod lent;
pub mod linear;
pub mod loss;
pub mod machine;
pub mod mlp;
pub mod muon;
pub mod norm;
mod parallel;
pub mod peak;
pub mod pool;
mod precision;
mod route;
mod row;
mod rows;
pub mod splitmix;
pub mod streams;
pub mod update;
pub mod value_mix;
pub mod vector;
pub mod work;

#[cfg(test)]
mod testing;

pub use gemm::Unit;
pub use precision::{Precision, bf16, split};
pub use route::Route;
pub use rows::{Rows, Values};
pub use simd::{Form, HasAvx2, HasAvx512};
