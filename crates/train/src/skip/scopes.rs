//! Which sub-layers a threshold decides about, and how many FLOPs they are.
//!
//! A rate is a share of all skippable FLOPs. Where some sub-layers always run (those that fill MGR's streams), the
//! others are skipped more to make up for it. While the first and last sub-layers are protected, no other sub-layer
//! makes up for them: that time is meant to be careful, and the rate is lower then.

use super::config::SkipPer;
use hadal_model::{ModelConfig, Tally};
use hadal_residual::{Site, SubLayerKind, Thresholds};

/// Sub-layers at either end that are protected.
const ENDS: usize = 2;

/// The sub-layers of each threshold.
#[derive(Clone, Debug)]
pub(crate) struct Scopes {
    per: SkipPer,
    /// The threshold of each sub-layer; none if it always runs.
    of_site: Vec<Option<usize>>,
    /// Skippable FLOPs at each sub-layer, as shares of all of them.
    weights: Vec<f64>,
    /// For each threshold, its sub-layers' rate relative to the overall one, which makes up for those that always run.
    factors: Vec<f64>,
}

impl Scopes {
    /// For sequences of this length.
    pub(super) fn new(per: SkipPer, model: &ModelConfig, seq_len: usize) -> Self {
        let sites = model.dimensions().sites();
        let always = model.residual.always_run();
        let scope = |site: Site| match (per, site.kind()) {
            (SkipPer::Model, _) => 0,
            (SkipPer::Kind, SubLayerKind::Attention) => 0,
            (SkipPer::Kind, SubLayerKind::Mlp) => 1,
            (SkipPer::Layer, _) => site.index,
        };
        let each = || (0..sites).map(Site::new);
        let tally = Tally::everybody(model, 1, seq_len);
        let flops: Vec<f64> = each().map(|s| tally.skippable_at(model, s) as f64).collect();
        let all: f64 = flops.iter().sum();
        let weights: Vec<f64> = flops.iter().map(|flops| flops / all).collect();
        // Layers make up for each other, but attention does not make up for MLPs.
        let same = |a: Site, b: Site| per != SkipPer::Kind || a.kind() == b.kind();
        let factor = |site: Site| {
            let group = || each().filter(|&other| same(site, other));
            let all: f64 = group().map(|site| weights[site.index]).sum();
            let able: f64 =
                group().skip_while(|s| s.index < always).map(|s| weights[s.index]).sum();
            all / able
        };
        let count = each().map(scope).max().map_or(0, |last| last + 1);
        let first = |wanted: usize| each().find(|&site| scope(site) == wanted);
        Self {
            per,
            of_site: each().map(|site| (site.index >= always).then_some(scope(site))).collect(),
            factors: (0..count).map(|scope| first(scope).map_or(1.0, factor)).collect(),
            weights,
        }
    }

    /// How many thresholds there are.
    pub(super) fn count(&self) -> usize {
        self.factors.len()
    }

    pub(super) fn sites(&self) -> usize {
        self.of_site.len()
    }

    /// The threshold of a sub-layer, if it may be skipped now.
    pub(super) fn at(&self, site: usize, protected: bool) -> Option<usize> {
        let sites = self.sites();
        let inner = site >= ENDS && site + ENDS < sites;
        self.of_site[site].filter(|_| inner || !protected)
    }

    /// The highest possible rate.
    pub(super) fn most(&self) -> f64 {
        1.0 / self.factors.iter().fold(1.0, |a: f64, &b| a.max(b))
    }

    /// The share of its own sub-layers' FLOPs that a threshold aims at, for a target of the whole model.
    pub(super) fn own_target(&self, scope: usize, target: f64) -> f64 {
        self.factors[scope] * target
    }

    /// The share of the whole model's FLOPs that is skipped if all thresholds reach a target.
    pub(super) fn overall(&self, target: f64, protected: bool) -> f64 {
        let each = (0..self.sites()).filter_map(|site| Some((site, self.at(site, protected)?)));
        each.map(|(site, scope)| self.weights[site] * self.own_target(scope, target)).sum()
    }

    /// The share that was skipped of what each threshold decides about, if it decides about anything.
    pub(super) fn measured(
        &self,
        tally: &Tally,
        model: &ModelConfig,
        protected: bool,
    ) -> Vec<Option<f64>> {
        let dense = tally.dense();
        let mut sums = vec![[0, 0]; self.count()];
        for site in 0..self.sites() {
            if let Some(scope) = self.at(site, protected) {
                let site = Site::new(site);
                sums[scope][0] += tally.skippable_at(model, site);
                sums[scope][1] += dense.skippable_at(model, site);
            }
        }
        let share = |[ran, all]: [u64; 2]| (all > 0).then(|| 1.0 - ran as f64 / all as f64);
        sums.into_iter().map(share).collect()
    }

