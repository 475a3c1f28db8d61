//! The result of a suite as it is printed: the answer, the table with the best first, and what to do next.

use crate::output::Table;
use crate::screen::{Screen, Style};
use crate::standard::visible;
use hadal_compare::{Ranked, Results};
use hadal_report::suite::SuiteTable;
use std::path::Path;

/// Columns of the first table in a file, on what was learnt; the others, on what it took, make the second.
const LEARNT: [&str; 9] = [
    "runs",
    "train loss",
    "held-out loss",
    "difference",
    "95 % interval",
    "p (t test)",
    "p (bootstrap)",
    "p (Holm)",
    "verdict",
];
/// Columns of both, which begin every part.
const BOTH: [&str; 2] = ["policy", "blocks"];
/// Columns that stay longest on a narrow screen.
const FIRST: [&str; 12] = [
    "policy",
    "blocks",
    "verdict",
    "difference",
    "held-out loss",
    "95 % interval",
    "tuned to",
    "accuracy, %",
    "speed-up, tokens",
    "tokens/s",
    "peak memory, MB",
    "p (Holm)",
];
/// The sign of the best: colours are not for all eyes.
const BEST: &str = " *";

/// The answer, the table, and the evidence in sentences.
pub(super) fn text(table: &SuiteTable, order: &[Ranked], screen: &Screen, all: bool) -> String {
    let shown = |text: &str| match screen.width {
        Some(_) => screen.wrapped(&visible(text), 2),
        None => text.to_owned(),
    };
    let mut sentences = table.verdict.iter();
    let mut text = String::new();
    if let Some(answer) = sentences.next() {
        // Painted line by line: a colour must not run on behind a line's end.
        let bold = Style::default().bold();
        let lines = shown(answer);
        let lines: Vec<String> = lines.lines().map(|line| screen.paint(line, bold)).collect();
        text += &format!("{}\n\n", lines.join("\n"));
    }
    for part in parts(table, screen) {
        text += &of_columns(table, &part, order, screen, all).text(screen);
        if screen.width.is_none() {
            text.push('\n');
        }
    }
    if order.iter().any(|ranked| ranked.best) {
        let note = format!("*: the lowest {} of those that are better", table.metric);
        text += &format!("{}\n", screen.paint(&note, Style::FAINT));
    }
    if screen.width.is_some() {
        text.push('\n');
    }
    for sentence in sentences {
        text += &format!("{}\n", shown(sentence));
    }
    text
}

/// A screen has one table that fits; a file has two that are complete.
fn parts(table: &SuiteTable, screen: &Screen) -> Vec<Vec<usize>> {
    let all = 0..table.columns.len();
    if screen.width.is_some() {
        return vec![all.collect()];
    }
    let part = |learnt: bool| {
        let belongs = |&column: &usize| {
            let name = table.columns[column].as_str();
            BOTH.contains(&name) || LEARNT.contains(&name) == learnt
        };
        all.clone().filter(belongs).collect()
    };
    vec![part(true), part(false)]
}

fn of_columns(
    table: &SuiteTable,
    columns: &[usize],
    order: &[Ranked],
    screen: &Screen,
    all: bool,
) -> Table {
    let name = |column: usize| table.columns[column].as_str();
    let head: Vec<String> = columns
        .iter()
        .map(|&column| match name(column) {
            name @ ("policy" | "verdict") => name.to_owned(),
            name => format!(">{name}"),
        })
        .collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let keys = BOTH.iter().filter(|key| table.columns.iter().any(|name| name == *key)).count();
    let mut shown = match all {
        true => Table::new(&head).in_parts(keys),
        false => Table::new(&head).dropping(&FIRST, "--all-columns or --json for the rest"),
    };
    let looks = table.looks();
    let colour = |row: &[String]| {
        let known = looks.iter().find(|(name, _)| row.first() == Some(name));
        known.map(|(_, look)| screen.policy(*look)).unwrap_or_default()
    };
    for ranked in order {
        let Some(row) = table.rows.get(ranked.cell) else { continue };
        shown.row(columns.iter().map(|&column| match name(column) {
            "verdict" if ranked.best => format!("{}{BEST}", row[column]),
            _ => row[column].clone(),
        }));
        shown.paint(0, colour(row));
        if ranked.best {
            shown.bold();
        }
    }
    shown
}

