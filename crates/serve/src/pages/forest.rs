//! The picture of a suite's differences, from its table.

use hadal_report::comparison::forest::{Forest, Row};
use hadal_report::figure::{Bars, Figure, Marks};
use hadal_report::palette::Look;
use hadal_report::statistics::Verdict;
use serde::Deserialize;
use serde_json::Value;

/// The figure that is drawn here instead of below.
pub(super) const FIGURE: &str = "differences";

/// The picture, if the table has differences.
pub(super) fn picture(table: &Value, policies: &[(String, Look)]) -> String {
    let figures = table["figures"].as_array().into_iter().flatten();
    let figure = { figures }.find(|figure| figure["name"] == FIGURE);
    let Some(figure) = figure.and_then(|figure| Figure::deserialize(figure).ok()) else {
        return String::new();
    };
    let Marks::Bars { series } = &figure.marks else { return String::new() };
    let rows = series.iter().flat_map(|bars| {
        let names = figure.x.categories.iter().enumerate();
        names.filter_map(|(place, name)| row(table, policies, bars, place, name))
    });
    Forest {
        metric: table["metric"].as_str().unwrap_or("loss").into(),
        baseline: table["baseline"].as_str().unwrap_or("the baseline").into(),
        rows: rows.collect(),
    }
    .html()
}

/// A policy; the bars of a suite that goes through depths are called by them: `6 blocks`.
fn row(
    table: &Value,
    policies: &[(String, Look)],
    bars: &Bars,
    place: usize,
    name: &str,
) -> Option<Row> {
    let mean = bars.values.get(place).copied().flatten().filter(|mean| mean.is_finite())?;
    let half = bars.errors.as_ref().and_then(|errors| errors.get(place)).copied();
    let half = half.filter(|half| half.is_finite() && *half > 0.0);
    let depth = bars.name.strip_suffix(" blocks").and_then(|blocks| blocks.parse().ok());
    let look = policies.iter().find(|(other, _)| other == name).map(|(_, look)| *look);
    Some(Row {
        name: name.into(),
        depth,
        look: look.unwrap_or_default(),
        mean,
        interval95: half.map(|half| (mean - half, mean + half)),
        verdict: verdict(table, name, depth),
    })
}

/// What the table says of a policy at a depth.
fn verdict(table: &Value, name: &str, depth: Option<usize>) -> Verdict {
    let columns = table["columns"].as_array().map_or(&[][..], Vec::as_slice);
    let column = |name: &str| columns.iter().position(|column| column == name);
    let is_mine = |row: &&Value| {
        let blocks = column("blocks").and_then(|place| row[place].as_str()?.parse().ok());
        row[0] == name && blocks == depth
    };
    let mut rows = table["rows"].as_array().into_iter().flatten();
    let word = rows.find(is_mine).zip(column("verdict"));
    match word.and_then(|(row, place)| row[place].as_str()) {
        Some("better") => Verdict::Better,
        Some("worse") => Verdict::Worse,
        _ => Verdict::NotDistinguishable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::looks::policies;
    use serde_json::json;

    fn picture(table: &Value) -> String {
        super::picture(table, &policies(table))
    }

    #[test]
    fn the_best_is_marked_and_no_text_becomes_markup() {
        let mut table = json!({
            "baseline": "prenorm<", "metric": "held-out loss",
            "columns": ["policy", "verdict"],
            "rows": [["prenorm<", "baseline"], ["lns", "no difference seen"], ["nag", "better"]],
            "figures": [{
                "name": "differences", "title": "t", "caption": "<c>",
                "x": {"label": "policy", "categories": ["lns", "nag"]}, "y": {"label": "difference", "unit": "nats"},
                "marks": {"kind": "bars", "series": [{"name": "difference", "values": [0.1, -0.35], "errors": [0.3, 0.2]}]},
            }],
        });
        let text = picture(&table);
        assert!(text.contains("</i>nag <b class=\"badge\">"), "{text}");
        assert!(text.contains("<b>−0.350</b> −0.550 to −0.150"), "{text}");
        assert!(!text.contains("prenorm<") && !text.contains("<c>"), "{text}");
        table["rows"][2][1] = json!("no difference seen");
        assert!(!picture(&table).contains("class=\"badge\""));
    }

    #[test]
    fn each_depth_has_its_own_verdicts() {
        let row = |policy: &str, blocks: &str, verdict: &str| json!([policy, blocks, verdict]);
        let table = json!({
            "baseline": "prenorm", "metric": "held-out loss", "columns": ["policy", "blocks", "verdict"],
            "rows": [
                row("prenorm", "2", "baseline"), row("nag", "2", "no difference seen"),
                row("prenorm", "10", "baseline"), row("nag", "10", "better"),
            ],
            "figures": [{
                "name": "differences", "title": "t", "caption": "",
                "x": {"label": "policy", "categories": ["nag"]}, "y": {"label": "difference"},
                "marks": {"kind": "bars", "series": [
                    {"name": "2 blocks", "values": [-0.2]}, {"name": "10 blocks", "values": [-0.1]},
                ]},
            }],
        });
        let text = picture(&table);
        let parts =
            ["<h3>2 blocks", "</i>nag</span>", "<h3>10 blocks", "</i>nag <b class=\"badge\""];
        let places: Vec<usize> = parts.iter().map(|part| text.find(part).unwrap()).collect();
        assert!(places.is_sorted(), "{text}");
    }

    #[test]
    fn odd_tables_have_no_picture() {
        for odd in [json!({}), json!({"figures": 3}), json!({"figures": [{"name": "differences"}]})]
        {
            assert_eq!(picture(&odd), "");
        }
    }
}