    /// Thresholds in the form that a model takes; zero where no token may skip.
    pub(super) fn thresholds(&self, each: &[f64], protected: bool) -> Thresholds {
        match (self.per, each) {
            (SkipPer::Model, &[one]) if !protected => Thresholds::One(one),
            (SkipPer::Kind, &[attention, mlp]) if !protected => {
                Thresholds::PerKind { attention, mlp }
            }
            _ => {
                let at = |site| self.at(site, protected).map_or(0.0, |scope| each[scope]);
                Thresholds::PerSite((0..self.sites()).map(at).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::testing::model;

    fn scopes(per: SkipPer, residual: &str) -> Scopes {
        Scopes::new(per, &model(residual), 16)
    }

    #[test]
    fn every_threshold_has_its_sub_layers() {
        for (per, count) in [(SkipPer::Model, 1), (SkipPer::Kind, 2), (SkipPer::Layer, 8)] {
            let scopes = scopes(per, "nag");
            assert_eq!((scopes.count(), scopes.sites()), (count, 8));
            let protected: Vec<bool> = (0..8).map(|site| scopes.at(site, true).is_none()).collect();
            assert_eq!(protected, [true, true, false, false, false, false, true, true]);
            assert!((0..8).all(|site| scopes.at(site, false).is_some()));
            assert!((scopes.overall(0.25, false) - 0.25).abs() < 1e-12);
            assert!((scopes.overall(0.25, true) - 0.125).abs() < 1e-12, "half of the sub-layers");
        }
    }

    #[test]
    fn the_others_make_up_for_those_that_always_run() {
        for per in [SkipPer::Model, SkipPer::Kind, SkipPer::Layer] {
            let scopes = scopes(per, "mgr:streams=4");
            assert_eq!(
                (0..4).map(|site| scopes.at(site, false).is_some()).collect::<Vec<_>>(),
                [false, false, false, true]
            );
            assert!((scopes.overall(0.25, false) - 0.25).abs() < 1e-12, "{per:?}");
            assert!(scopes.own_target(scopes.count() - 1, 0.25) > 0.25);
            let most = scopes.most();
            assert!(0.4 < most && most < 0.7, "{most}");
        }
        let one = scopes(SkipPer::Model, "mgr:streams=4");
        let share: f64 = one.weights[3..].iter().sum();
        assert!((one.own_target(0, 0.25) - 0.25 / share).abs() < 1e-12);
    }

    #[test]
    fn a_rate_is_measured_where_skipping_is_possible() {
        let model = model("nag");
        let mut tally = Tally::everybody(&model, 2, 16);
        tally.sites[1].ran = 0;
        tally.sites[3].ran = 8;
        let by_layer = scopes(SkipPer::Layer, "nag");
        let measured = by_layer.measured(&tally, &model, true);
        assert_eq!(measured[1], None);
        assert_eq!((measured[2], measured[3]), (Some(0.0), Some(0.75)));
        let measured = by_layer.measured(&tally, &model, false);
        assert_eq!(measured[1], Some(1.0));
        let whole = scopes(SkipPer::Model, "nag").measured(&tally, &model, false);
        assert!((whole[0].unwrap() - tally.skipped_share(&model)).abs() < 1e-12);
    }

    #[test]
    fn thresholds_have_the_form_that_the_model_keeps() {
        let form = |per, each: &[f64], protected| scopes(per, "nag").thresholds(each, protected);
        assert_eq!(form(SkipPer::Model, &[0.5], false), Thresholds::One(0.5));
        let by_kind = Thresholds::PerKind { attention: 0.1, mlp: 0.2 };
        assert_eq!(form(SkipPer::Kind, &[0.1, 0.2], false), by_kind);
        let careful = vec![0.0, 0.0, 0.1, 0.2, 0.1, 0.2, 0.0, 0.0];
        assert_eq!(form(SkipPer::Kind, &[0.1, 0.2], true), Thresholds::PerSite(careful));
        let each: Vec<f64> = (1..9).map(f64::from).collect();
        assert_eq!(form(SkipPer::Layer, &each, false), Thresholds::PerSite(each.clone()));
    }
}
