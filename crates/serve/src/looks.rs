//! The colours of policies on pages: those of `hadal_report::palette`, as classes `k0`, `k1`, ..

use hadal_report::figure::{Figure, with_looks};
use hadal_report::palette::{self, COLOURS, Look};
use serde::Deserialize;
use serde_json::Value;
use std::fmt::Write;

/// Colours as custom properties, light and dark, and a class for each.
pub(crate) fn css() -> String {
    let mut text = palette::css();
    for place in 0..COLOURS.len() {
        let _ = writeln!(text, ".k{place}{{color:var(--series-{place})}}");
    }
    text
}

/// The classes of a look.
pub(crate) fn class(look: Look) -> String {
    format!("k{} v{}", look.colour, look.variant % 4)
}

/// Names of a table's policies, in its order.
pub(crate) fn policies(table: &Value) -> Vec<&str> {
    let rows = table["rows"].as_array().into_iter().flatten();
    let mut names: Vec<&str> = Vec::new();
    for name in rows.filter_map(|row| row[0].as_str()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Gives every series of a suite's figures the look of its policy. A figure that is not understood stays as it is.
pub(crate) fn dress(table: &mut Value) {
    let known = palette::named(policies(table).into_iter().map(|name| (name, name)));
    for figure in table["figures"].as_array_mut().into_iter().flatten() {
        if let Ok(understood) = Figure::deserialize(&*figure) {
            *figure = with_looks(&understood, &known);
        }
    }
}
