//! The goldens on Burn's other backends. A backend that was not compiled in, or for which this machine has no driver,
//! is left out and says so: see docs/backends.md.

use hadal_files::testing::skip;
use hadal_kernels::fused_calls;
use hadal_model::{DEVICES, Precision, device_named};
use hadal_study::{DEFAULT_TOLERANCE, parity};
use std::fs;
use std::path::{Path, PathBuf};

fn goldens() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let mut found: Vec<_> = fs::read_dir(root).unwrap().map(|e| e.unwrap().path()).collect();
    found.sort();
    found
}

#[test]
#[allow(clippy::print_stderr, reason = "a skipped test must say so")]
fn the_goldens_agree_on_every_other_backend_that_is_here_and_nothing_is_fused() {
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
        assert_eq!(fused_calls(), before, "{name}: a fused operation was run");
        eprintln!("passed: {} goldens on {name}, {device:?}", goldens().len());
    }
}
