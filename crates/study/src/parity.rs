//! Parity: does a model compute what an independent implementation wrote down?
//!
//! A trace holds inputs and what they must lead to: logits, and optionally the loss, what every sub-layer reads, the
//! read-out, the share of skipped tokens and the gradient of every parameter. Everything it holds is compared, each
//! tensor relative to its own largest magnitude.
//!
//! Some gradients vanish by symmetry: the first sub-layer of a multi-stream policy reads n copies of
//! one vector through a norm, so the size of the weights it mixes them with has no effect. What f32
//! computes there is the rounding of large terms that cancel, and no relative error means anything.
//! So the scale of a gradient is at least [`GRADIENT_FLOOR`] times the largest gradient of the trace, and that one itself where
//! operands are rounded to bf16.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use hadal_model::{
    CheckpointError, Decoder, Pass, PassError, Precision, TensorFile, TensorFileError, Tokens,
    Variant, load,
};
use hadal_residual::{Place, Recorder, Signal, Site};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The largest relative error that f32 needs.
pub const DEFAULT_TOLERANCE: f64 = 2e-4;

/// A gradient smaller than this share of the largest one is compared as if it were that large: at the
/// default tolerance, to within about sixteen roundings of the largest gradient.
pub const GRADIENT_FLOOR: f64 = 0.01;

/// One tensor of the trace against ours.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Its name in the trace.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Largest difference, relative to `scale`.
    pub error: f64,
    /// The largest magnitude of the expected tensor, at least [`GRADIENT_FLOOR`] of the largest
    /// gradient for gradients, and one where all is zero.
    pub scale: f64,
    /// Where that is.
    pub index: Vec<usize>,
    /// What the trace holds there.
    pub expected: f64,
    /// What we computed.
    pub actual: f64,
    /// Whether the error is within the tolerance.
    pub passed: bool,
}

/// Everything that was compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ParityReport {
    /// The policy in full.
    pub residual: String,
    /// The largest relative error that was allowed.
    pub tolerance: f64,
    /// Whether every comparison passed.
    pub passed: bool,
    /// One for each tensor of the trace, in the order of the forward and backward pass.
    pub comparisons: Vec<Comparison>,
}

/// Why nothing could be compared.
#[derive(Debug, thiserror::Error)]
pub enum ParityError {
    /// The model cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TensorFileError),
    /// The device could not compute or hand over a result.
    #[error("the device failed: {0}")]
    Device(String),
    /// The trace does not belong to the model.
    #[error("{}: {reason}", path.display())]
    Foreign {
        /// The trace.
        path: PathBuf,
        /// Why it does not.
        reason: String,
    },
}

/// The largest relative error that rounding operands to bf16 needs: that of gradients is relative to the largest one of the
/// trace, as what is left where large terms cancel is their rounding, of eight bits here.
pub const BF16_TOLERANCE: f64 = 0.15;

/// Runs the model of a directory on the input of its `trace.safetensors` and compares everything
/// that the trace holds.
pub fn parity(
    directory: &Path,
    device: &Device,
    precision: Precision,
    tolerance: f64,
) -> Result<ParityReport, ParityError> {
    let trace = Trace(TensorFile::open(&directory.join("trace.safetensors"))?);
    let names = trace.0.names();
    let backward = names.iter().any(|name| name.starts_with("grad."));
    let device = if backward { device.clone().autodiff() } else { device.clone() };
    let decoder = load(directory, &device)?.decoder;

    let ours = compute(&decoder, &trace, precision, backward)?;
    let share = if precision == Precision::Bf16 { 1.0 } else { GRADIENT_FLOOR };
    let floor = share * trace.largest_gradient(&names)?;
    let foreign = |reason: String| trace.foreign(reason);
    let mut comparisons = Vec::new();
    for name in names.iter().filter(|name| !matches!(name.as_str(), "input_ids" | "target_ids")) {
        let Some((shape, actual)) = ours.get(name.as_str()) else {
            return Err(foreign(match name.starts_with("grad.") || name == "loss" {
                true if trace.0.shape("target_ids").is_none() => {
                    format!("it holds `{name}` but no `target_ids`, without which there is no loss")
                }
                _ => format!("it holds `{name}`, which this model does not produce"),
            }));
        };
        let expected_shape = trace.0.shape(name).unwrap_or_default();
        if expected_shape != shape {
            return Err(foreign(format!(
                "`{name}` has shape {expected_shape:?}, but this model produces {shape:?}"
            )));
        }
        let expected = trace.0.floats(name)?;
        if expected.is_empty() {
            return Err(foreign(format!("`{name}` is empty")));
        }
        let floor = if name.starts_with("grad.") { floor } else { 0.0 };
        comparisons.push(compare(name, shape, &expected, actual, floor, tolerance));
    }
    if comparisons.is_empty() {
        return Err(foreign("it holds nothing to compare, such as `logits`".into()));
    }
    comparisons.sort_by_key(|comparison| position(&comparison.name));
    Ok(ParityReport {
        residual: decoder.config().residual.to_string(),
        tolerance,
        passed: comparisons.iter().all(|comparison| comparison.passed),
        comparisons,
    })
}

