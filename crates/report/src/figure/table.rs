//! Figures as tables: every value, in CSV (RFC 4180), one row for each mark.
//!
//! Names are anybody's, and a spreadsheet takes a cell that begins with `=` for a formula. So a name that begins like one
//! gets an apostrophe, which spreadsheets take for "this is text".

use super::{Axis, Figure, Marks};

/// The figure's numbers, not thinned; missing values are empty fields.
pub fn csv(figure: &Figure) -> String {
    let (x, y) = (figure.x.title(), figure.y.title());
    let mut text = String::new();
    let mut row = |fields: &[String]| {
        let fields: Vec<String> = fields.iter().map(|field| cell(field)).collect();
        text.push_str(&fields.join(","));
        text.push_str("\r\n");
    };
    let head = |rest: &[&str]| rest.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    match &figure.marks {
        Marks::Lines { series } => {
            let is_marked = series.iter().any(|line| !line.marked.is_empty());
            let mut names = head(&["series", &x, &y, "low", "high"]);
            names.extend(is_marked.then(|| "chosen".to_owned()));
            row(&names);
            for line in series {
                for (i, (place, height)) in line.x.iter().zip(&line.y).enumerate() {
                    let band = line.band.as_ref();
                    let low = band.and_then(|(low, _)| low.get(i)).copied();
                    let high = band.and_then(|(_, high)| high.get(i)).copied();
                    let mut fields = vec![
                        line.name.clone(),
                        number(Some(*place)),
                        number(*height),
                        number(low),
                        number(high),
                    ];
                    let mark = if line.marked.contains(&i) { "yes" } else { "" };
                    fields.extend(is_marked.then(|| mark.to_owned()));
                    row(&fields);
                }
            }
        }
        Marks::Bars { series } => {
            row(&head(&["series", &x, &y, "error"]));
            for bars in series {
                for (i, value) in bars.values.iter().enumerate() {
                    let error = bars.errors.as_ref().and_then(|errors| errors.get(i)).copied();
                    row(&[bars.name.clone(), figure.x.place(i), number(*value), number(error)]);
                }
            }
        }
        Marks::Points { series } => {
            row(&head(&["series", &x, &y, "label"]));
            for points in series {
                for (i, (place, height)) in points.x.iter().zip(&points.y).enumerate() {
                    let label = points.labels.get(i).cloned().unwrap_or_default();
                    row(&[points.name.clone(), number(Some(*place)), number(Some(*height)), label]);
                }
            }
        }
        Marks::Boxes { series } => {
            row(&head(&["series", &x, "min", "q1", "median", "q3", "max"]));
            for boxes in series {
                for (i, five) in boxes.boxes.iter().enumerate() {
                    let values = five.map(|b| [b.min, b.q1, b.median, b.q3, b.max]);
                    let values = values.map_or([None; 5], |values| values.map(Some)).map(number);
                    let mut fields = vec![boxes.name.clone(), figure.x.place(i)];
                    fields.extend(values);
                    row(&fields);
                }
            }
        }
        Marks::Heat { values, legend } => {
            row(&head(&[&y, &x, legend]));
            for (j, cells) in values.iter().enumerate() {
                for (i, value) in cells.iter().enumerate() {
                    row(&[figure.y.place(j), figure.x.place(i), number(*value)]);
                }
            }
        }
    }
    text
}

impl Axis {
    /// What is measured, with its unit in brackets.
    pub fn title(&self) -> String {
        match &self.unit {
            Some(unit) => format!("{} ({unit})", self.label),
            None => self.label.clone(),
        }
    }

    /// The name of a place, or its number.
    pub fn place(&self, index: usize) -> String {
        self.categories.get(index).cloned().unwrap_or_else(|| index.to_string())
    }
}

fn number(value: Option<f64>) -> String {
    value.filter(|value| value.is_finite()).map(|value| value.to_string()).unwrap_or_default()
}

/// A field of CSV that no spreadsheet takes for a formula. Numbers stay as they are.
pub fn cell(field: &str) -> String {
    let like_a_formula = field.starts_with(['=', '+', '-', '@', '\t', '\r']);
    if like_a_formula && field.parse::<f64>().is_err() {
        return quoted(&format!("'{field}"));
    }
    quoted(field)
}

fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{Boxes, Line, Quartiles};

    fn figure(marks: Marks) -> Figure {
        Figure {
            name: "f".into(),
            title: "F".into(),
            caption: String::new(),
            x: Axis::new("block").categories(["1, first"]),
            y: Axis::new("loss").unit("nats"),
            marks,
        }
    }

    #[test]
    fn a_curve_is_a_row_for_each_point_with_empty_fields_for_gaps() {
        let line = Line {
            name: "a \"b\"".into(),
            x: vec![1.0, 2.0],
            y: vec![Some(0.5), None],
            band: Some((vec![0.25, f64::NAN], vec![0.75, f64::NAN])),
            ..Line::default()
        };
        let expected = "series,block,loss (nats),low,high\r\n\
             \"a \"\"b\"\"\",1,0.5,0.25,0.75\r\n\"a \"\"b\"\"\",2,,,\r\n";
        assert_eq!(csv(&figure(Marks::Lines { series: vec![line] })), expected);
    }

    #[test]
    fn no_name_becomes_a_formula_and_numbers_stay_numbers() {
        for name in ["=cmd|calc", "+x", "-x", "@x", "\tx"] {
            let line =
                Line { name: name.into(), x: vec![-1.0], y: vec![Some(-0.5)], ..Line::default() };
            let text = csv(&figure(Marks::Lines { series: vec![line] }));
            assert_eq!(text.lines().nth(1), Some(format!("'{name},-1,-0.5,,").as_str()));
        }
        assert_eq!(cell("\r=1,2"), "\"'\r=1,2\"");
        assert_eq!(
            (cell("-3"), cell("1e-5"), cell("a=b")),
            ("-3".into(), "1e-5".into(), "a=b".into())
        );
        let mut named = figure(Marks::Heat { values: vec![vec![Some(1.0)]], legend: "=a".into() });
        named.x = Axis::new("=b").categories(["=c"]);
        assert_eq!(csv(&named), "loss (nats),'=b,'=a\r\n0,'=c,1\r\n");
    }

    #[test]
    fn boxes_and_cells_are_named_by_their_place() {
        let five = Quartiles { min: 1.0, q1: 2.0, median: 3.0, q3: 4.0, max: 5.0 };
        let boxes = Marks::Boxes {
            series: vec![Boxes { name: "a".into(), boxes: vec![Some(five), None] }],
        };
        let text = csv(&figure(boxes));
        assert!(text.ends_with("a,\"1, first\",1,2,3,4,5\r\na,1,,,,,\r\n"), "{text}");
        let heat = Marks::Heat { values: vec![vec![Some(1.5)]], legend: "angle".into() };
        assert_eq!(csv(&figure(heat)), "loss (nats),block,angle\r\n0,\"1, first\",1.5\r\n");
    }
}
