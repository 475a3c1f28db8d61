//! What the sub-layers of one pass returned, for passes that differ from it only later on.

use crate::pass::{Tokens, Variant};
use burn::tensor::Tensor;
use hadal_kernels::Precision;
use hadal_residual::{Site, StepMode};

/// Outputs of every sub-layer of a pass. A pass of the same model over the same tokens in the same mode and precision, but with other
/// sub-layers absent, takes everything before the first difference from it, instead of computing it again.
#[derive(Debug, Default)]
pub struct Recording {
    tokens: Option<Tokens>,
    absent: Vec<Site>,
    mode: StepMode,
    precision: Precision,
    outputs: Vec<Option<Tensor<3>>>,
    first_values: Option<Tensor<3>>,
}

impl Recording {
    pub(crate) fn begin(&mut self, tokens: &Tokens, variant: Variant, sites: usize) {
        *self = Self {
            tokens: Some(tokens.clone()),
            absent: variant.absent.to_vec(),
            mode: variant.mode.clone(),
            precision: variant.precision,
            outputs: vec![None; sites],
            first_values: None,
        };
    }

    /// `first_values` are those that the first attention left, as soon as it did.
    pub(crate) fn keep(
        &mut self,
        site: Site,
        output: &Tensor<3>,
        first_values: &Option<Tensor<3>>,
    ) {
        if let Some(kept) = self.outputs.get_mut(site.index) {
            *kept = Some(output.clone());
        }
        self.first_values.clone_from(first_values);
    }

    /// How many leading sub-layers return the same in a pass of a variant over `tokens`.
    pub(crate) fn agreeing(&self, tokens: &Tokens, variant: Variant) -> usize {
        let alike = self.mode == *variant.mode && self.precision == variant.precision;
        if !alike || self.tokens.as_ref() != Some(tokens) {
            return 0;
        }
        let sites = 0..self.outputs.len();
        let differs = |&index: &usize| {
            let site = Site::new(index);
            self.absent.contains(&site) != variant.absent.contains(&site)
        };
        sites.clone().find(differs).unwrap_or(sites.end)
    }

    pub(crate) fn output(&self, site: Site) -> Option<Tensor<3>> {
        self.outputs.get(site.index)?.clone()
    }

    /// The values of the first attention, if later ones take them.
    pub(crate) fn first_values(&self) -> Option<Tensor<3>> {
        self.first_values.clone()
    }
}
