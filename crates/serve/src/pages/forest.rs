//! Differences of policies to the baseline with their intervals, the best first: a line for each.
//!
//! Places are shares of the width, so that the picture fits any screen.

use super::html::Safe;
use crate::looks::class;
use hadal_report::figure::{Figure, Marks};
use hadal_report::palette::{Look, named};
use serde::Deserialize;
use serde_json::Value;
use std::fmt::Write;

/// The figure that is drawn here instead of below.
pub(super) const FIGURE: &str = "differences";

/// One policy: its difference, half its interval, and what is said of it.
struct Line<'a> {
    name: &'a str,
    value: f64,
    half: f64,
    verdict: &'a str,
    look: Look,
}

/// The picture of each depth, if the table has differences.
pub(super) fn pictures(table: &Value, policies: &[&str]) -> String {
    let figures = table["figures"].as_array().into_iter().flatten();
    let figure = { figures }.find(|figure| figure["name"] == FIGURE);
    let Some(figure) = figure.and_then(|figure| Figure::deserialize(figure).ok()) else {
        return String::new();
    };
    let Marks::Bars { series } = &figure.marks else { return String::new() };
    let known = named(policies.iter().map(|name| (*name, *name)));
    let look = |name: &str| known.iter().find(|(other, _)| other == name).map(|(_, look)| *look);
    let baseline = table["baseline"].as_str().unwrap_or("the baseline");
    let mut text = String::new();
    for bars in series {
        let line = |(place, name): (usize, &'_ String)| -> Option<(String, f64, f64)> {
            let value = bars.values.get(place).copied().flatten().filter(|v| v.is_finite())?;
            let half = bars.errors.as_ref().and_then(|errors| errors.get(place)).copied();
            Some((name.clone(), value, half.filter(|half| half.is_finite()).unwrap_or(0.0)))
        };
        let found: Vec<_> = figure.x.categories.iter().enumerate().filter_map(line).collect();
        if found.is_empty() {
            continue;
        }
        let of = |(name, value, half): &'_ (String, f64, f64)| (name.clone(), *value, *half);
        let mut all: Vec<(String, f64, f64)> = found.iter().map(of).collect();
        all.push((baseline.into(), 0.0, 0.0));
        // Less loss is better.
        all.sort_by(|a, b| a.1.total_cmp(&b.1));
        let lines: Vec<Line<'_>> = all
            .iter()
            .map(|(name, value, half)| Line {
                name,
                value: *value,
                half: *half,
                verdict: if name == baseline {
                    "baseline"
                } else {
                    verdict(table, name, series.len())
                },
                look: look(name).unwrap_or_default(),
            })
            .collect();
        if series.len() > 1 {
            let _ = writeln!(text, "<h3>{}</h3>", Safe(&bars.name));
        }
        draw(&mut text, &figure, &lines);
    }
    text
}

/// What the table says of a policy; with several depths its rows have other names.
fn verdict<'a>(table: &'a Value, name: &str, depths: usize) -> &'a str {
    let columns = table["columns"].as_array().map_or(&[][..], Vec::as_slice);
    let Some(place) = columns.iter().position(|column| column == "verdict") else { return "" };
    let rows = table["rows"].as_array().map_or(&[][..], Vec::as_slice);
    let row = rows.iter().find(|row| depths == 1 && row[0] == name);
    row.and_then(|row| row[place].as_str()).unwrap_or("")
}

