//! Dilution: how large each write is against the stream that it meets, and in which direction it goes.

use super::diagnostic::Diagnostic;
use super::draw::{Words, block_axis, line, reference};
use super::summary::Summary;
use super::sums::Mean;
use super::values::{Values, angle, square};
use super::xiong::Bounds;
use hadal_report::figure::{Axis, Figure};
use hadal_residual::{Place, Signal, SubLayerKind};

/// Sizes and angles by sub-layer.
pub(crate) struct Writes {
    bounds: Bounds,
    sites: Vec<Site>,
    blocks: Vec<Ratio>,
    /// The current sub-layer and what it reads.
    reading: Option<(usize, Values)>,
    /// What the current block read first.
    entry: Option<(usize, Values)>,
}

#[derive(Clone, Default)]
struct Site {
    size: Ratio,
    angle: Mean,
    turn: Mean,
}

/// Mean squares of a part and of the whole.
#[derive(Clone, Copy, Default)]
struct Ratio {
    part: Mean,
    whole: Mean,
}

impl Ratio {
    fn add(&mut self, part: f64, whole: f64) {
        self.part.add(part);
        self.whole.add(whole);
    }

    fn get(&self) -> Option<f64> {
        let (part, whole) = (self.part.root()?, self.whole.root()?);
        (whole > 0.0).then(|| part / whole)
    }
}

impl Writes {
    pub(crate) fn new(blocks: usize, bounds: Bounds) -> Self {
        Self {
            bounds,
            sites: vec![Site::default(); 2 * blocks],
            blocks: vec![Ratio::default(); blocks],
            reading: None,
            entry: None,
        }
    }

    fn read(&mut self, place: Place, now: &Values) {
        if let Some((site, before)) = self.reading.take() {
            let turn = &mut self.sites[site].turn;
            let turns = before.rows(0).zip(now.rows(0)).filter_map(|(a, b)| angle(a, b));
            turns.for_each(|angle| turn.add(angle.to_degrees()));
        }
        let begins = match place {
            Place::Out => None,
            Place::Site(site) => Some(site),
        };
        if begins.is_none_or(|site| site.kind() == SubLayerKind::Attention) {
            if let Some((block, before)) = self.entry.take() {
                let ratio = &mut self.blocks[block];
                for (a, b) in before.rows(0).zip(now.rows(0)) {
                    let step: Vec<f32> = a.iter().zip(b).map(|(a, b)| b - a).collect();
                    ratio.add(square(&step), square(a));
                }
            }
            self.entry = begins.map(|site| (site.block(), now.clone()));
        }
        self.reading = begins.map(|site| (site.index, now.clone()));
    }

    fn write(&mut self, write: &Values) {
        let Some((site, reading)) = &self.reading else { return };
        let site = &mut self.sites[*site];
        for (x, y) in reading.rows(0).zip(write.rows(0)) {
            site.size.add(square(y), square(x));
            if let Some(angle) = angle(x, y) {
                site.angle.add(angle.to_degrees());
            }
        }
    }

    /// A curve for the attentions and one for the MLPs.
    fn by_kind(&self, get: impl Fn(&Site) -> Option<f64>) -> Vec<hadal_report::figure::Line> {
        let of = |first: usize| self.sites.iter().skip(first).step_by(2).map(&get);
        vec![line("attention", of(0)), line("MLP", of(1))]
    }
}

impl Diagnostic for Writes {
    fn wants(&self, signal: Signal) -> bool {
        matches!(signal, Signal::Reading | Signal::Write)
    }

    fn see(&mut self, place: Place, signal: Signal, values: &Values) {
        match signal {
            Signal::Reading => self.read(place, values),
            Signal::Write => self.write(values),
            _ => {}
        }
    }

    fn figures(&self) -> Vec<Figure> {
        let (of, bounds) = (self.bounds.of, self.bounds.writes());
        let caption = format!(
            "Root mean square of what each attention and MLP returns, and of what a whole block changes, over that \
             of the stream that they read. Small values at depth mean dilution: late blocks hardly matter. Xiong et \
             al. bound the whole block of a {of} model at initialisation by the dashed lines."
        );
        let mut sizes = self.by_kind(|site| site.size.get());
        sizes.push(line("whole block", self.blocks.iter().map(Ratio::get)));
        sizes
            .push(reference(format!("least ({of} at initialisation)"), bounds.iter().map(|b| b.0)));
        sizes.push(reference(format!("most ({of} at initialisation)"), bounds.iter().map(|b| b.1)));
        let degrees = |label: &str| Axis::new(label).unit("degrees");
        vec![
            Words {
                name: "write-size",
                title: "Relative size of each write",
                caption: &caption,
            }
            .lines(block_axis(), Axis::new("size relative to the stream").log(), sizes),
            Words {
                name: "write-angle",
                title: "Angle between each write and the stream",
                caption: "At 90 degrees a write adds something new; below, it repeats what the stream says \
                          already; above, it takes something back.",
            }
            .lines(block_axis(), degrees("angle"), self.by_kind(|site| site.angle.get())),
            Words {
                name: "reading-turn",
                title: "How far each sub-layer turns the stream",
                caption: "Angle between what a sub-layer reads and what the next one reads. Near zero the \
                          sub-layer changes nothing that later ones could see through their norms.",
            }
            .lines(block_axis(), degrees("rotation"), self.by_kind(|site| site.turn.get())),
        ]
    }

    fn tell(&self, summary: &mut Summary) {
        let ends = self.blocks.first().zip(self.blocks.last());
        summary.write_sizes = ends.and_then(|(first, last)| Some((first.get()?, last.get()?)));
    }
}

#[cfg(test)]
impl Writes {
    /// Mean angle in degrees by which a sub-layer turns the reading.
    pub(crate) fn turn(&self, site: usize) -> Option<f64> {
        self.sites[site].turn.get()
    }
}
