//! All laws once more, with other kernels: in a process of its own, because the choice holds for a whole process.

use std::process::Command;

use hadal_cpu::Form;

/// Runs this very test program with a variable set, without the tests of this file.
fn all_laws_with(variable: &str, value: &str) {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program)
        .args(["--skip", "paths::", "--skip", "fused::"])
        .env(variable, value)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(!text.contains("running 0 tests"), "{text}");
}

#[test]
fn all_laws_hold_with_plain_operations() {
    all_laws_with("HADAL_PLAIN", "1");
}

#[test]
fn all_laws_hold_in_every_form_of_the_kernels() {
    // The laws themselves run in the form of this process.
    for form in Form::all().into_iter().filter(|&form| form != Form::best()) {
        all_laws_with("HADAL_SIMD", &form.to_string());
    }
}
