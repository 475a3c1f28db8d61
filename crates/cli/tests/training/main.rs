//! Training as its users meet it: every test starts the real binary, stops it, kills it, damages its
//! files, and compares bytes.

mod damage;
mod failures;
mod kill;
mod resume;
mod settings;
mod support;
