//! SiameseNorm: a PostNorm stream x and a PreNorm stream y with the same sub-layers.
//!
//! `x = RMSNorm_post(x); z = F_l(x + RMSNorm_pre(y)); x' = x + z / sqrt(2 block); y' = y + z`, both
//! starting as the embedding, read out as `RMSNorm_post(x) + RMSNorm_pre(y)`.
//! "SiameseNorm", arXiv 2602.08064 (the published "post-pre" code).

use crate::fused::{FusedOptions, Junction, gain, join};
use crate::norm::{RmsNorm, final_norm, sub_layer_norms};
use crate::policy::{About, Cost, InitialGate, PolicyConfig};
use crate::probe::{Place, Signal, show, show_streams};
use crate::residual::{Read, Residual};
use crate::site::{Dimensions, Site};
use crate::traversal::Traversal;
use crate::weights::Weights;
use burn::module::Module;
use burn::tensor::Tensor;
use hadal_cpu::streams::{Siamese, Stream};
use serde::{Deserialize, Serialize};

/// Settings of [`SiameseNorm`]: there are none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiameseNormConfig {}

/// What a write to the PostNorm stream is multiplied by.
fn write_scale(site: Site, dimensions: &Dimensions) -> f64 {
    1.0 / (2.0 * (dimensions.depth_of(site.block()) + 1) as f64).sqrt()
}

impl PolicyConfig for SiameseNormConfig {
    type Policy = SiameseNorm;

    fn about(&self) -> About {
        About {
            kind: "siamese",
            summary: "a postnorm and a prenorm stream that share their sub-layers",
            equation: "x = RMSNorm_post(x); z = F_l(x + RMSNorm_pre(y)); x' = x + z/sqrt(2 block); y' = y + z",
            state: "2 d",
            parameters: "2 d (L + 1)",
            paper: "SiameseNorm 2026, arXiv 2602.08064",
        }
    }

    fn never_prenorm(&self) -> &'static str {
        "one of its two streams is normalised after every sub-layer"
    }

    fn cost(&self, dimensions: &Dimensions) -> Cost {
        let (d, sites) = (dimensions.width as u64, dimensions.sites() as u64);
        let join = 2 * Cost::norm(d) + d;
        Cost { flops: sites * (join + Cost::norm(d) + 3 * d) + join + Cost::norm(d), state: 2 * d }
    }

    fn initial_gates(&self, dimensions: &Dimensions) -> Vec<InitialGate> {
        let scale = |l| write_scale(Site::new(l), dimensions);
        vec![InitialGate::by_depth("post-stream write", dimensions, scale)]
    }

    fn depends_on_depth(&self) -> bool {
        true
    }

    fn init(&self, dimensions: &Dimensions, weights: &mut Weights) -> SiameseNorm {
        let pairs = dimensions
            .each_site()
            .map(|site| Pair::new(&site.index.to_string(), dimensions, weights))
            .collect();
        SiameseNorm {
            norms: sub_layer_norms(dimensions, weights),
            pairs,
            write_scales: dimensions
                .each_site()
                .map(|site| write_scale(site, dimensions))
                .collect(),
            out: Pair::new("out", dimensions, weights),
            final_norm: final_norm(dimensions, weights),
        }
    }
}

/// The norms that bring the two streams together.
#[derive(Module, Debug)]
pub(crate) struct Pair {
    post: RmsNorm,
    pre: RmsNorm,
}

impl Pair {
    fn new(place: &str, dimensions: &Dimensions, weights: &mut Weights) -> Self {
        let (d, eps) = (dimensions.width, dimensions.norm_eps);
        Self {
            post: RmsNorm::new(format!("residual.{place}.post_norm"), d, eps, weights),
            pre: RmsNorm::new(format!("residual.{place}.pre_norm"), d, eps, weights),
        }
    }
}

/// Two streams, one row of sub-layers.
#[derive(Module, Debug)]
pub struct SiameseNorm {
    norms: Vec<RmsNorm>,
    pairs: Vec<Pair>,
    write_scales: Vec<f64>,
    out: Pair,
    final_norm: RmsNorm,
}

/// The PostNorm stream `x` and the PreNorm stream `y`.
pub struct SiameseState {
    x: Tensor<3>,
    y: Tensor<3>,
}

impl Residual for SiameseNorm {
    type State = SiameseState;
    /// The PostNorm stream after its norm: the write continues from there.
    type Ticket = Tensor<3>;

    fn open(&self, embedding: Tensor<3>) -> SiameseState {
        SiameseState { x: embedding.clone(), y: embedding }
    }

    fn read(&self, site: Site, state: &SiameseState, traversal: &mut Traversal) -> Read<Tensor<3>> {
        let pair = &self.pairs[site.index];
        let x = pair.post.forward(state.x.clone());
        let h = x.clone() + pair.pre.forward(state.y.clone());
        show(traversal, Place::Site(site), Signal::Reading, || h.clone());
        Read::all(self.norms[site.index].forward(h), x)
    }

    fn write(
        &self,
        site: Site,
        state: SiameseState,
        x: Tensor<3>,
        z: Tensor<3>,
        traversal: &mut Traversal,
    ) -> SiameseState {
        let x = x + z.clone() * self.write_scales[site.index];
        let y = state.y + z;
        show_streams(traversal, Place::Site(site), Signal::Streams, || {
            Tensor::stack(vec![x.clone(), y.clone()], 2)
        });
        SiameseState { x, y }
    }

