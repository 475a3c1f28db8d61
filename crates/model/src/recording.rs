//! What the sub-layers of one pass returned, for passes that differ from it only later on.

use crate::pass::Tokens;
use burn::tensor::Tensor;
use hadal_residual::Site;

/// Outputs of every sub-layer of a pass. A pass of the same model over the same tokens that leaves out other
/// sub-layers takes from it whatever comes before the first difference, instead of computing it again.
#[derive(Debug, Default)]
pub struct Recording {
    tokens: Option<Tokens>,
    absent: Vec<Site>,
    outputs: Vec<Option<Tensor<3>>>,
}

impl Recording {
    pub(crate) fn begin(&mut self, tokens: &Tokens, absent: &[Site], sites: usize) {
        let outputs = vec![None; sites];
        *self = Self { tokens: Some(tokens.clone()), absent: absent.to_vec(), outputs };
    }

    pub(crate) fn keep(&mut self, site: Site, output: &Tensor<3>) {
        if let Some(kept) = self.outputs.get_mut(site.index) {
            *kept = Some(output.clone());
        }
    }

    /// How many sub-layers return the same in a pass over `tokens` without `absent`.
    pub(crate) fn agreeing(&self, tokens: &Tokens, absent: &[Site]) -> usize {
        if self.tokens.as_ref() != Some(tokens) {
            return 0;
        }
        let sites = 0..self.outputs.len();
        let differs = |&index: &usize| {
            let site = Site::new(index);
            self.absent.contains(&site) != absent.contains(&site)
        };
        sites.clone().find(differs).unwrap_or(sites.end)
    }

    pub(crate) fn output(&self, site: Site) -> Option<Tensor<3>> {
        self.outputs.get(site.index)?.clone()
    }
}
