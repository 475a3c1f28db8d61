//! mHC-lite: mHC whose mixing matrix is a softmax over all n! permutation matrices.
//!
//! `R = sum_k softmax(lin_res)_k P_k` is doubly stochastic exactly, without iterations; the price
//! is n! logits, which ends at a few streams. arXiv 2601.05732.
//!
//! It has mHC's forms (`mhc.rs`), but for the identity, which needs no permutations.

use crate::ResidualConfig;
use crate::as_prenorm::{Chosen, PreNormModel, of_site, zeros};
use crate::birkhoff::{logits_of, permutation_matrices};
use crate::manifold::{ManifoldForm, ManifoldSite, OFF_DIAGONAL_BIAS, StreamReadOut};
use crate::policies::mhc::ManifoldHyperConnectionsConfig;
use crate::policy::{About, Cost, InitialGate, InvalidPolicy, PolicyConfig, Update, check_streams};
use crate::pool::project;
use crate::site::Dimensions;
use crate::skip::is_default;
use crate::streams::{Mix, MixedStreams, Mixer, update};
use crate::unset::{is_false, is_two, is_zero};
use crate::weights::Weights;
use burn::module::Module;
use burn::tensor::{Tensor, TensorData, activation::softmax};
use hadal_cpu::streams::{MixingForm, MixingKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Settings of [`ManifoldLite`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ManifoldLiteConfig {
    /// Number of streams.
    pub streams: usize,
    /// Added to the weights of reading.
    #[serde(skip_serializing_if = "is_zero")]
    pub epsilon: f64,
    /// The largest weight of a write.
    #[serde(skip_serializing_if = "is_two")]
    pub post_multiplier: f64,
    /// Added to the weights of a write.
    #[serde(skip_serializing_if = "is_zero")]
    pub post_epsilon: f64,
    /// How the streams become what the head is given.
    #[serde(skip_serializing_if = "is_default")]
    pub readout: StreamReadOut,
    /// Whether a sub-layer reads with the weights that the one before it found.
    #[serde(skip_serializing_if = "is_false")]
    pub single_pass: bool,
    /// Whether each stream starts as the embedding times a learned vector, instead of a copy.
    #[serde(skip_serializing_if = "is_false")]
    pub stream_scale: bool,
}

impl Default for ManifoldLiteConfig {
    fn default() -> Self {
        Self {
            streams: 4,
            epsilon: 0.0,
            post_multiplier: 2.0,
            post_epsilon: 0.0,
            readout: StreamReadOut::Sum,
            single_pass: false,
            stream_scale: false,
        }
    }
}

impl ManifoldLiteConfig {
    fn form(&self) -> ManifoldForm {
        let Self { streams, epsilon, post_multiplier, post_epsilon, .. } = *self;
        let Self { readout, single_pass, stream_scale, .. } = *self;
        ManifoldForm {
            streams,
            identity: false,
            epsilon,
            post_multiplier,
            post_epsilon,
            readout,
            single_pass,
            stream_scale,
        }
    }
}

/// n streams, mixed by mixtures of permutations.
pub(crate) type ManifoldLite = MixedStreams<BirkhoffSite>;

/// 6! = 720 logits per sub-layer; the next step would be 5,040.
const MOST_STREAMS: usize = 6;

fn factorial(n: usize) -> u64 {
    (1..=n as u64).fold(1, u64::saturating_mul)
}

fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|g| str::from_utf8(g).ok()).collect();
    groups.join(",")
}

impl PolicyConfig for ManifoldLiteConfig {
    type Policy = ManifoldLite;

    fn about(&self) -> About {
        About {
            kind: "mhc_lite",
            summary: "mhc with an exact mixture of permutations instead of Sinkhorn",
            equation: "as mhc, R = sum_k softmax(scale v W + b)_k P_k over all n! permutations",
            state: "n d",
            parameters: "L (n d + 1) (n! + 2n) + 3 L",
            paper: "mHC-lite 2026, arXiv 2601.05732",
        }
    }

    fn check(&self, _: &Dimensions) -> Result<(), InvalidPolicy> {
        check_streams(self, self.streams, usize::MAX)?;
        if self.streams > MOST_STREAMS {
            return Err(self.refuse(format!(
                "streams is {n}, which means {n}! = {permutations} permutations at every sub-layer; \
                 use at most {MOST_STREAMS} streams, or mhc, whose cost grows with n^2",
                n = self.streams,
                permutations = thousands(factorial(self.streams.min(20))),
            )));
        }
        self.form().check(self)
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let (d, n) = (dimensions.width as u64, self.streams as u64);
        let logits = factorial(self.streams);
        let weights =
            Cost::rms(n * d) + 2 * n * d * (logits + 2 * n) + 4 * logits + 2 * logits * n * n;
        self.form().streams().cost(dimensions, weights)
    }

    fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
        let n = self.streams;
        let off = OFF_DIAGONAL_BIAS.exp();
        let total = 1.0 + (factorial(n) - 1) as f64 * off;
        // (n - 1)! permutations keep a given stream in place; the identity is one of them.
        let diagonal = (1.0 + (factorial(n - 1) - 1) as f64 * off) / total;
        let mut gates = self.form().initial_gates(dimensions);
        gates.push(InitialGate::alike("weight of the identity", 0, dimensions, 1.0 / total));
        gates.push(InitialGate::alike("res diagonal", 0, dimensions, diagonal));
        gates
    }

    fn update(&self, name: &str, shape: &[usize]) -> Update {
        update(name, shape)
    }

    fn as_prenorm<'a>(&'a self, _: &'a PreNormModel<'a>) -> Result<Chosen<'a>, InvalidPolicy> {
        self.form().as_prenorm(1.0, self)
    }

    fn fixed_mixers<'a>(
        &'a self,
        mixers: &'a BTreeMap<usize, Vec<f64>>,
    ) -> Result<Chosen<'a>, InvalidPolicy> {
        Ok(Box::new(move |name, shape| {
            let (site, part) = of_site(name)?;
            let mixer = mixers.get(&site)?;
            match part {
                "res_weight" => Some(zeros(shape)),
                "res_bias" => Some(logits_of(mixer, self.streams)),
                _ => None,
            }
        }))
    }

    /// Without mixers, both kinds on the manifold are the same.
    fn without_mixers(&self) -> Option<ResidualConfig> {
        let Self { streams, epsilon, post_multiplier, post_epsilon, .. } = *self;
        let Self { readout, single_pass, stream_scale, .. } = *self;
        Some(ResidualConfig::ManifoldHyperConnections(ManifoldHyperConnectionsConfig {
            streams,
            sinkhorn_iters: 0,
            identity: true,
            epsilon,
            post_multiplier,
            post_epsilon,
            readout,
            single_pass,
            stream_scale,
        }))
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> ManifoldLite {
        let form = self.form();
        let mut start = vec![OFF_DIAGONAL_BIAS as f32; factorial(self.streams) as usize];
        start[0] = 0.0;
        let site = |site, weights: &mut Weights| BirkhoffSite {
            linear: ManifoldSite::new(site, &form, dimensions, &start, weights),
        };
        let out = |weights: &mut Weights| form.out(dimensions, weights);
        MixedStreams::new(form.streams(), dimensions, weights, site, out)
    }
}

/// `sum_k softmax(logits)_k P_k`.
///
/// # Shapes
/// - `logits`: `[B, T, n!]`
/// - output: `[B, T, n, n]`
fn mixture_of_permutations(logits: Tensor<3>, n: usize) -> Tensor<4> {
    let [batch, time, count] = logits.dims();
    let matrices = TensorData::new(permutation_matrices(n), [count, n * n]);
    let matrices = Tensor::<2>::from_data(matrices, &logits.device());
    project(softmax(logits, 2), matrices).reshape([batch, time, n, n])
}

/// A site whose mixing lies in the Birkhoff polytope by construction.
#[derive(Module, Debug)]
pub struct BirkhoffSite {
    linear: ManifoldSite,
}

impl Mixer for BirkhoffSite {
    fn mix(&self, streams: &Tensor<4>) -> Mix {
        let n = streams.dims()[2];
        self.linear.mix(streams, |logits| mixture_of_permutations(logits, n))
    }

    fn form(&self) -> MixingForm {
        MixingForm { gates: self.linear.gates(), ..MixingKind::Permutations.into() }
    }

    fn params(&self) -> Vec<Tensor<1>> {
        self.linear.params()
    }
}

// The constants are those of the spec, digit by digit.
#[cfg(test)]
#[allow(clippy::excessive_precision)]
mod tests {
    use super::*;
    use crate::probe::{Recorder, Signal};
    use crate::residual::{Read, Residual};
    use crate::sinkhorn::sinkhorn;
    use crate::site::Site;
    use crate::testing::{
        assert_manifold_start, assert_near, chosen, dimensions, fresh, normal, random, values,
        watched,
    };
    use crate::traversal::Traversal;
    use burn::tensor::Device;

    const STREAMS: usize = 4;

