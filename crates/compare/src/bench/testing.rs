//! A model that is quick to build and to run.

use super::job::{Activity, Job, SkipRate};
use super::shape::Shape;
use hadal_model::{Device, ModelConfig, Precision};
use hadal_residual::Memory;

/// Training of a tiny model with this policy.
pub(super) fn job(policy: &str) -> Job {
    let model = ModelConfig {
        vocab_size: 19,
        d_model: 16,
        n_layers: 3,
        n_heads: 2,
        n_kv_heads: 2,
        head_dim: 8,
        d_ff: 32,
        ..Shape::standard().model(Some(&policy.parse().unwrap()), 8)
    };
    Job {
        model,
        activity: Activity::Training,
        batch: 2,
        seq: 8,
        threads: 2,
        plain: false,
        precision: Precision::F32,
        memory: Memory::default(),
        skip: SkipRate::Unasked,
        device: Device::flex(),
    }
}
