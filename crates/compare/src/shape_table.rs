//! Shapes that a suite chose, as people read them.

use super::results::Cell;
use super::shape::Shape;
use super::suite::Suite;
use super::table::{Column, or_dash};

/// Columns of a table; the count has one already.
pub(super) fn shape_columns() -> [Column; 4] {
    [
        ("d_model", |cell| or_dash(cell.shape.as_ref().map(|shape| shape.d_model.to_string()))),
        ("d_ff", |cell| or_dash(cell.shape.as_ref().map(|shape| shape.d_ff.to_string()))),
        ("d/L", |cell| or_dash(cell.shape.as_ref().map(|shape| format!("{:.1}", shape.aspect())))),
        ("parameters off, %", |cell| {
            or_dash(cell.shape.as_ref().map(|shape| format!("{:+.2}", 100.0 * shape.off)))
        }),
    ]
}

/// The same in `table.csv`, behind all others.
pub(super) const SHAPE_CSV: &str = ",d_model,n_heads,n_kv_heads,head_dim,d_ff,parameters_off";

pub(super) fn shape_csv(shape: &Shape) -> String {
    let Shape { d_model, n_heads, n_kv_heads, head_dim, d_ff, off, .. } = shape;
    format!(",{d_model},{n_heads},{n_kv_heads},{head_dim},{d_ff},{off}")
}

/// What was chosen, in sentences.
pub(super) fn chosen(cells: &[Cell], suite: &Suite) -> Vec<String> {
    let shapes = || cells.iter().filter_map(|cell| Some((cell, cell.shape.as_ref()?)));
    let mut said = Vec::new();
    if suite.shaping.fixed.is_some() {
        let baseline: Vec<&Shape> = shapes()
            .filter(|(cell, _)| cell.variant == suite.baseline)
            .map(|(_, shape)| shape)
            .collect();
        let widths: Vec<String> = baseline
            .iter()
            .map(|shape| format!("{} at {} blocks", shape.d_model, shape.n_layers))
            .collect();
        let target = baseline.first().map_or(0, |shape| shape.target);
        said.push(format!(
            "{} has {target} parameters at every depth, to within {:.2} %: d_model is {}.",
            suite.baseline,
            100.0 * largest(baseline.iter().copied()),
            widths.join(", ")
        ));
    }
    if suite.shaping.matched {
        let others = || {
            let others = shapes().filter(|(cell, _)| cell.variant != suite.baseline);
            others.map(|(_, shape)| shape)
        };
        let (low, high) = others().fold((usize::MAX, 0), |(low, high), shape| {
            (low.min(shape.d_ff), high.max(shape.d_ff))
        });
        if low <= high {
            said.push(format!(
                "The MLPs of all variants are as wide (d_ff {low} to {high}) as gives them the parameters of {} at the \
                 same depth, to within {:.2} %.",
                suite.baseline,
                100.0 * largest(others())
            ));
        }
    }
    said
}

fn largest<'a>(shapes: impl Iterator<Item = &'a Shape>) -> f64 {
    shapes.map(|shape| shape.off.abs()).fold(0.0, f64::max)
}
