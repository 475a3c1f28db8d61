//! When the loss or the gradient stops being a number: evidence first, then what the settings say.

use super::state::{self, State, StateError};
use crate::optim::Optimizer;
use hadal_data::Batch;
use hadal_model::Decoder;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

/// Writes what is needed to repeat the step that failed: the state before it and the data it saw.
pub(crate) fn dump(
    folder: &Path,
    state: &State,
    decoder: &Decoder,
    optimizer: &Optimizer,
    batches: &[Batch],
    problem: &str,
) -> Result<PathBuf, StateError> {
    let failures = folder.join("failures");
    let io = |path: &Path| {
        let path = path.to_owned();
        move |reason| StateError::Io { action: "write", path, reason }
    };
    fs::create_dir_all(&failures).map_err(io(&failures))?;
    let directory = failures.join(format!("step-{:09}-{}", state.step, state.failures));
    let path = directory.join("failed-step.json");
    if path.exists() {
        // The same step of the same state fails in the same way; the evidence is there already.
        return Ok(directory);
    }
    // A kill may have come between the two.
    if !directory.exists() {
        state::save(state, decoder, optimizer, &directory)?;
    }
    let rows: Vec<_> = batches
        .iter()
        .map(|batch| {
            json!({
                "rows": batch.input.batch(),
                "input": batch.input.ids(),
                "target": batch.target.ids(),
                "scored": batch.scored,
            })
        })
        .collect();
    let text = json!({ "problem": problem, "batches": rows }).to_string();
    let beside = directory.join("failed-step.json.part");
    fs::write(&beside, text).map_err(io(&beside))?;
    fs::rename(&beside, &path).map_err(io(&path))?;
    Ok(directory)
}
