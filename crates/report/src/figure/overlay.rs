//! Figures of several runs in one.

use super::{Bars, Boxes, Figure, Line, Marks, Points};

/// Lays figures over each other: one figure with all series, or for heat maps, which would hide each other, one figure
/// each. Figures that do not show the same thing as the first also stay separate.
pub fn overlay(labelled: &[(String, Figure)]) -> Vec<Figure> {
    let Some((_, first)) = labelled.first() else { return Vec::new() };
    if labelled.len() == 1 {
        return vec![first.clone()];
    }
    let (alike, others): (Vec<_>, Vec<_>) =
        labelled.iter().partition(|(_, figure)| can_share(first, figure));
    let mut figures = Vec::new();
    if alike.len() <= 1 {
        figures.extend(alike.into_iter().map(alone));
    } else {
        figures.push(shared(&alike));
    }
    figures.extend(others.into_iter().map(alone));
    figures
}

fn can_share(first: &Figure, other: &Figure) -> bool {
    let heat = matches!(first.marks, Marks::Heat { .. });
    let same_marks = std::mem::discriminant(&first.marks) == std::mem::discriminant(&other.marks);
    let same_axes = first.x.label == other.x.label && first.y.label == other.y.label;
    let named = |figure: &Figure| !figure.x.categories.is_empty();
    !heat && same_marks && same_axes && named(first) == named(other)
}

/// A figure with its run's name in its title and in its file's name.
fn alone((label, figure): &(String, Figure)) -> Figure {
    let mut figure = figure.clone();
    figure.title = format!("{}: {label}", figure.title);
    figure.name = format!("{}-{}", figure.name, slug(label));
    figure
}

/// Lower case, words joined by `-`: safe as a file's name.
pub fn slug(text: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let slug = words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-");
    if slug.is_empty() { "unnamed".into() } else { slug }
}

fn shared(labelled: &[&(String, Figure)]) -> Figure {
    let mut categories: Vec<String> = Vec::new();
    for (_, figure) in labelled {
        for category in &figure.x.categories {
            if !categories.contains(category) {
                categories.push(category.clone());
            }
        }
    }
    let (_, first) = labelled[0];
    let mut marks = emptied(&first.marks);
    for (label, figure) in labelled {
        let measured = figure.marks.names().len() - references(&figure.marks);
        let name = |series: &str| match (measured, series) {
            (1, _) | (_, "") => label.clone(),
            _ => format!("{label} · {series}"),
        };
        let place = |i: usize| {
            let category = figure.x.categories.get(i)?;
            categories.iter().position(|other| other == category)
        };
        add(&mut marks, &figure.marks, name, place, categories.len());
    }
    let mut figure = Figure { marks, ..first.clone() };
    figure.x.categories = categories;
    figure
}

fn references(marks: &Marks) -> usize {
    match marks {
        Marks::Lines { series } => series.iter().filter(|line| line.dashed).count(),
        _ => 0,
    }
}

fn emptied(marks: &Marks) -> Marks {
    match marks {
        Marks::Lines { .. } => Marks::Lines { series: vec![] },
        Marks::Bars { .. } => Marks::Bars { series: vec![] },
        Marks::Points { .. } => Marks::Points { series: vec![] },
        Marks::Boxes { .. } => Marks::Boxes { series: vec![] },
        Marks::Heat { .. } => Marks::Heat { values: vec![], legend: String::new() },
    }
}

