//! Figures of several models in one.

use hadal_report::figure::{Figure, Line, Marks};

/// Lays figures of the same name over each other, and keeps heat maps side by side, since colours cannot be laid
/// over colours.
pub fn overlay(runs: &[(String, Vec<Figure>)]) -> Vec<Figure> {
    let mut all: Vec<Figure> = Vec::new();
    for (run, figures) in runs {
        for figure in figures {
            let named = named(figure, run);
            match all.iter_mut().find(|other| other.name == named.name) {
                Some(other) => merge(other, named),
                None => all.push(named),
            }
        }
    }
    all
}

/// The figure with the run's name on its series, or on itself if it has none.
fn named(figure: &Figure, run: &str) -> Figure {
    let mut figure = figure.clone();
    let with = |name: &mut String| *name = format!("{run}: {name}");
    match &mut figure.marks {
        // A bound is the same for all.
        Marks::Lines { series } => {
            series.iter_mut().filter(|line| !line.dashed).for_each(|line| with(&mut line.name));
        }
        Marks::Bars { series } => series.iter_mut().for_each(|bars| with(&mut bars.name)),
        Marks::Points { series } => series.iter_mut().for_each(|points| with(&mut points.name)),
        Marks::Boxes { series } => series.iter_mut().for_each(|boxes| with(&mut boxes.name)),
        Marks::Heat { .. } => {
            figure.name = format!("{}-{}", figure.name, slug(run));
            figure.title = format!("{} ({run})", figure.title);
        }
    }
    figure
}

/// Lower case, words joined by `-`.
fn slug(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    text.chars().map(plain).collect()
}

fn merge(figure: &mut Figure, more: Figure) {
    // Models of different depth have different places; the longer list holds the shorter one.
    if more.x.categories.len() > figure.x.categories.len() {
        figure.x.categories = more.x.categories;
    }
    match (&mut figure.marks, more.marks) {
        (Marks::Lines { series }, Marks::Lines { series: more }) => {
            for line in more {
                add_line(series, line);
            }
        }
        (Marks::Bars { series }, Marks::Bars { series: more }) => series.extend(more),
        (Marks::Points { series }, Marks::Points { series: more }) => series.extend(more),
        (Marks::Boxes { series }, Marks::Boxes { series: more }) => series.extend(more),
        _ => {}
    }
}

/// A reference is drawn once, as far as the deepest model needs it.
fn add_line(series: &mut Vec<Line>, line: Line) {
    let same = |other: &&mut Line| other.dashed && line.dashed && other.name == line.name;
    match series.iter_mut().find(same) {
        Some(other) if line.x.len() > other.x.len() => *other = line,
        Some(_) => {}
        None => series.push(line),
    }
}

#[cfg(test)]
mod tests {
    use super::super::draw::{Words, line, reference};
    use super::*;
    use hadal_report::figure::Axis;

    fn figure(depth: usize) -> Figure {
        let words = Words { name: "output-rms", title: "Size", caption: "How large." };
        let series =
            vec![line("measured", vec![Some(1.0); depth]), reference("bound", vec![2.0; depth])];
        words.lines(Axis::new("block"), Axis::new("RMS"), series)
    }

    #[test]
    fn series_carry_their_runs_name_and_bounds_are_drawn_once() {
        let runs = [("a".to_owned(), vec![figure(2)]), ("b".to_owned(), vec![figure(4)])];
        let [figure] = &overlay(&runs)[..] else { panic!("one figure") };
        let Marks::Lines { series } = &figure.marks else { panic!("lines") };
        let names: Vec<_> = series.iter().map(|line| (line.name.as_str(), line.x.len())).collect();
        assert_eq!(names, [("a: measured", 2), ("bound", 4), ("b: measured", 4)]);
    }

    #[test]
    fn heat_maps_stay_side_by_side() {
        let heat = || Figure {
            marks: Marks::Heat { values: vec![vec![Some(1.0)]], legend: "x".into() },
            ..figure(1)
        };
        let runs = [("Run A".to_owned(), vec![heat()]), ("b".to_owned(), vec![heat()])];
        let names: Vec<_> = overlay(&runs).into_iter().map(|figure| figure.name).collect();
        assert_eq!(names, ["output-rms-run-a", "output-rms-b"]);
    }
}
