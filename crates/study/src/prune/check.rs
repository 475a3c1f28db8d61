//! Is the cut what was promised? It is read back and compared with the original from which the parts are absent.

use super::apply::{Manifest, is_file, record_of};
use super::course::Course;
use super::error::{PruneError, unfit};
use super::file::{Source, hash, read_json};
use super::halves::{Halves, MeasuredOn};
use super::measure::{Cost, logits, measure};
use super::probes::{Asked, ProbeResult, SampleText, probe, samples};
use crate::samples::tokenizer;
use crate::{Samples, Subject};
use burn::module::Module;
use hadal_data::Batch;
use hadal_model::{Part, Tokenizer, Tokens};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Difference of logits, relative to the largest, that is allowed for a cut that is exact only to rounding.
const ROUNDING: f64 = 1e-4;
/// What is compared if no data is named: enough to tell models apart.
const TEXT: &str = "Once upon a time there was a little girl. She opened the door and looked outside: it was raining. \
                    What is one and one? It is two, of course, and everybody knows that two and two are four.";

/// How the logits of the written cut compare with those of the original from which the parts are absent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// Logits that were compared.
    pub compared: u64,
    /// How many of these differ at all.
    pub different: u64,
    /// The largest difference.
    pub largest_difference: f64,
    /// The largest logit.
    pub largest_logit: f64,
}

impl Agreement {
    /// Whether the cut is what was promised. Without a single comparison it is not.
    fn holds(&self, exact: bool) -> bool {
        let close = self.largest_difference <= ROUNDING * self.largest_logit;
        self.compared > 0 && if exact { self.different == 0 } else { close }
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// What is gone, by original numbers.
    pub removed: Vec<Part>,
    /// Whether the logits had to be the same to the bit.
    pub exact: bool,
    /// How they compare.
    pub logits: Agreement,
    /// Whether that is as it should be.
    pub passed: bool,
    /// How good both are, if there is data to tell by.
    #[serde(flatten)]
    pub quality: Option<CutQuality>,
    /// What both answer, if there is a tokenizer.
    pub probes: Vec<ProbeResult>,
    /// What both write.
    pub samples: Vec<SampleText>,
}

/// What a cut costs on some data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CutQuality {
    /// The original.
    pub original: Cost,
    /// The original without the parts, which equals the cut if that `passed`; its KL is relative to the original.
    pub cut: Cost,
    /// Tokens of the data.
    pub tokens: u64,
    /// Where the data is; none for the held-out data of a run.
    pub data: Option<PathBuf>,
    /// Whether it is the data that the plan was judged by, and not chosen on.
    pub of_plan: bool,
}

