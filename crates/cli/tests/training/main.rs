//! Training as its users meet it: every test starts the real binary, stops it, kills it, damages its
//! files, and compares bytes.

// `--nocapture` shows how many kills landed where, which no assertion should depend on.
#![allow(clippy::print_stdout)]

mod compare;
mod damage;
mod device;
mod diagnose;
mod failures;
mod healing;
mod kill;
#[cfg(target_os = "linux")]
mod live;
mod pipes;
mod precision;
mod provenance;
mod resume;
mod settings;
mod signals;
mod skip;
mod support;
