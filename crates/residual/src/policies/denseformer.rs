//! DenseFormer: after block i, `x = sum_{j <= i} a_ij X_j`, a learned average over depth.
//!
//! `X_0` is the embedding and `X_j` what block j itself produced, before its averaging. At the
//! start `a_ii = 1` and the rest is zero, which is PreNorm. Pagliardini et al., "DenseFormer",
//! arXiv 2402.02622 (dilation 1, period 1).

use crate::additive::additive_cost;
use crate::as_prenorm::{Chosen, PreNormModel};
use crate::averages::Averages;
use crate::fused::{FusedOptions, Junction, gain};
use crate::norm::{RmsNorm, final_norm, sub_layer_norms};
use crate::policy::{About, Cost, InvalidPolicy, PolicyConfig};
use crate::probe::{Place, Signal, show};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site, SubLayerKind};
use crate::traversal::Traversal;
use crate::weights::{Init, Weights};
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use hadal_cpu::streams::{DenseSettings, Stream};
use serde::{Deserialize, Serialize};

/// Settings of [`DenseFormer`]: there are none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenseFormerConfig {}

impl PolicyConfig for DenseFormerConfig {
    type Policy = DenseFormer;

    fn about(&self) -> About {
        About {
            kind: "denseformer",
            summary: "prenorm blocks followed by a learned average over all earlier blocks",
            equation: "x = sum_{j<=i} a_ij X_j after block i",
            state: "(blocks + 1) d",
            parameters: "sum_{i=1..blocks} (i + 1)",
            paper: "Pagliardini et al. 2024, arXiv 2402.02622",
        }
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let base = additive_cost(dimensions);
        let (d, blocks) = (dimensions.width as u64, dimensions.blocks as u64);
        let terms = blocks * (blocks + 3) / 2;
        Cost { flops: base.flops + 2 * d * terms, state: (blocks + 2) * d }
    }

    /// The stream is the last block's average, which is no source.
    fn handed_over(&self, blocks: usize, dimensions: &Dimensions) -> u64 {
        (blocks as u64 + 2) * dimensions.width as u64
    }

    /// An average weighs the blocks before its place, so it belongs to the place.
    fn travels(&self, _: &str, _: &Dimensions) -> Option<(usize, String)> {
        None
    }

    /// As it starts.
    fn as_prenorm<'a>(&'a self, _: &'a PreNormModel<'a>) -> Result<Chosen<'a>, InvalidPolicy> {
        Ok(Box::new(|_, _| None))
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> DenseFormer {
        let averages = (1..=dimensions.blocks)
            .map(|i| {
                let mut start = vec![0.0; i + 1];
                start[i] = 1.0;
                weights.param(format!("residual.block.{i}.weights"), [i + 1], Init::Values(start))
            })
            .collect();
        DenseFormer {
            norms: sub_layer_norms(dimensions, weights),
            averages,
            final_norm: final_norm(dimensions, weights),
        }
    }
}

/// PreNorm blocks with a weighted average after each.
#[derive(Module, Debug)]
pub struct DenseFormer {
    norms: Vec<RmsNorm>,
    averages: Vec<Param<Tensor<1>>>,
    final_norm: RmsNorm,
}

/// The stream and what each block produced so far.
pub struct DenseState {
    x: Tensor<3>,
    outputs: Vec<Tensor<3>>,
}

impl DenseFormer {
    fn end_block(&self, site: Site, mut state: DenseState) -> DenseState {
        state.outputs.push(state.x);
        let weights = self.averages[site.block()].val();
        state.x = state
            .outputs
            .iter()
            .enumerate()
            .map(|(j, x)| x.clone() * weights.clone().narrow(0, j, 1).unsqueeze())
            .reduce(|sum, part| sum + part)
            .expect("the embedding is always there");
        state
    }
}

impl Averages for DenseFormer {
    fn settings(&self) -> DenseSettings {
        let width = self.final_norm.width();
        let eps = self.final_norm.eps() as f32;
        DenseSettings { width, eps, dynamic: false, norms: false }
    }

    fn blocks(&self) -> usize {
        self.averages.len()
    }

    fn ways(&self, _: usize) -> usize {
        1
    }

    fn of_end(&self, block: Option<usize>) -> Vec<Tensor<1>> {
        block.map(|block| self.averages[block].val()).into_iter().collect()
    }

    fn gains(&self, reader: Place, _: bool) -> Vec<Tensor<1>> {
        vec![gain(&self.norms, &self.final_norm, reader)]
    }
}

impl Residual for DenseFormer {
    type State = DenseState;
    type Ticket = ();

    fn open(&self, embedding: Tensor<3>) -> DenseState {
        DenseState { x: embedding.clone(), outputs: vec![embedding] }
    }

    fn read(&self, site: Site, state: &DenseState, traversal: &mut Traversal) -> Read<()> {
        show(traversal, Place::Site(site), Signal::Reading, || state.x.clone());
        Read::all(self.norms[site.index].forward(state.x.clone()), ())
    }

