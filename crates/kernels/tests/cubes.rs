//! GPU kernels of ours against the plain tensor operations that define them, forward and backward, with and without planes.
//! Without a GPU backend or a driver they are skipped: see docs/gpu-kernels.md.

use burn::tensor::{Device, Tensor, TensorData};
use hadal_files::testing::skip;
use hadal_kernels::{
    GateWeights, Planes, cube_calls, gated_write, mix_streams, plainly, pool_and_gate_streams,
    pool_sources, pool_streams, read_streams, rms_norm, turn, with_planes,
};

const EPS: f64 = 1e-6;

/// A device with kernels of ours, or why there is none.
#[cfg(feature = "wgpu")]
fn device() -> Result<Device, &'static str> {
    use burn::tensor::{DeviceKind, DeviceType};
    match Device::enumerate(DeviceType::Wgpu).into_iter().next() {
        Some(_) => Ok(Device::wgpu(DeviceKind::DefaultDevice)),
        None => Err("no wgpu device was found"),
    }
}

#[cfg(not(feature = "wgpu"))]
fn device() -> Result<Device, &'static str> {
    Err("built without the feature wgpu")
}

/// Numbers between -1 and 1.
fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn values(tensor: Tensor<1>) -> Vec<f32> {
    tensor.try_into_vec_as().unwrap()
}

/// What a function of several inputs returns, and the gradient of each input.
type Seen = Vec<Vec<f32>>;

/// A function of flat inputs.
type Function<'a> = &'a dyn Fn(&[Tensor<1>]) -> Tensor<1>;

/// The function between other operations, which fusion may join with each other.
fn run(function: Function, sizes: &[usize], device: &Device) -> Seen {
    let device = device.clone().autodiff();
    let leaves: Vec<Tensor<1>> = sizes
        .iter()
        .enumerate()
        .map(|(i, &size)| {
            let data = TensorData::new(noise(size, i as u64 + 1), [size]);
            Tensor::from_data(data, &device).require_grad()
        })
        .collect();
    let inputs: Vec<_> = leaves.iter().map(|leaf| leaf.clone() * 1.5 + 0.1).collect();
    let output = function(&inputs);
    let size = output.dims()[0];
    let form = Tensor::<1>::from_data(TensorData::new(noise(size, 99), [size]), &device);
    let mut gradients = ((output.clone() + 1.0) * form).sum().backward();
    let mut seen = vec![values(output)];
    seen.extend(leaves.iter().map(|leaf| values(leaf.grad_remove(&mut gradients).unwrap())));
    seen
}

fn assert_close(what: &str, got: &Seen, want: &Seen, tolerance: f32) {
    assert_eq!(got.len(), want.len());
    for (part, (got, want)) in got.iter().zip(want).enumerate() {
        assert_eq!(got.len(), want.len(), "{what}, part {part}");
        let largest = want.iter().fold(1f32, |a, b| a.max(b.abs()));
        for (i, (a, b)) in got.iter().zip(want).enumerate() {
            let off = (a - b).abs() / largest;
            assert!(off <= tolerance, "{what}, part {part}, element {i}: {a} is not {b}");
        }
    }
}

/// Holds kernels to the plain form on the CPU, sees that they were taken, and that they have the same bits again.
fn agree(operation: &str, case: &str, sizes: &[usize], function: Function) {
    let device = match device() {
        Ok(device) => device,
        Err(reason) => return skip("gpu", reason),
    };
    let want = plainly(|| run(function, sizes, &Device::flex()));
    for planes in [Planes::Always, Planes::Never] {
        let what = format!("{operation}, {case}, planes {planes:?}");
        let calls = || cube_calls().get(operation).copied().unwrap_or_default();
        let before = calls();
        let got = with_planes(planes, || run(function, sizes, &device));
        assert_eq!(calls(), before + 1, "{what}: no kernel was taken");
        assert_close(&what, &got, &want, 2e-5);
        assert_eq!(
            got,
            with_planes(planes, || run(function, sizes, &device)),
            "{what}: other bits"
        );
    }
}

/// Tokens and widths: fewer channels than units, and more; fewer tokens than a chunk, and more.
const SHAPES: [[usize; 2]; 2] = [[3, 33], [130, 300]];

