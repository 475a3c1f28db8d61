//! Every trace in the repository, whoever computed it.

use hadal_lab::{DEFAULT_TOLERANCE, parity};
use std::fs;
use std::path::{Path, PathBuf};

fn directories(of: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(of);
    let mut found: Vec<_> = fs::read_dir(root).unwrap().map(|e| e.unwrap().path()).collect();
    found.sort();
    found
}

fn assert_parity(directories: &[PathBuf]) {
    for directory in directories {
        let report = parity(directory, DEFAULT_TOLERANCE).unwrap();
        let wrong: Vec<_> = report.comparisons.iter().filter(|c| !c.passed).collect();
        assert!(wrong.is_empty(), "{}: {wrong:#?}", directory.display());
        assert!(!report.comparisons.is_empty());
    }
}

#[test]
fn the_shared_goldens_agree() {
    let shared = directories("golden");
    assert_eq!(shared.len(), 24);
    assert_parity(&shared);
}

#[test]
fn our_own_reference_agrees_on_other_shapes_and_settings() {
    let ours = directories("golden-ours");
    assert!(ours.len() >= 20);
    assert_parity(&ours);
}
