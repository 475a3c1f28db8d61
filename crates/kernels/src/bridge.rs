//! Runs an [`Operation`] on tensors and records it for the backward pass. Burn's backend API is known here, and in `cube` for
//! GPUs, and nowhere else.

use crate::path::count_call;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{DType, Tensor, TensorData};
use hadal_cpu::{Rows, Values};
use std::fmt::Debug;
use std::sync::Arc;

/// Something computed from f32 slices, with its own backward pass.
pub(crate) trait Operation: Debug + Send + Sync + 'static {
    /// Computes the output. With `keep`, also what [`Operation::backward`] will need beyond the inputs.
    fn forward(&self, inputs: &[Rows], keep: bool) -> Output;

    /// The gradient of each input from the gradient `d` of the output; empty for one that has none.
    fn backward(&self, d: Rows, inputs: &[Rows], saved: Vec<Vec<f32>>) -> Vec<Vec<f32>>;

    /// Whether the backward pass needs this input.
    fn keeps(&self, _input: usize) -> bool {
        true
    }
}

/// What an operation returns.
pub(crate) struct Output {
    pub(crate) values: Vec<f32>,
    pub(crate) shape: Vec<usize>,
    pub(crate) saved: Vec<Vec<f32>>,
}

type SharedOperation = Arc<dyn Operation>;

/// A tensor's storage, read without a copy.
#[derive(Debug)]
struct Storage(FlexTensor);

impl Values for Storage {
    fn values(&self) -> &[f32] {
        self.0.as_slice::<f32>().expect("fused operations take f32 in order")
    }
}

fn rows(tensor: FlexTensor) -> Rows {
    // Gradients may come as expanded views.
    let contiguous = tensor.as_slice::<f32>().is_some();
    Arc::new(Storage(if contiguous { tensor } else { tensor.to_contiguous() }))
}

/// The values of a tensor in place, without a copy if they are contiguous; `None` if the tensor is not on Flex, is part
/// of a graph, or is not f32.
pub fn lend<const D: usize>(tensor: Tensor<D>) -> Option<Rows> {
    let tensor = tensor.try_into_primitive::<Flex>().ok()?;
    (tensor.dtype() == DType::F32).then(|| rows(tensor))
}

fn tensor(values: Vec<f32>, shape: &[usize]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape.to_vec()))
}

/// Runs an operation on up to eleven tensors and gives the result its shape.
pub(crate) fn run<const D: usize>(operation: impl Operation, inputs: Vec<Input>) -> Tensor<D> {
    count_call();
    let operation: SharedOperation = Arc::new(operation);
    let mut inputs = inputs.into_iter().map(|input| input.0);
    let count = inputs.len();
    let mut next = || inputs.next().expect("counted");
    let out = match count {
        1 => Dispatch::run1(next(), operation),
        2 => Dispatch::run2(next(), next(), operation),
        3 => Dispatch::run3(next(), next(), next(), operation),
        4 => Dispatch::run4(next(), next(), next(), next(), operation),
        5 => Dispatch::run5(next(), next(), next(), next(), next(), operation),
        6 => Dispatch::run6(next(), next(), next(), next(), next(), next(), operation),
        7 => Dispatch::run7(next(), next(), next(), next(), next(), next(), next(), operation),
        8 => Dispatch::run8(
            next(),
            next(),
            next(),
            next(),
            next(),
            next(),
            next(),
            next(),
            operation,
        ),
        9 => Dispatch::run9(
            next(),
            next(),
            next(),
            next(),
            next(),
            next(),
            next(),
            next(),
            next(),
            operation,
        ),
        10 => Dispatch::run10(
            next(),
            next(),
            next(),
            next(),
            next(),
            next(),
            next(),
            next(),
            next(),
            next(),
            operation,
        ),
        11 => Dispatch::run11(
            next(),
            next(),
            next(),
            next(),
            next(),
            next(),
            next(),
            next(),
            next(),
            next(),
            next(),
            operation,
        ),
        count => unreachable!("no operation has {count} inputs"),
    };
    Tensor::from_dispatch(out)
}

/// A tensor of any rank.
pub(crate) struct Input(burn::backend::DispatchTensor);

impl<const D: usize> From<Tensor<D>> for Input {
    fn from(tensor: Tensor<D>) -> Self {
        Self(tensor.into_dispatch())
    }
}