    fn lite(streams: usize) -> ManifoldLiteConfig {
        ManifoldLiteConfig { streams, ..Default::default() }
    }

    #[test]
    fn documented_gates_are_those_of_the_reference_code() {
        let gates = ManifoldLiteConfig::default().initial_gates(&dimensions(8, 3));
        let gate = |name| gates.iter().find(|gate| gate.name == name).unwrap().values[0];
        for (name, value) in [
            ("pre (chosen stream)", 0.731_058_58),
            ("pre (others)", 0.268_941_42),
            ("post (chosen stream)", 1.462_117_16),
            ("post (others)", 0.537_882_84),
            ("weight of the identity", 0.992_343_43),
            ("res diagonal", 0.994_007_91),
        ] {
            assert!((gate(name) - value).abs() < 1e-8, "{name} is {}", gate(name));
        }
        // The other 23 permutations split the rest evenly.
        let other = (1.0 - gate("weight of the identity")) / 23.0;
        assert!((other - 0.000_332_89).abs() < 1e-8, "{other}");
    }

    #[test]
    fn a_fresh_policy_gates_as_documented() {
        let policy = fresh(&ManifoldLiteConfig::default(), &dimensions(8, 3));
        assert_manifold_start(&policy, 0.994_007_91, 0.001_997_36);
    }

    #[test]
    fn any_logits_mix_doubly_stochastically() {
        for size in [1.0, 100.0] {
            let mixing = mixture_of_permutations(normal("logits", [2, 3, 24]) * size, STREAMS);
            let ones = [1.0; 2 * 3 * STREAMS];
            // 24 products are summed for each weight.
            assert_near(&values(mixing.clone().sum_dim(3)), &ones, 1e-6);
            assert_near(&values(mixing.sum_dim(2)), &ones, 1e-6);
        }
    }

    #[test]
    fn a_random_policy_mixes_doubly_stochastically_at_every_site() {
        let dimensions = dimensions(8, 3);
        let policy = random(&lite(3), &dimensions);
        let mut seen = Recorder::of(&[Signal::Mixing]);
        watched(&policy, normal("embedding", [2, 3, 8]), &dimensions, &mut seen);
        assert_eq!(seen.seen.len(), 6);
        for (_, _, mixing) in seen.seen {
            assert_near(&values(mixing.clone().sum_dim(3)), &[1.0; 18], 1e-6);
            assert_near(&values(mixing.sum_dim(2)), &[1.0; 18], 1e-6);
        }
    }

    #[test]
    fn two_streams_reach_what_sinkhorn_reaches() {
        for stay in [0.001f32, 0.2, 0.5, 0.9, 0.999] {
            let logit = (stay / (1.0 - stay)).ln();
            let logits = Tensor::from_floats([[[logit, 0.0]]], &Device::flex());
            let lite = values(mixture_of_permutations(logits, 2));
            let logits = Tensor::from_floats([[[[logit, 0.0], [0.0, logit]]]], &Device::flex());
            let expected = [stay, 1.0 - stay, 1.0 - stay, stay];
            assert_near(&lite, &expected, 1e-6);
            assert_near(&values(sinkhorn(logits, 20, 0.0)), &expected, 1e-6);
        }
    }

    #[test]
    fn a_stream_comes_from_where_its_permutation_points() {
        // The permutation 1, 2, 0 is the fourth of three; its inverse 2, 0, 1 is the fifth.
        let policy = chosen(&lite(3), &dimensions(2, 1), |name, _| match name {
            "residual.0.res_bias" => Some(vec![0.0, 0.0, 0.0, 200.0, 0.0, 0.0]),
            _ => None,
        });
        let site = Site::new(0);
        let streams =
            Tensor::from_floats([[[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]]], &Device::flex()).into();
        let Read { ticket, .. } = policy.read(site, &streams, &mut Traversal::default());
        let nothing = Tensor::zeros([1, 1, 2], &Device::flex());
        let after = policy.write(site, streams, ticket, nothing, &mut Traversal::default());
        assert_eq!(values(after.streams), [3.0, 4.0, 5.0, 6.0, 1.0, 2.0]);
    }

    #[test]
    fn eight_streams_are_refused_for_their_permutations() {
        let refusal = lite(8).check(&dimensions(8, 1)).unwrap_err();
        let refusal = refusal.to_string();
        assert!(refusal.contains("8! = 40,320 permutations"), "{refusal}");
        assert!(refusal.contains("at most 6"), "{refusal}");
        assert!(lite(6).check(&dimensions(8, 1)).is_ok());
        assert!(lite(0).check(&dimensions(8, 1)).is_err());
    }
}
