//! Who ran what, and what that cost: F(mask) of Mixture-of-Depths, exact for any mask.

use crate::config::{DepthKv, MlpKind, ModelConfig};
use hadal_residual::{ResidualConfig, Site, SkippedKeys, SubLayer};

/// What happened at one sub-layer, summed over tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteTally {
    /// Tokens that ran it.
    pub ran: u64,
    /// Tokens whose keys and values were computed; attention only.
    pub keyed: u64,
    /// Keys that the tokens which ran it saw, together; attention only.
    pub seen: u64,
    /// Keys that all tokens would see if nobody skipped; attention only.
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
    /// For each token, in any case.
    always: u64,
}

impl SiteFlops {
    fn of(config: &ModelConfig, site: Site) -> Self {
        let [d, ff, q] =
            [config.d_model, config.d_ff, config.n_heads * config.head_dim].map(|n| n as u64);
        let kv = config.kv_width() as u64;
        let gate = match &config.residual {
            ResidualConfig::NormAgnostic(nag) => 2 * nag.directions as u64 * d,
            _ => 0,
        };
        match site.kind() {
            SubLayer::Attention => {
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
            SubLayer::Mlp => {
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
    pub(crate) fn begin(&mut self, config: &ModelConfig, batch: usize, time: usize, start: usize) {
        self.sites.resize(2 * config.n_layers, SiteTally::default());
        self.tokens += (batch * time) as u64;
        for (index, tally) in self.sites.iter_mut().enumerate() {
            let site = Site::new(index);
            if site.kind() == SubLayer::Attention {
                tally.context += batch as u64 * seen_keys(start, time, config.window(site.block()));
            }
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

    /// The same passes with nobody skipping.
    pub fn dense(&self) -> Self {
        let ran = self.tokens;
        let each = |(site, tally): (usize, &SiteTally)| match Site::new(site).kind() {
            SubLayer::Attention => {
                SiteTally { ran, keyed: ran, seen: tally.context, context: tally.context }
            }
            SubLayer::Mlp => SiteTally { ran, ..SiteTally::default() },
        };
        let sites = self.sites.iter().enumerate().map(each).collect();
        Self { tokens: self.tokens, sites }
    }

    /// Forward FLOPs: sub-layers as far as they ran, gates, and the head of every token.
    pub fn flops(&self, config: &ModelConfig) -> u64 {
        let head = 2 * (config.d_model * config.vocab_size) as u64 * self.tokens;
        let sites = self.sites.iter().enumerate();
        sites.map(|(i, &s)| SiteFlops::of(config, Site::new(i)).total(s, self.tokens)).sum::<u64>()
            + head
    }

    /// The share of the FLOPs that can be skipped which were skipped: 0 if everybody ran everything, 1 if
    /// nobody ran anything.
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

    fn skippable(&self, config: &ModelConfig) -> u64 {
        let drops = config.residual.skipped_keys() == SkippedKeys::Drop;
        let each = self.sites.iter().enumerate().map(|(i, &site)| {
            let flops = SiteFlops::of(config, Site::new(i));
            let keyed = if drops { flops.keyed * site.keyed } else { 0 };
            flops.ran * site.ran + flops.seen * site.seen + keyed
        });
        each.sum()
    }
}

/// Keys that `time` tokens behind `start` others see, each as far back as the window reaches.
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
}
