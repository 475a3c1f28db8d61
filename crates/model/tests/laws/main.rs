//! Laws that hold for every residual policy, with and without depth memory.

mod absence;
mod checkpoints;
mod conversion;
mod decoding;
mod fused;
mod gradients;
mod hostile;
mod independence;
mod mixture_of_depths;
mod overflow;
mod paths;
mod precision;
mod skipping;
mod starts;
mod support;
mod values;
mod variants;
mod writing;
