//! A figure prepared for drawing: without what cannot be drawn, thinned, and with a note on what was left out.

use super::{Axis, Bars, Boxes, Figure, Line, Marks, Points, Quartiles, Scale};

/// More points than this are not seen on any screen.
pub const POINTS: usize = 2000;
/// A heat map is constant if its values differ by less than this share of the largest.
const CONSTANT: f64 = 1e-3;

/// The drawable part of a figure; `None` if there is none.
///
/// Values that are not finite become gaps. Values at or below zero have no place on a logarithmic axis: they become
/// gaps and the caption says so, or the axis becomes linear if nothing else is left. Long curves are thinned.
pub fn drawable(figure: &Figure) -> Option<Figure> {
    let mut figure = figure.clone();
    fit_axis(&mut figure, |figure| &mut figure.x, horizontal);
    fit_axis(&mut figure, |figure| &mut figure.y, vertical);
    let (x, y) = (figure.x.scale, figure.y.scale);
    let fits_x = |value: f64| fits(value, x);
    let fits_y = |value: f64| fits(value, y);
    match &mut figure.marks {
        Marks::Lines { series } => {
            series.iter_mut().for_each(|line| *line = tidy(line, fits_x, fits_y));
            series.retain(|line| line.y.iter().any(Option::is_some));
        }
        Marks::Bars { series } => {
            for bars in series.iter_mut() {
                gaps(&mut bars.values, fits_y);
                if let Some(errors) = &mut bars.errors {
                    errors.iter_mut().filter(|e| !e.is_finite()).for_each(|e| *e = 0.0);
                }
            }
            series.retain(|bars| bars.values.iter().any(Option::is_some));
        }
        Marks::Points { series } => {
            series.iter_mut().for_each(|points| *points = sift(points, fits_x, fits_y));
            series.retain(|points| !points.x.is_empty());
        }
        Marks::Boxes { series } => {
            let boxes = series.iter_mut().flat_map(|boxes| boxes.boxes.iter_mut());
            boxes.for_each(|place| *place = place.and_then(|five| cut(five, y)));
            series.retain(|boxes| boxes.boxes.iter().any(Option::is_some));
        }
        Marks::Heat { values, .. } => {
            values.iter_mut().for_each(|row| gaps(row, f64::is_finite));
            if values.iter().flatten().all(Option::is_none) {
                return None;
            }
        }
    }
    let drawn = match &figure.marks {
        Marks::Lines { series } => series.len(),
        Marks::Bars { series } => series.len(),
        Marks::Points { series } => series.len(),
        Marks::Boxes { series } => series.len(),
        Marks::Heat { values, .. } => values.len(),
    };
    (drawn > 0).then_some(figure)
}

/// The smallest and the largest value of heat maps shown side by side, for a common colour scale.
pub fn heat_range<'a>(figures: impl IntoIterator<Item = &'a Figure>) -> Option<(f64, f64)> {
    let cells = figures.into_iter().flat_map(|figure| match &figure.marks {
        Marks::Heat { values, .. } => values.as_slice(),
        _ => &[],
    });
    let finite = cells.flatten().flatten().copied().filter(|value| value.is_finite());
    let (low, high) = finite.fold(None, |range, value| {
        let (low, high) = range.unwrap_or((value, value));
        Some((f64::min(low, value), f64::max(high, value)))
    })?;
    // Colours of a map that is all but constant would show rounding, so they begin at zero.
    let constant = high - low < CONSTANT * high.abs().max(low.abs());
    Some(if constant { (low.min(0.0), high.max(0.0)) } else { (low, high) })
}

fn fits(value: f64, scale: Scale) -> bool {
    value.is_finite() && (scale == Scale::Linear || value > 0.0)
}

fn gaps(values: &mut [Option<f64>], fits: impl Fn(f64) -> bool) {
    values.iter_mut().for_each(|value| *value = value.filter(|value| fits(*value)));
}

/// Counts the values that have no place on a logarithmic axis; the caption says so, or the axis becomes linear.
fn fit_axis(
    figure: &mut Figure,
    axis: fn(&mut Figure) -> &mut Axis,
    values: fn(&Marks) -> Vec<f64>,
) {
    if axis(figure).scale == Scale::Linear || matches!(figure.marks, Marks::Heat { .. }) {
        return;
    }
    let mut values = values(&figure.marks);
    values.retain(|value| value.is_finite());
    let lost = values.iter().filter(|value| **value <= 0.0).count();
    let label = axis(figure).label.clone();
    let note = match lost {
        0 => return,
        all if all == values.len() => {
            axis(figure).scale = Scale::Linear;
            format!("No {label} is above zero, so the axis is linear.")
        }
        lost => {
            format!(
                "The axis is logarithmic: {lost} values of {label} at or below zero are left out."
            )
        }
    };
    figure.caption = format!("{} {note}", figure.caption).trim().to_owned();
}

