//! A sweep as an answer: how much can be skipped for how little, and what to do next.

use super::figures::figures;
use super::sweep::{Point, Sweep};
use crate::words::{grouped, quoted};
use hadal_report::page::{Answer, Next};
use hadal_report::palette;
use std::path::Path;

/// Nats that nobody would miss.
const LITTLE: f64 = 0.01;
/// How far a model may be from itself by the clock, if the clock is to be believed.
const DISTURBED: f64 = 0.05;
/// The rate that papers speak of.
const USUAL: f64 = 0.25;

/// The answer of a sweep over the model at `subject`.
pub fn answer(sweep: &Sweep, subject: &Path, data: Option<&Path>) -> Answer {
    Answer {
        kicker: format!("hadal skip sweep · {}", sweep.name),
        headline: headline(sweep),
        line: line(sweep, data),
        sentences: sentences(sweep),
        figures: figures(sweep),
        looks: palette::named([(policy(sweep), policy(sweep))]),
        next: next(sweep, subject, data),
    }
}

/// The name of the policy, without its settings.
pub(super) fn policy(sweep: &Sweep) -> &str {
    palette::kind(&sweep.residual)
}

/// The model when no token skips, if that was measured.
fn dense(sweep: &Sweep) -> Option<&Point> {
    sweep.points.iter().find(|point| point.skipped.skippable_flops == 0.0)
}

fn skipping(sweep: &Sweep) -> impl Iterator<Item = &Point> {
    sweep.points.iter().filter(|point| point.skipped.skippable_flops > 0.0)
}

/// The largest rate that costs hardly anything.
fn free<'a>(sweep: &'a Sweep, dense: &Point) -> Option<&'a Point> {
    let cheap = skipping(sweep).filter(|point| point.quality.loss - dense.quality.loss <= LITTLE);
    cheap.max_by(|a, b| a.rate.total_cmp(&b.rate))
}

