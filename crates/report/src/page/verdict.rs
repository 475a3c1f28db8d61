//! The verdict on runs in words, and their table.

use super::group::{Group, accuracy, held_out_loss, speed, train_loss};
use super::html::Cell;
use super::settings::differing;
use crate::run::Run;
use crate::statistics::{Better, Paired, Summary, Verdict, holm, paired, summary, verdict};

/// What a report says first.
pub(super) struct Findings {
    /// One sentence.
    pub(super) headline: String,
    /// The evidence for it.
    pub(super) sentences: Vec<String>,
    /// A line for each group.
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<Cell>>,
}

/// A group beside the baseline.
struct Compared<'a> {
    group: &'a Group,
    summary: Summary,
    /// Difference to the baseline and its significance; `None` for the baseline itself.
    against: Option<(Paired, Option<f64>, Verdict)>,
}

pub(super) fn findings(groups: &[Group]) -> Findings {
    let evaluated =
        groups.iter().all(|group| group.runs.iter().any(|run| held_out_loss(run).is_some()));
    let (metric, get): (&str, fn(&Run) -> Option<f64>) =
        if evaluated { ("held-out loss", held_out_loss) } else { ("training loss", train_loss) };
    let baseline =
        groups.iter().position(|group| group.first().residual() == "prenorm").unwrap_or(0);
    let compared = compared(groups, baseline, get);
    let mut sentences = sentences(&compared, &groups[baseline].label, metric);
    sentences.extend(unfair(groups));
    let (head, rows) = table(groups, &compared, metric);
    Findings {
        headline: headline(&compared, &groups[baseline].label, metric),
        sentences,
        head,
        rows,
    }
}

fn compared(groups: &[Group], baseline: usize, get: fn(&Run) -> Option<f64>) -> Vec<Compared<'_>> {
    // A run that is not done has not had the same budget as the others, and damaged numbers are none.
    let at_the_end = |run: &Run| run.is_comparable().then(|| get(run)).flatten();
    let base = groups[baseline].by_seed(at_the_end);
    let pairs: Vec<Option<Paired>> = groups
        .iter()
        .enumerate()
        .map(|(i, group)| {
            // The same seed has the same data and the same start.
            let pairs = group.by_seed(at_the_end).into_iter().filter_map(|(seed, value)| {
                let (_, other) = base.iter().find(|(other, _)| *other == seed)?;
                Some((value, *other))
            });
            let (a, b): (Vec<f64>, Vec<f64>) = pairs.unzip();
            (i != baseline).then(|| paired(&a, &b, 0))
        })
        .collect();
    let p: Vec<Option<f64>> = pairs.iter().map(|pair| pair.and_then(|pair| pair.p_t)).collect();
    let rows = groups.iter().zip(pairs).zip(holm(&p));
    rows.map(|((group, pair), p)| {
        let whole = |run: &Run| run.has_whole_metrics.then(|| get(run)).flatten();
        let values: Vec<f64> = group.by_seed(whole).into_iter().map(|(_, value)| value).collect();
        let against = pair.map(|pair| (pair, p, verdict(&pair, p, Better::Lower)));
        Compared { group, summary: summary(&values), against }
    })
    .collect()
}