fn horizontal(marks: &Marks) -> Vec<f64> {
    match marks {
        Marks::Lines { series } => series.iter().flat_map(|line| line.x.clone()).collect(),
        Marks::Points { series } => series.iter().flat_map(|points| points.x.clone()).collect(),
        _ => Vec::new(),
    }
}

fn vertical(marks: &Marks) -> Vec<f64> {
    match marks {
        Marks::Lines { series } => {
            series.iter().flat_map(|l| l.y.iter().copied().flatten()).collect()
        }
        Marks::Bars { series } => {
            series.iter().flat_map(|bars| bars.values.iter().copied().flatten()).collect()
        }
        Marks::Points { series } => series.iter().flat_map(|points| points.y.clone()).collect(),
        Marks::Boxes { series } => {
            let boxes = series.iter().flat_map(|boxes| boxes.boxes.iter().flatten());
            boxes.flat_map(|b| [b.min, b.q1, b.median, b.q3, b.max]).collect()
        }
        Marks::Heat { .. } => Vec::new(),
    }
}

/// A curve whose places are all on the axis, with gaps for the heights that are not.
fn tidy(line: &Line, fits_x: impl Fn(f64) -> bool, fits_y: impl Fn(f64) -> bool) -> Line {
    let length = line.x.len().min(line.y.len());
    let mut y = line.y.clone();
    gaps(&mut y, &fits_y);
    let places: Vec<usize> = (0..length).filter(|&i| fits_x(line.x[i])).collect();
    let heights: Vec<Option<f64>> = places.iter().map(|&i| y[i]).collect();
    let kept: Vec<usize> = thinned(&heights, POINTS).into_iter().map(|i| places[i]).collect();
    // Where a band has no end, it is as wide as the line.
    let end = |ends: &[f64], i: usize| {
        ends.get(i).copied().filter(|value| fits_y(*value)).or(y[i]).unwrap_or(f64::NAN)
    };
    let side = |ends: &Vec<f64>| kept.iter().map(|&i| end(ends, i)).collect();
    Line {
        name: line.name.clone(),
        x: kept.iter().map(|&i| line.x[i]).collect(),
        y: kept.iter().map(|&i| y[i]).collect(),
        band: line.band.as_ref().map(|(low, high)| (side(low), side(high))),
        dashed: line.dashed,
        marked: (0..kept.len()).filter(|&at| line.marked.contains(&kept[at])).collect(),
    }
}

/// Places that preserve the look of a long curve: the lowest and the highest of every stretch, and where gaps begin.
fn thinned(heights: &[Option<f64>], limit: usize) -> Vec<usize> {
    if heights.len() <= limit {
        return (0..heights.len()).collect();
    }
    let stretch = heights.len().div_ceil((limit - 2) / 3);
    let mut kept = vec![0, heights.len() - 1];
    for start in (0..heights.len()).step_by(stretch) {
        let places = start..(start + stretch).min(heights.len());
        let by = |a: &usize, b: &usize| {
            heights[*a].unwrap_or(0.0).total_cmp(&heights[*b].unwrap_or(0.0))
        };
        let seen = || places.clone().filter(|&place| heights[place].is_some());
        kept.extend(seen().min_by(by));
        kept.extend(seen().max_by(by));
        kept.extend(places.clone().find(|&place| heights[place].is_none()));
    }
    kept.sort_unstable();
    kept.dedup();
    kept
}

fn sift(points: &Points, fits_x: impl Fn(f64) -> bool, fits_y: impl Fn(f64) -> bool) -> Points {
    let length = points.x.len().min(points.y.len());
    let places: Vec<usize> =
        (0..length).filter(|&i| fits_x(points.x[i]) && fits_y(points.y[i])).collect();
    // An even sample of the points looks like all of them.
    let every = places.len().div_ceil(POINTS).max(1);
    let places = || places.iter().copied().step_by(every);
    Points {
        name: points.name.clone(),
        x: places().map(|i| points.x[i]).collect(),
        y: places().map(|i| points.y[i]).collect(),
        labels: places().filter_map(|i| points.labels.get(i).cloned()).collect(),
    }
}

/// A box, cut off at the lower end if the axis has no place for it.
fn cut(five: Quartiles, scale: Scale) -> Option<Quartiles> {
    let all = [five.min, five.q1, five.median, five.q3, five.max];
    if all.iter().any(|value| !value.is_finite()) || !fits(five.max, scale) {
        return None;
    }
    let lowest = all.into_iter().find(|value| fits(*value, scale))?;
    let [min, q1, median, q3, max] = all.map(|value| value.max(lowest));
    Some(Quartiles { min, q1, median, q3, max })
}

