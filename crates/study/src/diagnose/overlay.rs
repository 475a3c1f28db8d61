//! Figures of several models in one.

use hadal_report::figure::{self, Figure};

/// Lays figures of the same name over each other, in the order in which names first appear.
pub fn overlay(models: &[(String, Vec<Figure>)]) -> Vec<Figure> {
    let mut names: Vec<&str> = Vec::new();
    for figure in models.iter().flat_map(|(_, figures)| figures) {
        if !names.contains(&figure.name.as_str()) {
            names.push(&figure.name);
        }
    }
    let of = |name: &str| -> Vec<(String, Figure)> {
        let named = |(model, figures): &(String, Vec<Figure>)| {
            let figure = figures.iter().find(|figure| figure.name == name)?;
            Some((model.clone(), figure.clone()))
        };
        models.iter().filter_map(named).collect()
    };
    names.into_iter().flat_map(|name| figure::overlay(&of(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::draw::{Words, line};
    use super::*;
    use hadal_report::figure::{Axis, Marks};

    fn figure(name: &'static str) -> Figure {
        let words = Words { name, title: "Size", caption: "How large." };
        words.lines(Axis::new("block"), Axis::new("RMS"), vec![line("", vec![Some(1.0); 2])])
    }

    #[test]
    fn what_all_have_is_shared_and_what_one_has_is_kept() {
        let models = [
            ("a".to_owned(), vec![figure("output-rms")]),
            ("b".to_owned(), vec![figure("gates"), figure("output-rms")]),
        ];
        let figures = overlay(&models);
        let names: Vec<_> = figures.iter().map(|figure| figure.name.as_str()).collect();
        assert_eq!(names, ["output-rms", "gates"]);
        let Marks::Lines { series } = &figures[0].marks else { panic!("lines") };
        assert_eq!(series.len(), 2);
    }
}
