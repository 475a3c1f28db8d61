//! The result of a calibration.

use super::Quality;
use hadal_model::{ModelConfig, Tally};
use hadal_residual::{Site, SkippedKeys, Skipping, SubLayerKind, Thresholds};
use hadal_train::SkipPer;
use serde::{Deserialize, Serialize};

/// Shares that were skipped.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    /// Share of the skippable FLOPs: the skip rate.
    pub skippable_flops: f64,
    /// Share of all FLOPs, including the head's.
    pub all_flops: f64,
    /// Share of all sub-layer runs.
    pub runs: f64,
    /// Share of the runs of attention.
    pub attention_runs: f64,
    /// Share of the runs of MLPs.
    pub mlp_runs: f64,
}

impl Shares {
    pub(crate) fn of(tally: &Tally, config: &ModelConfig) -> Self {
        let sites = || (0..tally.sites.len()).map(Site::new);
        let mean = |kind: SubLayerKind| {
            let (mut sum, mut count) = (0.0, 0.0);
            for site in sites().filter(|site| site.kind() == kind) {
                (sum, count) = (sum + tally.skipped_at(site), count + 1.0);
            }
            sum / f64::max(count, 1.0)
        };
        let all = tally.dense().flops(config).max(1) as f64;
        Self {
            skippable_flops: tally.skipped_share(config),
            all_flops: 1.0 - tally.flops(config) as f64 / all,
            runs: tally.skipped_runs(),
            attention_runs: mean(SubLayerKind::Attention),
            mlp_runs: mean(SubLayerKind::Mlp),
        }
    }
}

/// One sub-layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SiteReport {
    /// Its block.
    pub block: usize,
    /// `attention` or `mlp`.
    pub kind: &'static str,
    /// The gate below which tokens skip it.
    pub threshold: f64,
    /// Share of tokens that skip it.
    pub skipped: f64,
}

/// The result of a calibration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CalibrationReport {
    /// Which model.
    pub name: String,
    /// Its residual policy, with the thresholds.
    pub residual: String,
    /// The requested rate.
    pub rate: f64,
    /// Which sub-layers have a threshold in common.
    pub scope: SkipPer,
    /// What was found.
    pub skip_threshold: Thresholds,
    /// Share of the threshold that is taken off the gates of running tokens.
    pub skip_shrink: f64,
    /// What becomes of the keys of tokens that skip.
    pub skip_kv: SkippedKeys,
    /// Sequences of the calibration.
    pub sequences: u64,
    /// Their tokens.
    pub tokens: u64,
    /// How often all of them were read to get there.
    pub rounds: usize,
    /// What tokens skip of them.
    pub skipped: Shares,
    /// The model as it was, on the same data.
    pub before: Quality,
    /// What tokens skipped of the data then.
    pub before_skipped: Shares,
    /// The model with its thresholds.
    pub after: Quality,
    /// Each sub-layer.
    pub sites: Vec<SiteReport>,
}

/// Each sub-layer of a tally.
pub(super) fn sites(tally: &Tally, skipping: &Skipping) -> Vec<SiteReport> {
    let sites = (0..tally.sites.len()).map(Site::new);
    let report = |site: Site| SiteReport {
        block: site.block(),
        kind: match site.kind() {
            SubLayerKind::Attention => "attention",
            SubLayerKind::Mlp => "mlp",
        },
        threshold: skipping.thresholds.at(site),
        skipped: tally.skipped_at(site),
    };
    sites.map(report).collect()
}
