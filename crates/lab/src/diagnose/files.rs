//! A diagnosis as files: a JSON and a CSV for each figure, and `about/summary.json`.

use super::Summary;
use super::error::{DiagnoseError, io_error};
use hadal_report::figure::{Figure, Marks};
use serde::Serialize;
use std::fs;
use std::io;
use std::path::Path;

/// Writes figures and what they come to. A reader never sees half a file.
pub fn write(
    directory: &Path,
    figures: &[Figure],
    summaries: &[Summary],
) -> Result<(), DiagnoseError> {
    // Apart from the figures: whoever reads those takes every JSON file for one.
    let about = directory.join("about");
    fs::create_dir_all(&about).map_err(io_error("write", &about))?;
    for figure in figures {
        json(&directory.join(format!("{}.json", figure.name)), figure)?;
        whole(&directory.join(format!("{}.csv", figure.name)), csv(figure).as_bytes())?;
    }
    match summaries {
        [one] => json(&about.join("summary.json"), one),
        all => json(&about.join("summary.json"), &all),
    }
}

fn json(path: &Path, value: &impl Serialize) -> Result<(), DiagnoseError> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| io_error("write", path)(io::Error::other(error)))?;
    whole(path, text.as_bytes())
}

fn whole(path: &Path, content: &[u8]) -> Result<(), DiagnoseError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let beside = path.with_file_name(name);
    fs::write(&beside, content).map_err(io_error("write", &beside))?;
    fs::rename(&beside, path).map_err(io_error("write", path))
}

/// One number to a line, with what it belongs to.
fn csv(figure: &Figure) -> String {
    let category = |axis: &[String], i: usize| axis.get(i).cloned().unwrap_or(i.to_string());
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |cells: Vec<String>| rows.push(cells);
    let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    match &figure.marks {
        Marks::Lines { series } => {
            row(["series", "x", "y", "low", "high"].map(String::from).to_vec());
            for line in series {
                for (i, (x, y)) in line.x.iter().zip(&line.y).enumerate() {
                    let end = |ends: &Vec<f64>| number(ends.get(i).copied());
                    let (low, high) =
                        line.band.as_ref().map_or((String::new(), String::new()), |(low, high)| {
                            (end(low), end(high))
                        });
                    row(vec![line.name.clone(), x.to_string(), number(*y), low, high]);
                }
            }
        }
        Marks::Bars { series } => {
            row(["series", "category", "value"].map(String::from).to_vec());
            for bars in series {
                for (i, value) in bars.values.iter().enumerate() {
                    let place = category(&figure.x.categories, i);
                    row(vec![bars.name.clone(), place, number(*value)]);
                }
            }
        }
        Marks::Points { series } => {
            row(["series", "x", "y"].map(String::from).to_vec());
            for points in series {
                for (x, y) in points.x.iter().zip(&points.y) {
                    row(vec![points.name.clone(), x.to_string(), y.to_string()]);
                }
            }
        }
        Marks::Boxes { series } => {
            let head = ["series", "category", "min", "q1", "median", "q3", "max"];
            row(head.map(String::from).to_vec());
            for boxes in series {
                for (i, found) in boxes.boxes.iter().enumerate() {
                    let Some(q) = found else { continue };
                    let mut cells = vec![boxes.name.clone(), category(&figure.x.categories, i)];
                    cells.extend([q.min, q.q1, q.median, q.q3, q.max].map(|v| v.to_string()));
                    row(cells);
                }
            }
        }
        Marks::Heat { values, .. } => {
            row(["x", "y", "value"].map(String::from).to_vec());
            for (y, cells) in values.iter().enumerate() {
                for (x, value) in cells.iter().enumerate() {
                    let at = (category(&figure.x.categories, x), category(&figure.y.categories, y));
                    row(vec![at.0, at.1, number(*value)]);
                }
            }
        }
    }
    rows.iter()
        .map(|cells| cells.iter().map(|c| quoted(c)).collect::<Vec<_>>().join(",") + "\n")
        .collect()
}

/// As RFC 4180 wants it.
fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n']) {
        return format!("\"{}\"", cell.replace('"', "\"\""));
    }
    cell.to_owned()
}
