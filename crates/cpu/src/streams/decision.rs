//! Which tokens write, decided from the gates of their streams, and what is taken off the gates.

use super::Skip;

/// What a [`Skip`] says at one site.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule<'a> {
    skip: &'a Skip,
    site: usize,
}

impl<'a> Rule<'a> {
    /// At the site that follows a junction, if the junction decides.
    pub(super) fn of(skip: &'a Option<Skip>, decides: bool, site: usize) -> Option<Self> {
        let skip = skip.as_ref().filter(|_| decides)?;
        Some(Self { skip, site })
    }

    /// Whether a token with these gates runs. Makes of the gates what it writes with.
    #[inline(always)]
    pub(super) fn decide(self, token: usize, gates: &mut [f32]) -> bool {
        let (_, most) = widest(gates);
        if !self.skip.runs(self.site, token, most) {
            gates.fill(0.0);
            return false;
        }
        if let Some(off) = self.taken_off(most) {
            let left = (most - off) / most;
            gates.iter_mut().for_each(|gate| *gate *= left);
        }
        true
    }

    /// Replaces the gradient of what a running token writes with by that of its gates: with `beta'_i =
    /// beta_i (b - t) / b` and `b = beta_k`, `dbeta_i = (b - t) / b dbeta'_i`, and `t / b^2 sum_j beta_j
    /// dbeta'_j` more for k.
    #[inline(always)]
    pub(super) fn backward(self, gates: &[f32], gradient: &mut [f32]) {
        let (k, most) = widest(gates);
        let Some(off) = self.taken_off(most) else { return };
        let sum: f32 = gates.iter().zip(&*gradient).map(|(gate, d)| gate * d).sum();
        let left = (most - off) / most;
        gradient.iter_mut().for_each(|d| *d *= left);
        gradient[k] += off / (most * most) * sum;
    }

    /// What the widest gate loses, if anything: without a loss, gates stay the same to the bit.
    #[inline(always)]
    fn taken_off(self, most: f32) -> Option<f32> {
        let off = self.skip.taken_off(self.site, most);
        (off != 0.0).then_some(off)
    }
}

/// The largest gate and which one it is; one that is not a number is larger than all others.
#[inline(always)]
fn widest(gates: &[f32]) -> (usize, f32) {
    let larger = |(k, most): (usize, f32), (i, &gate): (usize, &f32)| {
        if gate > most || gate.is_nan() { (i, gate) } else { (k, most) }
    };
    gates.iter().enumerate().fold((0, f32::NEG_INFINITY), larger)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(skip: &Skip) -> Rule<'_> {
        Rule { skip, site: 0 }
    }

    #[test]
    fn the_widest_gate_decides() {
        let skip = Skip::hard(vec![0.25]);
        let decide = |gates: &[f32]| {
            let mut gates = gates.to_vec();
            (rule(&skip).decide(0, &mut gates), gates)
        };
        assert_eq!(decide(&[0.1, 0.25, 0.01]), (true, vec![0.1, 0.25, 0.01]));
        assert_eq!(decide(&[0.1, 0.24, 0.01]), (false, vec![0.0; 3]));
        for gates in [[f32::NAN, 0.1], [0.1, f32::NAN]] {
            assert!(decide(&gates).0, "what is not a number must be seen");
        }
    }

    #[test]
    fn the_widest_gate_loses_what_is_taken_off_and_the_others_their_share() {
        let skip = Skip { shrink: 0.5, ..Skip::hard(vec![0.25]) };
        let mut gates = [0.5, 0.1, 0.25];
        assert!(rule(&skip).decide(0, &mut gates));
        assert_eq!(gates, [0.375, 0.075, 0.1875]);
    }

    #[test]
    fn the_forced_write_with_all_of_their_gates() {
        let skip = Skip { shrink: 1.0, forced: vec![1.0], ..Skip::hard(vec![0.25]) };
        let mut gates = [0.2, 0.1];
        assert!(rule(&skip).decide(0, &mut gates));
        assert_eq!(gates, [0.2, 0.1]);
    }
}
