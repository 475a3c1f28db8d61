//! Keeps sub-layers alive: one that no token runs learns nothing, and would never run again.

use hadal_model::Tally;
use serde::{Deserialize, Serialize};

/// Which sub-layers tokens ran since the last check, and which ones tokens are made to run now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Guard {
    steps: u64,
    tokens: u64,
    /// Tokens that ran each sub-layer.
    ran: Vec<u64>,
    /// Sub-layers that tokens are made to run.
    forced: Vec<bool>,
}

impl Guard {
    pub(super) fn new(sites: usize) -> Self {
        Self { steps: 0, tokens: 0, ran: vec![0; sites], forced: vec![false; sites] }
    }

    /// Counts a step and decides anew every `every` steps: a sub-layer that less than `share` of its tokens ran gets
    /// that share by force, until as many run it by their own gates.
    pub(super) fn count(&mut self, tally: &Tally, share: f64, every: u64) {
        self.steps += 1;
        self.tokens += tally.tokens;
        self.ran.iter_mut().zip(&tally.sites).for_each(|(sum, site)| *sum += site.ran);
        if self.steps < every {
            return;
        }
        for (forced, &ran) in self.forced.iter_mut().zip(&self.ran) {
            // Tokens that were made to run are among those that ran.
            let limit = if *forced { 2.0 * share } else { share };
            *forced = (ran as f64) < limit * self.tokens as f64;
        }
        (self.steps, self.tokens) = (0, 0);
        self.ran.fill(0);
    }

    /// Share of tokens that are made to run each sub-layer; empty if there are none.
    pub(super) fn shares(&self, share: f64) -> Vec<f32> {
        if !self.forced.contains(&true) {
            return Vec::new();
        }
        self.forced.iter().map(|&forced| if forced { share as f32 } else { 0.0 }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hadal_model::SiteTally;

    /// A thousand tokens; `ran` of them ran each sub-layer.
    fn tally(ran: [u64; 3]) -> Tally {
        let sites = ran.map(|ran| SiteTally { ran, ..SiteTally::default() }).to_vec();
        Tally { tokens: 1000, sites }
    }

    fn after(guard: &mut Guard, ran: [u64; 3], steps: u64) -> Vec<f32> {
        (0..steps).for_each(|_| guard.count(&tally(ran), 0.01, 4));
        guard.shares(0.01)
    }

    #[test]
    fn a_sub_layer_that_dies_gets_company_until_it_recovers() {
        let mut guard = Guard::new(3);
        assert!(after(&mut guard, [1000, 9, 11], 3).is_empty(), "not yet looked at");
        assert_eq!(after(&mut guard, [1000, 9, 11], 1), [0.0, 0.01, 0.0]);
        assert_eq!(after(&mut guard, [1000, 15, 11], 4), [0.0, 0.01, 0.0], "ten were made to");
        assert!(after(&mut guard, [1000, 21, 11], 4).is_empty());
    }

    #[test]
    fn without_a_share_there_is_no_guard() {
        let mut guard = Guard::new(3);
        (0..8).for_each(|_| guard.count(&tally([0, 0, 0]), 0.0, 4));
        assert!(guard.shares(0.0).is_empty());
    }
}
