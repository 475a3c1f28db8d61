//! How wide gates are open and which sources a reading is pooled from: distributions by sub-layer.

use super::diagnostic::Diagnostic;
use super::draw::{Words, boxes, label, line, place_at, place_index, site_axis};
use super::summary::Summary;
use super::sums::{Spread, slot};
use super::values::Values;
use hadal_report::figure::{Axis, Figure, Line, Marks};
use hadal_residual::{Place, Signal};

/// Rows of a histogram.
const BINS: usize = 40;

/// The most streams that can be told apart in one chart; more are shown together.
const MOST_SERIES: usize = 8;

/// One kind of weight: its words, and what was seen of it.
pub(crate) struct Distribution {
    signal: Signal,
    /// For file names.
    name: &'static str,
    /// For titles.
    title: &'static str,
    meaning: &'static str,
    sites: usize,
    /// `[place][stream]`
    seen: Vec<Vec<Spread>>,
}

impl Distribution {
    /// How much of each write the streams take.
    pub(crate) fn gates(blocks: usize) -> Self {
        Self {
            signal: Signal::Gates,
            name: "gates",
            title: "Gates",
            meaning: "A gate says how much of a sub-layer's output a stream takes: 0 keeps the stream as it is, 1 \
                      replaces it (or adds all of the output).",
            sites: 2 * blocks,
            seen: Vec::new(),
        }
    }

    /// What readings are made of.
    pub(crate) fn pools(blocks: usize) -> Self {
        Self {
            signal: Signal::PoolWeights,
            name: "pool-weights",
            title: "Pool weights",
            meaning: "A pool weight says how much of a reading comes from a stream or an earlier output.",
            sites: 2 * blocks,
            seen: Vec::new(),
        }
    }

    fn streams(&self) -> usize {
        self.seen.iter().map(Vec::len).max().unwrap_or(0)
    }

    fn at(&self, place: usize, stream: usize) -> Option<&Spread> {
        self.seen.get(place)?.get(stream)
    }

    /// Places from the first to the last that have anything to show.
    fn places(&self) -> Vec<usize> {
        (0..self.seen.len()).filter(|&place| !self.seen[place].is_empty()).collect()
    }

    fn axis(&self) -> Axis {
        let names = self.places().into_iter().map(|place| label(place_at(place, self.sites)));
        Axis::new("sub-layer").categories(names)
    }

    fn extremes(&self) -> (f64, f64) {
        let all = || self.seen.iter().flatten();
        let low = all().filter_map(Spread::least).fold(0.0, f64::min);
        (low, all().filter_map(Spread::most).fold(1.0, f64::max))
    }

    /// One curve for each stream, or one for all if there are too many.
    fn curves(&self, get: impl Fn(&Spread) -> Option<f64>, join: fn(f64, f64) -> f64) -> Vec<Line> {
        let places = || 0..self.seen.len();
        if self.streams() <= MOST_SERIES {
            let curve = |stream| places().map(move |place| self.at(place, stream)).map(|s| get(s?));
            return (0..self.streams()).map(|i| line(self.stream_name(i), curve(i))).collect();
        }
        let all = |place: usize| self.seen[place].iter().filter_map(&get).reduce(join);
        vec![line("all sources", places().map(all))]
    }

    fn stream_name(&self, stream: usize) -> String {
        if self.streams() == 1 { "all channels".into() } else { format!("stream {stream}") }
    }

    /// A box for each place and stream, or for each place alone if there are too many streams.
    fn box_plot(&self) -> Figure {
        let places = self.places();
        let series = if self.streams() <= MOST_SERIES {
            let of = |stream| {
                places.iter().map(|&p| self.at(p, stream).and_then(Spread::quartiles)).collect()
            };
            (0..self.streams()).map(|i| boxes(self.stream_name(i), of(i))).collect()
        } else {
            let of = |&place: &usize| Spread::joined(&self.seen[place]).quartiles();
            vec![boxes("all sources", places.iter().map(of).collect())]
        };
        let caption = format!(
            "{} Boxes hold the middle half of all tokens, whiskers reach to the extremes.",
            self.meaning
        );
        let title = format!("{} by sub-layer", self.title);
        let words = Words { name: self.name, title: &title, caption: &caption };
        words.with(self.axis(), Axis::new(self.title.to_lowercase()), Marks::Boxes { series })
    }

