//! `--device`: where a model runs.

use crate::failure::Failure;
use clap::Args;
use hadal_model::{CPU, DEVICES, Device, device_named};

/// Where a model runs, for every command that runs one.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DeviceOption {
    /// Where to run [default: flex, the CPU]; the others are cargo features
    #[arg(long = "device", value_name = "DEVICE", value_parser = DEVICES)]
    name: Option<String>,
}

impl DeviceOption {
    /// What was asked for, if anything was.
    pub(crate) fn given(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The device.
    pub(crate) fn open(&self) -> Result<Device, Failure> {
        device_named(self.given().unwrap_or(CPU)).map_err(Failure::usage)
    }

    /// The words to ask for it again.
    pub(crate) fn words(&self) -> Option<String> {
        self.given().map(|name| format!("--device {name}"))
    }
}