    fn write(
        &self,
        site: Site,
        mut state: DenseState,
        _: (),
        y: Tensor<3>,
        _: &mut Traversal,
    ) -> DenseState {
        state.x = state.x + y;
        self.without(site, state)
    }

    /// The average at the end of a block belongs to the block, not to its MLP.
    fn without(&self, site: Site, state: DenseState) -> DenseState {
        match site.kind() {
            SubLayerKind::Attention => state,
            SubLayerKind::Mlp => self.end_block(site, state),
        }
    }

    fn as_stream(&self, junctions: &[Junction], options: &FusedOptions) -> Option<Box<dyn Stream>> {
        self.averaging(junctions, options.keep)
    }

    fn stream_params(&self, junctions: &[Junction], _: &FusedOptions) -> Vec<Tensor<1>> {
        self.of_junctions(junctions)
    }

    fn close(&self, state: DenseState, traversal: &mut Traversal) -> Tensor<3> {
        show(traversal, Place::Out, Signal::Reading, || state.x.clone());
        self.final_norm.forward(state.x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::prenorm::PreNormConfig;
    use crate::probe::Recorder;
    use crate::testing::{
        Stand, assert_close, chosen, dimensions, normal, random, random_norms, traverse, values,
        watching,
    };
    use burn::tensor::Device;

    /// Two blocks of width two with weights that are easy to tell apart.
    fn weighted() -> DenseFormer {
        chosen(&DenseFormerConfig {}, &dimensions(2, 2), |name, _| match name {
            "residual.block.1.weights" => Some(vec![2.0, 3.0]),
            "residual.block.2.weights" => Some(vec![0.5, -1.0, 4.0]),
            _ => None,
        })
    }

    fn token(x: [f32; 2]) -> Tensor<3> {
        Tensor::from_floats([[x]], &Device::flex())
    }

    fn write(policy: &DenseFormer, site: usize, state: DenseState, y: [f32; 2]) -> DenseState {
        policy.write(Site::new(site), state, (), token(y), &mut Traversal::default())
    }

    #[test]
    fn the_start_is_prenorm() {
        let dimensions = dimensions(8, 3);
        let embedding = normal("embedding", [2, 3, 8]);
        let dense = chosen(&DenseFormerConfig {}, &dimensions, random_norms);
        let plain = random(&PreNormConfig::default(), &dimensions);
        let expected = traverse(&plain, embedding.clone(), &dimensions);
        assert_eq!(values(traverse(&dense, embedding, &dimensions)), values(expected));
    }

    #[test]
    fn a_block_ends_with_a_weighted_sum_of_what_the_blocks_produced() {
        let policy = weighted();
        let state = policy.open(token([1.0, 10.0]));
        let state = write(&policy, 0, state, [1.0, 0.0]);
        assert_eq!(values(state.x.clone()), [2.0, 10.0]);
        // X_1 = (2, 11), x = 2 X_0 + 3 X_1.
        let state = write(&policy, 1, state, [0.0, 1.0]);
        assert_eq!(values(state.x.clone()), [8.0, 53.0]);
        // X_2 = (9, 54), x = X_0 / 2 - X_1 + 4 X_2: X_1 is the block's own, not its average.
        let state = write(&policy, 2, state, [1.0, 0.0]);
        let state = write(&policy, 3, state, [0.0, 1.0]);
        assert_eq!(values(state.x), [34.5, 210.0]);
    }

    #[test]
    fn a_block_without_its_mlp_still_ends_with_the_sum() {
        let policy = weighted();
        let state = write(&policy, 0, policy.open(token([1.0, 10.0])), [1.0, 0.0]);
        let state = policy.without(Site::new(1), state);
        assert_eq!(values(state.x), [8.0, 50.0]);
    }

    #[test]
    fn a_block_without_its_attention_does_not_end_early() {
        let policy = weighted();
        let state = policy.without(Site::new(0), policy.open(token([1.0, 10.0])));
        assert_eq!(values(state.x.clone()), [1.0, 10.0]);
        let state = write(&policy, 1, state, [0.0, 1.0]);
        assert_eq!(values(state.x), [5.0, 53.0]);
    }

    #[test]
    fn a_traversal_past_an_absent_mlp_averages_there() {
        let dimensions = dimensions(8, 2);
        let policy = random(&DenseFormerConfig {}, &dimensions);
        let embedding = normal("embedding", [2, 3, 8]);
        let mut seen = Recorder::of(&[Signal::Reading, Signal::Write]);
        policy.traverse(
            embedding.clone(),
            &mut Stand::without(&dimensions, &[1]),
            &mut watching(&mut seen),
        );
        let at = |site, signal| -> Tensor<3> {
            seen.get(Place::Site(Site::new(site)), signal).unwrap().squeeze_dim(2)
        };
        let weights = values(normal("residual.block.1.weights", [2]) * 0.5);
        let produced = embedding.clone() + at(0, Signal::Write);
        let expected = embedding * weights[0] + produced * weights[1];
        assert_close(at(2, Signal::Reading), expected, 1e-6);
    }
}
