//! Every trace in the repository, whichever implementation computed it.

use hadal_kernels::{fused_calls, plainly};
use hadal_model::{Device, read_config};
use hadal_residual::ResidualConfig;
use hadal_study::{DEFAULT_TOLERANCE, parity};
use std::fs;
use std::path::{Path, PathBuf};

fn directories(of: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(of);
    let mut found: Vec<_> = fs::read_dir(root).unwrap().map(|e| e.unwrap().path()).collect();
    found.sort();
    found
}

/// On the fused path, which must really be taken, and on the plain one.
fn assert_parity(directories: &[PathBuf]) {
    let before = fused_calls();
    assert_each(directories);
    assert!(fused_calls() > before, "no fused operation was run");
    let before = fused_calls();
    plainly(|| assert_each(directories));
    assert_eq!(fused_calls(), before, "a fused operation was run");
}

fn assert_each(directories: &[PathBuf]) {
    for directory in directories {
        let report = parity(directory, &Device::flex(), DEFAULT_TOLERANCE).unwrap();
        let wrong: Vec<_> = report.comparisons.iter().filter(|c| !c.passed).collect();
        assert!(wrong.is_empty(), "{}: {wrong:#?}", directory.display());
        assert!(!report.comparisons.is_empty());
    }
}

#[test]
fn the_shared_goldens_agree() {
    let shared = directories("golden");
    assert!(shared.len() >= 24, "{shared:?}");
    assert_parity(&shared);
}

#[test]
fn our_own_reference_agrees_on_other_shapes_and_settings() {
    let ours = directories("golden-ours");
    assert!(ours.len() >= 20, "{ours:?}");
    assert_parity(&ours);
}

#[test]
fn every_kind_has_a_trace_of_an_independent_implementation() {
    let all: Vec<_> = ["golden", "golden-ours"].into_iter().flat_map(directories).collect();
    let traced: Vec<_> =
        all.iter().map(|directory| read_config(directory).unwrap().residual.about().kind).collect();
    for policy in ResidualConfig::all() {
        let kind = policy.about().kind;
        assert!(
            traced.contains(&kind),
            "no directory under tests/golden or tests/golden-ours has the kind {kind}: describe it in a file under \
             tests/reference/kinds and run `python tests/reference/generate.py {kind}`"
        );
    }
}
