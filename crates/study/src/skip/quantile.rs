//! Thresholds as quantiles of gates, each gate weighing what skipping there saves.

use super::gates::Gates;
use hadal_model::Saving;

/// What the pairs of a token and a sub-layer weigh.
pub(crate) struct Weights<'a> {
    pub(crate) gates: &'a Gates,
    /// By sub-layer.
    pub(crate) savings: &'a [Saving],
}

impl Weights<'_> {
    /// Skippable FLOPs of a sub-layer, if it has gates.
    pub(crate) fn of_site(&self, site: usize) -> f64 {
        self.flops(site, self.gates.sites[site].len())
    }

    /// The same for this many tokens, whether or not there are gates.
    pub(crate) fn flops(&self, site: usize, tokens: usize) -> f64 {
        let Saving { token, key, own_key } = self.savings[site];
        let time = self.gates.time as f64;
        tokens as f64 * ((token + own_key) as f64 + key as f64 * (time + 1.0) / 2.0)
    }

    /// The most that one pair can weigh.
    pub(crate) fn heaviest(&self) -> f64 {
        let time = self.gates.time as u64;
        let pair = |s: &Saving| (s.token + s.own_key + s.key * time) as f64;
        self.savings.iter().map(pair).fold(0.0, f64::max)
    }

    /// One threshold for each group of sub-layers, below which lies this share of their FLOPs, as if skipping changed
    /// no gate. A group may miss its share, because a threshold cannot separate equal gates; the next group makes up
    /// for it.
    pub(crate) fn quantiles(&self, groups: &[Vec<usize>], share: f64) -> Vec<f64> {
        let mut due = 0.0;
        let each = groups.iter().map(|sites| {
            due += share * sites.iter().map(|&site| self.of_site(site)).sum::<f64>();
            let (threshold, saved) = self.quantile(sites, due);
            due -= saved;
            threshold
        });
        each.collect()
    }

    /// The threshold that comes nearest to this many saved FLOPs, and the FLOPs that it saves.
    fn quantile(&self, sites: &[usize], aim: f64) -> (f64, f64) {
        let tokens = self.gates.sites.iter().map(Vec::len).max().unwrap_or_default();
        // Magnitudes have the order of their bits.
        let mut pairs: Vec<u64> = Vec::new();
        for (slot, &site) in sites.iter().enumerate() {
            let gates = self.gates.sites[site].iter().enumerate();
            pairs.extend(gates.map(|(token, gate)| {
                u64::from(gate.to_bits()) << 32 | (slot * tokens + token) as u64
            }));
        }
        pairs.sort_unstable();
        let gate = |pair: u64| f32::from_bits((pair >> 32) as u32);
        let mut running = self.everyone(sites, tokens);
        let (mut saved, mut reached) = (0.0, 0.0);
        // A threshold separates only gates that differ.
        for equal in pairs.chunk_by(|&a, &b| gate(a) == gate(b)) {
            let before = saved;
            for &pair in equal {
                let place = (pair & u64::from(u32::MAX)) as usize;
                saved += self.saving(sites[place / tokens], place, &mut running);
            }
            if saved >= aim && aim - before <= saved - aim {
                return (reached, before);
            }
            reached = above(gate(equal[0]), &pairs);
            if saved >= aim {
                break;
            }
        }
        (reached, saved)
    }

    /// Tokens of each sequence that have keys at each sub-layer, if tokens that skip have none.
    fn everyone(&self, sites: &[usize], tokens: usize) -> Vec<u64> {
        if sites.iter().all(|&site| self.savings[site].own_key == 0) {
            return Vec::new();
        }
        vec![self.gates.time as u64; sites.len() * tokens / self.gates.time.max(1)]
    }

    fn saving(&self, site: usize, place: usize, running: &mut [u64]) -> f64 {
        let Saving { token, key, own_key } = self.savings[site];
        if own_key == 0 {
            return (token + key * (place % self.gates.time + 1) as u64) as f64;
        }
        // A token that skips neither asks nor is seen: of the n(n + 1)/2 pairs of a sequence, n go.
        let left = &mut running[place / self.gates.time];
        let saved = token + own_key + key * *left;
        *left -= 1;
        saved as f64
    }
}