    fn between(&self, _: Place, state: &SiameseState) -> Option<Tensor<4>> {
        Some(Tensor::stack(vec![state.x.clone(), state.y.clone()], 2))
    }

    fn stream_params(&self, junctions: &[Junction], _: &FusedOptions) -> Vec<Tensor<1>> {
        let reader = |junction: &Junction| {
            let pair = match junction.to {
                Place::Site(site) => &self.pairs[site.index],
                Place::Out => &self.out,
            };
            let norm = gain(&self.norms, &self.final_norm, junction.to);
            join(vec![pair.post.gain(), pair.pre.gain(), norm])
        };
        junctions.iter().map(reader).collect()
    }

    fn as_stream(&self, junctions: &[Junction], options: &FusedOptions) -> Option<Box<dyn Stream>> {
        let writers = junctions.iter().filter_map(|junction| junction.from);
        let scales = writers.map(|site| self.write_scales[site.index] as f32).collect();
        let (width, eps) = (self.final_norm.width(), self.final_norm.eps() as f32);
        Some(Box::new(Siamese::new(width, eps, scales, options.keep)))
    }

    fn close(&self, state: SiameseState, traversal: &mut Traversal) -> Tensor<3> {
        let out = self.out.post.forward(state.x) + self.out.pre.forward(state.y);
        show(traversal, Place::Out, Signal::Reading, || out.clone());
        self.final_norm.forward(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Recorder;
    use crate::testing::{assert_near, chosen, dimensions, values, watching};
    use burn::tensor::Device;

    /// Norms with gains that are easy to tell apart.
    fn with_gains() -> SiameseNorm {
        chosen(&SiameseNormConfig {}, &dimensions(2, 2), |name, _| match name {
            "residual.2.post_norm" => Some(vec![2.0, 1.0]),
            "residual.2.pre_norm" => Some(vec![1.0, 3.0]),
            "layers.1.attn_norm.weight" => Some(vec![1.0, 0.5]),
            "residual.out.post_norm" => Some(vec![5.0, 1.0]),
            "residual.out.pre_norm" => Some(vec![1.0, 7.0]),
            "norm.weight" => Some(vec![-1.0, 2.0]),
            _ => None,
        })
    }

    fn token(x: [f32; 2]) -> Tensor<3> {
        Tensor::from_floats([[x]], &Device::flex())
    }

    fn rms_of([a, b]: [f32; 2]) -> [f32; 2] {
        let scale = ((a * a + b * b) / 2.0 + 1e-6).sqrt();
        [a / scale, b / scale]
    }

    #[test]
    fn both_streams_start_as_the_embedding() {
        let state = with_gains().open(token([3.0, 4.0]));
        assert_eq!(values(state.x), [3.0, 4.0]);
        assert_eq!(values(state.y), [3.0, 4.0]);
    }

    #[test]
    fn one_sub_layer_by_hand() {
        let policy = with_gains();
        let site = Site::new(2);
        let state = SiameseState { x: token([3.0, 4.0]), y: token([-2.0, 1.0]) };
        let mut seen = Recorder::of(&[Signal::Reading]);
        let Read { input, ticket, .. } = policy.read(site, &state, &mut watching(&mut seen));

        let ([x0, x1], [y0, y1]) = (rms_of([3.0, 4.0]), rms_of([-2.0, 1.0]));
        let post = [2.0 * x0, x1];
        let h = [post[0] + y0, post[1] + 3.0 * y1];
        let reading = seen.get(Place::Site(site), Signal::Reading).unwrap();
        assert_near(&values(reading), &h, 1e-6);
        let [h0, h1] = rms_of(h);
        assert_near(&values(input), &[h0, 0.5 * h1], 1e-6);

        // The second block writes to the PostNorm stream at 1 / sqrt(2 * 2).
        let state =
            policy.write(site, state, ticket, token([10.0, -6.0]), &mut Traversal::default());
        assert_near(&values(state.x), &[post[0] + 5.0, post[1] - 3.0], 1e-6);
        assert_near(&values(state.y), &[8.0, -5.0], 1e-6);
    }

    #[test]
    fn the_first_block_writes_to_the_post_stream_at_one_over_root_two() {
        let policy = with_gains();
        for site in [0, 1].map(Site::new) {
            let state = policy.open(token([3.0, 4.0]));
            let Read { ticket, .. } = policy.read(site, &state, &mut Traversal::default());
            let state =
                policy.write(site, state, ticket, token([2.0, 0.0]), &mut Traversal::default());
            let [x0, x1] = rms_of([3.0, 4.0]);
            assert_near(&values(state.x), &[x0 + 2f32.sqrt(), x1], 1e-6);
        }
    }

    #[test]
    fn the_read_out_joins_the_normalised_streams() {
        let policy = with_gains();
        let state = SiameseState { x: token([3.0, 4.0]), y: token([-2.0, 1.0]) };
        let ([x0, x1], [y0, y1]) = (rms_of([3.0, 4.0]), rms_of([-2.0, 1.0]));
        let [h0, h1] = rms_of([5.0 * x0 + y0, x1 + 7.0 * y1]);
        assert_near(
            &values(policy.close(state, &mut Traversal::default())),
            &[-h0, 2.0 * h1],
            1e-6,
        );
    }
}