/// The rate nearest to the usual one.
fn usual(sweep: &Sweep) -> Option<&Point> {
    let apart = |point: &Point| (point.rate - USUAL).abs();
    skipping(sweep).min_by(|a, b| apart(a).total_cmp(&apart(b)))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// `costs 0.21 nats`, `costs nothing`.
fn cost(point: &Point, dense: &Point) -> String {
    let nats = point.quality.loss - dense.quality.loss;
    match nats {
        nats if nats < -LITTLE => format!("lowers the loss by {} nats", digits(-nats)),
        nats if nats < 0.0005 => "costs nothing".into(),
        nats => format!("costs {} nats", digits(nats)),
    }
}

/// Nats with the digits that matter: `0.004`, `0.21`.
fn digits(nats: f64) -> String {
    if nats < 0.1 { format!("{nats:.3}") } else { format!("{nats:.2}") }
}

/// `, and reading takes 88 % of the time`, unless something else disturbed the clock: when no token skips, both models
/// that are timed in turn are the same.
fn time(point: &Point, sweep: &Sweep) -> String {
    match disturbed(sweep) {
        Some(_) => String::new(),
        None => format!(", and reading takes {} of the time", percent(point.prefill.time_ratio)),
    }
}

/// The time of the model that skips nothing relative to itself, if it is not what it should be.
fn disturbed(sweep: &Sweep) -> Option<f64> {
    let ratio = dense(sweep)?.prefill.time_ratio;
    ((ratio - 1.0).abs() > DISTURBED).then_some(ratio)
}

fn headline(sweep: &Sweep) -> String {
    let Some(usual) = usual(sweep) else { return "Nothing was skipped".into() };
    let Some(dense) = dense(sweep) else {
        return format!(
            "With {} of what can be skipped skipped, the loss is {:.3}{}",
            percent(usual.skipped.skippable_flops),
            usual.quality.loss,
            time(usual, sweep)
        );
    };
    let point = free(sweep, dense).unwrap_or(usual);
    format!(
        "Skipping {} of what can be skipped {}: the loss is {:.3} instead of {:.3}{}",
        percent(point.skipped.skippable_flops),
        cost(point, dense),
        point.quality.loss,
        dense.quality.loss,
        time(point, sweep)
    )
}

fn line(sweep: &Sweep, data: Option<&Path>) -> String {
    let data = data.map_or("the run's held-out data".to_owned(), |path| {
        path.file_name().unwrap_or(path.as_os_str()).display().to_string()
    });
    format!(
        "{}: {} · calibrated on {} tokens of {data}, measured on {} others",
        sweep.name,
        sweep.residual,
        grouped(sweep.calibration_tokens),
        grouped(sweep.tokens)
    )
}

fn sentences(sweep: &Sweep) -> Vec<String> {
    let mut all = Vec::new();
    if let (Some(dense), Some(usual)) = (dense(sweep), usual(sweep)) {
        let free = free(sweep, dense);
        if free.is_none() {
            all.push(format!(
                "No rate that was tried is free: each costs more than {LITTLE} nats."
            ));
        }
        if free.is_some_and(|free| free.rate != usual.rate) {
            all.push(format!(
                "Skipping {} {}.",
                percent(usual.skipped.skippable_flops),
                cost(usual, dense)
            ));
        }
        let most = skipping(sweep).max_by(|a, b| a.rate.total_cmp(&b.rate));
        if let Some(most) = most.filter(|most| most.rate != usual.rate) {
            all.push(format!(
                "At the most that was tried, {}, it {}; accuracy is {:.1} % instead of {:.1} %.",
                percent(most.skipped.skippable_flops),
                cost(most, dense),
                100.0 * most.quality.accuracy,
                100.0 * dense.quality.accuracy
            ));
        }
    }
    if let Some(usual) = usual(sweep) {
        all.push(format!(
            "At {} tokens skip {} of the runs of attention and {} of those of MLPs; that is {} of all FLOPs.",
            percent(usual.skipped.skippable_flops),
            percent(usual.skipped.attention_runs),
            percent(usual.skipped.mlp_runs),
            percent(usual.skipped.all_flops)
        ));
        let kept = usual.prefill.kept.filter(|kept| kept.is_finite());
        if let Some(ratio) = disturbed(sweep) {
            all.push(format!(
                "Nothing can be said about time: something else used the machine, and reading without skipping took {} of \
                 its own time.",
                percent(ratio)
            ));
        } else if let Some(kept) = kept {
            all.push(format!(
                "Of the time that FLOPs promise to save there, {} is saved, by the clock of this machine.",
                percent(kept)
            ));
        }
    }
    all
}

fn next(sweep: &Sweep, subject: &Path, data: Option<&Path>) -> Vec<Next> {
    let point = dense(sweep).and_then(|dense| free(sweep, dense)).or(usual(sweep));
    let Some(point) = point else { return Vec::new() };
    let with = data.map_or(String::new(), |path| format!(" --data {}", quoted(path)));
    let (subject, rate) = (quoted(subject), point.rate);
    let mut next = vec![Next::new(
        "Write a model that skips so much; the original is not touched",
        format!("hadal skip calibrate {subject} --rate {rate}{with} --out skipping"),
    )];
    if data.is_some() {
        next.push(Next::new(
            "See which tokens skip what",
            format!("hadal diagnose skipping --only skips{with}"),
        ));
    }
    next.push(Next::new("Undo it", "rm -r skipping"));
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::{Promise, Quality, Shares};
    use hadal_residual::{SkippedKeys, Thresholds};

    fn sweep(points: &[(f64, f64)]) -> Sweep {
        let point = |&(rate, loss): &(f64, f64)| Point {
            rate,
            skip_threshold: Thresholds::One(0.1),
            skipped: Shares {
                skippable_flops: rate,
                all_flops: rate / 2.0,
                runs: rate,
                attention_runs: rate / 2.0,
                mlp_runs: rate,
            },
            quality: Quality { loss, perplexity: loss.exp(), accuracy: 0.5 - rate },
            flops_per_token: 1e6,
            tokens_per_second: 1.0,
            dense_tokens_per_second: 1.0,
            prefill: Promise::new(1.0 - rate, 1.0 - rate / 2.0),
        };
        Sweep {
            name: "nag-s0".into(),
            residual: "nag:directions=32".into(),
            scope: hadal_train::SkipPer::Model,
            skip_shrink: 0.0,
            skip_kv: SkippedKeys::Keep,
            calibration_tokens: 2048,
            tokens: 2048,
            points: points.iter().map(point).collect(),
        }
    }

    #[test]
    fn the_headline_is_the_most_that_is_free_or_what_the_usual_rate_costs() {
        let free = sweep(&[(0.0, 1.0), (0.1, 1.004), (0.25, 1.21), (0.5, 2.0)]);
        assert_eq!(
            headline(&free),
            "Skipping 10 % of what can be skipped costs 0.004 nats: the loss is 1.004 instead of 1.000, and reading takes \
             95 % of the time"
        );
        let dear = sweep(&[(0.0, 1.0), (0.1, 1.1), (0.25, 1.21)]);
        assert!(headline(&dear).starts_with(
            "Skipping 25 % of what can be skipped costs 0.21 nats: the loss is 1.210 instead of 1.000"
        ));
        assert!(sentences(&dear)[0].starts_with("No rate that was tried is free"));
        let better = sweep(&[(0.0, 1.0), (0.2, 0.85)]);
        assert!(headline(&better).contains("lowers the loss by 0.15 nats"));
        assert!(headline(&sweep(&[(0.3, 1.5)])).starts_with("With 30 % of what can be skipped"));
        assert_eq!(headline(&sweep(&[(0.0, 1.0)])), "Nothing was skipped");
        // A model that differs from itself by the clock.
        let mut busy = dear;
        busy.points[0].prefill.time_ratio = 1.09;
        assert!(headline(&busy).ends_with("the loss is 1.210 instead of 1.000"));
        assert!(sentences(&busy).iter().any(|said| said.contains("took 109 % of its own time")));
    }

    #[test]
    fn a_page_says_for_what_why_and_what_next() {
        let found = sweep(&[(0.0, 1.0), (0.1, 1.004), (0.25, 1.21), (0.5, 2.0)]);
        let page = answer(&found, Path::new("runs/nag"), Some(Path::new("a/my text.txt")));
        assert_eq!(
            page.line,
            "nag-s0: nag:directions=32 · calibrated on 2,048 tokens of my text.txt, measured on 2,048 others"
        );
        let said = page.sentences.join("\n");
        for words in [
            "Skipping 25 % costs 0.21 nats.",
            "At the most that was tried, 50 %, it costs 1.00 nats; accuracy is 0.0 % instead of 50.0 %.",
            "skip 12 % of the runs of attention and 25 % of those of MLPs; that is 12 % of all FLOPs",
            "50 % is saved",
        ] {
            assert!(said.contains(words), "no {words:?} in {said}");
        }
        assert_eq!(
            page.next[0].command,
            "hadal skip calibrate runs/nag --rate 0.1 --data 'a/my text.txt' --out skipping"
        );
        assert_eq!(page.next.len(), 3);
        assert_eq!(answer(&found, Path::new("runs/nag"), None).next.len(), 2);
        // The policy has its colour.
        assert_eq!(page.looks, palette::named([("nag", "nag")]));
        let loss = &page.figures[0];
        assert_eq!(loss.marks.names(), ["nag"]);
    }
}
