//! The table of a comparison: six columns in view, all of them folded beneath.

use super::group::{Group, accuracy, speed, train_loss};
use super::html::{Cell, Html};
use super::verdict::{Against, Findings, Row};
use crate::comparison::at_depth;
use crate::palette::Look;
use crate::run::Run;
use crate::statistics::{SpeedUp, Summary, Verdict, summary};
use crate::suite::SuiteTable;
use crate::words::signed;

/// Columns in view.
const IN_VIEW: usize = 6;
/// With more rows than this, all columns are not turned into rows.
const FEW: usize = 7;

/// Columns by name, the most important first; a cell for each row of the findings.
fn columns(
    groups: &[Group],
    looks: &[(String, Look)],
    found: &Findings,
) -> Vec<(String, Vec<Cell>)> {
    let each = |cell: &dyn Fn(&Row, &Group) -> Cell| -> Vec<Cell> {
        found.rows.iter().map(|row| cell(row, &groups[row.group])).collect()
    };
    let number = |digits: usize, get: fn(&Run) -> Option<f64>| {
        each(&|_, group| Cell::Number(spread(group, digits, get)))
    };
    let against = |text: fn(&Against) -> String| {
        each(&|row, _| Cell::Number(row.against.as_ref().map(text).unwrap_or_default()))
    };
    let several = groups.len() > 1;
    let mut columns = vec![
        (
            if several { "policy" } else { "run" },
            each(&|row, group| Cell::Name {
                text: group.label.clone(),
                look: looks.iter().find(|(name, _)| *name == group.policy).map(|(_, look)| *look),
                is_best: found.is_best(row),
            }),
        ),
        (
            "verdict",
            each(&|row, group| {
                if several { verdict(row, group) } else { Cell::Text(String::new()) }
            }),
        ),
        (found.metric, each(&|row, _| Cell::Number(mean(&row.summary, 4)))),
        (
            "difference",
            against(|a| match a.paired.n {
                0 => String::new(),
                _ => signed(a.paired.mean_difference, 4),
            }),
        ),
        ("right answers, %", number(1, |run| Some(100.0 * accuracy(run)?))),
        ("fewer tokens", against(|a| times(a, a.tokens))),
        ("less time", against(|a| times(a, a.seconds))),
        (
            "95 % interval",
            against(|a| {
                a.paired.interval95.map_or_else(String::new, |(low, high)| {
                    format!("{} to {}", signed(low, 4), signed(high, 4))
                })
            }),
        ),
        ("p", against(|a| a.p.map_or_else(String::new, |p| format!("{p:.4}")))),
        ("tokens/s", number(0, speed)),
        ("peak memory, MB", number(0, |run| Some(run.outcome?.peak_rss_mb))),
        ("parameters", number(0, |run| Some(run.outcome?.parameters as f64))),
        ("training loss", number(4, train_loss)),
        ("bits per byte", number(4, |run| run.evaluations.last()?.bits_per_byte)),
        ("seeds", each(&|_, group| Cell::Number(group.runs.len().to_string()))),
        (
            "state",
            each(&|_, group| match group.has_failed() {
                true => Cell::Bad(group.status()),
                false => Cell::Text(group.status()),
            }),
        ),
    ];
    // Columns in which no group has anything, or that repeat another one.
    let mut seen: Vec<&str> = Vec::new();
    columns.retain(|(name, cells)| {
        let is_new = !seen.contains(name);
        seen.push(name);
        is_new && !cells.iter().all(Cell::is_empty)
    });
    columns.into_iter().map(|(name, cells)| (name.to_owned(), cells)).collect()
}

