//! A residual policy between two sub-layers, fused: see `hadal_cpu::streams`.

use crate::bridge::{Operation, Output, run};
use crate::lock::lock;
use burn::tensor::Tensor;
use hadal_cpu::streams::Stream;
use hadal_cpu::{Route, Rows};
use std::sync::{Arc, Mutex};

/// A depth state that is carried past the sub-layers, one junction after another.
///
/// Every sub-layer must depend on what it was given: the backward pass goes back through the junctions
/// because each one's output reaches the next one's input by way of a sub-layer.
pub struct Junctions {
    stream: Arc<Mutex<Box<dyn Stream>>>,
}

impl Junctions {
    /// Takes over a stream before its first junction.
    pub fn new(stream: Box<dyn Stream>) -> Self {
        Self { stream: Arc::new(Mutex::new(stream)) }
    }

    /// Goes through the next junction: from a write to the next sub-layer's input, and the tokens that run it.
    ///
    /// # Shapes
    /// - `write`: `[B, T, d]`
    /// - output: `[B, T, d]`, or `[B, T, 3 d]`: an attention's inputs of queries, keys and values side by side
    /// - `params`: as the stream defines
    pub fn forward(&mut self, write: Tensor<3>, params: Tensor<1>) -> (Tensor<3>, Option<Route>) {
        let shape = write.dims();
        let operation = Junction { stream: self.stream.clone(), shape };
        let input = run(operation, vec![write.into(), params.into()]);
        let route = lock(&self.stream).route();
        (input, route)
    }
}

#[derive(Debug)]
struct Junction {
    stream: Arc<Mutex<Box<dyn Stream>>>,
    shape: [usize; 3],
}

impl Operation for Junction {
    fn forward(&self, inputs: &[Rows], _: bool) -> Output {
        let mut stream = lock(&self.stream);
        let values = stream.forward(inputs[0].clone(), inputs[1].values());
        let [batch, time, _] = self.shape;
        let elements = values.len() / (batch * time).max(1);
        Output { values, shape: vec![batch, time, elements], saved: Vec::new() }
    }

    fn backward(&self, d: Rows, inputs: &[Rows], _: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        let mut stream = lock(&self.stream);
        let gradient = stream.backward(d.values(), inputs[1].values());
        vec![gradient.write, gradient.params]
    }

    /// The stream keeps what it needs of the write.
    fn keeps(&self, input: usize) -> bool {
        input == 1
    }
}
