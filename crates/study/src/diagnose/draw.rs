//! Short ways to say what a figure shows.

use hadal_report::figure::{Axis, Bars, Boxes, Figure, Line, Marks};
use hadal_residual::{Place, Site, SubLayerKind};

/// The words of a figure.
pub(crate) struct Words<'a> {
    pub(crate) name: &'a str,
    pub(crate) title: &'a str,
    pub(crate) caption: &'a str,
}

impl Words<'_> {
    pub(crate) fn with(&self, x: Axis, y: Axis, marks: Marks) -> Figure {
        Figure {
            name: self.name.into(),
            title: self.title.into(),
            caption: self.caption.into(),
            x,
            y,
            marks,
        }
    }

    pub(crate) fn lines(&self, x: Axis, y: Axis, series: Vec<Line>) -> Figure {
        self.with(x, y, Marks::Lines { series })
    }
}

/// A measured curve over 0, 1, 2, ..; what was not measured is a gap.
pub(crate) fn line(name: impl Into<String>, y: impl IntoIterator<Item = Option<f64>>) -> Line {
    let y: Vec<Option<f64>> = y.into_iter().map(finite).collect();
    let x = (0..y.len()).map(|i| i as f64).collect();
    Line { name: name.into(), x, y, ..Line::default() }
}

/// A reference over 0, 1, 2, ..
pub(crate) fn reference(name: impl Into<String>, y: impl IntoIterator<Item = f64>) -> Line {
    Line { dashed: true, ..line(name, y.into_iter().map(Some)) }
}

pub(crate) fn bars(name: impl Into<String>, values: impl IntoIterator<Item = Option<f64>>) -> Bars {
    Bars { name: name.into(), values: values.into_iter().map(finite).collect(), errors: None }
}

pub(crate) fn boxes(name: impl Into<String>, boxes: Vec<Option<super::Quartiles>>) -> Boxes {
    Boxes { name: name.into(), boxes }
}

fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

/// Blocks from 0.
pub(crate) fn block_axis() -> Axis {
    Axis::new("block")
}

/// Blocks as names, for groups of bars.
pub(crate) fn block_categories(blocks: usize) -> Axis {
    Axis::new("block").categories((0..blocks).map(|block| block.to_string()))
}

/// Sub-layers from 0.
pub(crate) fn site_axis() -> Axis {
    Axis::new("sub-layer (attention of block i is 2i, its MLP 2i + 1)")
}

/// The short name of a place.
pub(crate) fn label(place: Place) -> String {
    match place {
        Place::Out => "head".into(),
        Place::Site(site) => match site.kind() {
            SubLayerKind::Attention => format!("{} attn", site.block()),
            SubLayerKind::Mlp => format!("{} mlp", site.block()),
        },
    }
}

/// Places in the order of depth: sub-layers, then the head.
pub(crate) fn place_index(place: Place, sites: usize) -> usize {
    match place {
        Place::Site(Site { index }) => index,
        Place::Out => sites,
    }
}

/// The place with this index.
pub(crate) fn place_at(index: usize, sites: usize) -> Place {
    if index < sites { Place::Site(Site::new(index)) } else { Place::Out }
}
