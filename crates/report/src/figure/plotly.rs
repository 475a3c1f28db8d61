//! Interactive charts: figures as plotly's traces, its script, and the small script that draws and themes them.
//!
//! Traces name a colour by number (`meta.colour`, or one for each place in `meta.places`); the page has them as custom
//! properties ([`crate::palette::css`]), light and dark.

use super::{Figure, Line, Marks, Scale, drawable, looks, place_looks};
use crate::palette::Look;
use serde_json::{Value, json};
use std::sync::LazyLock;

/// Draws every `figure.chart` of a page, and those that [`crate::figure::plotly::html`] makes later: `hadalCharts.draw(element)`.
pub const DRAWING: &str = include_str!("../../assets/charts.js");
/// How charts look around their plots.
pub const STYLE: &str = include_str!("../../assets/charts.css");

/// What charts of one page have in common.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shared<'a> {
    /// Runs and policies with their looks ([`crate::palette::named`]), so that each has one colour everywhere.
    pub looks: &'a [(String, Look)],
    /// The scale of colours of heat maps side by side.
    pub range: Option<(f64, f64)>,
}

/// plotly.js, as the `plotly` crate ships it.
pub fn script() -> &'static str {
    static SCRIPT: LazyLock<String> = LazyLock::new(|| {
        // The crate returns elements; the second one typesets formulas, of which we have none.
        let elements = plotly::Plot::offline_js_sources();
        let script = elements.split_once('>').and_then(|(_, rest)| rest.split_once("</script>"));
        script.map(|(script, _)| script.to_owned()).unwrap_or_default()
    });
    &SCRIPT
}

/// An element that shows a figure; several variants of it (a label and a figure each) get a switch.
///
/// `None` if there is nothing to draw. Everything in it is escaped.
pub fn html(variants: &[(String, Figure)], shared: Shared<'_>) -> Option<String> {
    let drawn: Vec<(&String, Figure)> =
        variants.iter().filter_map(|(label, figure)| Some((label, drawable(figure)?))).collect();
    let (_, first) = drawn.first()?;
    let charts: Vec<Value> = drawn
        .iter()
        .map(|(label, figure)| json!({ "label": label, "chart": chart(figure, shared) }))
        .collect();
    // `</script>` or `<!--` inside the data would end or bend the element.
    let data = Value::from(charts).to_string().replace('<', "\\u003c");
    Some(format!(
        "<figure class=\"chart {}\" id=\"{}\"><figcaption><h3>{}</h3><p>{}</p></figcaption>\
         <div class=\"plot\"></div><script type=\"application/json\">{data}</script></figure>\n",
        if matches!(first.marks, Marks::Heat { .. }) { "heat" } else { "flat" },
        super::slug(&first.name),
        escaped(&first.title),
        escaped(&first.caption),
    ))
}

