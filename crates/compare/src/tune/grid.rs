//! Grids of settings, and their points.

use hadal_train::RunConfig;
use serde::Serialize;
use std::collections::BTreeMap;
use toml::Value;

/// The learning rate: a factor on both rates of the optimiser, which fit each other and are searched together.
pub(crate) const LR_SCALE: &str = "lr_scale";

/// A key with the values to try, in the order of the suite.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    pub(crate) key: String,
    pub(crate) values: Vec<Value>,
}

impl Axis {
    /// The values as numbers, if all of them are.
    pub(crate) fn numbers(&self) -> Option<Vec<f64>> {
        self.values.iter().map(number).collect()
    }
}

/// Values of some keys: a point of a grid.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct GridPoint {
    values: BTreeMap<String, Value>,
}

impl GridPoint {
    /// Every combination of the values, the last key's changing first.
    pub(crate) fn all(axes: &[Axis]) -> Vec<Self> {
        let mut points = vec![Self::default()];
        for axis in axes {
            let with = |point: &Self, value: &Value| {
                let mut values = point.values.clone();
                values.insert(axis.key.clone(), value.clone());
                Self { values }
            };
            points = points
                .iter()
                .flat_map(|point| axis.values.iter().map(move |value| with(point, value)))
                .collect();
        }
        points
    }

    /// The value of a key as a number.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.values.get(key).and_then(number)
    }

    /// The value of a key as people read it.
    pub fn text(&self, key: &str) -> Option<String> {
        self.values.get(key).map(text)
    }

    /// `lr_scale=2,schedule.final_share=0.1`: names the point.
    pub fn label(&self) -> String {
        let parts: Vec<String> =
            self.values.iter().map(|(key, value)| format!("{key}={}", text(value))).collect();
        parts.join(",")
    }

    /// The label as a part of a folder's name; one that fits into none is hashed.
    pub(crate) fn slug(&self) -> String {
        const LONGEST: usize = 100;
        let label = self.label();
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.+=,".contains(c);
        if label.len() <= LONGEST && label.chars().all(fits) {
            return label;
        }
        let hash = blake3::hash(label.as_bytes()).to_hex();
        format!("point={}", &hash[..16])
    }

    /// What is said to a run, `a.b=value`; the rates follow in [`Self::scale_rates`].
    pub(crate) fn settings(&self) -> impl Iterator<Item = String> + '_ {
        let own = self.values.iter().filter(|(key, _)| *key != LR_SCALE);
        own.map(|(key, value)| format!("{key}={value}"))
    }

    /// Multiplies both rates of the optimiser, whatever else has set them.
    pub(crate) fn scale_rates(&self, config: &mut RunConfig) {
        if let Some(scale) = self.number(LR_SCALE) {
            let optimizer = &mut config.optimizer;
            for rate in [&mut optimizer.adamw.lr, &mut optimizer.muon.lr] {
                *rate = rounded(*rate * scale);
            }
        }
    }
}

/// Without the last bits, which a product of two short decimals leaves: 0.003 * 0.1 is 0.0003.
fn rounded(value: f64) -> f64 {
    format!("{value:.12e}").parse().unwrap_or(value)
}

pub(crate) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    }
}

/// The same for `1` and `1.0`.
pub(crate) fn text(value: &Value) -> String {
    match (number(value), value) {
        (Some(number), _) => number.to_string(),
        (None, Value::String(text)) => text.clone(),
        (None, other) => other.to_string(),
    }
}
