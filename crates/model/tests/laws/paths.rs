//! All laws once more, with other kernels: in a process of its own, because the choice holds for a whole process.

use std::process::Command;

/// Runs this very test program with a variable set, without the tests of this file.
fn all_laws_with(variable: &str) {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program)
        .args(["--skip", "paths::", "--skip", "fused::"])
        .env(variable, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(!text.contains("running 0 tests"), "{text}");
}

#[test]
fn all_laws_hold_with_plain_operations() {
    all_laws_with("HADAL_PLAIN");
}

#[test]
fn all_laws_hold_with_kernels_for_any_cpu() {
    all_laws_with("HADAL_PORTABLE");
}
