//! The goldens on Burn's other backends. A backend that was not compiled in, or for which this machine has no driver,
//! is left out and says so: see docs/backends.md.

use hadal_files::testing::skip;
use hadal_kernels::{cube_calls, fused_calls};
use hadal_model::{DEVICES, Precision, device_named};
use hadal_study::{DEFAULT_TOLERANCE, parity};
use std::fs;
use std::path::{Path, PathBuf};

/// The operations that have kernels of ours on GPUs; each is met by one of the goldens.
const KERNELS: [&str; 8] =
    ["gated_pool", "gated_write", "mix", "pool", "pool_sources", "read", "rms_norm", "turn"];

/// All goldens, or those whose names begin as `HADAL_GOLDENS` lists: `mgr,nag`.
fn goldens() -> Vec<PathBuf> {
    let listed = std::env::var("HADAL_GOLDENS").unwrap_or_default();
    let begins = |name: &str| listed.split(',').any(|begin| name.starts_with(begin));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let mut found: Vec<_> = fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| begins(entry.file_name().to_str().unwrap()))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

#[test]
#[allow(clippy::print_stderr, reason = "a skipped test must say so")]
fn the_goldens_agree_on_every_other_backend_that_is_here_and_take_its_kernels() {
    for name in DEVICES.into_iter().filter(|&name| name != "flex") {
        let device = match device_named(name) {
            Ok(device) => device,
            Err(reason) => {
                skip("gpu", reason);
                continue;
            }
        };
        let before = fused_calls();
        let mut wrong = Vec::new();
        for directory in goldens() {
            let report = parity(&directory, &device, Precision::F32, DEFAULT_TOLERANCE).unwrap();
            assert!(!report.comparisons.is_empty());
            let differing = report.comparisons.into_iter().filter(|c| !c.passed);
            wrong.extend(differing.map(|c| (directory.clone(), c)));
        }
        assert!(wrong.is_empty(), "{name}: {wrong:#?}");
        assert_eq!(fused_calls(), before, "{name}: a fused operation of the CPU was run");
        let taken: Vec<_> = cube_calls().into_keys().collect();
        assert_eq!(taken, KERNELS, "{name}: kernels that were taken");
        eprintln!("passed: {} goldens on {name}, {device:?}", goldens().len());
    }
}
