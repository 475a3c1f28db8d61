//! Cutting blocks and sub-layers out of models: what each is worth, which could go, the cut itself, and whether the
//! result is what was promised.
//!
//! Everything is measured by leaving parts out of the one forward pass, so a plan needs no second model. See
//! `docs/prune.md` for the scores and their limits.

mod answer;
mod apply;
mod check;
mod choose;
mod course;
mod error;
mod estimate;
mod fields;
mod figures;
mod file;
mod gguf;
mod halves;
mod hugging_face;
mod keys;
mod ledger;
mod map;
mod measure;
mod mixers;
mod names;
mod own;
mod plan;
mod plan_file;
mod probes;
mod rest;
mod scores;
mod shards;
mod speed;
#[cfg(test)]
mod tests;
mod turns;

pub use crate::{discard_measurements, measurements_of};
pub use answer::answer;
pub use apply::{Manifest, apply, apply_structure_only};
pub use check::{Agreement, Check, CutQuality, check};
pub use choose::{Budget, Method, Options, Score};
pub use error::PruneError;
pub use estimate::{PlanEstimate, estimate};
pub use figures::{figures, write_plan_figures};
pub use file::{FileHash, Source, SourceKind};
pub use halves::MeasuredOn;
pub(crate) use halves::hash_into;
pub use measure::Cost;
pub(crate) use measure::Whole;
pub use mixers::{
    MixerWorth, MixersCut, MixersEstimate, MixersRequest, Prediction, Which, estimate_mixers,
    mixers,
};
pub use plan::{Memory, Outcome, Plan, Request, plan};
pub use plan_file::read_plan;
pub use probes::{ProbeResult, SampleText};
pub use scores::{PartScore, Scores};
pub use speed::Speed;
