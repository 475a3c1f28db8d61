//! Figures as data: what is drawn, not how.
//!
//! A figure is stored as JSON, so that it can be drawn again (interactive, as a picture, as a table)
//! without the model that it came from, and so that figures of several runs can be laid over each other.

mod drawable;
mod look;
mod overlay;
pub mod picture;
pub mod plotly;
pub mod table;

pub use drawable::{POINTS, drawable, heat_range};
pub use look::{looks, place_looks, with_looks};
pub use overlay::{overlay, slug};

use serde::{Deserialize, Serialize};

/// One chart.
///
/// ```
/// use hadal_report::figure::{Axis, Figure, Line, Marks, picture, plotly::Shared, table};
///
/// let figure = Figure {
///     name: "loss".into(),
///     title: "Held-out loss".into(),
///     caption: "Lower is better.".into(),
///     x: Axis::new("step"),
///     y: Axis::new("loss").unit("nats").log(),
///     marks: Marks::Lines {
///         series: vec![Line {
///             name: "mgr".into(),
///             x: vec![0.0, 100.0],
///             y: vec![Some(5.5), Some(2.0)],
///             ..Line::default()
///         }],
///     },
/// };
/// assert!(table::csv(&figure).contains("mgr,100,2"));
/// assert!(picture::svg(&figure, Shared::default())?.starts_with("<svg"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Names its files and its place on a page: lower case, words joined by `-`.
    pub name: String,
    /// A headline, without the unit.
    pub title: String,
    /// What the figure shows and how to read it, in one or two sentences for readers who do not know the papers.
    pub caption: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// What is drawn.
    pub marks: Marks,
}

/// An axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// What is measured.
    pub label: String,
    /// The unit, if there is one: `nats`, `MB`, `degrees`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// How far apart values are.
    #[serde(default)]
    pub scale: Scale,
    /// Names of the places 0, 1, 2, .. of an axis that is not a number line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    /// Places at which a new group begins, such as a block; heat maps are parted there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<usize>,
}

impl Axis {
    /// A linear axis without a unit.
    pub fn new(label: impl Into<String>) -> Self {
        Self { label: label.into(), ..Self::default() }
    }

    /// In a unit.
    pub fn unit(self, unit: impl Into<String>) -> Self {
        Self { unit: Some(unit.into()), ..self }
    }

    /// On a logarithmic scale.
    pub fn log(self) -> Self {
        Self { scale: Scale::Log, ..self }
    }

    /// With named places.
    pub fn categories(self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { categories: names.into_iter().map(Into::into).collect(), ..self }
    }

    /// With places in groups, by the first place of each but the first.
    pub fn groups(self, starts: impl IntoIterator<Item = usize>) -> Self {
        Self { groups: starts.into_iter().collect(), ..self }
    }
}

/// How far apart values are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// By their difference.
    #[default]
    Linear,
    /// By their ratio.
    Log,
}

/// What is drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Marks {
    /// Curves.
    Lines {
        /// One curve each.
        series: Vec<Line>,
    },
    /// Bars side by side, one group for each category of the x axis.
    Bars {
        /// One colour each.
        series: Vec<Bars>,
    },
    /// Single points.
    Points {
        /// One colour each.
        series: Vec<Points>,
    },
    /// Boxes with whiskers, one group for each category of the x axis.
    Boxes {
        /// One colour each.
        series: Vec<Boxes>,
    },
    /// Coloured cells, `values[y][x]`.
    Heat {
        /// Rows from the bottom to the top; `None` is an empty cell.
        values: Vec<Vec<Option<f64>>>,
        /// What the colours mean, with its unit.
        legend: String,
    },
}

/// A curve; values that are not finite are gaps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// For the legend.
    pub name: String,
    /// Places.
    pub x: Vec<f64>,
    /// Heights.
    pub y: Vec<Option<f64>>,
    /// Lower and upper ends of an interval at each place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub band: Option<(Vec<f64>, Vec<f64>)>,
    /// A bound or a reference, not a measurement.
    #[serde(default)]
    pub dashed: bool,
    /// Places, counted from 0, that stand out: what was chosen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marked: Vec<usize>,
}

/// Bars of one colour.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bars {
    /// For the legend.
    pub name: String,
    /// One for each category.
    pub values: Vec<Option<f64>>,
    /// Half the length of each error bar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors: Option<Vec<f64>>,
}

/// Points of one colour.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Points {
    /// For the legend.
    pub name: String,
    /// Places.
    pub x: Vec<f64>,
    /// Heights.
    pub y: Vec<f64>,
    /// What is shown when the pointer is on a point; empty or one for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
}

/// Boxes of one colour.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Boxes {
    /// For the legend.
    pub name: String,
    /// One for each category.
    pub boxes: Vec<Option<Quartiles>>,
}

/// Five numbers that a box shows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quartiles {
    /// The smallest value.
    pub min: f64,
    /// A quarter is below.
    pub q1: f64,
    /// Half is below.
    pub median: f64,
    /// Three quarters are below.
    pub q3: f64,
    /// The largest value.
    pub max: f64,
}
