//! Massive activations (Sun et al. 2024, arXiv 2402.17762): single channels of single tokens that are
//! thousands of times larger than the rest.
//!
//! After each sub-layer, the three largest magnitudes of each sequence and their median, averaged over at most 512
//! sequences.

use super::diagnostic::Diagnostic;
use super::draw::{Words, label, line, place_at, place_index, site_axis};
use super::summary::{Largest, Summary};
use super::sums::{Mean, slot};
use super::values::Values;
use hadal_data::Batch;
use hadal_report::figure::{Axis, Figure};
use hadal_residual::{Place, Signal, Site};

/// Sequences that are looked at.
pub(crate) const SAMPLES: usize = 512;

const TOP: usize = 3;

/// The largest magnitudes by sub-layer.
pub(crate) struct Activations {
    sites: usize,
    /// Sequences before this batch.
    before: usize,
    rows: usize,
    /// Magnitudes of the stream after each sub-layer.
    behind: Vec<Magnitudes>,
    /// Largest magnitude of what each sub-layer returned.
    writes: Vec<Mean>,
    /// `[stream][site]`
    streams: Vec<Vec<Mean>>,
    largest: Option<Largest>,
}

#[derive(Clone, Default)]
struct Magnitudes {
    top: [Mean; TOP],
    median: Mean,
}

/// The largest magnitudes, largest first, and where they are.
fn largest(values: impl Iterator<Item = f32>) -> [(f32, usize); TOP] {
    let mut top = [(0.0, 0); TOP];
    for (i, value) in values.enumerate() {
        let value = value.abs();
        if value > top[TOP - 1].0 {
            let at = top.iter().position(|&(other, _)| value > other).unwrap_or(TOP - 1);
            top[at..].rotate_right(1);
            top[at] = (value, i);
        }
    }
    top
}

fn median(values: impl Iterator<Item = f32>) -> f64 {
    let mut sizes: Vec<f32> = values.map(f32::abs).collect();
    let middle = sizes.len() / 2;
    f64::from(*sizes.select_nth_unstable_by(middle, f32::total_cmp).1)
}

impl Activations {
    pub(crate) fn new(blocks: usize) -> Self {
        let sites = 2 * blocks;
        Self {
            sites,
            before: 0,
            rows: 0,
            behind: vec![Magnitudes::default(); sites],
            writes: vec![Mean::default(); sites],
            streams: Vec::new(),
            largest: None,
        }
    }

    /// Rows of this batch that still count.
    fn counted(&self, values: &Values) -> usize {
        values.batch().min(SAMPLES.saturating_sub(self.before))
    }

    fn stream(&mut self, site: usize, values: &Values) {
        let (time, width) = (values.time(), values.features());
        for row in 0..self.counted(values) {
            let all = || sequence(values, row, 0);
            let (top, median) = (largest(all()), median(all()));
            let found = &mut self.behind[site];
            found.median.add(median);
            for (mean, (value, _)) in found.top.iter_mut().zip(top) {
                mean.add(value.into());
            }
            let (value, at) = (f64::from(top[0].0), top[0].1);
            if self.largest.as_ref().is_none_or(|largest| value > largest.value) {
                self.largest = Some(Largest {
                    value,
                    times_median: value / median.max(f64::MIN_POSITIVE),
                    behind: label(place_at(site, self.sites)),
                    position: at / width % time,
                    channel: at % width,
                });
            }
        }
    }
}

/// All numbers of one row in one stream, token by token.
fn sequence(values: &Values, row: usize, stream: usize) -> impl Iterator<Item = f32> {
    let time = values.time();
    (row * time..(row + 1) * time).flat_map(move |token| values.row(token, stream).iter().copied())
}

impl Diagnostic for Activations {
    fn wants(&self, signal: Signal) -> bool {
        matches!(signal, Signal::Reading | Signal::Write | Signal::Streams)
    }

    fn begin(&mut self, batch: &Batch) {
        self.rows = batch.input.batch();
    }

    fn see(&mut self, place: Place, signal: Signal, values: &Values) {
        match (signal, place) {
            (Signal::Reading, place) => {
                // What a place reads is what the sub-layer before it left.
                if let Some(site) = place_index(place, self.sites).checked_sub(1) {
                    self.stream(site, values);
                }
            }
            (Signal::Write, Place::Site(Site { index })) => {
                for row in 0..self.counted(values) {
                    self.writes[index].add(largest(sequence(values, row, 0))[0].0.into());
                }
            }
            (Signal::Streams, Place::Site(Site { index })) => {
                for row in 0..self.counted(values) {
                    for stream in 0..values.streams() {
                        let top = largest(sequence(values, row, stream))[0].0;
                        slot(slot(&mut self.streams, stream), index).add(top.into());
                    }
                }
            }
            _ => {}
        }
    }

    fn end(&mut self) {
        self.before += self.rows;
    }

    fn figures(&self) -> Vec<Figure> {
        let samples = self.before.min(SAMPLES);
        let names = ["largest", "second", "third"];
        let mut series: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(k, name)| line(*name, self.behind.iter().map(|found| found.top[k].get())))
            .collect();
        series.push(line("median", self.behind.iter().map(|found| found.median.get())));
        series.push(line("largest of the write", self.writes.iter().map(Mean::get)));
        let caption = format!(
            "The three largest magnitudes in each sequence behind each sub-layer, and the median magnitude, averaged \
             over {samples} sequences. Curves far above the median are massive activations: a few channels that hold \
             a huge constant, which low precision suffers from."
        );
        let mut figures = vec![
            Words {
                name: "massive-activations",
                title: "Largest activations behind each sub-layer",
                caption: &caption,
            }
            .lines(site_axis(), Axis::new("magnitude").log(), series),
        ];
        if self.streams.len() > 1 {
            let caption = format!(
                "The largest magnitude in each sequence within each stream of the depth state, averaged over {samples} \
                 sequences."
            );
            let of = |means: &Vec<Mean>| -> Vec<Option<f64>> {
                (0..self.sites).map(|site| means.get(site).and_then(Mean::get)).collect()
            };
            let streams = self.streams.iter().enumerate();
            figures.push(
                Words {
                    name: "massive-activations-streams",
                    title: "Largest activation of each stream",
                    caption: &caption,
                }
                .lines(
                    site_axis(),
                    Axis::new("magnitude").log(),
                    streams.map(|(i, means)| line(format!("stream {i}"), of(means))).collect(),
                ),
            );
        }
        figures
    }

    fn tell(&self, summary: &mut Summary) {
        summary.largest = self.largest.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_three_are_found_in_any_order() {
        for values in [[1.0f32, -9.0, 3.0, 2.0, -4.0], [-9.0, 4.0, 3.0, 2.0, 1.0]] {
            let sizes = largest(values.into_iter()).map(|(value, _)| value);
            assert_eq!(sizes, [9.0, 4.0, 3.0]);
        }
        assert_eq!(largest([0.0, 5.0].into_iter())[0], (5.0, 1));
        assert_eq!(median([-3.0, 1.0, 2.0].into_iter()), 2.0);
    }
}