struct Trace(TensorFile);

impl Trace {
    fn foreign(&self, reason: impl ToString) -> ParityError {
        ParityError::Foreign { path: self.0.path().into(), reason: reason.to_string() }
    }

    fn largest_gradient(&self, names: &[String]) -> Result<f64, ParityError> {
        let mut largest = 0.0;
        for name in names.iter().filter(|name| name.starts_with("grad.")) {
            largest = magnitude(&self.0.floats(name)?).max(largest);
        }
        Ok(largest)
    }

    fn tokens(&self, name: &str) -> Result<Tokens, ParityError> {
        let shape = self.0.shape(name).unwrap_or_default().to_vec();
        let foreign = |reason: String| self.foreign(format!("`{name}` {reason}"));
        let ids = self
            .0
            .integers(name)?
            .into_iter()
            .map(|id| u32::try_from(id).map_err(|_| foreign(format!("holds {id}, not a token"))))
            .collect::<Result<Vec<u32>, _>>()?;
        let rows = match shape.as_slice() {
            [batch, _] => Tokens::rows(ids, *batch),
            _ => None,
        };
        rows.ok_or_else(|| foreign(format!("has shape {shape:?}, but it must be [batch, time]")))
    }
}

/// A quantity's shape and elements.
type Quantity = (Vec<usize>, Vec<f32>);

/// Every quantity that a trace may hold, by its name there.
fn compute(
    decoder: &Decoder,
    trace: &Trace,
    precision: Precision,
    backward: bool,
) -> Result<BTreeMap<String, Quantity>, ParityError> {
    let input = trace.tokens("input_ids")?;
    let foreign = |error: PassError| trace.foreign(error);
    // Twice: fused and unobserved, as a model is used, and watched, which takes the plain path through depth. Both must
    // agree with the trace.
    let variant = Variant { precision, ..Variant::default() };
    let logits = decoder.logits(&input, variant.pass()).map_err(foreign)?;
    let mut probe = Recorder::of(&[Signal::Reading, Signal::Ways, Signal::Skipped]);
    let pass = Pass { probe: Some(&mut probe), ..variant.pass() };
    decoder.valid().logits(&input, pass).map_err(foreign)?;

    let mut ours = BTreeMap::from([("logits".to_owned(), quantity(&logits)?)]);
    let mut skipped = vec![0.0; 2 * decoder.config().n_layers];
    for (place, signal, value) in probe.seen {
        match (place, signal) {
            (Place::Site(Site { index }), Signal::Skipped) => {
                skipped[index] = quantity(&value.mean())?.1[0];
            }
            (Place::Site(Site { index }), Signal::Ways) => {
                let names = ["k", "v", "r"].into_iter().take(value.dims()[2]).enumerate();
                for (way, name) in names {
                    let read = value.clone().narrow(2, way, 1).squeeze_dim::<3>(2);
                    ours.insert(format!("h.{index}.{name}"), quantity(&read)?);
                }
            }
            (Place::Site(Site { index }), _) => {
                ours.insert(format!("h.{index}"), quantity(&value.squeeze_dim::<3>(2))?);
            }
            (Place::Out, _) => {
                ours.insert("out".to_owned(), quantity(&value.squeeze_dim::<3>(2))?);
            }
        }
    }
    ours.insert("skipped".to_owned(), (vec![skipped.len()], skipped));

    if trace.0.shape("target_ids").is_some() {
        let targets = trace.tokens("target_ids")?;
        check_targets(&input, &targets, decoder.config().vocab_size)
            .map_err(|reason| trace.foreign(reason))?;
        let loss = decoder.loss(&input, &targets, &[], variant.pass()).map_err(foreign)?;
        ours.insert("loss".to_owned(), quantity(&loss)?);
        if backward {
            let gradients = decoder.gradients(loss.backward());
            let shapes: BTreeMap<_, _> =
                decoder.declared().iter().map(|d| (d.name.as_str(), &d.shape)).collect();
            for (name, values) in gradients {
                let shape = shapes.get(name.as_str()).map(|shape| shape.to_vec());
                ours.insert(format!("grad.{name}"), (shape.unwrap_or_default(), values));
            }
        }
    }
    Ok(ours)
}