#[test]
fn rms_norm_agrees() {
    for [rows, width] in SHAPES {
        agree("rms_norm", &format!("{rows} x {width}"), &[rows * width, width], &|inputs| {
            let x = inputs[0].clone().reshape([rows, width]);
            rms_norm(x, inputs[1].clone(), EPS).reshape([rows * width])
        });
    }
}

#[test]
fn pools_agree() {
    for [tokens, width] in SHAPES {
        for n in [1, 4] {
            let case = format!("{tokens} x {n} x {width}");
            agree("pool", &case, &[tokens * n * width, width], &|inputs| {
                let streams = inputs[0].clone().reshape([1, tokens, n, width]);
                pool_streams(streams, inputs[1].clone(), EPS).0.reshape([tokens * width])
            });
        }
    }
}

/// Sources within a kernel's and beyond, groups and none, keys that are normalised and values that are.
#[test]
fn pools_of_sources_agree() {
    let cases = [
        (3, 33, 1, 1, Some(EPS)),
        (3, 33, 6, 3, Some(EPS)),
        (130, 300, 3, 1, Some(EPS)),
        (130, 300, 9, 1, None),
        (130, 300, 4, 5, None),
    ];
    for (tokens, width, count, groups, eps) in cases {
        let case = format!("{tokens} x {count} x {width}, groups {groups}, eps {eps:?}");
        let mut sizes = vec![tokens * width; count];
        sizes.push(width);
        agree("pool_sources", &case, &sizes, &|inputs| {
            let row = |x: &Tensor<1>| x.clone().reshape([1, tokens, width]);
            let sources: Vec<_> = inputs[..count].iter().map(row).collect();
            let query = inputs[count].clone() * 0.3;
            pool_sources(&sources, query, groups, eps).0.reshape([tokens * width])
        });
    }
}

#[test]
fn readings_and_gates_agree() {
    for [tokens, width] in SHAPES {
        for (n, competitive) in [(4, false), (3, true)] {
            let case = format!("{tokens} x {n} x {width}, competitive {competitive}");
            let biases = n + usize::from(competitive);
            agree("gated_pool", &case, &[tokens * n * width, width, width, biases], &|inputs| {
                let streams = inputs[0].clone().reshape([1, tokens, n, width]);
                let (query, bias) = (inputs[2].clone(), inputs[3].clone());
                let gate = GateWeights { query, bias, competitive };
                let (reading, _, gates) =
                    pool_and_gate_streams(streams, inputs[1].clone(), gate, EPS);
                let (reading, gates) = (reading.reshape([tokens * width]), gates.reshape([-1]));
                Tensor::cat(vec![reading, gates], 0)
            });
        }
    }
}

#[test]
fn weights_of_readings_agree() {
    let device = match device() {
        Ok(device) => device,
        Err(reason) => return skip("gpu", reason),
    };
    let seen = |device: &Device| {
        let number =
            |seed, size| Tensor::<1>::from_data(TensorData::new(noise(size, seed), [size]), device);
        let streams = number(1, 6 * 4 * 33).reshape([2, 3, 4, 33]);
        let (query, bias) = (number(3, 33), number(4, 5));
        let alone = pool_streams(streams.clone(), number(2, 33), EPS).1;
        let gate = GateWeights { query, bias, competitive: true };
        let gated = pool_and_gate_streams(streams, number(2, 33), gate, EPS).1;
        let sources = [5, 6, 7, 8, 9].map(|seed| number(seed, 6 * 33).reshape([2, 3, 33]));
        let apart = pool_sources(&sources, number(2, 33), 3, Some(EPS)).1;
        assert_eq!((alone.dims(), gated.dims()), ([2, 3, 4], [2, 3, 4]));
        assert_eq!(apart.dims(), [2, 3, 5, 3]);
        vec![values(alone.reshape([24])), values(gated.reshape([24])), values(apart.reshape([90]))]
    };
    assert_close("weights", &seen(&device), &seen(&Device::flex()), 1e-5);
}

#[test]
fn gated_writes_agree() {
    for [tokens, width] in SHAPES {
        for n in [1, 4] {
            let case = format!("{tokens} x {n} x {width}");
            let sizes = [tokens * n * width, tokens * width, tokens * n];
            agree("gated_write", &case, &sizes, &|inputs| {
                let streams = inputs[0].clone().reshape([1, tokens, n, width]);
                let write = inputs[1].clone().reshape([1, tokens, width]);
                let gates = inputs[2].clone().reshape([1, tokens, n]);
                gated_write(streams, write, gates).reshape([tokens * n * width])
            });
        }
    }
}