/// A figure as traces and axes.
pub fn chart(figure: &Figure, shared: Shared<'_>) -> Value {
    let mut looks = looks(&figure.marks, shared.looks).into_iter();
    let mut next = || match looks.next().flatten() {
        Some(look) => json!(look),
        None => json!({ "colour": -1, "variant": 0 }),
    };
    let places: Vec<usize> =
        place_looks(figure, shared.looks).iter().map(|look| look.colour).collect();
    let x_names = names(&figure.x.categories);
    let at = |length: usize| -> Vec<Value> {
        (0..length).map(|i| x_names.get(i).map_or(json!(i), |name| json!(name))).collect()
    };
    let mut traces = Vec::new();
    match &figure.marks {
        Marks::Lines { series } => {
            for line in series {
                let meta = next();
                traces.extend(band(line, &meta));
                // A curve of a few points shows them.
                let mode =
                    if line.x.len() <= 40 && !line.dashed { "lines+markers" } else { "lines" };
                let dash = if line.dashed { "dash" } else { "solid" };
                let mut trace = json!({ "type": "scatter", "mode": mode, "name": text(&line.name),
                    "x": line.x, "y": line.y, "line": { "dash": dash }, "meta": meta });
                if !line.marked.is_empty() {
                    trace["marked"] = json!(line.marked);
                }
                traces.push(trace);
            }
        }
        Marks::Bars { series } => {
            for (i, bars) in series.iter().enumerate() {
                let mut meta = next();
                if !places.is_empty() {
                    meta = json!({ "colour": -1, "variant": i, "places": places });
                }
                let mut trace = json!({ "type": "bar", "name": text(&bars.name),
                    "x": at(bars.values.len()), "y": bars.values, "meta": meta });
                if let Some(errors) = &bars.errors {
                    trace["error_y"] = json!({ "type": "data", "array": errors, "thickness": 1.2 });
                }
                traces.push(trace);
            }
        }
        Marks::Points { series } => {
            for points in series {
                let labels: Vec<String> = points.labels.iter().map(|label| text(label)).collect();
                traces.push(
                    json!({ "type": "scatter", "mode": "markers", "name": text(&points.name),
                    "x": points.x, "y": points.y, "text": labels, "meta": next() }),
                );
            }
        }
        Marks::Boxes { series } => {
            for boxes in series {
                let places = at(boxes.boxes.len());
                let whole: Vec<_> =
                    boxes.boxes.iter().zip(places).filter_map(|(b, x)| Some(((*b)?, x))).collect();
                let side = |get: fn(&super::Quartiles) -> f64| -> Vec<f64> {
                    whole.iter().map(|(five, _)| get(five)).collect()
                };
                let x: Vec<&Value> = whole.iter().map(|(_, x)| x).collect();
                traces.push(json!({ "type": "box", "name": text(&boxes.name), "x": x,
                    "lowerfence": side(|b| b.min), "q1": side(|b| b.q1), "median": side(|b| b.median),
                    "q3": side(|b| b.q3), "upperfence": side(|b| b.max), "meta": next() }));
            }
        }
        Marks::Heat { values, .. } => {
            let columns = values.iter().map(Vec::len).max().unwrap_or(0);
            let y_names = names(&figure.y.categories);
            let y: Vec<Value> = (0..values.len())
                .map(|i| y_names.get(i).map_or(json!(i), |name| json!(name)))
                .collect();
            let mut trace = json!({ "type": "heatmap", "x": at(columns), "y": y, "z": values,
                "hoverongaps": false,
                "hovertemplate": format!("{} %{{x}}<br>{} %{{y}}<br>%{{z:.4g}}<extra></extra>",
                    text(&figure.x.label), text(&figure.y.label)) });
            if let Some((low, high)) = shared.range.or_else(|| super::heat_range([figure])) {
                // Colours diverge at zero if values do.
                let parted = low < 0.0 && high > 0.0;
                let far = low.abs().max(high);
                let (low, high) = if parted { (-far, far) } else { (low, high) };
                trace["zmin"] = json!(low);
                trace["zmax"] = json!(high);
                trace["meta"] = json!({ "parted": parted });
            }
            traces.push(trace);
        }
    }
    let legend = match &figure.marks {
        Marks::Heat { legend, .. } => Some(legend),
        _ => None,
    };
    json!({ "data": traces, "x": axis(&figure.x), "y": axis(&figure.y), "colours": legend })
}

fn axis(axis: &super::Axis) -> Value {
    let kind = match axis.scale {
        _ if !axis.categories.is_empty() => "category",
        Scale::Linear => "linear",
        Scale::Log => "log",
    };
    let mut value = json!({ "title": axis.title(), "type": kind });
    if !axis.groups.is_empty() {
        value["groups"] = json!(axis.groups);
    }
    value
}

/// The area between a band's ends, as two curves without a line.
fn band(line: &Line, meta: &Value) -> Vec<Value> {
    let Some((low, high)) = &line.band else { return Vec::new() };
    let side = |y: &[f64], fill: &str| {
        json!({ "type": "scatter", "mode": "lines", "name": text(&line.name), "x": line.x, "y": y,
            "fill": fill, "hoverinfo": "skip", "line": { "width": 0 }, "band": true, "meta": meta })
    };
    vec![side(low, "none"), side(high, "tonexty")]
}

/// Names of places, each once: plotly takes equal names for one place.
fn names(categories: &[String]) -> Vec<String> {
    let repeated =
        |i: usize| categories[..i].iter().filter(|other| **other == categories[i]).count();
    (0..categories.len())
        .map(|i| match repeated(i) {
            0 => text(&categories[i]),
            n => format!("{} ({})", text(&categories[i]), n + 1),
        })
        .collect()
}

