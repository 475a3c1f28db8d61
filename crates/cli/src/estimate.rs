//! What a look at a model will take, as `--dry-run` shows it.

use crate::output::{bytes, duration, grouped};
use hadal_study::Estimate;
use std::io::{self, Write};

/// Passes, time and memory.
pub(crate) fn show_estimate(estimate: &Estimate, out: &mut impl Write) -> io::Result<()> {
    let [least, most] = estimate.passes;
    let passes = if least == most { most.to_string() } else { format!("{least} to {most}") };
    let [shortest, longest] = estimate.seconds.map(duration);
    let time = if shortest == longest { longest } else { format!("{shortest} to {longest}") };
    writeln!(out, "passes      {passes}")?;
    writeln!(
        out,
        "time        about {time} here, by a short pass ({} tokens/s)",
        grouped(estimate.tokens_per_second.round() as i128)
    )?;
    writeln!(out, "memory      about {}", bytes(estimate.memory))
}