fn draw(text: &mut String, figure: &Figure, lines: &[Line<'_>]) {
    let low = lines.iter().map(|line| line.value - line.half).fold(0.0, f64::min);
    let high = lines.iter().map(|line| line.value + line.half).fold(0.0, f64::max);
    let room = (high - low).max(1e-9) * 0.04;
    let (low, high) = (low - room, high + room);
    let place = |value: f64| (value - low) / (high - low) * 100.0;
    let zero = place(0.0);
    let _ = writeln!(
        text,
        "<figure class=\"forest\" role=\"img\" aria-label=\"{}\">",
        Safe(&figure.title)
    );
    let winner = lines.first().filter(|line| line.verdict == "better").map(|line| line.name);
    for line in lines {
        let best = if winner == Some(line.name) { " best" } else { "" };
        let _ = write!(
            text,
            "<div class=\"line{best}\"><span class=\"who\"><i class=\"swatch {look}\"></i>{name}{mark}</span>\
             <svg height=\"26\" width=\"100%\" aria-hidden=\"true\"><line class=\"zero\" x1=\"{zero:.2}%\" \
             x2=\"{zero:.2}%\" y1=\"0\" y2=\"26\"/>",
            look = class(line.look),
            name = Safe(line.name),
            mark = if best.is_empty() { "" } else { " <b class=\"mark\">best</b>" },
        );
        let class = class(line.look);
        if line.half > 0.0 {
            let (from, to) = (place(line.value - line.half), place(line.value + line.half));
            let _ = write!(
                text,
                "<line class=\"reach {class}\" x1=\"{from:.2}%\" x2=\"{to:.2}%\" y1=\"13\" y2=\"13\"/>"
            );
        }
        let (middle, tip) = (place(line.value), number(line.value));
        let _ = writeln!(
            text,
            "<circle class=\"{class}\" cx=\"{middle:.2}%\" cy=\"13\" r=\"5\"/></svg>\
             <span class=\"what\">{}</span></div>",
            match (line.verdict, line.half > 0.0) {
                ("baseline", _) => "<span class=\"faint\">baseline</span>".into(),
                (verdict, true) => format!(
                    "<b>{tip}</b> <span class=\"faint\">({} to {}) {}</span>",
                    number(line.value - line.half),
                    number(line.value + line.half),
                    Safe(verdict)
                ),
                (verdict, false) =>
                    format!("<b>{tip}</b> <span class=\"faint\">{}</span>", Safe(verdict)),
            }
        );
    }
    let _ = write!(
        text,
        "<div class=\"line scale\"><span></span><svg height=\"18\" width=\"100%\" aria-hidden=\"true\">"
    );
    for tick in ticks(low, high) {
        let x = place(tick);
        let _ = write!(
            text,
            "<text x=\"{x:.2}%\" y=\"13\" text-anchor=\"middle\">{}</text>",
            number(tick)
        );
    }
    let unit = figure.y.unit.as_ref().map_or(String::new(), |unit| format!(", {unit}"));
    let _ = writeln!(
        text,
        "</svg><span></span></div>\n<figcaption>{}{}. {}</figcaption></figure>",
        Safe(&figure.y.label),
        Safe(unit),
        Safe(&figure.caption)
    );
}

/// Three digits and a sign.
fn number(value: f64) -> String {
    if value == 0.0 { "0".into() } else { format!("{value:+.3}").replace('-', "−") }
}

/// A few round places, zero among them.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|s| *s >= rough);
    let step = step.unwrap_or(rough);
    let (first, last) = ((low / step).ceil() as i64, (high / step).floor() as i64);
    (first..=last.min(first + 12)).map(|place| place as f64 * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn table() -> Value {
        json!({
            "baseline": "prenorm", "metric": "validation loss",
            "columns": ["policy", "verdict"],
            "rows": [["prenorm", "baseline"], ["lns", "not distinguishable"], ["nag", "better"]],
            "figures": [{
                "name": "differences", "title": "t", "caption": "<c>",
                "x": {"label": "policy", "categories": ["lns", "nag"]}, "y": {"label": "difference", "unit": "nats"},
                "marks": {"kind": "bars", "series": [{"name": "difference", "values": [0.1, -0.35], "errors": [0.3, 0.2]}]},
            }],
        })
    }

    #[test]
    fn the_best_is_first_and_marked_and_no_interval_leaves_the_picture() {
        let table = table();
        let text = pictures(&table, &["prenorm", "lns", "nag"]);
        let place = |name: &str| text.find(&format!("</i>{name}")).unwrap();
        assert!(place("nag") < place("prenorm") && place("prenorm") < place("lns"), "{text}");
        assert_eq!(text.matches("class=\"mark\"").count(), 1);
        assert!(text.contains("−0.350") && text.contains("(−0.550 to −0.150) better"), "{text}");
        for part in text.split("x1=\"").skip(1).chain(text.split("x2=\"").skip(1)) {
            let share: f64 = part.split('%').next().unwrap().parse().unwrap();
            assert!((0.0..=100.0).contains(&share), "{share}");
        }
        assert!(!text.contains("<c>"), "{text}");
    }

    #[test]
    fn nobody_is_marked_where_nothing_can_be_told_apart() {
        let mut table = table();
        table["rows"][2][1] = json!("not distinguishable");
        assert!(!pictures(&table, &["prenorm", "lns", "nag"]).contains("class=\"mark\""));
    }

    #[test]
    fn odd_tables_have_no_picture() {
        for odd in [json!({}), json!({"figures": 3}), json!({"figures": [{"name": "differences"}]})]
        {
            assert_eq!(pictures(&odd, &[]), "");
        }
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(-0.58, 0.46).len(), 4);
        assert_eq!(ticks(-0.58, 0.46)[2], 0.0);
        assert!(ticks(-1e-9, 1e-9).len() < 8);
    }
}
