//! The colours of a figure's series: those of the policies that they show, whatever stands beside them.

use super::{Figure, Marks};
use crate::palette::{COLOURS, Look};
use serde_json::{Value, json};

/// A look for each series; none for a line that is a reference and no measurement.
///
/// A series is called like a run or a policy of `known`, or `run · part`. What is not known keeps colours by order.
/// Parts of one run share its colour.
pub fn looks(marks: &Marks, known: &[(String, Look)]) -> Vec<Option<Look>> {
    let names = marks.names();
    let is_measured = |i: usize| match marks {
        Marks::Lines { series } => !series[i].dashed,
        _ => true,
    };
    let measured: Vec<&str> =
        (0..names.len()).filter(|&i| is_measured(i)).map(|i| names[i]).collect();
    let of_runs = measured.iter().any(|name| name.contains(" · "));
    let key = |name: &'_ str| -> String {
        let run = run(name);
        if of_runs || of(known, run).is_some() { run.to_owned() } else { name.to_owned() }
    };
    let keys: Vec<String> = measured.iter().map(|name| key(name)).collect();
    let has_parts = keys.iter().enumerate().any(|(i, key)| keys[..i].contains(key));
    let taken: Vec<usize> =
        keys.iter().filter_map(|key| of(known, key)).map(|l| l.colour).collect();
    let mut free = (0..COLOURS.len()).filter(|colour| !taken.contains(colour)).cycle();
    let mut others: Vec<(String, Look)> = Vec::new();
    let mut seen: Vec<usize> = Vec::new();
    let mut chosen = keys.into_iter().map(|key| {
        let look = of(known, &key).or_else(|| of(&others, &key)).unwrap_or_else(|| {
            let look = Look { colour: free.next().unwrap_or(0), variant: 0 };
            others.push((key, look));
            look
        });
        let variant = match has_parts {
            true => seen.iter().filter(|other| **other == look.colour).count(),
            false => look.variant,
        };
        seen.push(look.colour);
        Look { variant, ..look }
    });
    (0..names.len()).map(|i| if is_measured(i) { chosen.next() } else { None }).collect()
}

/// A look for each place of the horizontal axis, if the places and not the series are runs or policies; else nothing.
pub fn place_looks(figure: &Figure, known: &[(String, Look)]) -> Vec<Look> {
    let of_series = figure.marks.names().iter().any(|name| of(known, run(name)).is_some());
    let grouped = matches!(figure.marks, Marks::Bars { .. } | Marks::Boxes { .. });
    let looks = figure.x.categories.iter().map(|name| of(known, name));
    match of_series || !grouped {
        true => Vec::new(),
        false => looks.collect::<Option<_>>().unwrap_or_default(),
    }
}

/// The figure as JSON in which each series carries its `look`, and `places` those of named places that are policies:
/// for pages that draw figures themselves.
pub fn with_looks(figure: &Figure, known: &[(String, Look)]) -> Value {
    let mut value = serde_json::to_value(figure).unwrap_or_default();
    let looks = looks(&figure.marks, known);
    if let Some(series) = value.pointer_mut("/marks/series").and_then(Value::as_array_mut) {
        for (series, look) in series.iter_mut().zip(looks) {
            series["look"] = json!(look);
        }
    }
    let places = place_looks(figure, known);
    if !places.is_empty() {
        value["places"] = json!(places);
    }
    value
}

fn run(name: &str) -> &str {
    name.split(" · ").next().unwrap_or(name)
}

fn of(known: &[(String, Look)], name: &str) -> Option<Look> {
    known.iter().find(|(other, _)| other == name).map(|(_, look)| *look)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{Axis, Bars, Line};
    use crate::palette::{self, named};

    fn bars(names: &[&str]) -> Marks {
        let of = |name: &&str| Bars { name: (*name).into(), values: vec![Some(1.0)], errors: None };
        Marks::Bars { series: names.iter().map(of).collect() }
    }

    fn pairs(marks: &Marks, known: &[(String, Look)]) -> Vec<(usize, usize)> {
        looks(marks, known).into_iter().flatten().map(|look| (look.colour, look.variant)).collect()
    }

    #[test]
    fn a_policy_has_its_colour_in_every_chart_whatever_its_runs_are_called() {
        let known = named([("first", "mgr"), ("second", "nag"), ("third", "mgr")]);
        let [mgr, nag] = ["mgr", "nag"].map(|kind| palette::looks([kind])[0].colour);
        assert_eq!(pairs(&bars(&["second", "first"]), &known), [(nag, 0), (mgr, 0)]);
        assert_eq!(pairs(&bars(&["third"]), &known), [(mgr, 1)]);
        let parts = bars(&["second · a", "second · b", "first · a", "third · a"]);
        assert_eq!(pairs(&parts, &known), [(nag, 0), (nag, 1), (mgr, 0), (mgr, 1)]);
    }

    #[test]
    fn what_is_no_policy_has_colours_by_order_and_none_that_is_taken() {
        assert_eq!(pairs(&bars(&["attention", "mlp"]), &[]), [(0, 0), (1, 0)]);
        assert_eq!(pairs(&bars(&["x · a", "x · b", "y · a"]), &[]), [(0, 0), (0, 1), (1, 0)]);
        let known = [("run".to_owned(), Look { colour: 0, variant: 0 })];
        assert_eq!(pairs(&bars(&["other", "run"]), &known), [(1, 0), (0, 0)]);
        let bound = Line { name: "bound".into(), dashed: true, ..Line::default() };
        let marks = Marks::Lines { series: vec![bound, Line::default()] };
        assert_eq!(looks(&marks, &[]), [None, Some(Look::default())]);
    }

    #[test]
    fn json_carries_looks_of_series_and_of_places() {
        let known = named([("nag", "nag"), ("mgr", "mgr")]);
        let mut figure = Figure {
            name: "differences".into(),
            title: String::new(),
            caption: String::new(),
            x: Axis::new("policy").categories(["mgr", "nag"]),
            y: Axis::new("loss"),
            marks: bars(&["difference"]),
        };
        let value = with_looks(&figure, &known);
        assert_eq!(value["places"], json!([known[1].1, known[0].1]));
        assert_eq!(value["marks"]["series"][0]["look"], json!({ "colour": 0, "variant": 0 }));
        figure.x.categories[0] = "block 1".into();
        assert!(with_looks(&figure, &known).get("places").is_none());
    }
}
