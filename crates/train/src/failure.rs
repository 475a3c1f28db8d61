//! When the loss or the gradient stops being a number: evidence first, then what the settings say.

use super::state::{self, State, StateError};
use crate::optim::Optimizer;
use hadal_data::Batch;
use hadal_files::{create_directory, write_whole};
use hadal_model::Decoder;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Writes what is needed to repeat the step that failed: the state before it and the data it saw. `then` is what the run
/// does next: a run that went on has not failed.
pub(crate) fn dump(
    folder: &Path,
    state: &State,
    decoder: &Decoder,
    optimizer: &Optimizer,
    batches: &[Batch],
    problem: &str,
    then: &str,
) -> Result<PathBuf, StateError> {
    let failures = folder.join("failures");
    create_directory(&failures)?;
    let directory = failures.join(format!("step-{:09}-{}", state.step, state.failures));
    let path = directory.join("failed-step.json");
    if path.exists() {
        // The same step of the same state fails in the same way; the evidence is there already.
        return Ok(directory);
    }
    // A kill may have come between saving the two.
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
    let text = json!({ "problem": problem, "then": then, "batches": rows }).to_string();
    write_whole(&path, text)?;
    Ok(directory)
}