#[test]
fn weighted_readings_agree() {
    for [tokens, width] in SHAPES {
        for n in [1, 4] {
            let case = format!("{tokens} x {n} x {width}");
            agree("read", &case, &[tokens * n, tokens * n * width], &|inputs| {
                let weights = inputs[0].clone().reshape([1, tokens, n]);
                let streams = inputs[1].clone().reshape([1, tokens, n, width]);
                read_streams(weights, streams).reshape([tokens * width])
            });
        }
    }
}

#[test]
fn mixing_agrees() {
    for [tokens, width] in SHAPES {
        for (n, mixes) in [(4, true), (3, false), (8, true)] {
            let case = format!("{tokens} x {n} x {width}, mixes {mixes}");
            let mut sizes = vec![tokens * n, tokens * n * width, tokens * width];
            if mixes {
                sizes.push(tokens * n * n);
            }
            agree("mix", &case, &sizes, &|inputs| {
                let post = inputs[0].clone().reshape([1, tokens, n]);
                let streams = inputs[1].clone().reshape([1, tokens, n, width]);
                let write = inputs[2].clone().reshape([1, tokens, width]);
                let res = inputs.get(3).map(|res| res.clone().reshape([1, tokens, n, n]));
                mix_streams(res, post, streams, write).reshape([tokens * n * width])
            });
        }
    }
}

#[test]
fn turns_agree() {
    for [tokens, width] in SHAPES {
        let sizes = [tokens * width, tokens * width, tokens];
        agree("turn", &format!("{tokens} x {width}"), &sizes, &|inputs| {
            let direction = inputs[0].clone().reshape([1, tokens, width]);
            let write = inputs[1].clone().reshape([1, tokens, width]);
            let gain = inputs[2].clone().reshape([1, tokens, 1]);
            turn(direction, write, gain, 1e-12).reshape([tokens * width])
        });
    }
}

#[test]
fn more_rows_than_a_dimension_has_cubes_agree() {
    let (rows, width) = (70_001, 5);
    agree("rms_norm", "many rows", &[rows * width, width], &|inputs| {
        let x = inputs[0].clone().reshape([rows, width]);
        rms_norm(x, inputs[1].clone(), EPS).reshape([rows * width])
    });
}

#[test]
fn gradients_that_come_as_expanded_views_are_read_in_order() {
    agree("read", "summed", &[6 * 2, 6 * 2 * 33], &|inputs| {
        let weights = inputs[0].clone().reshape([1, 6, 2]);
        let streams = inputs[1].clone().reshape([1, 6, 2, 33]);
        read_streams(weights, streams).swap_dims(1, 2).sum_dim(2).reshape([33])
    });
}

#[test]
fn a_stream_whose_gate_is_closed_stays_whatever_is_written() {
    let device = match device() {
        Ok(device) => device,
        Err(reason) => return skip("gpu", reason),
    };
    for device in [device, Device::flex()] {
        let streams = Tensor::<1>::from_floats([1.0, 2.0, 3.0, 4.0], &device);
        let write = Tensor::<1>::from_floats([f32::NAN, 7.0], &device).reshape([1, 1, 2]);
        let gates = Tensor::zeros([1, 1, 2], &device);
        let after = gated_write(streams.reshape([1, 1, 2, 2]), write, gates);
        assert_eq!(values(after.reshape([4])), [1.0, 2.0, 3.0, 4.0]);
    }
}

#[test]
fn a_row_that_is_too_large_for_its_squares_is_not_finite() {
    let device = match device() {
        Ok(device) => device,
        Err(reason) => return skip("gpu", reason),
    };
    let x = Tensor::<2>::from_floats([[3e19, 1.0], [1e19, 1.0]], &device);
    let rows = values(rms_norm(x, Tensor::ones([2], &device), EPS).reshape([4]));
    assert!(rows[..2].iter().all(|x| !x.is_finite()), "{rows:?}");
    assert!((rows[2] - 2f32.sqrt()).abs() < 1e-6, "{rows:?}");
}
