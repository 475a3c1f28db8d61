//! Which rule moves which parameter, decided by name and shape.

use super::HiddenRule;
use hadal_residual::{ResidualConfig, Update};

/// How a parameter moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Orthogonalised momentum.
    Muon,
    /// AdamW with decay.
    Decayed,
    /// AdamW without decay.
    Plain,
    /// AdamW without decay, slowed down.
    Gate,
}

/// The group of a parameter.
///
/// Hidden matrices are those inside blocks. Vectors never decay. The policy decides about its own parameters.
pub fn group_of(
    name: &str,
    shape: &[usize],
    residual: &ResidualConfig,
    hidden: HiddenRule,
) -> Group {
    let matrix = shape.len() == 2;
    match name.split('.').next() {
        Some("layers") if matrix && hidden == HiddenRule::Muon => Group::Muon,
        Some("residual") => match residual.update(name, shape) {
            Update::Decayed => Group::Decayed,
            Update::Plain => Group::Plain,
            Update::Gate => Group::Gate,
        },
        _ if matrix => Group::Decayed,
        _ => Group::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str, shape: &[usize], policy: &str) -> Group {
        group_of(name, shape, &policy.parse().unwrap(), HiddenRule::Muon)
    }

    #[test]
    fn parameters_are_grouped_by_name_and_shape() {
        assert_eq!(group("layers.0.attn.q.weight", &[8, 8], "mgr"), Group::Muon);
        assert_eq!(group("layers.0.mlp.depth_k.weight", &[4, 8], "mgr"), Group::Muon);
        assert_eq!(group("embed.weight", &[9, 8], "mgr"), Group::Decayed);
        assert_eq!(group("layers.0.attn_norm.weight", &[8], "mgr"), Group::Plain);
        assert_eq!(group("layers.1.attn.value_mix", &[2], "mgr"), Group::Plain);
        assert_eq!(group("residual.3.gate.bias", &[5], "mgr"), Group::Plain);
        assert_eq!(group("residual.3.pre_weight", &[32, 4], "mhc"), Group::Decayed);
        assert_eq!(group("residual.3.res", &[4, 4], "hc"), Group::Plain);
        assert_eq!(group("residual.3.directions", &[32, 8], "nag"), Group::Gate);
        assert_eq!(group("residual.log_gain", &[1], "nag"), Group::Plain);
        let mixture = "mod:capacity=0.25";
        assert_eq!(group("residual.1.router.weight", &[8], mixture), Group::Plain);
        assert_eq!(group("residual.1.predictor.hidden.weight", &[32, 8], mixture), Group::Plain);
    }

    #[test]
    fn without_muon_hidden_matrices_decay() {
        let policy = "prenorm".parse().unwrap();
        let group = group_of("layers.0.attn.q.weight", &[8, 8], &policy, HiddenRule::Adamw);
        assert_eq!(group, Group::Decayed);
    }
}