/// A number between a gate and the next larger one, so that rounding does not move a token across.
fn above(gate: f32, pairs: &[u64]) -> f64 {
    let after = pairs.partition_point(|&pair| f32::from_bits((pair >> 32) as u32) <= gate);
    let next = pairs.get(after).map(|&pair| f32::from_bits((pair >> 32) as u32));
    let next = next.filter(|next| next.is_finite()).unwrap_or(2.0 * gate.next_up());
    let middle = gate + (next - gate) / 2.0;
    let threshold = if middle > gate { middle } else { next };
    // The short form reads back as the same f32, and reads well in a config.
    threshold.to_string().parse().unwrap_or(threshold.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVEN: Saving = Saving { token: 1, key: 0, own_key: 0 };

    fn gates(sites: &[&[f32]], time: usize) -> Gates {
        let sites = sites.iter().map(|gates| gates.to_vec()).collect();
        Gates { sites, ..Gates::new(0, time) }
    }

    fn found(weights: &Weights, sites: &[usize], share: f64) -> f64 {
        weights.quantiles(&[sites.to_vec()], share)[0]
    }

    fn below(gates: &Gates, threshold: f64) -> usize {
        gates.sites.iter().flatten().filter(|&&gate| gate < threshold as f32).count()
    }

    #[test]
    fn a_quantile_leaves_the_share_below_it() {
        let gates = gates(&[&[0.5, 0.1, 0.9, 0.3], &[0.2, 0.8, 0.4, 0.6]], 4);
        let weights = Weights { gates: &gates, savings: &[EVEN; 2] };
        for skipped in 0..=8 {
            let threshold = found(&weights, &[0, 1], f64::from(skipped) / 8.0);
            assert_eq!(below(&gates, threshold), skipped as usize, "{threshold}");
        }
        assert_eq!(below(&gates, found(&weights, &[0, 1], 0.3)), 2, "2.4 of 8");
        assert_eq!(below(&gates, found(&weights, &[0, 1], 0.35)), 3, "2.8 of 8");
    }

    #[test]
    fn neighbours_among_numbers_are_told_apart() {
        let (low, high) = (0.25f32, 0.25f32.next_up());
        let gates = gates(&[&[high, low]], 2);
        let weights = Weights { gates: &gates, savings: &[EVEN] };
        assert_eq!(below(&gates, found(&weights, &[0], 0.5)), 1);
    }

    #[test]
    fn what_is_equal_stays_together() {
        let gates = gates(&[&[0.5; 8]], 4);
        let weights = Weights { gates: &gates, savings: &[EVEN] };
        assert_eq!(found(&weights, &[0], 0.4), 0.0);
        assert_eq!(below(&gates, found(&weights, &[0], 0.6)), 8);
    }

    #[test]
    fn what_equal_gates_cannot_meet_is_left_to_the_next() {
        let gates = gates(&[&[0.5; 4], &[0.1, 0.2, 0.3, 0.4]], 4);
        let weights = Weights { gates: &gates, savings: &[EVEN; 2] };
        for (share, skipped) in [(0.25, [0, 2]), (0.375, [0, 3]), (0.75, [4, 2])] {
            let found = weights.quantiles(&[vec![0], vec![1]], share);
            let below = |site: usize| {
                let low = |gate: &&f32| **gate < found[site] as f32;
                gates.sites[site].iter().filter(low).count()
            };
            assert_eq!([below(0), below(1)], skipped, "{share}: {found:?}");
        }
    }

    #[test]
    fn late_tokens_weigh_more_where_keys_are_seen() {
        // Keys seen: 1, 2, 3, 4. The last two hold 7 of 10.
        let gates = gates(&[&[0.3, 0.4, 0.2, 0.1]], 4);
        let savings = [Saving { token: 0, key: 1, own_key: 0 }];
        let weights = Weights { gates: &gates, savings: &savings };
        assert_eq!(below(&gates, found(&weights, &[0], 0.4)), 1);
        assert_eq!(below(&gates, found(&weights, &[0], 0.7)), 2);
    }

    #[test]
    fn dropped_keys_are_not_seen_by_others_either() {
        // One of four tokens that drops its key leaves 3 (3 + 1) / 2 of 10 pairs, two leave 3.
        let gates = gates(&[&[0.1, 0.2, 0.3, 0.4]], 4);
        let savings = [Saving { token: 0, key: 1_000_000, own_key: 1 }];
        let weights = Weights { gates: &gates, savings: &savings };
        assert_eq!(below(&gates, found(&weights, &[0], 0.4)), 1);
        assert_eq!(below(&gates, found(&weights, &[0], 0.7)), 2);
    }
}