/// A text for plotly, which reads some markup in texts.
fn text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A text for HTML, in elements and in quoted attributes. What turns the direction of text, hides it or is no letter is
/// shown as a sign of its own.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => escaped.push('\u{fffd}'),
            c if c.is_control() && !['\n', '\t', '\r'].contains(&c) => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{Axis, Bars};
    use crate::palette::named;

    fn figure(marks: Marks) -> Figure {
        Figure {
            name: "loss".into(),
            title: "<b>Loss".into(),
            caption: "\"</script>\"".into(),
            x: Axis::new("step"),
            y: Axis::new("loss").unit("nats").log(),
            marks,
        }
    }

    fn line(name: &str) -> Line {
        let (x, y) = (vec![1.0, 2.0], vec![Some(2.0), None]);
        let band = Some((vec![1.0; 2], vec![3.0; 2]));
        Line { name: name.into(), x, y, band, ..Line::default() }
    }

    #[test]
    fn the_script_is_plotlys_and_ends_before_its_element_does() {
        assert!(script().len() > 1_000_000 && script().contains("plotly.js v"));
        assert!(!script().contains("</script"));
    }

    #[test]
    fn a_curve_becomes_a_trace_with_its_band_before_it() {
        let chart = chart(&figure(Marks::Lines { series: vec![line("a")] }), Shared::default());
        assert_eq!(chart["data"].as_array().unwrap().len(), 3);
        assert_eq!(chart["data"][1]["fill"], "tonexty");
        assert_eq!(chart["data"][2]["y"], json!([2.0, null]));
        assert_eq!(chart["y"], json!({ "title": "loss (nats)", "type": "log" }));
    }

    #[test]
    fn a_policy_has_its_colour_as_a_series_and_as_a_place() {
        let known = named([("mine", "mgr"), ("nag", "nag")]);
        let shared = Shared { looks: &known, range: None };
        let curves = figure(Marks::Lines { series: vec![line("nag"), line("mine")] });
        let chart = |figure: &Figure| super::chart(figure, shared)["data"].clone();
        assert_eq!(chart(&curves)[2]["meta"]["colour"], known[1].1.colour);
        assert_eq!(chart(&curves)[5]["meta"]["colour"], known[0].1.colour);
        let bars = Bars { name: "difference".into(), values: vec![Some(1.0); 2], errors: None };
        let mut bars = figure(Marks::Bars { series: vec![bars] });
        bars.x.categories = vec!["nag".into(), "mine".into()];
        let expected = json!([known[1].1.colour, known[0].1.colour]);
        assert_eq!(chart(&bars)[0]["meta"]["places"], expected);
    }

    #[test]
    fn nothing_in_a_figure_can_leave_its_element() {
        let figure =
            figure(Marks::Lines { series: vec![line("</script><script>alert(1)</script>")] });
        let html = html(&[("<i>".into(), figure)], Shared::default()).unwrap();
        assert_eq!(html.matches("<script").count(), 1, "{html}");
        assert_eq!(html.matches("</script>").count(), 1, "{html}");
        assert!(!html.contains("<b>") && !html.contains("<i>"), "{html}");
    }

    #[test]
    fn figures_without_a_value_make_no_element() {
        let empty = figure(Marks::Lines { series: vec![] });
        assert_eq!(html(&[(String::new(), empty)], Shared::default()), None);
    }

    #[test]
    fn heat_maps_share_a_scale_that_parts_at_zero() {
        let heat =
            Marks::Heat { values: vec![vec![Some(-1.0), Some(0.5)]], legend: "change".into() };
        let shared = Shared { range: Some((-1.0, 3.0)), ..Shared::default() };
        let trace = &chart(&figure(heat), shared)["data"][0];
        assert_eq!((&trace["zmin"], &trace["zmax"]), (&json!(-3.0), &json!(3.0)));
    }

    #[test]
    fn equal_names_of_places_stay_two_places() {
        assert_eq!(names(&["a".into(), "a".into(), "<".into()]), ["a", "a (2)", "&lt;"]);
    }
}
