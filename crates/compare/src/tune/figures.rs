//! Response curves: held-out loss against what was tuned.

use super::grid::LR_SCALE;
use super::results::{TunedPoint, TunedVariant, Tuning};
use crate::suite::Suite;
use hadal_report::figure::{Axis, Figure, Line, Marks, slug};

impl Tuning {
    /// A figure for each key that is a number, the last round first.
    pub(crate) fn figures(&self, suite: &Suite) -> Vec<Figure> {
        let mut depths: Vec<Option<usize>> =
            self.variants.iter().map(|tuned| tuned.depth).collect();
        depths.sort_unstable();
        depths.dedup();
        let mut figures = Vec::new();
        for key in self.keys() {
            for &depth in &depths {
                for round in (1..=self.rounds).rev() {
                    figures.extend(self.figure(suite, key, depth, round));
                }
            }
        }
        figures
    }

    /// `None` if nobody has two values.
    fn figure(
        &self,
        suite: &Suite,
        key: &str,
        depth: Option<usize>,
        round: usize,
    ) -> Option<Figure> {
        // In the order of the suite, as in its other figures.
        let tuned = suite.variants.iter().filter_map(|variant| {
            let mine =
                |tuned: &&TunedVariant| tuned.variant == variant.name && tuned.depth == depth;
            self.variants.iter().find(mine)
        });
        let series: Vec<Line> = tuned
            .filter_map(|tuned| curve(tuned, key, round))
            .filter(|line| line.y.iter().any(Option::is_some))
            .collect();
        if series.iter().all(|line| line.x.len() < 2) {
            return None;
        }
        let several = self.keys().len() > 1;
        let (label, what) = match key {
            LR_SCALE => ("learning rate, as a factor on the suite's", "learning rate"),
            key => (key, key),
        };
        let mut x = Axis::new(label);
        if series.iter().flat_map(|line| &line.x).all(|value| *value > 0.0) {
            x = x.log();
        }
        let mut name = format!("tuning-{}", slug(key));
        let mut title = format!("Held-out loss by {what}");
        if let Some(depth) = depth {
            name += &format!("-d{depth}");
            title += &format!(" at {depth} blocks");
        }
        if round < self.rounds {
            name += &format!("-round-{round}");
            title += &format!(", round {round} of {}", self.rounds);
        }
        let mut caption = String::from(
            "Lower is better. Marked are the values with which policies enter the comparison. Lines are means over the tuning seeds, bands reach from the best to the worst seed.",
        );
        if several {
            caption += " Where other keys were tuned as well, each value is shown with the best of the others.";
        }
        if round < self.rounds {
            caption += " The better points went on to longer runs.";
        }
        Some(Figure {
            name,
            title,
            caption,
            x,
            y: Axis::new("held-out loss").unit("nats"),
            marks: Marks::Lines { series },
        })
    }
}

/// The lowest loss at each value over everything else that was tried with it; a value that failed is a gap.
fn curve(tuned: &TunedVariant, key: &str, round: usize) -> Option<Line> {
    let points: Vec<&TunedPoint> =
        tuned.points.iter().filter(|point| point.round == round).collect();
    let mut places: Vec<f64> = points.iter().filter_map(|p| p.values.number(key)).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    if places.is_empty() {
        return None;
    }
    let mut line = Line { name: tuned.variant.clone(), ..Line::default() };
    let (mut low, mut high) = (Vec::new(), Vec::new());
    for place in places {
        let there = points.iter().filter(|point| point.values.number(key) == Some(place));
        let best = there
            .filter_map(|point| Some((point, point.loss?)))
            .min_by(|(_, a), (_, b)| a.total_cmp(b));
        let losses =
            || best.iter().flat_map(|(p, _)| &p.runs).filter_map(|run| run.validation_loss);
        let chosen = tuned.chosen.as_ref();
        if best
            .is_some_and(|(point, loss)| chosen == Some(&point.values) && tuned.loss == Some(loss))
        {
            line.marked.push(line.x.len());
        }
        line.x.push(place);
        line.y.push(best.map(|(_, loss)| loss));
        low.push(losses().reduce(f64::min).unwrap_or(f64::NAN));
        high.push(losses().reduce(f64::max).unwrap_or(f64::NAN));
    }
    let several = points.iter().any(|point| point.runs.len() > 1);
    line.band = several.then_some((low, high));
    Some(line)
}
