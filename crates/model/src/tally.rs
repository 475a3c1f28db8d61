//! Which tokens ran what, and what that cost: F(mask) of Mixture-of-Depths, exact for any mask.

use crate::config::{DepthKv, MlpKind, ModelConfig};
use hadal_residual::{Site, SkippedKeys, SubLayerKind};

/// What happened at one sub-layer, summed over tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteTally {
    /// Tokens that ran it.
    pub ran: u64,
    /// Tokens whose keys and values were computed; attention only.
    pub keyed: u64,
    /// Keys seen by the tokens that ran it, in total; attention only.
    pub seen: u64,
    /// Keys that all tokens would see if none skipped; attention only.
    pub context: u64,
}

/// What happened in one or several passes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tokens that went through.
    pub tokens: u64,
    /// Each sub-layer.
    pub sites: Vec<SiteTally>,
}

/// Forward FLOPs of one sub-layer's parts.
struct SiteFlops {
    /// For each token that runs.
    ran: u64,
    /// For each token that has keys.
    keyed: u64,
    /// For each key that a token sees.
    seen: u64,
    /// For each token, whether or not it runs.
    always: u64,
}

impl SiteFlops {
    fn of(config: &ModelConfig, site: Site) -> Self {
        let [d, ff, q] =
            [config.d_model, config.d_ff, config.n_heads * config.head_dim].map(|n| n as u64);
        let kv = config.kv_width() as u64;
        let gate = config.residual.deciding(site, &config.dimensions());
        match site.kind() {
            SubLayerKind::Attention => {
                let slots = match config.depth_kv {
                    DepthKv::None => 0,
                    DepthKv::Attention => site.block() as u64,
                    DepthKv::AttentionMlp => 2 * site.block() as u64,
                };
                Self {
                    ran: 4 * d * q + 4 * q * slots,
                    keyed: 4 * d * kv,
                    seen: 4 * q,
                    always: gate,
                }
            }
            SubLayerKind::Mlp => {
                let matrices = match config.mlp {
                    MlpKind::Relu2 => 2,
                    MlpKind::Swiglu => 3,
                };
                let slot = if config.mlp_leaves_slot(site.block()) { 4 * d * kv } else { 0 };
                Self { ran: 2 * matrices * d * ff, keyed: 0, seen: 0, always: gate + slot }
            }
        }
    }

    fn total(&self, tally: SiteTally, tokens: u64) -> u64 {
        self.ran * tally.ran
            + self.keyed * tally.keyed
            + self.seen * tally.seen
            + self.always * tokens
    }
}

impl Tally {
    /// Whole sequences in which every token runs everything.
    pub fn everybody(config: &ModelConfig, batch: usize, time: usize) -> Self {
        let mut tally = Self::default();
        tally.begin(config, batch, time, 0);
        tally.dense()
    }

    pub(crate) fn begin(&mut self, config: &ModelConfig, batch: usize, time: usize, start: usize) {
        self.sites.resize(2 * config.n_layers, SiteTally::default());
        self.tokens += (batch * time) as u64;
        for (index, tally) in self.sites.iter_mut().enumerate() {
            let site = Site::new(index);
            if site.kind() == SubLayerKind::Attention {
                tally.context += batch as u64 * seen_keys(start, time, config.window(site.block()));
            }
        }
    }

    /// Counts a sub-layer: how many tokens ran it, how many got keys, and how many keys were seen.
    pub(crate) fn count(&mut self, site: Site, [ran, keyed, seen]: [u64; 3]) {
        if let Some(tally) = self.sites.get_mut(site.index) {
            tally.ran += ran;
            tally.keyed += keyed;
            tally.seen += seen;
        }
    }

    /// Adds what happened in other passes through the same model.
    pub fn add(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.sites.resize(self.sites.len().max(other.sites.len()), SiteTally::default());
        for (sum, more) in self.sites.iter_mut().zip(&other.sites) {
            sum.ran += more.ran;
            sum.keyed += more.keyed;
            sum.seen += more.seen;
            sum.context += more.context;
        }
    }

    /// The same passes without skipping.
    pub fn dense(&self) -> Self {
        let ran = self.tokens;
        let each = |(site, tally): (usize, &SiteTally)| match Site::new(site).kind() {
            SubLayerKind::Attention => {
                SiteTally { ran, keyed: ran, seen: tally.context, context: tally.context }
            }
            SubLayerKind::Mlp => SiteTally { ran, ..SiteTally::default() },
        };
        let sites = self.sites.iter().enumerate().map(each).collect();
        Self { tokens: self.tokens, sites }
    }

    /// Forward FLOPs: sub-layers as far as they ran, gates, and the head for every token.
    pub fn flops(&self, config: &ModelConfig) -> u64 {
        let head = 2 * (config.d_model * config.vocab_size) as u64 * self.tokens;
        self.depth_flops(config) + head
    }

    /// The same without the head: the cost of reading a prompt when only the last logits are wanted.
    pub fn depth_flops(&self, config: &ModelConfig) -> u64 {
        let sites = self.sites.iter().enumerate();
        sites.map(|(i, &s)| SiteFlops::of(config, Site::new(i)).total(s, self.tokens)).sum()
    }

    /// The same as [`crate::ModelCost`] counts it: with the policy's light operations, which no token skips.
    pub fn cost(&self, config: &ModelConfig) -> u64 {
        let policy = config.residual.cost(&config.dimensions()).flops;
        let each_site = config.dimensions().each_site();
        let counted =
            each_site.map(|site| config.residual.deciding(site, &config.dimensions())).sum();
        self.flops(config) + self.tokens * policy.saturating_sub(counted)
    }