/// An operation with its number of inputs spelt out, as Burn's macro wants it.
#[allow(clippy::too_many_arguments)]
#[backend_extension(Flex, Autodiff)]
pub(crate) trait Bridge: Backend {
    fn run1(a: FloatTensor<Self>, operation: SharedOperation) -> FloatTensor<Self>;
    fn run2(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        operation: SharedOperation,
    ) -> FloatTensor<Self>;
    fn run3(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        operation: SharedOperation,
    ) -> FloatTensor<Self>;
    fn run4(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        operation: SharedOperation,
    ) -> FloatTensor<Self>;
    fn run5(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        e: FloatTensor<Self>,
        operation: SharedOperation,
    ) -> FloatTensor<Self>;
    fn run6(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        e: FloatTensor<Self>,
        f: FloatTensor<Self>,
        operation: SharedOperation,
    ) -> FloatTensor<Self>;
    fn run7(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        e: FloatTensor<Self>,
        f: FloatTensor<Self>,
        g: FloatTensor<Self>,
        operation: SharedOperation,
    ) -> FloatTensor<Self>;
    fn run8(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        e: FloatTensor<Self>,
        f: FloatTensor<Self>,
        g: FloatTensor<Self>,
        h: FloatTensor<Self>,
        operation: SharedOperation,
    ) -> FloatTensor<Self>;
    fn run9(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        e: FloatTensor<Self>,
        f: FloatTensor<Self>,
        g: FloatTensor<Self>,
        h: FloatTensor<Self>,
        i: FloatTensor<Self>,
        operation: SharedOperation,
    ) -> FloatTensor<Self>;
    fn run10(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        e: FloatTensor<Self>,
        f: FloatTensor<Self>,
        g: FloatTensor<Self>,
        h: FloatTensor<Self>,
        i: FloatTensor<Self>,
        j: FloatTensor<Self>,
        operation: SharedOperation,
    ) -> FloatTensor<Self>;
    fn run11(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        e: FloatTensor<Self>,
        f: FloatTensor<Self>,
        g: FloatTensor<Self>,
        h: FloatTensor<Self>,
        i: FloatTensor<Self>,
        j: FloatTensor<Self>,
        k: FloatTensor<Self>,
        operation: SharedOperation,
    ) -> FloatTensor<Self>;
}

/// Both backends for one number of inputs.
macro_rules! bridge {
    ($($name:ident($($input:ident),*);)*) => {
        impl Bridge for Flex {
            $(fn $name($($input: FloatTensor<Self>,)* operation: SharedOperation) -> FloatTensor<Self> {
                let inputs = [$(rows($input)),*];
                let Output { values, shape, .. } = operation.forward(&inputs, false);
                tensor(values, &shape)
            })*
        }

        impl<C: CheckpointStrategy> Bridge for Autodiff<Flex, C> {
            $(fn $name($($input: FloatTensor<Self>,)* operation: SharedOperation) -> FloatTensor<Self> {
                let nodes = [$($input.node()),*];
                let primitives = [$($input.into_primitive()),*];
                let shapes = primitives.iter().map(|p| p.shape().to_vec()).collect();
                let inputs = primitives.map(rows);
                match Step.prepare::<C>(nodes).compute_bound().stateful() {
                    OpsKind::UnTracked(prepared) => {
                        let Output { values, shape, .. } = operation.forward(&inputs, false);
                        prepared.finish(tensor(values, &shape))
                    }
                    OpsKind::Tracked(prepared) => {
                        let Output { values, shape, saved } = operation.forward(&inputs, true);
                        let state = Recorded::new(operation, &inputs, shapes, saved);
                        prepared.finish(state, tensor(values, &shape))
                    }
                }
            })*
        }
    };
}

bridge! {
    run1(a);
    run2(a, b);
    run3(a, b, c);
    run4(a, b, c, d);
    run5(a, b, c, d, e);
    run6(a, b, c, d, e, f);
    run7(a, b, c, d, e, f, g);
    run8(a, b, c, d, e, f, g, h);
    run9(a, b, c, d, e, f, g, h, i);
    run10(a, b, c, d, e, f, g, h, i, j);
    run11(a, b, c, d, e, f, g, h, i, j, k);
}

/// What a backward step remembers.
#[derive(Clone, Debug)]
struct Recorded {
    operation: SharedOperation,
    inputs: Vec<Rows>,
    shapes: Vec<Vec<usize>>,
    saved: Vec<Vec<f32>>,
}

impl Recorded {
    fn new(
        operation: SharedOperation,
        inputs: &[Rows],
        shapes: Vec<Vec<usize>>,
        saved: Vec<Vec<f32>>,
    ) -> Self {
        let nothing: Rows = Arc::new(Vec::new());
        let keep = |(i, input): (usize, &Rows)| {
            if operation.keeps(i) { input.clone() } else { nothing.clone() }
        };
        let inputs = inputs.iter().enumerate().map(keep).collect();
        Self { operation, inputs, shapes, saved }
    }
}

#[derive(Debug)]
struct Step;

impl<const N: usize> Backward<Flex, N> for Step {
    type State = Recorded;

    fn backward(self, ops: Ops<Recorded, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let Recorded { operation, inputs, shapes, saved } = ops.state;
        let d = rows(gradients.consume::<Flex>(&ops.node));
        let parts = operation.backward(d, &inputs, saved);
        for ((parent, part), shape) in ops.parents.iter().zip(parts).zip(shapes) {
            if let Some(parent) = parent
                && !part.is_empty()
            {
                gradients.register::<Flex>(parent.id, tensor(part, &shape));
            }
        }
    }
}
