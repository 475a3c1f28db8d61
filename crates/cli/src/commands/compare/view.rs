//! A suite at work: one bar and a table of what is known so far on a terminal, a line for each run in a log.

use crate::output::{Table, line};
use crate::screen::{Screen, Style};
use crate::standard::{stderr, visible};
use hadal_compare::{Earlier, End, Progress, Results, Task, Watch};
use indicatif::{ProgressBar, ProgressStyle};

/// Shows how a suite goes.
pub(super) struct View {
    bar: ProgressBar,
    watched: bool,
    begun: bool,
    /// The table so far, with a line break behind it.
    table: String,
}

/// Positions of the bar.
const WHOLE: f64 = 1e6;

impl View {
    pub(super) fn new() -> Self {
        let watched = stderr().is_terminal();
        let bar = if watched { ProgressBar::new(WHOLE as u64) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template(
            "{msg}\n{bar:24} {percent} %, {prefix}, {elapsed} elapsed, {eta} left",
        );
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix("starting");
        Self { bar, watched, begun: false, table: String::new() }
    }

    /// Shows no bar, and no line for a run that is done.
    pub(super) fn quiet() -> Self {
        let bar = ProgressBar::hidden();
        Self { bar, watched: true, begun: false, table: String::new() }
    }

    /// Takes bar and table away.
    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Watch for View {
    fn earlier(&mut self, earlier: &Earlier) {
        line(&self.bar, &earlier.sentence());
        for warning in &earlier.warnings {
            line(&self.bar, &format!("warning: {warning}"));
        }
    }

    fn said(&mut self, sentence: &str) {
        line(&self.bar, sentence);
    }

    fn waiting(&mut self, runs: &[(String, String)]) {
        let named: Vec<String> = runs.iter().map(|(run, by)| format!("{run} ({by})")).collect();
        line(&self.bar, &format!("waiting for {}", named.join(", ")));
    }

    fn progress(&mut self, progress: &Progress) {
        self.bar.set_position((WHOLE * progress.share) as u64);
        if !self.begun {
            // Runs that were done before say nothing about the speed.
            self.bar.reset_eta();
            self.begun = true;
        }
        if !self.watched {
            return;
        }
        let running: Vec<String> = progress
            .running
            .iter()
            .map(|(name, step, steps)| format!("{name} {step}/{steps}"))
            .collect();
        let running = visible(&running.join(", ")).into_owned();
        let running = Screen::stderr().wrapped(&running, 2);
        self.bar.set_prefix(format!("{} of {} runs", progress.ended, progress.runs));
        self.bar.set_message(format!("{}{running}", self.table));
    }

    fn ended(&mut self, task: &Task, end: &End) {
        let text = match end {
            End::Failed(said) => format!("warning: {} failed: {said}", task.name),
            End::Diverged(said) => format!("warning: {} diverged: {said}", task.name),
            End::Done if !self.watched => format!("{} is done", task.name),
            End::DoneElsewhere if !self.watched => {
                format!("{} is done, by another process", task.name)
            }
            End::DoneBefore if !self.watched => format!("{} was done before", task.name),
            _ => return,
        };
        line(&self.bar, &text);
    }

    fn looked(&mut self, seeds: usize, open: usize, next: Option<usize>) {
        let comparisons = if open == 1 { "comparison is" } else { "comparisons are" };
        let then = match (open, next) {
            (0, _) => "the suite ends".to_owned(),
            (_, Some(next)) => {
                format!("{open} {comparisons} undecided, the next look is after {next}")
            }
            (_, None) => format!("{open} {comparisons} undecided with the most seeds"),
        };
        line(&self.bar, &format!("look after {seeds} seeds: {then}"));
    }

    fn so_far(&mut self, results: &Results) {
        if self.watched {
            self.table = so_far(results, &Screen::stderr());
        }
    }
}

/// Variants with a finished run, the lowest loss first. No verdict: that is the whole suite's.
fn so_far(results: &Results, screen: &Screen) -> String {
    // Colours are those of the final table, whoever is ready first.
    let colours = screen.policies(results.cells.iter().map(|cell| cell.policy.as_str()));
    let ranking = results.ranking();
    let rows: Vec<Row> = ranking
        .iter()
        .map(|ranked| (&results.cells[ranked.cell], colours[ranked.cell]))
        .filter(|(cell, _)| cell.done.0 > 0)
        .map(|(cell, colour)| Row {
            name: cell.name(),
            colour,
            done: cell.done,
            loss: cell.validation_loss.mean,
            differences: cell.against.as_ref().map(|against| {
                let paired = &against.paired;
                (paired.n, paired.mean_difference)
            }),
        })
        .collect();
    rows_so_far(&rows, &results.baseline, results.metric, screen)
}

struct Row {
    name: String,
    colour: Style,
    /// Runs that are done, and all of them.
    done: (usize, usize),
    loss: f64,
    /// Pairs and their mean difference; `None` for the baseline.
    differences: Option<(usize, f64)>,
}

fn rows_so_far(rows: &[Row], baseline: &str, metric: &str, screen: &Screen) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let difference = format!(">difference to {baseline} so far");
    let loss = format!(">{metric}");
    let mut table = Table::new(&["policy", ">seeds", &loss, &difference]);
    for row in rows {
        let difference = match row.differences {
            None => "baseline".into(),
            Some((0, _)) => "no pair yet".into(),
            Some((_, mean)) => format!("{mean:+.4}"),
        };
        let seeds = format!("{} of {}", row.done.0, row.done.1);
        table.row([row.name.clone(), seeds, format!("{:.4}", row.loss), difference]);
        table.paint(0, row.colour);
        if row.differences.is_none_or(|(pairs, _)| pairs == 0) {
            table.paint(3, Style::FAINT);
        }
    }
    table.text(screen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, done: usize, loss: f64, differences: Option<(usize, f64)>) -> Row {
        let (name, colour) = (name.to_owned(), Style::default());
        Row { name, colour, done: (done, 3), loss, differences }
    }

    #[test]
    fn what_is_known_so_far_is_no_verdict() {
        let rows = [
            row("two", 1, 1.5, Some((1, -0.25))),
            row("one", 2, 1.75, None),
            row("three", 1, 2.0, Some((0, f64::NAN))),
        ];
        let narrow = Screen { width: Some(80), ..Screen::FILE };
        let text = rows_so_far(&rows, "one", "held-out loss", &narrow);
        assert_eq!(
            text,
            "policy   seeds  held-out loss  difference to one so far
two     1 of 3         1.5000                   -0.2500
one     2 of 3         1.7500                  baseline
three   1 of 3         2.0000               no pair yet
"
        );
        assert!(!text.contains("better"));
        assert_eq!(rows_so_far(&[], "one", "held-out loss", &narrow), "");
    }
}
