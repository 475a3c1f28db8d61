//! Where a model runs: Burn's Flex backend on the CPU, or another backend that was compiled in.
//!
//! Nothing else knows the names. Fused operations exist only on Flex; elsewhere their plain forms run.

use burn::tensor::Device;
#[cfg(any(feature = "wgpu", feature = "metal"))]
use burn::tensor::DeviceKind;
#[cfg(any(feature = "wgpu", feature = "cuda", feature = "rocm", feature = "metal"))]
use burn::tensor::DeviceType;

/// Every name that [`device_named`] knows, compiled in or not. All but `flex` are cargo features too.
pub const DEVICES: [&str; 5] = [CPU, "wgpu", "cuda", "rocm", "metal"];

/// The name of Burn's Flex backend, on which operations are fused.
pub const CPU: &str = "flex";

/// Why there is no such device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum DeviceError {
    /// Its cargo feature is off.
    #[error(
        "this hadal was built without {name}; build it with `cargo build --release --features {name}`"
    )]
    NotBuilt { name: String },
    /// Its feature is on, but there is no hardware or no driver.
    #[error("no {name} device was found on this machine; see docs/backends.md for what it needs")]
    NotFound { name: String },
    /// No device has this name.
    #[error("`{name}` is not a device; there are {}", DEVICES.join(", "))]
    Unknown { name: String },
}

/// The device of one of [`DEVICES`]: the first, or the one that the backend prefers.
pub fn device_named(name: &str) -> Result<Device, DeviceError> {
    match name {
        CPU => Ok(Device::flex()),
        #[cfg(feature = "wgpu")]
        "wgpu" => found(name, DeviceType::Wgpu, || Device::wgpu(DeviceKind::DefaultDevice)),
        #[cfg(feature = "cuda")]
        "cuda" => found(name, DeviceType::Cuda, || Device::cuda(0)),
        #[cfg(feature = "rocm")]
        "rocm" => found(name, DeviceType::Rocm, || Device::rocm(0)),
        #[cfg(feature = "metal")]
        "metal" => found(name, DeviceType::Metal, || Device::metal(DeviceKind::DefaultDevice)),
        name if DEVICES.contains(&name) => Err(DeviceError::NotBuilt { name: name.into() }),
        name => Err(DeviceError::Unknown { name: name.into() }),
    }
}

/// Asks before opening: Burn panics on first use of a device that does not exist.
#[cfg(any(feature = "wgpu", feature = "cuda", feature = "rocm", feature = "metal"))]
fn found(
    name: &str,
    kind: DeviceType,
    open: impl FnOnce() -> Device,
) -> Result<Device, DeviceError> {
    if Device::enumerate(kind).into_iter().next().is_none() {
        return Err(DeviceError::NotFound { name: name.into() });
    }
    Ok(open())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flex_is_always_there_and_no_other_name_panics() {
        assert_eq!(device_named("flex"), Ok(Device::flex()));
        for name in DEVICES {
            assert!(!matches!(device_named(name), Err(DeviceError::Unknown { .. })), "{name}");
        }
        let error = device_named("abacus").unwrap_err().to_string();
        assert!(error.contains("`abacus`") && error.contains("flex, wgpu"), "{error}");
    }

    #[test]
    #[cfg(not(feature = "wgpu"))]
    fn what_was_not_compiled_in_names_the_command_that_would() {
        let error = device_named("wgpu").unwrap_err().to_string();
        assert!(error.contains("`cargo build --release --features wgpu`"), "{error}");
    }
}
