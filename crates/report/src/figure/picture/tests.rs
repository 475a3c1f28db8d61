use super::*;
use crate::figure::{Bars, Boxes, Line, Points, Quartiles};

fn figure(marks: Marks) -> Figure {
    Figure {
        name: "example".into(),
        title: "An <example> & more".into(),
        caption: String::new(),
        x: Axis::new("block"),
        y: Axis::new("size").unit("MB"),
        marks,
    }
}

/// One figure of every kind, with gaps and values that are not numbers.
fn kinds() -> Vec<Figure> {
    let x: Vec<f64> = (0..100).map(f64::from).collect();
    let y: Vec<Option<f64>> =
        x.iter().map(|x| (*x != 50.0).then(|| (x / 9.0).sin() + 1.5)).collect();
    let band = (vec![0.5; 100], vec![f64::NAN; 100]);
    let five = Quartiles { min: 1.0, q1: 2.0, median: 3.0, q3: 4.0, max: 1e3 };
    let line = |name: &str, dashed| Line {
        name: name.into(),
        x: x.clone(),
        y: y.clone(),
        band: Some(band.clone()),
        dashed,
        ..Line::default()
    };
    let bars = Bars {
        name: "a".into(),
        values: vec![Some(-1.0), None, Some(2.0)],
        errors: Some(vec![0.5]),
    };
    let points =
        Points { name: "a".into(), x: vec![1.0, f64::NAN], y: vec![2.0, 3.0], labels: Vec::new() };
    let boxes = Boxes { name: "a".into(), boxes: vec![Some(five), None] };
    let heat = vec![vec![Some(1.0), None], vec![Some(f64::NAN), Some(-2.0)]];
    [
        Marks::Lines { series: vec![line("a", false), line("b", true)] },
        Marks::Bars { series: vec![bars.clone(), bars] },
        Marks::Points { series: vec![points] },
        Marks::Boxes { series: vec![boxes] },
        Marks::Heat { values: heat, legend: "angle".into() },
    ]
    .map(figure)
    .to_vec()
}

#[test]
fn every_kind_of_figure_becomes_an_svg_on_linear_and_logarithmic_axes() {
    for mut figure in kinds() {
        for _ in 0..2 {
            let svg = svg(&figure, Shared::default()).unwrap();
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
            assert!(svg.contains("An &lt;example&gt; &amp; more"), "titles are escaped");
            assert!(!svg.contains("NaN") && !svg.contains("inf"));
            figure.y = figure.y.log();
            figure.x = figure.x.log();
        }
    }
}

#[test]
fn a_png_has_text_in_it() {
    let read = |title: &str| {
        let figure = Figure { title: title.into(), ..kinds().remove(1) };
        let bytes = png(&figure, Shared::default()).unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        assert_eq!(reader.info().size(), (WIDTH * 2, HEIGHT * 2));
        let dark = |pixel: &[u8]| pixel.iter().all(|channel| *channel < 90);
        pixels[..WIDTH as usize * 6 * 90].chunks(3).filter(|pixel| dark(pixel)).count()
    };
    assert!(read("A title of many words") > 2 * read("I") && read("I") > 10);
}

#[test]
fn figures_without_a_value_are_refused_by_name() {
    let empty = figure(Marks::Points { series: Vec::new() });
    let error = svg(&empty, Shared::default()).unwrap_err();
    assert_eq!(error.to_string(), "figure example has no values to draw");
}

#[test]
fn many_long_names_end_in_how_many_more_there_are() {
    let line = |i: usize| Line {
        name: format!("a series with a rather long name, number {i}"),
        x: vec![0.0, 1.0],
        y: vec![Some(1.0), Some(2.0)],
        ..Line::default()
    };
    let many = figure(Marks::Lines { series: (0..60).map(line).collect() });
    assert!(svg(&many, Shared::default()).unwrap().contains("more"));
}

#[test]
fn what_is_marked_has_a_ring_around_its_point() {
    let line = Line { x: vec![1.0, 2.0], y: vec![Some(1.0), Some(2.0)], ..Line::default() };
    let rings = |marked: Vec<usize>| {
        let series = vec![Line { marked, ..line.clone() }];
        let svg = svg(&figure(Marks::Lines { series }), Shared::default()).unwrap();
        svg.matches("<circle").count()
    };
    assert_eq!((rings(vec![]), rings(vec![1]), rings(vec![1, 7])), (2, 3, 3));
}