impl Marks {
    /// Names of the series; empty for a heat map.
    pub fn names(&self) -> Vec<&str> {
        match self {
            Self::Lines { series } => {
                series.iter().map(|Line { name, .. }| name.as_str()).collect()
            }
            Self::Bars { series } => series.iter().map(|Bars { name, .. }| name.as_str()).collect(),
            Self::Points { series } => series.iter().map(|p| p.name.as_str()).collect(),
            Self::Boxes { series } => {
                series.iter().map(|Boxes { name, .. }| name.as_str()).collect()
            }
            Self::Heat { .. } => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(axis: Axis, y: Vec<Option<f64>>) -> Figure {
        let x = (0..y.len()).map(|i| i as f64).collect();
        let line = Line { name: "a".into(), x, y, ..Line::default() };
        Figure {
            name: "loss".into(),
            title: "Loss".into(),
            caption: "Lower is better.".into(),
            x: Axis::new("step"),
            y: axis,
            marks: Marks::Lines { series: vec![line] },
        }
    }

    fn line(figure: &Figure) -> &Line {
        let Marks::Lines { series } = &figure.marks else { panic!("lines") };
        &series[0]
    }

    #[test]
    fn figures_without_a_value_are_left_out() {
        assert_eq!(drawable(&lines(Axis::new("loss"), vec![])), None);
        assert_eq!(drawable(&lines(Axis::new("loss"), vec![None, Some(f64::NAN)])), None);
        let empty =
            Marks::Heat { values: vec![vec![None], vec![Some(f64::INFINITY)]], legend: "".into() };
        assert_eq!(drawable(&Figure { marks: empty, ..lines(Axis::new("loss"), vec![]) }), None);
    }

    #[test]
    fn what_is_not_finite_is_a_gap() {
        let figure = lines(Axis::new("loss"), vec![Some(1.0), Some(f64::INFINITY), Some(3.0)]);
        assert_eq!(line(&drawable(&figure).unwrap()).y, [Some(1.0), None, Some(3.0)]);
    }

    #[test]
    fn a_logarithmic_axis_says_what_it_cannot_show() {
        let figure = lines(Axis::new("loss").log(), vec![Some(0.0), Some(-1.0), Some(3.0)]);
        let drawn = drawable(&figure).unwrap();
        assert_eq!(line(&drawn).y, [None, None, Some(3.0)]);
        assert!(drawn.caption.contains("2 values of loss at or below zero"), "{}", drawn.caption);

        let nothing =
            drawable(&lines(Axis::new("loss").log(), vec![Some(-1.0), Some(0.0)])).unwrap();
        assert_eq!(nothing.y.scale, Scale::Linear);
        assert!(nothing.caption.contains("linear"), "{}", nothing.caption);
    }

    #[test]
    fn a_long_curve_is_thinned_and_keeps_its_spike_its_ends_and_its_gap() {
        let mut y: Vec<Option<f64>> = (0..100_000).map(|i| Some((i as f64).sqrt())).collect();
        y[54_321] = Some(1e6);
        y[77_777] = None;
        let figure = drawable(&lines(Axis::new("loss"), y)).unwrap();
        let line = line(&figure);
        assert!(line.x.len() <= POINTS, "{}", line.x.len());
        assert_eq!((line.x[0], *line.x.last().unwrap()), (0.0, 99_999.0));
        assert!(line.y.contains(&Some(1e6)) && line.y.contains(&None));
        assert!(line.x.is_sorted());
    }

    /// Places move when others are left out.
    #[test]
    fn what_is_marked_stays_marked_where_it_is_drawn() {
        let mut figure = lines(Axis::new("loss"), vec![Some(1.0), Some(2.0), Some(3.0)]);
        figure.x = figure.x.log();
        let Marks::Lines { series } = &mut figure.marks else { panic!("lines") };
        series[0].marked = vec![2, 9];
        let drawn = drawable(&figure).unwrap();
        assert_eq!((&line(&drawn).x, &line(&drawn).marked), (&vec![1.0, 2.0], &vec![1]));
    }

    #[test]
    fn a_box_is_cut_where_a_logarithmic_axis_ends() {
        let five = Quartiles { min: -1.0, q1: 0.0, median: 1.0, q3: 2.0, max: 3.0 };
        let whole = cut(five, Scale::Linear).unwrap();
        let short = cut(five, Scale::Log).unwrap();
        assert_eq!((whole, short.min, short.q1, short.max), (five, 1.0, 1.0, 3.0));
        assert_eq!(cut(Quartiles { max: f64::NAN, ..five }, Scale::Linear), None);
    }
}