    /// The share of the skippable FLOPs that were skipped: 0 if every token ran everything, 1 if none ran anything.
    pub fn skipped_share(&self, config: &ModelConfig) -> f64 {
        let dense = self.dense();
        let all = dense.skippable(config);
        if all == 0 { 0.0 } else { 1.0 - self.skippable(config) as f64 / all as f64 }
    }

    /// The share of a sub-layer's tokens that skipped it.
    pub fn skipped_at(&self, site: Site) -> f64 {
        let ran = self.sites.get(site.index).map_or(0, |site| site.ran);
        if self.tokens == 0 { 0.0 } else { 1.0 - ran as f64 / self.tokens as f64 }
    }

    /// The share of all sub-layer runs that were skipped.
    pub fn skipped_runs(&self) -> f64 {
        let all = self.tokens * self.sites.len() as u64;
        let ran: u64 = self.sites.iter().map(|site| site.ran).sum();
        if all == 0 { 0.0 } else { 1.0 - ran as f64 / all as f64 }
    }

    /// FLOPs that the tokens that ran a sub-layer would have saved by skipping it.
    pub fn skippable_at(&self, config: &ModelConfig, site: Site) -> u64 {
        let Saving { token, key, own_key } = Saving::of(config, site);
        let tally = self.sites.get(site.index).copied().unwrap_or_default();
        token * tally.ran + key * tally.seen + own_key * tally.keyed
    }

    /// The same for all sub-layers.
    pub fn skippable(&self, config: &ModelConfig) -> u64 {
        (0..self.sites.len()).map(|i| self.skippable_at(config, Site::new(i))).sum()
    }
}

/// Forward FLOPs that are saved when a token skips a sub-layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saving {
    /// Saved in any case.
    pub token: u64,
    /// For each key that it would have seen.
    pub key: u64,
    /// For its own key and value, if those of tokens that skip are dropped.
    pub own_key: u64,
}

impl Saving {
    /// The saving at a sub-layer.
    pub fn of(config: &ModelConfig, site: Site) -> Self {
        let flops = SiteFlops::of(config, site);
        let drops = config.residual.skipped_keys() == SkippedKeys::Drop;
        Self { token: flops.ran, key: flops.seen, own_key: if drops { flops.keyed } else { 0 } }
    }
}

/// Keys that `time` tokens after `start` others see, each as far back as the window reaches.
pub(crate) fn seen_keys(start: usize, time: usize, window: Option<usize>) -> u64 {
    let of_first = |tokens: usize| {
        let full = window.map_or(0, |window| tokens.saturating_sub(window)) as u64;
        let growing = tokens as u64 - full;
        growing * (growing + 1) / 2 + full * growing
    };
    of_first(start + time) - of_first(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::small;
    use crate::cost::ModelCost;
    use hadal_residual::ResidualConfig;

    #[test]
    fn a_token_sees_itself_and_what_the_window_reaches() {
        let one_by_one = |start: usize, time: usize, window: usize| -> u64 {
            (start..start + time).map(|t| (t + 1).min(window) as u64).sum()
        };
        for (start, time, window) in [(0, 5, 3), (2, 5, 3), (9, 1, 4), (0, 3, 3), (0, 2, 9)] {
            assert_eq!(seen_keys(start, time, Some(window)), one_by_one(start, time, window));
            assert_eq!(seen_keys(start, time, None), one_by_one(start, time, usize::MAX));
        }
    }

    /// Whatever the policy and the depth slots, the count for full sequences is the predicted one.
    #[test]
    fn the_count_of_those_who_skip_nothing_is_the_cost_of_the_model() {
        let runs_all = |residual: &ResidualConfig| {
            let small = small();
            let running = |block| residual.running(block, small.max_seq_len, &small.dimensions());
            (0..small.n_layers).all(|block| running(block) == small.max_seq_len)
        };
        for residual in ResidualConfig::all().into_iter().filter(runs_all) {
            for depth_kv in [DepthKv::None, DepthKv::Attention, DepthKv::AttentionMlp] {
                let config = ModelConfig { residual: residual.clone(), depth_kv, ..small() };
                let tally = Tally::everybody(&config, 3, config.max_seq_len);
                let cost = ModelCost::of(&config).unwrap().forward_flops_per_token;
                assert_eq!(tally.cost(&config), cost * tally.tokens, "{residual} {depth_kv:?}");
                assert_eq!(tally.skipped_share(&config), 0.0);
            }
        }
    }

    #[test]
    fn the_parts_that_can_be_skipped_add_up() {
        let mut config = small();
        config.residual = "nag:skip_threshold=0.1,skip_kv=drop".parse().unwrap();
        let all = Tally::everybody(&config, 2, 8);
        let mut tally = all.clone();
        tally.sites[2] = SiteTally { ran: 4, keyed: 4, seen: 9, ..all.sites[2] };
        tally.sites[3].ran = 0;
        let at = |tally: &Tally, site| tally.skippable_at(&config, Site::new(site));
        let saved: u64 = (0..6).map(|site| at(&all, site) - at(&tally, site)).sum();
        assert_eq!(saved, all.flops(&config) - tally.flops(&config));
        let whole: u64 = (0..6).map(|site| at(&all, site)).sum();
        assert!((tally.skipped_share(&config) - saved as f64 / whole as f64).abs() < 1e-12);
        assert_eq!(at(&tally, 3), 0);
    }
}