    fn histogram(&self) -> Figure {
        let (low, high) = self.extremes();
        let columns: Vec<Vec<f64>> = self
            .places()
            .into_iter()
            .map(|place| Spread::joined(&self.seen[place]).histogram(low, high, BINS))
            .collect();
        let rows = |bin: usize| {
            columns.iter().map(|column| Some(column[bin]).filter(|&share| share > 0.0)).collect()
        };
        let values = (0..BINS).map(rows).collect();
        let middle = |bin: usize| low + (high - low) * (bin as f64 + 0.5) / BINS as f64;
        let caption = format!(
            "{} Each column is a histogram of one sub-layer over all tokens and streams: the brighter, the more.",
            self.meaning
        );
        let (name, title) =
            (format!("{}-histogram", self.name), format!("{}: histogram by sub-layer", self.title));
        Words { name: &name, title: &title, caption: &caption }.with(
            self.axis(),
            Axis::new(self.title.to_lowercase())
                .categories((0..BINS).map(|bin| format!("{:.3}", middle(bin)))),
            Marks::Heat { values, legend: "share of values".into() },
        )
    }

    fn maxima(&self) -> Figure {
        let (name, title) =
            (format!("{}-maxima", self.name), format!("{}: largest by sub-layer", self.title));
        let caption = format!(
            "{} This is the largest value that any token reached; high maxima over a low middle mean that the \
             policy decides token by token.",
            self.meaning
        );
        Words { name: &name, title: &title, caption: &caption }.lines(
            site_axis(),
            Axis::new("largest value"),
            self.curves(Spread::most, f64::max),
        )
    }

    /// Mean weight of each source in each reading.
    fn map(&self) -> Figure {
        let places = self.places();
        let row = |stream: usize| {
            places.iter().map(|&place| self.at(place, stream).and_then(Spread::mean)).collect()
        };
        let values = (0..self.streams()).map(row).collect();
        let (name, title) =
            (format!("{}-map", self.name), format!("{}: mean by sub-layer and stream", self.title));
        let caption = format!("{} Shown is the mean over all tokens.", self.meaning);
        Words { name: &name, title: &title, caption: &caption }.with(
            self.axis(),
            Axis::new("stream or source, oldest first")
                .categories((0..self.streams()).map(|i| i.to_string())),
            Marks::Heat { values, legend: "mean weight".into() },
        )
    }
}

impl Diagnostic for Distribution {
    fn wants(&self, signal: Signal) -> bool {
        signal == self.signal
    }

    fn see(&mut self, place: Place, _: Signal, values: &Values) {
        let streams = slot(&mut self.seen, place_index(place, self.sites));
        for stream in 0..values.streams() {
            let spread = slot(streams, stream);
            values.rows(stream).flatten().for_each(|&weight| spread.add(weight));
        }
    }

    fn figures(&self) -> Vec<Figure> {
        if self.places().is_empty() {
            return Vec::new();
        }
        let mut figures = vec![self.box_plot(), self.histogram(), self.maxima()];
        if self.streams() > 1 {
            figures.push(self.map());
        }
        figures
    }

    fn tell(&self, summary: &mut Summary) {
        if self.signal == Signal::Gates {
            let widest = self.seen.iter().flatten().filter_map(Spread::most).reduce(f64::max);
            summary.widest_gate = widest;
        }
    }
}

#[cfg(test)]
impl Distribution {
    /// Least, mean and most of one stream's weights at a sub-layer.
    pub(crate) fn range(&self, site: usize, stream: usize) -> Option<(f64, f64, f64)> {
        let spread = self.at(site, stream)?;
        Some((spread.least()?, spread.mean()?, spread.most()?))
    }
}
