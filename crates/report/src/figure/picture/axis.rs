//! Axes for pictures: positions and labels of ticks.

use crate::figure::{Axis, Scale};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use std::ops::Range;

/// An axis with its ticks; a logarithmic one measures in powers of ten.
#[derive(Clone, Debug)]
pub(super) struct Ruler {
    pub(super) low: f64,
    pub(super) high: f64,
    log: bool,
    ticks: Vec<(f64, String)>,
}

impl Ruler {
    /// An axis around values, with about `count` ticks.
    pub(super) fn new(axis: &Axis, values: impl Iterator<Item = f64>, count: usize) -> Self {
        let log = axis.scale == Scale::Log;
        let values: Vec<f64> = values.collect();
        let whole = !log && values.iter().all(|value| value.fract() == 0.0);
        let placed = values.into_iter().map(|value| if log { value.log10() } else { value });
        let range = placed.filter(|value| value.is_finite()).fold(None, |range, value| {
            let (low, high) = range.unwrap_or((value, value));
            Some((f64::min(low, value), f64::max(high, value)))
        });
        let (low, high) = range.unwrap_or((0.0, 1.0));
        // Equal values get a place in the middle.
        let room = if high > low { 0.04 * (high - low) } else { 0.05 * high.abs().max(1.0) };
        let (low, high) = (low - room, high + room);
        // Blocks are counted in whole numbers.
        let count = if whole { count.min((high - low).ceil() as usize) } else { count };
        let ticks = if log { powers(low, high, count) } else { steps(low, high, count) };
        Self { low, high, log, ticks }
    }

    /// An axis of named places 0, 1, 2, ..., of which only every n-th shows its name.
    pub(super) fn places(axis: &Axis, places: usize, count: usize) -> Self {
        let every = places.div_ceil(count.max(1)).max(1);
        let ticks = (0..places).step_by(every).map(|i| (i as f64, shortened(&axis.place(i), 16)));
        Self { low: -0.5, high: places as f64 - 0.5, log: false, ticks: ticks.collect() }
    }

    /// The position of a value.
    pub(super) fn at(&self, value: f64) -> f64 {
        if self.log { value.log10() } else { value }
    }

    /// The floor of bars.
    pub(super) fn floor(&self) -> f64 {
        if self.log { self.low } else { 0.0_f64.clamp(self.low, self.high) }
    }

    pub(super) fn tick_count(&self) -> usize {
        self.ticks.len()
    }
}

impl Ranged for Ruler {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (start, end): (i32, i32)) -> i32 {
        let share = (value - self.low) / (self.high - self.low);
        start + (f64::from(end - start) * share.clamp(-1.0, 2.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.iter().map(|(at, _)| *at).collect()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Ruler {
    fn format(value: &f64) -> String {
        value.to_string()
    }

    fn format_ext(&self, value: &f64) -> String {
        self.ticks
            .iter()
            .find(|(at, _)| at == value)
            .map(|(_, text)| text.clone())
            .unwrap_or_default()
    }
}

/// The text, shortened to at most `limit` characters.
pub(super) fn shortened(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    text.chars().take(limit - 1).chain(['…']).collect()
}

/// Round steps of 1, 2 or 5 times a power of ten.
pub(super) fn steps(low: f64, high: f64, count: usize) -> Vec<(f64, String)> {
    let rough = (high - low) / count.max(1) as f64;
    let power = 10.0_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(10.0 * power);
    let (first, last) = ((low / step).ceil() as i64, (high / step).floor() as i64);
    // Many digits before a tiny step would make endless ticks.
    let last = last.min(first.saturating_add(100));
    (first..=last).map(|i| (i as f64 * step, number(i as f64 * step, step))).collect()
}

/// Powers of ten, with 2 and 5 between them where there is room.
fn powers(low: f64, high: f64, count: usize) -> Vec<(f64, String)> {
    let decades = high - low;
    let between: &[f64] = match decades {
        d if d < 1.0 => return narrow(low, high, count),
        d if d < 2.5 => &[1.0, 2.0, 5.0],
        _ => &[1.0],
    };
    let every = (decades / count.max(1) as f64).ceil().max(1.0) as i32;
    let exponents = (low.floor() as i32..=high.ceil() as i32).filter(|e| e.rem_euclid(every) == 0);
    let values = exponents.flat_map(|e| between.iter().map(move |n| n * 10.0_f64.powi(e)));
    let ticks = values.map(|value| (value.log10(), number(value, value)));
    ticks.filter(|(at, _)| (low..=high).contains(at)).collect()
}

/// Less than a decade: round steps, at their logarithmic places.
fn narrow(low: f64, high: f64, count: usize) -> Vec<(f64, String)> {
    let ticks = steps(10.0_f64.powf(low), 10.0_f64.powf(high), count);
    let step = match &ticks[..] {
        [first, second, ..] => second.0 - first.0,
        _ => 10.0_f64.powf(low),
    };
    ticks.into_iter().filter(|(v, _)| *v > 0.0).map(|(v, _)| (v.log10(), number(v, step))).collect()
}

/// A value with as many digits as its step needs, in thousands, millions, .. if large.
pub(super) fn number(value: f64, step: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let size = value.abs();
    if !(1e-4..1e15).contains(&size) {
        return format!("{value:.0e}");
    }
    let (unit, suffix) = match size {
        s if s >= 1e12 => (1e12, "T"),
        s if s >= 1e9 => (1e9, "G"),
        s if s >= 1e6 => (1e6, "M"),
        s if s >= 1e4 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let digits = (-(step / unit).abs().log10() - 1e-9).ceil().clamp(0.0, 6.0) as usize;
    format!("{:.digits$}{suffix}", value / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(ticks: Vec<(f64, String)>) -> Vec<String> {
        ticks.into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn ticks_are_round_and_say_no_more_digits_than_they_need() {
        assert_eq!(texts(steps(0.93, 1.07, 4)), ["0.95", "1.00", "1.05"]);
        assert_eq!(texts(steps(0.0, 192_000.0, 4)), ["0", "50k", "100k", "150k"]);
        assert_eq!(texts(powers(-2.0, 2.0, 6)), ["0.01", "0.1", "1", "10", "100"]);
        assert_eq!(texts(powers(0.1, 1.5, 6)), ["2", "5", "10", "20"]);
        assert_eq!(texts(powers(0.1, 0.5, 3)), ["2", "3"]);
    }

    #[test]
    fn equal_and_missing_values_still_have_an_axis() {
        for values in [vec![], vec![3.0], vec![3.0, 3.0], vec![f64::NAN], vec![1e300, 1e300]] {
            let ruler = Ruler::new(&Axis::new("x"), values.into_iter(), 5);
            assert!(ruler.high > ruler.low && ruler.tick_count() <= 101, "{ruler:?}");
        }
    }

    #[test]
    fn whole_numbers_have_no_ticks_between_them() {
        let ruler = Ruler::new(&Axis::new("block"), [1.0, 2.0, 4.0].into_iter(), 8);
        assert_eq!(texts(ruler.ticks), ["1", "2", "3", "4"]);
    }

    #[test]
    fn many_places_get_few_names() {
        let axis = Axis::new("block").categories((0..100).map(|i| format!("block {i}")));
        assert!(Ruler::places(&axis, 100, 12).tick_count() <= 12);
    }
}