fn add(
    to: &mut Marks,
    from: &Marks,
    name: impl Fn(&str) -> String,
    place: impl Fn(usize) -> Option<usize>,
    places: usize,
) {
    match (to, from) {
        (Marks::Lines { series }, Marks::Lines { series: more }) => {
            for line in more {
                let same = |known: &Line| known == line;
                // A bound that holds for all runs is drawn once.
                if line.dashed && series.iter().any(same) {
                    continue;
                }
                let shared = line.dashed && !series.iter().any(|known| known.name == line.name);
                let name = match (shared, line.dashed) {
                    (true, _) => line.name.clone(),
                    (_, true) => format!("{} · {}", name(""), line.name),
                    _ => name(&line.name),
                };
                series.push(Line { name, ..line.clone() });
            }
        }
        (Marks::Bars { series }, Marks::Bars { series: more }) => {
            series.extend(more.iter().map(|bars| Bars {
                name: name(&bars.name),
                values: moved(&bars.values, None, &place, places),
                errors: bars.errors.as_ref().map(|errors| moved(errors, 0.0, &place, places)),
            }));
        }
        (Marks::Points { series }, Marks::Points { series: more }) => {
            series.extend(more.iter().map(|p| Points { name: name(&p.name), ..p.clone() }));
        }
        (Marks::Boxes { series }, Marks::Boxes { series: more }) => {
            series.extend(more.iter().map(|boxes| Boxes {
                name: name(&boxes.name),
                boxes: moved(&boxes.boxes, None, &place, places),
            }));
        }
        _ => {}
    }
}

/// Values at the places that their categories have among those of all runs.
fn moved<T: Copy>(
    values: &[T],
    missing: T,
    place: impl Fn(usize) -> Option<usize>,
    places: usize,
) -> Vec<T> {
    if places == 0 {
        return values.to_vec();
    }
    let mut all = vec![missing; places];
    for (i, value) in values.iter().enumerate() {
        if let Some(place) = place(i) {
            all[place] = *value;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Axis;

    fn figure(categories: &[&str], marks: Marks) -> Figure {
        Figure {
            name: "size".into(),
            title: "Size".into(),
            caption: String::new(),
            x: Axis::new("block").categories(categories.iter().copied()),
            y: Axis::new("size"),
            marks,
        }
    }

    fn bars(categories: &[&str], values: &[f64]) -> Figure {
        let values = values.iter().copied().map(Some).collect();
        let series = vec![Bars { name: "size".into(), values, errors: None }];
        figure(categories, Marks::Bars { series })
    }

    fn line(name: &str, dashed: bool) -> Line {
        Line { name: name.into(), x: vec![0.0], y: vec![Some(1.0)], dashed, ..Line::default() }
    }

    #[test]
    fn bars_stand_at_the_place_of_their_category() {
        let both = overlay(&[
            ("deep".into(), bars(&["1", "2", "3"], &[1.0, 2.0, 3.0])),
            ("shallow".into(), bars(&["1", "3"], &[10.0, 30.0])),
        ]);
        let [Figure { marks: Marks::Bars { series }, x, .. }] = &both[..] else {
            panic!("one figure")
        };
        assert_eq!(x.categories, ["1", "2", "3"]);
        assert_eq!((series[0].name.as_str(), series[1].name.as_str()), ("deep", "shallow"));
        assert_eq!(series[1].values, [Some(10.0), None, Some(30.0)]);
    }

    #[test]
    fn series_carry_their_runs_name_and_a_common_bound_is_drawn_once() {
        let lines = || Marks::Lines {
            series: vec![line("a", false), line("b", false), line("bound", true)],
        };
        let both =
            overlay(&[("x".into(), figure(&[], lines())), ("y".into(), figure(&[], lines()))]);
        assert_eq!(both[0].marks.names(), ["x · a", "x · b", "bound", "y · a", "y · b"]);
    }

    #[test]
    fn heat_maps_stand_side_by_side_under_their_runs_names() {
        let heat = || Marks::Heat { values: vec![vec![Some(1.0)]], legend: String::new() };
        let both =
            overlay(&[("x y".into(), figure(&[], heat())), ("<b>".into(), figure(&[], heat()))]);
        assert_eq!(
            both.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(),
            ["size-x-y", "size-b"]
        );
        assert_eq!(both[1].title, "Size: <b>");
    }

    #[test]
    fn one_figure_stays_as_it_is_and_none_is_none() {
        let one = bars(&["1"], &[1.0]);
        assert_eq!(overlay(&[("x".into(), one.clone())]), [one]);
        assert!(overlay(&[]).is_empty());
    }

    #[test]
    fn names_of_files_are_plain() {
        assert_eq!(slug("../Über uns/<x>"), "ber-uns-x");
        assert_eq!(slug("///"), "unnamed");
    }
}
