//! What a look at a model will take, as `--dry-run` shows it.

use crate::output::{grouped, scaled};
use hadal_study::Estimate;
use indicatif::HumanDuration;
use std::io::{self, Write};
use std::time::Duration;

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

fn duration(seconds: f64) -> String {
    // Nothing that takes longer is worth an exact number.
    const LONGEST: f64 = 1e9;
    HumanDuration(Duration::from_secs_f64(seconds.clamp(1.0, LONGEST))).to_string()
}

/// `768 B`, `1.28 kB`.
pub(crate) fn bytes(number: f64) -> String {
    let text = scaled(number);
    if text.contains(' ') { format!("{text}B") } else { format!("{text} B") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_apart_from_its_number() {
        assert_eq!([768.0, 1280.0, 2e9].map(bytes), ["768 B", "1.28 kB", "2.00 GB"]);
    }
}