/// Writes the table.
pub(super) fn write(
    html: &mut Html,
    groups: &[Group],
    looks: &[(String, Look)],
    found: &Findings,
    suite: Option<&SuiteTable>,
) {
    let all = columns(groups, looks, found);
    let shown = all.iter().take(IN_VIEW);
    let head: Vec<String> = shown.clone().map(|(name, _)| name.clone()).collect();
    let row = |i: usize| shown.clone().map(|(_, cells)| cells[i].clone()).collect();
    html.table(&head, &(0..found.rows.len()).map(row).collect::<Vec<Vec<Cell>>>());
    let whole = match suite.filter(|suite| !suite.rows.is_empty() && !suite.columns.is_empty()) {
        Some(suite) => of_suite(suite, &all),
        None => all,
    };
    if whole.len() <= IN_VIEW && suite.is_none() {
        return;
    }
    html.markup("<details><summary>All ").text(whole.len().to_string());
    html.markup(" columns</summary>");
    let rows = whole.first().map_or(0, |(_, cells)| cells.len());
    if rows <= FEW {
        turned(html, &whole);
    } else {
        let head: Vec<String> = whole.iter().map(|(name, _)| name.clone()).collect();
        let row = |i: usize| whole.iter().map(|(_, cells)| cells[i].clone()).collect();
        html.table(&head, &(0..rows).map(row).collect::<Vec<Vec<Cell>>>());
    }
    html.markup("</details>");
}

/// A suite's own table has more columns; its rows in the order of ours.
fn of_suite(suite: &SuiteTable, ours: &[(String, Vec<Cell>)]) -> Vec<(String, Vec<Cell>)> {
    let names: Vec<&str> =
        ours.first().map_or_else(Vec::new, |(_, cells)| cells.iter().map(Cell::text).collect());
    let blocks = suite.columns.iter().position(|name| name == "blocks");
    let place = |row: &&Vec<String>| {
        let depth = blocks.and_then(|at| row.get(at)?.parse().ok());
        let name = at_depth(row.first().map_or("", String::as_str), depth);
        names.iter().position(|other| *other == name).unwrap_or(names.len())
    };
    let mut rows: Vec<&Vec<String>> = suite.rows.iter().collect();
    rows.sort_by_key(place);
    let cell = |text: &str| match text {
        _ if text.starts_with(|c: char| c.is_ascii_digit() || "+-−<".contains(c)) => {
            Cell::Number(text.into())
        }
        _ => Cell::Text(text.into()),
    };
    let column =
        |i: usize| rows.iter().map(|row| cell(row.get(i).map_or("", String::as_str))).collect();
    suite.columns.iter().enumerate().map(|(i, name)| (name.clone(), column(i))).collect()
}

/// Columns as rows: many columns of few groups fit a page this way.
fn turned(html: &mut Html, columns: &[(String, Vec<Cell>)]) {
    let Some(((name, heads), rest)) = columns.split_first() else { return };
    let mut head = vec![name.clone()];
    head.extend(heads.iter().map(|cell| cell.text().to_owned()));
    let row = |(name, cells): &(String, Vec<Cell>)| {
        let mut row = vec![Cell::Name { text: name.clone(), look: None, is_best: false }];
        row.extend(cells.iter().cloned());
        row
    };
    html.table(&head, &rest.iter().map(row).collect::<Vec<_>>());
}

fn verdict(row: &Row, group: &Group) -> Cell {
    match row.verdict() {
        None => Cell::Text("baseline".into()),
        Some(Verdict::Better) => Cell::Good("better".into()),
        Some(Verdict::Worse) => Cell::Bad("worse".into()),
        Some(Verdict::NothingToCompare) => Cell::Text(format!("not compared ({})", group.status())),
        Some(verdict) => Cell::Text(verdict.to_string()),
    }
}

/// A ratio of means that differ by luck alone says nothing.
fn times(against: &Against, speed_up: SpeedUp) -> String {
    match (against.verdict, speed_up) {
        (Verdict::Better, SpeedUp::Times(times)) => format!("{times:.2}x"),
        _ => String::new(),
    }
}

fn spread(group: &Group, digits: usize, get: fn(&Run) -> Option<f64>) -> String {
    let values: Vec<f64> = group.by_seed(get).into_iter().map(|(_, value)| value).collect();
    mean(&summary(&values), digits)
}

fn mean(summary: &Summary, digits: usize) -> String {
    match summary {
        Summary { n: 0, .. } => String::new(),
        Summary { mean, sd: Some(sd), .. } => format!("{mean:.digits$} ± {sd:.digits$}"),
        Summary { mean, .. } => format!("{mean:.digits$}"),
    }
}
