//! Parameters and gradients of a model by name.

use super::Decoder;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};
use hadal_kernels::{change_values, read_back, take_gradient};
use hadal_residual::Weights;
use std::collections::HashMap;
use std::mem;

/// Reads the elements of a parameter. It holds no copy of them.
pub type ReadParameter = Box<dyn Fn() -> Vec<f32>>;

impl Decoder {
    /// Every parameter's elements by name.
    ///
    /// # Panics
    /// If they cannot be read back from their device.
    pub fn parameters(&self) -> Vec<(String, Vec<f32>)> {
        self.collect(|tensor| tensor.elements())
    }

    /// Every parameter by name, to be read when its turn comes: together they would be a second model in memory.
    ///
    /// # Panics
    /// Reading panics if the elements cannot be read back from their device.
    pub fn parameter_readers(&self) -> Vec<(String, ReadParameter)> {
        self.collect(|tensor| tensor.reader())
    }

    /// Changes every parameter's elements by name. They are changed in place, unless a clone of the model or the graph
    /// of a loss holds them too.
    pub fn change_parameters(&mut self, change: impl FnMut(&str, &mut [f32])) {
        // Mapping consumes a model. The stand-in has no values yet, while a clone would hold on to those that are to
        // change.
        let stand_in = Self::declare(&self.config, Weights::fresh(0, &self.embed.device()));
        let decoder = mem::replace(self, stand_in);
        let declared = decoder.declared.clone();
        let names = declared.iter().map(|d| (d.id.val(), d.name.as_str())).collect();
        *self = decoder.map(&mut Changer { names, change });
    }

    /// The gradient of every parameter that has one, by name.
    pub fn gradients(&self, gradients: Gradients) -> Vec<(String, Vec<f32>)> {
        let mut found = Vec::new();
        self.each_gradient(gradients, |name, values| found.push((name.to_owned(), values)));
        found
    }

    /// The same, one after another, so that each can be dropped before the next is taken.
    pub fn each_gradient(&self, mut gradients: Gradients, mut see: impl FnMut(&str, Vec<f32>)) {
        self.visit(&mut Collector {
            names: self.names(),
            take: |name: &str, tensor: &dyn AnyTensor| {
                if let Some(values) = tensor.gradient(&mut gradients) {
                    see(name, values);
                }
            },
        });
    }

    fn collect<T>(&self, take: impl Fn(&dyn AnyTensor) -> T) -> Vec<(String, T)> {
        let mut found = Vec::new();
        self.visit(&mut Collector {
            names: self.names(),
            take: |name: &str, tensor: &dyn AnyTensor| found.push((name.to_owned(), take(tensor))),
        });
        found
    }

    pub(super) fn names(&self) -> HashMap<u64, &str> {
        self.declared.iter().map(|d| (d.id.val(), d.name.as_str())).collect()
    }
}

/// A parameter of any rank.
trait AnyTensor {
    fn elements(&self) -> Vec<f32>;
    fn reader(&self) -> ReadParameter;
    fn gradient(&self, gradients: &mut Gradients) -> Option<Vec<f32>>;
}

impl<const D: usize> AnyTensor for Tensor<D> {
    fn elements(&self) -> Vec<f32> {
        read_back(self.clone()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn reader(&self) -> ReadParameter {
        let tensor = self.clone();
        Box::new(move || tensor.elements())
    }

    fn gradient(&self, gradients: &mut Gradients) -> Option<Vec<f32>> {
        take_gradient(self, gradients)
    }
}

struct Changer<'a, F> {
    names: HashMap<u64, &'a str>,
    change: F,
}

impl<F: FnMut(&str, &mut [f32])> ModuleMapper for Changer<'_, F> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.names.get(&param.id.val()) {
            None => param,
            Some(name) => {
                param.map(|tensor| change_values(tensor, |values| (self.change)(name, values)))
            }
        }
    }
}

struct Collector<'a, F> {
    names: HashMap<u64, &'a str>,
    take: F,
}

impl<F: FnMut(&str, &dyn AnyTensor)> ModuleVisitor for Collector<'_, F> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(name) = self.names.get(&param.id.val()) {
            (self.take)(name, &param.val());
        }
    }
}
