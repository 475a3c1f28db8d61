//! libFuzzer over one target, the one that `HADAL_FUZZ_TARGET` names. `tests/campaign/fuzz` builds and runs it.

#![no_main]
#![allow(
    missing_docs,
    unreachable_pub,
    reason = "the macros of libfuzzer-sys make public functions"
)]

use hadal_fuzz::{TARGETS, Target, helped, mutate, target};
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use std::sync::OnceLock;

static CHOSEN: OnceLock<&'static Target> = OnceLock::new();

fn chosen() -> &'static Target {
    CHOSEN.get_or_init(|| {
        let name = std::env::var("HADAL_FUZZ_TARGET").unwrap_or_default();
        let known = TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(" ");
        target(&name).unwrap_or_else(|| panic!("HADAL_FUZZ_TARGET is one of: {known}"))
    })
}

/// A panic is a crash at once, also where somebody would catch it; except where we catch those of other libraries.
fn crash_on_panic() {
    let _ = std::panic::take_hook();
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !hadal_tokenizer::is_guarded() {
            told(panic);
            std::process::abort();
        }
    }));
    if helped() {
        std::process::exit(0);
    }
    chosen();
}

fuzz_target!(init: crash_on_panic(), |bytes: &[u8]| {
    chosen().run(bytes);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    // What is in the corpus may be longer than what is worth trying.
    let longest = max_size.min(chosen().longest.max(size));
    if seed % 3 == 0 {
        return fuzzer_mutate(data, size, longest);
    }
    let changed = mutate(chosen(), &data[..size], seed.into());
    let length = changed.len().min(longest);
    data[..length].copy_from_slice(&changed[..length]);
    length
});
