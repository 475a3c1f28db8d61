//! How kernels are laid out: one cube for each token, and units that go through its channels.

use crate::path::Planes;
use burn::backend::TensorMetadata;
use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl::features::Plane;
use burn_cubecl::cubecl::prelude::{CubeCount, CubeDim};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;

/// Fewer units than this make no sum in groups.
const FEWEST_UNITS: u32 = 32;
/// WebGPU promises that many in a cube.
const MOST_UNITS: u32 = 256;
/// WebGPU has 65,535 cubes in a dimension.
const IN_A_ROW: u32 = 32_768;

/// Units of a cube, and whether their planes add.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) units: u32,
    planes_of_the_device: bool,
}

impl Layout {
    /// For rows of `width` channels on the device of a tensor.
    pub(super) fn of(tensor: &CubeTensor, width: usize) -> Self {
        let properties = tensor.client.properties();
        let hardware = &properties.hardware;
        let (least, most) = (hardware.plane_size_min, hardware.plane_size_max);
        let units = (width as u32).next_power_of_two().clamp(FEWEST_UNITS, MOST_UNITS);
        Self {
            units,
            // A plane of unknown size might be larger than a cube.
            planes_of_the_device: properties.features.plane.contains(Plane::Ops)
                && least == most
                && (2..=units).contains(&most),
        }
    }

    pub(super) fn planes(self, planes: Planes) -> bool {
        match planes {
            Planes::OfTheDevice => self.planes_of_the_device,
            Planes::Always => true,
            Planes::Never => false,
        }
    }

    pub(super) fn dim(self) -> CubeDim {
        CubeDim::new_1d(self.units)
    }
}

/// One cube for each row, in two dimensions, which one has no room for.
pub(super) fn cubes(rows: usize) -> CubeCount {
    let rows = rows as u32;
    CubeCount::Static(rows.min(IN_A_ROW), rows.div_ceil(IN_A_ROW), 1)
}

/// A tensor of f32 beside another, not yet written.
pub(super) fn empty(like: &CubeTensor, shape: Shape) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), shape, DType::F32)
}

/// Tensors in order, row by row: gradients may come as expanded views.
pub(super) fn in_order<const N: usize>(tensors: [CubeTensor; N]) -> [CubeTensor; N] {
    tensors.map(into_contiguous)
}

/// Tokens, streams of a token and channels.
pub(super) fn sizes(streams: &CubeTensor) -> [usize; 3] {
    let shape = streams.shape();
    let rank = shape.num_dims();
    let (n, width) = (shape[rank - 2], shape[rank - 1]);
    [shape.num_elements() / (n * width), n, width]
}
