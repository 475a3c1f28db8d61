//! Whole files: those of the reference implementation, our own, and hostile ones.

mod goldens;
mod hostile;
mod mutations;
mod properties;
mod round_trip;
mod support;
