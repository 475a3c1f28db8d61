//! A diagnosis as text.

use hadal_study::diagnose::{MASSIVE, SkipsSummary, Summary};
use std::io::{self, Write};

/// The most telling numbers, in sentences.
pub(super) fn show(summary: &Summary, out: &mut impl Write) -> io::Result<()> {
    let Summary { name, residual, blocks, sequences, tokens, loss, perplexity, .. } = summary;
    let step = summary.step.map_or(String::new(), |step| format!(", step {step}"));
    writeln!(out, "{name}: {residual}, {blocks} blocks{step}")?;
    for sentence in summary.verdict().all() {
        writeln!(out, "  {sentence}")?;
    }
    writeln!(out)?;
    writeln!(
        out,
        "  loss          {loss:.4} (perplexity {perplexity:.3}) on {sequences} sequences, {tokens} tokens"
    )?;
    if let Some(growth) = summary.norm_growth {
        writeln!(out, "  norm growth   {growth:.2} times from the embedding to the head")?;
    }
    if let Some((first, last)) = summary.write_sizes {
        writeln!(
            out,
            "  writes        the first block changes the stream by {:.1} %, the last by {:.1} %",
            100.0 * first,
            100.0 * last
        )?;
    }
    if let Some(ratio) = summary.gradient_ratio {
        writeln!(
            out,
            "  gradients     {ratio:.2} times as large behind the first block as behind the last"
        )?;
    }
    show_removals(summary, out)?;
    if let Some(largest) = &summary.largest {
        let verdict = if largest.times_median >= MASSIVE { "massive" } else { "not massive" };
        writeln!(
            out,
            "  activations   largest {:.4}, {:.0} times the median: {verdict} (behind {}, position {}, channel {})",
            largest.value, largest.times_median, largest.behind, largest.position, largest.channel
        )?;
    }
    if let Some((block, share)) = summary.sink {
        writeln!(
            out,
            "  first token   gets {:.1} % of the attention in block {block}, the most of all",
            100.0 * share
        )?;
    }
    if let Some(widest) = summary.widest_gate {
        writeln!(out, "  gates         widest {widest:.3}")?;
    }
    if let Some(lanes) = &summary.lanes {
        let correlation = lanes
            .temperature_correlation
            .map_or(String::new(), |r| format!("; log norm and token loss correlate by {r:.2}"));
        writeln!(
            out,
            "  rotation      {:.2} degrees in a sub-layer on average, {:.1} % of gains above 0.25{correlation}",
            lanes.rotation,
            100.0 * lanes.large_gains
        )?;
    }
    if let Some(skips) = &summary.skips {
        show_skips(skips, out)?;
    }
    show_depth(summary, out)?;
    for refusal in &summary.refused {
        writeln!(out, "  no {:<11}{}", refusal.diagnostic.name(), refusal.reason)?;
    }
    Ok(())
}

/// How blocks and streams work together.
fn show_depth(summary: &Summary, out: &mut impl Write) -> io::Result<()> {
    if let Some(streams) = &summary.streams {
        let number =
            |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        writeln!(
            out,
            "  streams       of {} count {} in what is read, {} in what is written, {} by size; cosine {} at the end",
            streams.streams,
            number(streams.read),
            number(streams.written),
            number(streams.held),
            number(streams.cosine)
        )?;
        if let Some((values, squares)) = streams.product_rank {
            writeln!(
                out,
                "  mixers        {} from the identity; effective rank of their product {values:.2} (s), {squares:.2} (s^2)",
                number(streams.from_identity)
            )?;
        }
    }
    if let Some(collapse) = &summary.collapse {
        let (first, last) = (collapse.first.entropy, collapse.last.entropy);
        writeln!(out, "  token rank    {first:.1} at the embedding, {last:.1} at the head")?;
    }
    let percent = |share: Option<f64>| {
        share.map_or("none measured".to_owned(), |share| format!("{:.0} %", 100.0 * share))
    };
    if let Some(causal) = &summary.causal {
        writeln!(out, "  causal        {} of pairs of blocks above 0.45", percent(causal.share))?;
    }
    if let Some(permutation) = &summary.permutation {
        let share = percent(permutation.share);
        writeln!(out, "  permutation   {share} of pairs of blocks above 0.15")?;
    }
    if let Some(usefulness) = &summary.usefulness {
        let blocks = usefulness.ratios.iter().flatten().count();
        writeln!(
            out,
            "  usefulness    {} of {blocks} blocks do what no affine map does",
            usefulness.useful
        )?;
    }
    if let Some(spikes) = &summary.spikes {
        writeln!(
            out,
            "  spikes        {} in {} steps, {:.1} in 10,000",
            spikes.spikes,
            spikes.steps,
            spikes.in_ten_thousand()
        )?;
    }
    Ok(())
}

fn show_skips(skips: &SkipsSummary, out: &mut impl Write) -> io::Result<()> {
    let percent = |share: Option<f64>| {
        share.map_or("none".to_owned(), |share| format!("{:.1} %", 100.0 * share))
    };
    writeln!(
        out,
        "  skipped       {} of the FLOPs that can be; {} of attention, {} of MLPs",
        percent(Some(skips.flops)),
        percent(skips.attention),
        percent(skips.mlp)
    )?;
    for (which, tokens) in [("most", &skips.most), ("least", &skips.least)] {
        let named = tokens.iter().map(|t| format!("{} {}", t.name(), percent(Some(t.skipped))));
        let named: Vec<String> = named.collect();
        if !named.is_empty() {
            writeln!(out, "  skip {which:<9}{}", named.join(", "))?;
        }
    }
    Ok(())
}

fn show_removals(summary: &Summary, out: &mut impl Write) -> io::Result<()> {
    if let Some((block, change)) = summary.dearest() {
        writeln!(out, "  dearest       block {block}: without it the loss rises by {change:.4}")?;
        let useless: Vec<String> = summary.useless().iter().map(usize::to_string).collect();
        let which = match useless.len() {
            0 => "none: every block lowers the loss by more than 0.01".to_owned(),
            1 => format!("block {}", useless[0]),
            _ => format!("blocks {}", useless.join(", ")),
        };
        writeln!(out, "  nearly free   {which}")?;
    }
    let kept: Vec<String> = summary
        .removals
        .iter()
        .filter(|removal| removal.reason.is_some())
        .map(|removal| removal.block.to_string())
        .collect();
    if !kept.is_empty() {
        writeln!(out, "  not removable {} (they fill streams)", kept.join(", "))?;
    }
    Ok(())
}
