//! A policy put onto a trained prenorm model: values of its parameters under which it computes what that model does.
//!
//! A policy answers [`PolicyConfig::as_prenorm`](crate::PolicyConfig::as_prenorm) with a [`Chosen`]: a function from a
//! parameter's name and shape to its elements. Where it says nothing, a parameter keeps what the prenorm model has under
//! that name, or else starts as in a fresh model. Fresh random values must then meet a zero, so that they change nothing.

use crate::norm::norm_name;
use crate::site::{Dimensions, Site};
use std::fmt;

/// Elements of a parameter of this name and shape, or `None` where nothing special is chosen.
pub type Chosen<'a> = Box<dyn Fn(&str, &[usize]) -> Option<Vec<f32>> + 'a>;

/// A trained prenorm model.
pub struct PreNormModel<'a> {
    /// Its dimensions.
    pub dimensions: Dimensions,
    /// The elements of a parameter of this name, if there is one. They are read when they are asked for.
    pub elements: &'a dyn Fn(&str) -> Option<Vec<f32>>,
}

impl fmt::Debug for PreNormModel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreNormModel").field("dimensions", &self.dimensions).finish_non_exhaustive()
    }
}

impl PreNormModel<'_> {
    /// The gain through which a reader reads: of a sub-layer, or of the head if none is named.
    pub(crate) fn gain(&self, reader: Option<usize>) -> Option<Vec<f32>> {
        let name = match reader {
            Some(index) => norm_name(Site::new(index)),
            None => crate::norm::FINAL_NORM.to_owned(),
        };
        (self.elements)(&name)
    }
}

/// The sub-layer whose output the parameter of this name makes.
pub(crate) fn site_of_output(name: &str) -> Option<Site> {
    match name.split('.').collect::<Vec<_>>().as_slice() {
        ["layers", block, "attn", "o", _] => Some(Site::new(2 * block.parse::<usize>().ok()?)),
        ["layers", block, "mlp", "down", _] => {
            Some(Site::new(2 * block.parse::<usize>().ok()? + 1))
        }
        _ => None,
    }
}

/// The sub-layer and the rest of `residual.{sub-layer}.{rest}`.
pub(crate) fn of_site(name: &str) -> Option<(usize, &str)> {
    let (site, part) = name.strip_prefix("residual.")?.split_once('.')?;
    Some((site.parse().ok()?, part))
}

/// As many zeros as the shape has elements.
pub(crate) fn zeros(shape: &[usize]) -> Vec<f32> {
    vec![0.0; shape.iter().product()]
}

/// As many of this value as the shape has elements.
pub(crate) fn filled(shape: &[usize], value: f64) -> Vec<f32> {
    vec![value as f32; shape.iter().product()]
}
