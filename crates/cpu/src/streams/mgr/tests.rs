//! Against a plain f64 reference, and the oracles G1 to G11 of Multi-Gate Residuals.

mod reference;

use super::*;
use crate::simd::{is_portable, use_portable};
use reference::Chain;
use std::sync::Arc;

const EPS: f32 = 1e-6;
const INVERSION: Memory = Memory::Inversion { share: 0.01 };

fn settings(width: usize, streams: usize, gate: Gate) -> Settings {
    Settings { width, eps: EPS, streams, gate, memory: INVERSION }
}
