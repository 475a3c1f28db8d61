//! Going on from a trained model, such as one that was cut: settings of its own.
//!
//! A fresh model needs rates that would throw a trained one away, and it has no length of its own. What is chosen here is
//! below everything that the user says, and the resolved settings of the run show it. The numbers were measured:
//! `records/healing`.

use super::config::RunConfigError;
use super::layers::ConfigLayers;
use hadal_data::{DataConfig, Feed};
use hadal_model::{ModelConfig, ModelCost};
use toml::{Table, Value};

/// AdamW's rate times the width of the model: a tenth of a fresh model's at a width of 64, and less for wider ones. At 576,
/// three times as much undoes most of what it healed.
const ADAMW: f64 = 0.064;
/// Muon's rate at a width of 768, for those who choose it: a tenth of a fresh model's.
const MUON: f64 = 1e-3;
const STEPS: u64 = 200;
/// Longer ones cost more; this is what was measured.
const LONGEST: usize = 256;
/// Sequences that a text should at least have.
const SEQUENCES: u64 = 64;
const SHORTEST: usize = 8;
const TOKENS_PER_STEP: usize = 2048;
/// Bytes that one pass may keep for its backward pass.
const KEPT: usize = 2 << 30;
/// Tokens of held-out text in an evaluation.
const MEASURED: usize = 8192;

/// What is below all other settings of a run that goes on from this model.
pub(super) fn below(model: &ModelConfig) -> String {
    let width = model.d_model.max(1) as f64;
    format!(
        "[optimizer]\nhidden = \"adamw\"\n\
         [optimizer.adamw]\nlr = {:.8}\nweight_decay = 0.0\n\
         [optimizer.muon]\nlr = {:.8}\nweight_decay = 0.0\n",
        ADAMW / width,
        MUON * (768.0 / width).sqrt(),
    )
}

/// Fills in what nobody said and what depends on the model and on the data. Returns what should be known about that.
pub(super) fn complete(
    layers: ConfigLayers,
    model: &ModelConfig,
) -> Result<(ConfigLayers, Vec<String>), RunConfigError> {
    let mut known = Known { layers, notes: Vec::new() };
    let seq_len = known.length(model);
    let batch = known.rows(model, seq_len);
    let steps = match (known.whole("train", "steps"), known.whole("train", "tokens")) {
        (Some(steps), _) => steps,
        (None, Some(tokens)) => {
            let passes = known.whole("train", "accumulate").unwrap_or(1);
            let rows = passes.saturating_mul(batch as u64);
            tokens.div_ceil(rows.saturating_mul(seq_len as u64).max(1))
        }
        (None, None) => known.set("train", "steps", STEPS),
    };
    known.unless("schedule", "warmup_steps", (steps / 10).clamp(1, 100));
    known.unless("eval", "every_steps", (steps / 4).max(10));
    let pass = batch.saturating_mul(seq_len);
    let sequences = known.feed(Some(seq_len)).and_then(|feed| feed.held_out_sequences());
    let wanted = MEASURED.div_ceil(pass.max(1)) as u64;
    let most = sequences.map_or(wanted, |sequences| sequences.div_ceil(batch.max(1) as u64));
    known.unless("eval", "batches", wanted.min(most).max(1));
    Ok((known.layers, known.notes))
}

/// Settings so far.
struct Known {
    layers: ConfigLayers,
    notes: Vec<String>,
}

impl Known {
    fn get(&self, section: &str, key: &str) -> Option<&Value> {
        self.layers.table().get(section)?.get(key)
    }

    /// A whole number that was said; one of another kind is refused later.
    fn whole(&self, section: &str, key: &str) -> Option<u64> {
        self.get(section, key)?.as_integer().and_then(|number| u64::try_from(number).ok())
    }

    fn set(&mut self, section: &str, key: &str, value: u64) -> u64 {
        let table = self.layers.table_mut();
        let section = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
        if let Some(section) = section.as_table_mut() {
            section.insert(key.into(), Value::Integer(value as i64));
        }
        value
    }

    fn unless(&mut self, section: &str, key: &str, value: u64) {
        if self.get(section, key).is_none() {
            self.set(section, key, value);
        }
    }

    /// The data, if it can be opened. Whoever opens it for training says what is wrong.
    fn feed(&self, seq_len: Option<usize>) -> Option<Feed> {
        let data: DataConfig = self.layers.table().get("data")?.clone().try_into().ok()?;
        Feed::open(&data, seq_len, 0).ok()
    }

    /// The length of sequences.
    fn length(&mut self, model: &ModelConfig) -> usize {
        if let Some(said) = self.whole("train", "seq_len") {
            return usize::try_from(said).unwrap_or(usize::MAX).max(1);
        }
        if let Some(task) = self.feed(None) {
            return task.seq_len();
        }
        let context = model.max_seq_len.max(1);
        // A text of one token for each sequence is as long as it has tokens.
        let Some(tokens) = self.feed(Some(1)).and_then(|feed| feed.tokens()) else {
            if self.get("data", "generated").is_none() {
                self.set("train", "seq_len", context.min(LONGEST) as u64);
            }
            return context.min(LONGEST);
        };
        let of_text = usize::try_from(tokens / SEQUENCES).unwrap_or(usize::MAX).max(SHORTEST);
        let mut seq_len = context.min(LONGEST).min(of_text);
        let mut because = match seq_len {
            length if length == context => "the model's context".to_owned(),
            LONGEST => format!("the model's context is {context}; longer ones cost more"),
            _ => format!("the model's context is {context}, but the text has only {tokens} tokens"),
        };
        while seq_len / 2 >= SHORTEST && kept(model, seq_len) > KEPT {
            seq_len /= 2;
            because = format!("the model's context is {context}; longer ones take more memory");
        }
        self.notes
            .push(format!("sequences of {seq_len} tokens ({because}); train.seq_len=N for others"));
        self.set("train", "seq_len", seq_len as u64);
        seq_len
    }

