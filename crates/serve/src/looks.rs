//! The colours of policies on pages: those of `hadal_report::palette`.

use hadal_report::figure::{Figure, with_looks};
use hadal_report::palette::{self, Look};
use serde::Deserialize;
use serde_json::Value;

/// A table's policies in its order, each with its look.
pub(crate) fn policies(table: &Value) -> Vec<(String, Look)> {
    let rows = table["rows"].as_array().into_iter().flatten().enumerate();
    let mut names: Vec<(&str, &str)> = Vec::new();
    for (place, name) in rows.filter_map(|(place, row)| Some((place, row[0].as_str()?))) {
        if names.iter().all(|(other, _)| *other != name) {
            // Tables of earlier versions do not say the kinds.
            names.push((name, table["kinds"][place].as_str().unwrap_or(name)));
        }
    }
    palette::named(names)
}

/// Gives every series of a suite's figures the look of its policy. A figure that is not understood stays as it is.
pub(crate) fn dress(table: &mut Value) {
    let known = policies(table);
    for figure in table["figures"].as_array_mut().into_iter().flatten() {
        if let Ok(understood) = Figure::deserialize(&*figure) {
            *figure = with_looks(&understood, &known);
        }
    }
}
