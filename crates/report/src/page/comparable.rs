//! Which runs can be compared: those whose losses are measured on the same questions.

use super::settings::flat;
use crate::run::Run;
use crate::suite::SuiteTable;

/// Runs whose losses mean the same, in the order in which they were found.
pub(super) struct Comparable {
    /// The suite that made them, and the name of its folder.
    pub(super) suite: Option<(String, Option<SuiteTable>)>,
    pub(super) runs: Vec<Run>,
}

/// Parts runs by what they were trained and evaluated on. Runs that do not say which data they had are held to their
/// settings.
pub(super) fn parted(runs: Vec<Run>) -> Vec<Comparable> {
    let mut parts: Vec<Comparable> = Vec::new();
    for run in runs {
        let fits =
            |part: &&mut Comparable| part.runs.iter().all(|other| apart(&run, other).is_none());
        match parts.iter_mut().find(fits) {
            Some(part) => part.runs.push(run),
            None => parts.push(Comparable { suite: None, runs: vec![run] }),
        }
    }
    parts
}

/// Why the losses of two runs cannot be compared; `None` if they can.
pub(super) fn apart(a: &Run, b: &Run) -> Option<&'static str> {
    let (made_a, made_b) = (&a.provenance, &b.provenance);
    let known = |a: bool, b: bool, differ: bool| a && b && differ;
    let data = match (&made_a.data, &made_b.data) {
        (Some(a), Some(b)) => a != b,
        _ => flat("", &section(a, "data")) != flat("", &section(b, "data")),
    };
    let task = |run: &Run| section(run, "data").pointer("/generated/task").cloned();
    let generator = known(
        made_a.task_generator.is_some(),
        made_b.task_generator.is_some(),
        made_a.task_generator != made_b.task_generator,
    );
    let vocabulary = |run: &Run| section(run, "model").get("vocab_size").cloned();
    let length = |run: &Run| section(run, "train").get("seq_len").cloned();
    if task(a) != task(b) {
        Some("different tasks")
    } else if generator {
        Some("different versions of the task's generator")
    } else if vocabulary(a) != vocabulary(b) && vocabulary(a).is_some() && vocabulary(b).is_some() {
        Some("different vocabularies")
    } else if data {
        Some(if task(a).is_some() { "different settings of the task" } else { "different data" })
    } else if length(a) != length(b) {
        Some("different sequence lengths")
    } else if held_out(a) != held_out(b) {
        Some("different amounts of held-out data")
    } else {
        None
    }
}

/// Held-out sequences of an evaluation, as far as the settings say.
fn held_out(run: &Run) -> Option<u64> {
    let number = |table: &str, key: &str| section(run, table).get(key)?.as_u64();
    Some(number("eval", "batches")?.saturating_mul(number("train", "batch")?))
}

/// A table of a run's settings.
pub(super) fn section(run: &Run, name: &str) -> serde_json::Value {
    let table = run.settings.get(name);
    table.and_then(|table| serde_json::to_value(table).ok()).unwrap_or_default()
}