    /// Sequences in a pass, with as many passes in a step as make up its tokens.
    fn rows(&mut self, model: &ModelConfig, seq_len: usize) -> usize {
        if let Some(said) = self.whole("train", "batch") {
            return said as usize;
        }
        let passes = self.whole("train", "accumulate").unwrap_or(1).max(1) as usize;
        let rows = (TOKENS_PER_STEP / seq_len.saturating_mul(passes)).max(1);
        let most = (KEPT / kept(model, seq_len).max(1)).max(1);
        let said = self.get("train", "accumulate").is_some();
        let fits = |batch: &usize| *batch <= most && (said || rows.is_multiple_of(*batch));
        let batch = (1..=rows).rev().find(fits).unwrap_or(1);
        self.set("train", "batch", batch as u64);
        if !said {
            self.set("train", "accumulate", (rows / batch) as u64);
        }
        batch
    }
}

/// Bytes that a pass over one sequence keeps.
fn kept(model: &ModelConfig, seq_len: usize) -> usize {
    // A model for longer texts would overstate what attention keeps.
    let model = ModelConfig { max_seq_len: seq_len, ..model.clone() };
    let of_token = ModelCost::of(&model).map_or(0, |cost| cost.activation_bytes_per_token);
    // As much again while gradients flow, and as much for what is freed late.
    seq_len.saturating_mul(3 * of_token as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunConfig;

    fn model(text: &str) -> ModelConfig {
        let config = ConfigLayers::from_preset("nano").unwrap();
        let config = config.with_toml(text, "test").and_then(ConfigLayers::finish).unwrap();
        config.model.resolve(&config.residual, 300, 512)
    }

    fn resolved(model: &ModelConfig, settings: &[&str]) -> (RunConfig, Vec<String>) {
        let layers = ConfigLayers::for_model("somewhere".as_ref(), model).unwrap();
        let layers = settings.iter().try_fold(layers, |layers, one| layers.with_setting(one));
        let (layers, notes) = layers.unwrap().fitted_to(model).unwrap();
        (layers.finish().unwrap(), notes)
    }

    #[test]
    fn a_trained_model_gets_a_tenth_of_a_fresh_ones_rates_and_lengths_of_its_own() {
        let model = model("");
        let (config, notes) = resolved(&model, &["data.text=yankee"]);
        let (train, optimizer) = (&config.train, &config.optimizer);
        assert_eq!((train.steps, train.seq_len), (Some(200), Some(256)));
        assert_eq!(train.batch * train.accumulate * 256, 2048);
        assert_eq!((optimizer.adamw.lr, optimizer.adamw.weight_decay), (0.001, 0.0));
        assert_eq!(optimizer.hidden, crate::optim::HiddenRule::Adamw);
        assert_eq!((config.schedule.warmup_steps, config.schedule.final_share), (20, 0.1));
        assert!(
            notes[0].contains("256 tokens") && notes[0].contains("context is 512"),
            "{notes:?}"
        );
    }

    #[test]
    fn what_was_said_is_kept() {
        let model = model("");
        let (config, notes) = resolved(
            &model,
            &[
                "data.text=yankee",
                "train.seq_len=32",
                "train.batch=3",
                "train.tokens=9600",
                "optimizer.adamw.lr=0.5",
                "optimizer.hidden=muon",
                "schedule.warmup_steps=7",
                "eval.batches=2",
            ],
        );
        let train = &config.train;
        assert_eq!((train.steps, train.batch, train.accumulate), (None, 3, 1));
        assert_eq!(config.steps(32), 100);
        assert_eq!((train.seq_len, config.optimizer.adamw.lr), (Some(32), 0.5));
        assert_eq!((config.schedule.warmup_steps, config.eval.batches), (7, 2));
        assert_eq!(config.eval.every_steps, 25);
        assert!(notes.is_empty(), "{notes:?}");
    }

    #[test]
    fn short_contexts_tasks_and_large_models_have_other_lengths() {
        let short = ModelConfig { max_seq_len: 48, ..model("") };
        let (config, notes) = resolved(&short, &["data.text=yankee"]);
        assert_eq!((config.train.seq_len, config.train.batch), (Some(48), 42));
        assert!(notes[0].contains("the model's context"), "{notes:?}");
        let (config, notes) = resolved(&short, &["data.generated.task=khop"]);
        assert!(config.train.seq_len.is_none() && config.train.batch > 1 && notes.is_empty());
        // As wide and deep as SmolLM2: what a pass keeps is bounded, what a step learns from is not.
        let large =
            "[model]\nd_model = 576\nn_layers = 30\nn_heads = 9\n[residual]\nkind = \"prenorm\"\n";
        let (config, _) = resolved(&model(large), &["data.text=yankee"]);
        let train = &config.train;
        assert_eq!((train.seq_len, train.batch * train.accumulate), (Some(256), 8));
        assert!(train.batch < 8, "{train:?}");
        let huge = "[model]\nd_model = 8192\nn_layers = 90\nn_heads = 64\n[residual]\nkind = \"prenorm\"\n";
        let (config, notes) = resolved(&model(huge), &["data.text=yankee"]);
        assert!(config.train.seq_len < Some(256) && notes[0].contains("memory"), "{notes:?}");
    }
}
