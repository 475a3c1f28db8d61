//! Parameters and gradients of a model by name, as tensors that stay where they are.

use super::Decoder;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor};
use hadal_residual::Weights;
use std::collections::HashMap;
use std::mem;

impl Decoder {
    /// Where the model is.
    pub fn device(&self) -> Device {
        self.embed.device()
    }

    /// The gradient of every parameter that has one, by name, flat and without a graph.
    ///
    /// # Shapes
    /// - each: `[elements]`
    pub fn gradient_tensors(&self, gradients: Gradients) -> Vec<(String, Tensor<1>)> {
        let mut taker = Taker { names: self.names(), gradients, found: Vec::new() };
        self.visit(&mut taker);
        taker.found
    }

    /// Replaces every parameter by what `change` makes of its name and its elements, which never leave the device.
    ///
    /// # Shapes
    /// - what `change` gets and returns: `[elements]`
    pub fn change_tensors(&mut self, change: impl FnMut(&str, Tensor<1>) -> Tensor<1>) {
        // Mapping consumes a model; the stand-in has no values yet.
        let stand_in = Self::declare(&self.config, Weights::fresh(0, &self.device()));
        let decoder = mem::replace(self, stand_in);
        let declared = decoder.declared.clone();
        let names = declared.iter().map(|d| (d.id.val(), d.name.as_str())).collect();
        *self = decoder.map(&mut Changer { names, change });
    }
}

struct Taker<'a> {
    names: HashMap<u64, &'a str>,
    gradients: Gradients,
    found: Vec<(String, Tensor<1>)>,
}

impl ModuleVisitor for Taker<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(&name) = self.names.get(&param.id.val()) else { return };
        if let Some(gradient) = param.val().grad_remove(&mut self.gradients) {
            self.found.push((name.to_owned(), flat(gradient)));
        }
    }
}

struct Changer<'a, F> {
    names: HashMap<u64, &'a str>,
    change: F,
}

impl<F: FnMut(&str, Tensor<1>) -> Tensor<1>> ModuleMapper for Changer<'_, F> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(&name) = self.names.get(&param.id.val()) else { return param };
        param.map(|tensor| {
            let (shape, graph) = (tensor.dims(), tensor.is_autodiff());
            let tracked = tensor.is_require_grad();
            let changed = (self.change)(name, flat(tensor.inner())).reshape(shape);
            let changed = if graph { Tensor::from_inner(changed) } else { changed };
            changed.set_require_grad(tracked)
        })
    }
}

fn flat<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    let count = tensor.dims().iter().product::<usize>();
    tensor.reshape([count])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::small;
    use crate::pass::{Pass, Tokens};
    use hadal_kernels::read_back;

    fn loss(model: &Decoder) -> Tensor<1> {
        let (input, target) = (Tokens::row(&[1, 2, 3]), Tokens::row(&[2, 3, 4]));
        model.loss(&input, &target, &[], Pass::default()).unwrap()
    }

    #[test]
    fn flat_gradients_are_those_that_come_to_the_host() {
        let model = Decoder::fresh(&small(), 3, &Device::flex().autodiff()).unwrap();
        let host = model.gradients(loss(&model).backward());
        let flat = model.gradient_tensors(loss(&model).backward());
        assert!(host.len() > 5 && host.len() == flat.len());
        for ((name, values), (flat_name, tensor)) in host.into_iter().zip(flat) {
            assert_eq!((name, values), (flat_name, read_back(tensor).unwrap()));
        }
    }

    #[test]
    fn changed_tensors_are_those_of_the_host_and_can_be_learned_on() {
        let mut model = Decoder::fresh(&small(), 3, &Device::flex().autodiff()).unwrap();
        let mut other = model.clone();
        let factor = |name: &str| if name.contains("norm") { 2.0 } else { 0.5 };
        model.change_tensors(|name, tensor| tensor * factor(name));
        other.change_parameters(|name, values| {
            values.iter_mut().for_each(|value| *value *= factor(name));
        });
        assert_eq!(model.parameters(), other.parameters());
        let gradients = |model: &Decoder| model.gradients(loss(model).backward());
        assert_eq!(gradients(&model), gradients(&other));
    }
}