/// Where everything is, and what to do next.
pub(super) fn closing(out: &Path, report: &Path, results: &Results) -> String {
    let best = results.ranking().into_iter().find(|ranked| ranked.best);
    let looked_at = best.map_or(0, |ranked| ranked.cell);
    let run = results.cells.get(looked_at).and_then(|cell| {
        let is_mine = |run: &&hadal_compare::RunResult| {
            run.variant == cell.variant && run.depth == cell.depth && run.counts()
        };
        results.runs.iter().find(is_mine)
    });
    let mut text = format!("report: {} (open it in a browser)", report.display());
    text += &format!("\nall numbers: {}", out.join("results.json").display());
    text += &format!(" (also {}, {})", SuiteTable::FILE, "table.csv");
    text += &format!("\nnext: hadal serve {}", out.display());
    if let Some(run) = run {
        let run = out.join(SuiteTable::RUNS).join(&run.name);
        text += &format!("\n      hadal diagnose {}", run.display());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::screen::Colours;

    fn table() -> SuiteTable {
        let row = |name: &str, verdict: &str, difference: &str| -> Vec<String> {
            let cells = [name, verdict, "1.2340 ± 0.0100", difference, "-0.0520 to -0.0170"];
            let more = ["0.0123", "0.5000 ± 0.0100", "3/3", "166896", "2.290e11", "36100 ± 120"];
            cells.iter().chain(&more).map(|cell| (*cell).to_owned()).collect()
        };
        let columns = ["policy", "verdict", "held-out loss", "difference", "95 % interval"];
        let more = ["p (Holm)", "train loss", "runs", "parameters", "FLOPs spent", "tokens/s"];
        SuiteTable {
            metric: "held-out loss".into(),
            verdict: vec![
                "two is better than one; no difference seen: three (3 seeds).".into(),
                "More.".into(),
            ],
            columns: columns.iter().chain(&more).map(|name| (*name).to_owned()).collect(),
            rows: vec![
                row("one", "baseline", ""),
                row("two", "better", "-0.0380"),
                row("three", "no difference seen", "-0.0010"),
            ],
            ..SuiteTable::default()
        }
    }

    const ORDER: [Ranked; 3] = [
        Ranked { cell: 1, best: true },
        Ranked { cell: 2, best: false },
        Ranked { cell: 0, best: false },
    ];

    fn wide(width: usize) -> Screen {
        Screen { width: Some(width), ..FILE }
    }

    const FILE: Screen = Screen::FILE;

    #[test]
    fn the_answer_is_first_then_the_best_and_everything_fits() {
        for width in [60, 80, 100] {
            let text = text(&table(), &ORDER, &wide(width), false);
            assert!(text.starts_with("two is better than one;"), "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\\n{text}");
            let names: Vec<&str> =
                text.lines().filter_map(|line| line.split("  ").next()).collect();
            let at = |name: &str| names.iter().position(|other| *other == name).unwrap();
            assert!(at("two") < at("three") && at("three") < at("one"), "{text}");
            assert!(text.contains("better *") && text.contains("columns; --all-columns"));
        }
        let eighty = text(&table(), &ORDER, &wide(80), false);
        let head = eighty.lines().nth(2).unwrap();
        assert_eq!(
            head,
            "policy  verdict               held-out loss  difference       95 % interval"
        );
    }

    #[test]
    fn every_column_is_there_when_it_is_asked_for_or_in_a_file() {
        for text in [text(&table(), &ORDER, &wide(80), true), text(&table(), &ORDER, &FILE, false)]
        {
            assert!(table().columns.iter().all(|name| text.contains(name.as_str())), "{text}");
            assert!(!text.contains("columns;"));
        }
        assert!(!text(&table(), &ORDER, &FILE, false).contains('\x1b'));
    }

    #[test]
    fn the_best_is_marked_by_more_than_a_colour() {
        let coloured = Screen { colours: Colours::Few, ..wide(100) };
        let text = text(&table(), &ORDER, &coloured, false);
        assert!(text.contains("\x1b[1mbetter *\x1b[0m"), "{text}");
        let nobody = ORDER.map(|ranked| Ranked { best: false, ..ranked });
        assert!(!super::text(&table(), &nobody, &coloured, false).contains('*'));
    }
}