/// Checks what [`super::apply()`] wrote against its original. Without `data` the plan's is taken, if it is still there. `progress` receives the number of steps done.
pub fn check(
    pruned: &Path,
    original: &Path,
    data: Option<&Path>,
    batches: Option<usize>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Check, PruneError> {
    let manifest = manifest(pruned)?;
    let directory = if is_file(pruned) { pruned.parent().unwrap_or(pruned) } else { pruned };
    Source::open(original)?.same_as(&manifest.source, "the cut was made from it")?;
    for file in &manifest.files {
        if hash(&directory.join(&file.name))? != *file {
            let path = directory.join(&file.name);
            return Err(PruneError::Changed { path, since: "it was written by the cut" });
        }
    }
    let whole = Subject::open(original)?;
    let cut = Subject::open(pruned)?;
    let words = tokenizer(&whole).ok();
    let found = match (data, &manifest.data) {
        (Some(path), _) => Some(Data::named(&whole, path, batches)?),
        (None, Some(of)) => Data::of_plan(&whole, of, batches),
        (None, None) => None,
    };
    let built_in = match found {
        Some(_) => Vec::new(),
        None => vec![sentences(&whole, words.as_ref())?],
    };
    let batches = found.as_ref().map_or(&built_in, |found| &found.batches);
    let [whole_mode, cut_mode] = [&whole, &cut].map(|subject| subject.mode.clone());
    let (whole, cut) = (whole.decoder.valid(), cut.decoder.valid());
    let models = [(&whole, &whole_mode), (&cut, &cut_mode)];
    whole.check_absent(&Part::all_sites(&manifest.removed))?;

    let steps = 2 * batches.len() + 2;
    let logits = agreement(models, &manifest.removed, batches, &mut |done| progress(done, steps))?;
    let passed = logits.holds(manifest.exact);
    let quality = found.as_ref().map(|data| data.quality(models[0], &manifest.removed));
    let quality = quality.transpose()?;
    progress(2 * batches.len(), steps);
    let (mut probes, mut texts) = (Vec::new(), Vec::new());
    if let Some(words) = &words {
        probes = probe(models, words)?;
        progress(steps - 1, steps);
        texts = samples(models, words)?;
    }
    progress(steps, steps);
    Ok(Check {
        removed: manifest.removed,
        exact: manifest.exact,
        logits,
        passed,
        quality,
        probes,
        samples: texts,
    })
}

/// Data that tells how good a cut is.
struct Data {
    batches: Vec<Batch>,
    path: Option<PathBuf>,
    of_plan: bool,
}

impl Data {
    fn named(whole: &Subject, path: &Path, batches: Option<usize>) -> Result<Self, PruneError> {
        let samples = Samples::of(whole, Some(path))?;
        let all = (0..samples.batches(batches)).map(|index| Ok(samples.batch(index)?));
        let batches = all.collect::<Result<Vec<_>, PruneError>>()?;
        Ok(Self { batches, path: Some(path.into()), of_plan: false })
    }

    /// What the plan was judged by.
    fn of_plan(whole: &Subject, of: &MeasuredOn, batches: Option<usize>) -> Option<Self> {
        let mut halves = Halves::again(whole, of).ok()?;
        halves.judge.truncate(batches.unwrap_or(usize::MAX));
        Some(Self { batches: halves.judge, path: of.path.clone(), of_plan: true })
    }

    fn quality(&self, whole: Asked, removed: &[Part]) -> Result<CutQuality, PruneError> {
        let (original, cut) = costs(whole, removed, &self.batches)?;
        let tokens = self.batches.iter().map(|batch| batch.input.ids().len() as u64).sum();
        Ok(CutQuality { original, cut, tokens, data: self.path.clone(), of_plan: self.of_plan })
    }
}

fn manifest(pruned: &Path) -> Result<Manifest, PruneError> {
    let path = record_of(pruned);
    if !path.is_file() {
        let name = path.file_name().unwrap_or_default().display().to_string();
        let lacks = if is_file(pruned) { "there is no" } else { "it holds no" };
        return Err(unfit(
            pruned,
            format!("{lacks} {name}; name a model that `hadal prune apply` wrote"),
        ));
    }
    serde_json::from_value(read_json(&path)?)
        .map_err(|error| PruneError::Malformed { path, reason: error.to_string() })
}

/// A few sentences, or any tokens where there is no tokenizer.
fn sentences(subject: &Subject, words: Option<&Tokenizer>) -> Result<Batch, PruneError> {
    let config = subject.model();
    let mut ids = match words {
        Some(words) => words.encode(TEXT)?,
        None => (0..64u32).map(|i| (i * i * 31 + 17 * i + 5) % config.vocab_size as u32).collect(),
    };
    ids.truncate(config.max_seq_len + 1);
    let (input, target) = (Tokens::row(&ids[..ids.len() - 1]), Tokens::row(&ids[1..]));
    Ok(Batch { input, target, scored: Vec::new() })
}

fn agreement(
    [whole, cut]: [Asked; 2],
    removed: &[Part],
    batches: &[Batch],
    told: &mut dyn FnMut(usize),
) -> Result<Agreement, PruneError> {
    let mut found =
        Agreement { compared: 0, different: 0, largest_difference: 0.0, largest_logit: 0.0 };
    for (i, batch) in batches.iter().enumerate() {
        let (expected, actual) =
            (logits(whole.0, whole.1, batch, removed)?, logits(cut.0, cut.1, batch, &[])?);
        found.compared += expected.len() as u64;
        for (&e, &a) in expected.iter().zip(&actual) {
            if e != a {
                found.different += 1;
            }
            let apart = f64::from((e - a).abs());
            // NaN is no agreement either.
            if apart.is_nan() || apart > found.largest_difference {
                found.largest_difference = if apart.is_nan() { f64::INFINITY } else { apart };
            }
            found.largest_logit = found.largest_logit.max(f64::from(e.abs()));
        }
        if expected.len() != actual.len() {
            found.different += expected.len().abs_diff(actual.len()) as u64;
            found.largest_difference = f64::INFINITY;
        }
        told(i + 1);
    }
    Ok(found)
}

/// The original, and the original without the parts, whose logits are the cut's.
fn costs(whole: Asked, removed: &[Part], batches: &[Batch]) -> Result<(Cost, Cost), PruneError> {
    let costs = measure(whole.0, whole.1, batches, &[removed.to_vec()], &mut Course::default())?;
    let cut = costs.cuts.into_iter().next().and_then(Result::ok).unwrap_or(costs.whole);
    Ok((costs.whole, cut))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_must_be_compared_to_pass() {
        let none =
            Agreement { compared: 0, different: 0, largest_difference: 0.0, largest_logit: 0.0 };
        assert!(!none.holds(true) && !none.holds(false));
        let same = Agreement { compared: 4, largest_logit: 2.0, ..none };
        assert!(same.holds(true) && same.holds(false));
        let close = Agreement { different: 1, largest_difference: 1e-4, ..same };
        assert!(!close.holds(true) && close.holds(false));
        assert!(!Agreement { largest_difference: f64::INFINITY, ..close }.holds(false));
    }
}
