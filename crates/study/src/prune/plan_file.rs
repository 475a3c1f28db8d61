//! `plan.json`: written with a hash of its contents, and checked against it and against itself when it is read.
//!
//! A plan says several things twice, so that people can read it. If they do not agree, nobody knows what was meant. The
//! hash also notices a changed number that nothing else repeats. Plans of older versions have none.

use super::error::PruneError;
use super::map::MOST_BLOCKS;
use super::measure::Cost;
use super::plan::{FORMAT, Plan, kept};
use super::scores::all_parts;
use hadal_files::{create_directory, pretty_json, read_at_most, write_whole};
use hadal_model::Part;
use serde::Deserialize;
use std::path::Path;

/// A plan of the deepest model has tens of megabytes.
const LONGEST: u64 = 1 << 30;
/// How far two numbers may be apart that should be the same: JSON may lose a last bit.
const ROUNDING: f64 = 1e-9;

impl Plan {
    /// Writes the plan, and makes directories above it that are missing.
    pub fn write(&self, path: &Path) -> Result<(), PruneError> {
        if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
            create_directory(above)?;
        }
        let text = pretty_json(path, self)?;
        let body = text.strip_suffix("\n}").unwrap_or(&text);
        let with = |hash: &str| format!("{body},\n  \"hash\": \"{hash}\"\n}}\n");
        Ok(write_whole(path, with(&hash(with("").as_bytes())))?)
    }

    /// Whether everything that the plan says twice agrees.
    fn check(&self) -> Result<(), String> {
        let Self { blocks, remove, chosen, scores, outcome, curve, memory, .. } = self;
        let blocks = *blocks;
        if !(1..=MOST_BLOCKS).contains(&blocks) {
            return Err(format!("`blocks` is {blocks}, but a model has 1 to {MOST_BLOCKS}"));
        }
        if let Some(part) = remove.iter().chain(chosen).find(|part| part.block() >= blocks) {
            return Err(format!("`{part}` should go, but `blocks` is {blocks}"));
        }
        if *remove != Part::of_sites(&Part::all_sites(chosen)) {
            return Err(format!(
                "`remove` is {}, but `chosen` is {}",
                Part::list(remove),
                Part::list(chosen)
            ));
        }
        if self.kept != kept(blocks, remove) {
            let kept: Vec<String> = self.kept.iter().map(usize::to_string).collect();
            let (remove, kept) = (Part::list(remove), kept.join(","));
            return Err(format!("`remove` is {remove} of {blocks} blocks, but `kept` is {kept}"));
        }
        for part in chosen {
            if self.options.protects(part.block(), blocks) {
                return Err(format!("`chosen` has {part}, but `options` protects it"));
            }
            if matches!(part, Part::Block(_)) == self.options.sub_layers {
                return Err(format!("`chosen` has {part}, but `options` chooses other parts"));
            }
        }
        if self.options.budget.blocks.is_some_and(|most| chosen.len() > most) {
            return Err("`chosen` has more parts than the budget of `options`".into());
        }
        if curve.len() != chosen.len() || curve.last().is_some_and(|last| *last != outcome.cut) {
            return Err("`curve` does not lead to `outcome` over the parts of `chosen`".into());
        }
        let named = scores.parts.iter().map(|score| score.part);
        if !named.eq(all_parts(blocks)) {
            return Err(format!("`scores` are not those of {blocks} blocks"));
        }
        for map in [&scores.distances, &scores.distances_of_all_tokens] {
            if !map.iter().map(Vec::len).eq((1..=blocks).rev()) {
                return Err(format!("the distances of `scores` are not those of {blocks} blocks"));
            }
        }
        let costs = curve.iter().chain([&outcome.whole, &outcome.cut]);
        let same = |a: f64, b: f64| a == b || (a - b).abs() <= ROUNDING * a.abs().max(b.abs());
        let apart = |cost: &Cost| !same(cost.perplexity, cost.loss.exp());
        if costs.into_iter().any(apart) || !same(scores.perplexity, scores.loss.exp()) {
            return Err("a perplexity is not that of its loss".into());
        }
        let sum = |get: fn(&super::PartScore) -> Option<f64>| -> f64 {
            chosen.iter().filter_map(|&part| get(scores.of(part)?)).sum()
        };
        let predicted = (outcome.whole.loss + sum(|score| score.loss_change)).exp();
        if !same(outcome.predicted_perplexity, predicted)
            || !same(outcome.predicted_kl, sum(|score| score.kl))
        {
            return Err("what `outcome` predicts is not the sum of `scores`".into());
        }
        if memory.parameters_after > memory.parameters_before
            || memory.kv_bytes_after > memory.kv_bytes_before
        {
            return Err("`memory` grows".into());
        }
        let whole = |hash: &str| hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit());
        if self.source.files.is_empty() || !self.source.files.iter().all(|f| whole(&f.blake3)) {
            return Err("`source` does not say which files it was made for".into());
        }
        Ok(())
    }
}

/// Reads a plan.
pub fn read_plan(path: &Path) -> Result<Plan, PruneError> {
    let malformed = |reason: String| PruneError::Malformed { path: path.into(), reason };
    let text = read_at_most(path, LONGEST)?;
    let no_plan = |error| malformed(format!("this is not a plan of `hadal prune plan`: {error}"));
    let json: serde_json::Value = serde_json::from_slice(&text).map_err(no_plan)?;
    let plan = Plan::deserialize(&json).map_err(no_plan)?;
    if plan.format != FORMAT {
        let other = plan.format;
        return Err(malformed(format!(
            "it is of format {other}, but this hadal reads format {FORMAT}"
        )));
    }
    let contradicts = |reason| {
        malformed(format!("it contradicts itself: {reason}; plan again with `hadal prune plan`"))
    };
    plan.check().map_err(contradicts)?;
    match json.get("hash").map(|found| found.as_str().unwrap_or_default()) {
        Some(found) if found != hash(&text) => Err(malformed(
            "its contents are not those that its `hash` is of; plan again, or, if you changed it on purpose, remove the \
             line `hash`"
                .into(),
        )),
        _ => Ok(plan),
    }
}

/// The hash of a plan: of its text without blanks between words and numbers, and without the hash itself.
fn hash(text: &[u8]) -> String {
    const KEY: &[u8] = b"\"hash\":\"";
    let mut compact = Vec::with_capacity(text.len());
    let (mut quoted, mut escaped) = (false, false);
    for &byte in text {
        if quoted || !byte.is_ascii_whitespace() {
            compact.push(byte);
        }
        match byte {
            b'"' if !escaped => quoted = !quoted,
            _ => {}
        }
        escaped = quoted && byte == b'\\' && !escaped;
    }
    // It is the last of its name: what comes before may be a file's.
    if let Some(at) = compact.windows(KEY.len()).rposition(|window| window == KEY) {
        let from = at + KEY.len();
        let digits = compact[from..].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        compact.drain(from..from + digits);
    }
    blake3::hash(&compact).to_string()
}