fn check_targets(input: &Tokens, targets: &Tokens, vocab_size: usize) -> Result<(), String> {
    let shape = |tokens: &Tokens| [tokens.batch(), tokens.time()];
    if shape(input) != shape(targets) {
        return Err(format!(
            "`target_ids` has shape {:?} and `input_ids` {:?}",
            shape(targets),
            shape(input)
        ));
    }
    match targets.ids().iter().find(|&&id| id as usize >= vocab_size) {
        Some(&id) => Err(PassError::UnknownToken { id, vocab_size }.to_string()),
        None => Ok(()),
    }
}

fn quantity<const D: usize>(tensor: &Tensor<D>) -> Result<Quantity, ParityError> {
    let values = tensor.try_to_vec_as().map_err(|error| ParityError::Device(error.to_string()))?;
    Ok((tensor.dims().to_vec(), values))
}

fn magnitude(values: &[f32]) -> f64 {
    values.iter().fold(0.0, |most, &value| f64::from(value).abs().max(most))
}

/// Both must have as many elements as the shape says, and at least one.
fn compare(
    name: &str,
    shape: &[usize],
    expected: &[f32],
    actual: &[f32],
    floor: f64,
    tolerance: f64,
) -> Comparison {
    let largest = magnitude(expected).max(floor);
    let scale = if largest == 0.0 { 1.0 } else { largest };
    let difference = |i: usize| {
        let error = (f64::from(expected[i]) - f64::from(actual[i])).abs() / scale;
        // Whatever is not a number is as wrong as can be.
        if error.is_nan() { f64::INFINITY } else { error }
    };
    let worst = (0..expected.len())
        .max_by(|&a, &b| difference(a).total_cmp(&difference(b)))
        .unwrap_or_default();
    Comparison {
        name: name.to_owned(),
        index: unravel(worst, shape),
        shape: shape.to_vec(),
        error: difference(worst),
        scale,
        expected: expected[worst].into(),
        actual: actual[worst].into(),
        passed: difference(worst) <= tolerance,
    }
}

/// The position of a flat index in a row-major tensor.
fn unravel(flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut rest = flat;
    let mut index: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&length| {
            let position = rest % length;
            rest /= length;
            position
        })
        .collect();
    index.reverse();
    index
}

/// The order of a pass: readings by depth, the read-out, logits, loss, then gradients by name.
fn position(name: &str) -> (usize, usize, String) {
    let group = match name {
        "skipped" => 1,
        "out" => 2,
        "logits" => 3,
        "loss" => 4,
        _ if name.starts_with("h.") => 0,
        _ => 5,
    };
    let site = name.strip_prefix("h.").and_then(|rest| rest.split('.').next());
    let depth = site.and_then(|l| l.parse().ok()).unwrap_or_default();
    (group, depth, name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(expected: &[f32], actual: &[f32]) -> Comparison {
        compare("x", &[2, 2], expected, actual, 0.0, 1e-3)
    }

    #[test]
    fn errors_are_relative_to_the_largest_magnitude() {
        let found = error(&[1.0, -200.0, 3.0, 4.0], &[1.0, -200.0, 3.1, 4.0]);
        assert!((found.error - 0.1 / 200.0).abs() < 1e-6);
        assert_eq!(found.index, [1, 0]);
        assert!(found.passed);
        assert!(!error(&[1.0, -2.0, 3.0, 4.0], &[1.0, -2.0, 3.1, 4.0]).passed);
    }

    #[test]
    fn a_nan_never_passes() {
        let found = error(&[1.0, 2.0, 3.0, 4.0], &[1.0, f32::NAN, 3.0, 4.0]);
        assert!(!found.passed);
        assert_eq!(found.index, [0, 1]);
    }

    #[test]
    fn a_gradient_below_the_floor_is_compared_to_the_floor() {
        let with_floor = |floor| compare("grad.x", &[1], &[1e-9], &[2e-9], floor, 1e-3);
        assert!(!with_floor(0.0).passed);
        assert!(with_floor(1e-2).passed);
        assert_eq!(with_floor(1e-2).scale, 1e-2);
    }

    #[test]
    fn an_all_zero_tensor_is_compared_absolutely() {
        assert!(error(&[0.0; 4], &[0.0, 0.0, 1e-5, 0.0]).passed);
        assert!(!error(&[0.0; 4], &[0.0, 0.0, 1e-2, 0.0]).passed);
    }
}