fn headline(compared: &[Compared<'_>], baseline: &str, metric: &str) -> String {
    let measured = compared.iter().filter(|one| one.summary.n > 0);
    // Among groups that end level the baseline is named, since none has beaten it.
    let rank = |one: &&Compared<'_>| (one.summary.mean, one.against.is_some());
    let order = |a: &(f64, bool), b: &(f64, bool)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
    let Some(best) = measured.min_by(|a, b| order(&rank(a), &rank(b))) else {
        return "Nothing has been measured yet".into();
    };
    let (label, mean) = (&best.group.label, best.summary.mean);
    if compared.len() == 1 {
        return format!("{label} stands at a {metric} of {mean:.4} nats");
    }
    let is =
        |wanted| compared.iter().any(|one| matches!(&one.against, Some((_, _, v)) if *v == wanted));
    match &best.against {
        Some((pair, _, Verdict::Better)) => {
            format!(
                "{label} is better than {baseline}: {:.4} nats less {metric}",
                -pair.mean_difference
            )
        }
        Some((pair, _, Verdict::OneSeed)) => format!(
            "{label} ends lowest, {:.4} nats below {baseline}; one seed cannot tell whether by luck",
            -pair.mean_difference
        ),
        None if is(Verdict::OneSeed) => {
            format!("{baseline} ends lowest; one seed cannot tell whether by luck")
        }
        None if is(Verdict::Worse) && !is(Verdict::NotDistinguishable) => {
            format!("Nothing here is better than {baseline}")
        }
        _ => format!("Nothing here can be told apart from {baseline} as better"),
    }
}

fn sentences(compared: &[Compared<'_>], baseline: &str, metric: &str) -> Vec<String> {
    let mut sentences = Vec::new();
    for Compared { group, against, .. } in compared {
        let label = &group.label;
        if group.has_failed() {
            sentences.push(format!("{label}: {}.", group.status()));
        }
        let Some((pair, p, verdict)) = against else { continue };
        let difference = pair.mean_difference;
        let side = if difference < 0.0 { "below" } else { "above" };
        let size = format!("{:.4} nats {side} {baseline}", difference.abs());
        sentences.push(match (verdict, pair.interval95, p) {
            (Verdict::NothingToCompare, ..) => {
                format!("{label} has no finished run with a seed of {baseline}'s, so they are not compared.")
            }
            (Verdict::OneSeed, ..) | (_, None, _) | (_, _, None) => {
                format!("{label} ends {size} in {metric}. One seed: no interval.")
            }
            (verdict, Some((low, high)), Some(p)) => format!(
                "{label} is {}: {size} in {metric} over {} seeds (95 % interval {low:+.4} to {high:+.4}, {}).",
                match verdict {
                    Verdict::NotDistinguishable => format!("not distinguishable from {baseline}"),
                    other => format!("{other} than {baseline}"),
                },
                pair.n,
                p_value(*p),
            ),
        });
    }
    sentences
}

/// A warning if runs differ in more than what is compared.
fn unfair(groups: &[Group]) -> Option<String> {
    let settings: Vec<_> = groups.iter().map(|group| group.first().settings.clone()).collect();
    let fair = |key: &String| {
        let kept = ["seed", "train.nag_alpha_warmup", "optimizer.nag_gate_slowdown"];
        kept.contains(&key.as_str()) || key.starts_with("residual.")
    };
    let other: Vec<String> = differing(&settings).into_iter().filter(|key| !fair(key)).collect();
    let words = other.join(", ");
    (!other.is_empty()).then(|| {
        format!("Take care: these runs differ in more than their residual stream ({words}), so a difference may come from there.")
    })
}

/// `p = 0.034`, or a bound if it is smaller than can be stated.
fn p_value(p: f64) -> String {
    if p < 0.001 { "p < 0.001".into() } else { format!("p = {p:.3}") }
}

fn table(
    groups: &[Group],
    compared: &[Compared<'_>],
    metric: &str,
) -> (Vec<String>, Vec<Vec<Cell>>) {
    let spread = |group: &Group, get: fn(&Run) -> Option<f64>, digits: usize| {
        let values: Vec<f64> = group.by_seed(get).into_iter().map(|(_, value)| value).collect();
        match summary(&values) {
            Summary { n: 0, .. } => String::new(),
            Summary { mean, sd: Some(sd), .. } => format!("{mean:.digits$} ± {sd:.digits$}"),
            Summary { mean, .. } => format!("{mean:.digits$}"),
        }
    };
    let head = [
        "run",
        "seeds",
        metric,
        "difference",
        "verdict",
        "training loss",
        "accuracy (%)",
        "tokens/s",
        "peak memory (MB)",
        "parameters",
        "state",
    ];
    let mut head: Vec<String> = head.into_iter().map(str::to_owned).collect();
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for (colour, (group, one)) in groups.iter().zip(compared).enumerate() {
        let main = if metric == "held-out loss" { held_out_loss } else { train_loss };
        let (difference, words) = match &one.against {
            Some((pair, _, verdict)) if pair.n > 0 => {
                let text = verdict.to_string();
                let cell = match verdict {
                    Verdict::Better => Cell::Good(text),
                    Verdict::Worse => Cell::Bad(text),
                    _ => Cell::Text(text),
                };
                (format!("{:+.4}", pair.mean_difference), cell)
            }
            Some((_, _, verdict)) => (String::new(), Cell::Text(verdict.to_string())),
            None => {
                (String::new(), Cell::Text(if groups.len() > 1 { "baseline" } else { "" }.into()))
            }
        };
        rows.push(vec![
            Cell::Name { text: group.label.clone(), colour: Some(colour) },
            Cell::Number(group.runs.len().to_string()),
            Cell::Number(spread(group, main, 4)),
            Cell::Number(difference),
            words,
            Cell::Number(spread(group, train_loss, 4)),
            Cell::Number(spread(group, |run| Some(100.0 * accuracy(run)?), 1)),
            Cell::Number(spread(group, speed, 0)),
            Cell::Number(spread(group, |run| Some(run.outcome?.peak_rss_mb), 0)),
            Cell::Number(spread(group, |run| Some(run.outcome?.parameters as f64), 0)),
            if group.has_failed() { Cell::Bad(group.status()) } else { Cell::Text(group.status()) },
        ]);
    }
    // Columns in which no group has anything, or that repeat another one.
    for column in (0..head.len()).rev() {
        let twice = column == 5 && metric == head[5];
        if twice || rows.iter().all(|row| row[column].is_empty()) {
            head.remove(column);
            rows.iter_mut().for_each(|row| drop(row.remove(column)));
        }
    }
    (head, rows)
}
