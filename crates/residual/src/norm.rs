//! RMSNorm with a learned gain, and the names under which norms are stored.

use crate::site::{Dimensions, Site, SubLayerKind};
use crate::weights::{Init, Weights};
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use hadal_kernels::rms_norm;

/// `gain * v / sqrt(mean(v^2) + eps)`.
#[derive(Module, Debug)]
pub struct RmsNorm {
    gain: Param<Tensor<1>>,
    eps: f64,
}

impl RmsNorm {
    /// A norm over `width` features whose gain is stored under `name`.
    pub fn new(name: impl Into<String>, width: usize, eps: f64, weights: &mut Weights) -> Self {
        Self { gain: weights.param(name, [width], Init::ONES), eps }
    }

    /// Normalises the last axis.
    ///
    /// # Shapes
    /// - `x` and output: `[..., width]`
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        rms_norm(x, self.gain.val(), self.eps)
    }

    /// The gain, for a fused operation that normalises by itself.
    pub fn gain(&self) -> Tensor<1> {
        self.gain.val()
    }

    /// Features that it normalises over.
    pub fn width(&self) -> usize {
        self.gain.lazy_shape()[0]
    }

    /// What is added to the mean square.
    pub fn eps(&self) -> f64 {
        self.eps
    }
}

/// One norm for each sub-layer: `layers.{i}.attn_norm.weight` and `layers.{i}.mlp_norm.weight`.
pub(crate) fn sub_layer_norms(dimensions: &Dimensions, weights: &mut Weights) -> Vec<RmsNorm> {
    dimensions
        .each_site()
        .map(|site| RmsNorm::new(norm_name(site), dimensions.width, dimensions.norm_eps, weights))
        .collect()
}

/// The norm before the head: `norm.weight`.
pub(crate) fn final_norm(dimensions: &Dimensions, weights: &mut Weights) -> RmsNorm {
    RmsNorm::new(FINAL_NORM, dimensions.width, dimensions.norm_eps, weights)
}

/// The name of the gain before the head.
pub(crate) const FINAL_NORM: &str = "norm.weight";

/// The sub-layer that reads through the norm whose gain has this name.
pub(crate) fn site_of_norm(name: &str) -> Option<Site> {
    let mut parts = name.strip_prefix("layers.")?.split('.');
    let block: usize = parts.next()?.parse().ok()?;
    match (parts.next()?, parts.next()?, parts.next()) {
        ("attn_norm", "weight", None) => Some(Site::new(2 * block)),
        ("mlp_norm", "weight", None) => Some(Site::new(2 * block + 1)),
        _ => None,
    }
}

/// The name of the gain through which a sub-layer reads.
pub(crate) fn norm_name(site: Site) -> String {
    let half = match site.kind() {
        SubLayerKind::Attention => "attn",
        SubLayerKind::Mlp => "mlp",
    };
    format!("layers.{}.{half}_norm.weight", site.block())
}
