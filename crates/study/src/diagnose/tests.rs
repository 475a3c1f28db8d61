//! Small models for all of these tests, and what holds for any diagnosis.

mod blocks;
mod connectivity;
mod depth;
mod interruption;
mod policies;
mod skips;
mod steering;

use super::diagnostic::{Diagnostic, Models};
use super::steer::Steerable;
use super::*;
use burn::module::Module;
use hadal_data::Batch;
use hadal_model::{Device, ModelConfig, Tokens};
use hadal_report::run::Run;
use hadal_residual::{Init, Weights};
use std::fs;
use std::path::Path;

fn config(residual: &str, blocks: usize) -> ModelConfig {
    ModelConfig {
        n_layers: blocks,
        tie_embeddings: residual != "nag",
        residual: residual.parse().unwrap(),
        ..ModelConfig::tiny()
    }
}

fn normal(name: &str, seed: u64, count: usize, std: f64) -> Vec<f32> {
    let mut weights = Weights::fresh(seed, &Device::flex());
    weights.param(name, [count], Init::Normal { std }).val().try_into_vec_as().unwrap()
}

/// A fresh model, except that its matrices are as large as in a trained one, and for what `change` says.
fn model(config: &ModelConfig, change: impl Fn(&str, &[usize]) -> Option<Vec<f32>>) -> Decoder {
    let mut stored = |name: &str, shape: &[usize]| {
        let count = shape.iter().product();
        let matrix = name.starts_with("layers.") && shape.len() == 2;
        change(name, shape).or_else(|| {
            let std = match name {
                "embed.weight" => 0.5,
                _ => 1.0 / (shape.last().copied().unwrap_or(1) as f64).sqrt(),
            };
            (matrix || name == "embed.weight").then(|| normal(name, 3, count, std))
        })
    };
    Decoder::stored(config, &mut stored, &Device::flex().autodiff()).unwrap()
}

fn fresh(config: &ModelConfig) -> Decoder {
    Decoder::fresh(config, 5, &Device::flex().autodiff()).unwrap()
}

fn batch(rows: usize, time: usize) -> Batch {
    let ids =
        |shift: u32| (0..(rows * time) as u32).map(|i| ((i + shift).pow(2) + 2) % 19).collect();
    let tokens = |shift| Tokens::rows(ids(shift), rows).unwrap();
    Batch { input: tokens(0), target: tokens(1), scored: Vec::new() }
}

/// What a diagnostic sees of a batch.
fn seen<D: Diagnostic>(decoder: &Decoder, batch: &Batch, mut diagnostic: D) -> D {
    let plain = decoder.valid();
    watch(&plain, Variant::default(), batch, &mut [&mut diagnostic]).unwrap();
    let models = Models { learning: decoder, plain: &plain, variant: Variant::default() };
    for pass in 0..diagnostic.passes() {
        diagnostic.pass(pass, models, batch).unwrap();
    }
    diagnostic
}

fn samples(rows: usize, time: usize) -> Samples<'static> {
    Samples::tokens((0..(rows * time + 1) as u32).map(|i| (i * i + 5 * i) % 19).collect(), time)
}

/// A diagnosis that nobody watches.
fn looked(
    decoder: &Decoder,
    samples: &Samples,
    options: &Options,
) -> Result<Diagnosis, DiagnoseError> {
    look(decoder, Variant::default(), samples, options, None, &mut ()).map(Option::unwrap)
}

fn quick(decoder: &Decoder) -> Diagnosis {
    looked(decoder, &samples(6, 9), &Options::default()).unwrap()
}

/// Remembers what it was told, and stops after some passes.
#[derive(Default)]
struct Told {
    passes: Vec<(usize, usize)>,
    kinds: Vec<Kind>,
    notes: Vec<String>,
    most: Option<usize>,
}

impl Observer for Told {
    fn passed(&mut self, done: usize, all: usize) {
        self.passes.push((done, all));
    }

    fn finished(&mut self, kinds: &[Kind]) {
        self.kinds.extend(kinds);
    }

    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    fn stops(&self) -> bool {
        self.most.is_some_and(|most| self.passes.len() >= most)
    }
}

#[track_caller]
fn assert_close(found: f64, expected: f64, tolerance: f64) {
    let scale = expected.abs().max(1.0);
    assert!((found - expected).abs() <= tolerance * scale, "{found} is not {expected}");
}

#[test]
fn watching_changes_nothing() {
    for kind in ["prenorm", "mgr", "nag", "hc"] {
        let decoder = fresh(&config(kind, 3));
        let before = decoder.parameters();
        let batch = batch(4, 7);
        let whole = seen(&decoder, &batch, Removals::new(3)).loss();
        let watched = looked(&decoder, &samples(6, 9), &Options::default()).unwrap();
        assert!(watched.summary.loss.is_finite());
        assert_eq!(decoder.parameters(), before, "{kind}");
        assert_eq!(seen(&decoder, &batch, Removals::new(3)).loss(), whole, "{kind}");
    }
}

#[test]
fn only_what_was_asked_for_is_measured() {
    let decoder = fresh(&config("mgr", 3));
    let options = Options { only: vec![Kind::Sink], batches: Some(1) };
    let mut told = Told::default();
    let found = look(&decoder, Variant::default(), &samples(6, 9), &options, None, &mut told);
    let found = found.unwrap().unwrap();
    assert_eq!(found.figures.len(), 1);
    assert_eq!((told.passes, told.kinds), (vec![(1, 1)], vec![Kind::Sink]));
    assert_eq!(found.summary.norm_growth, None);
    let error = "sinks".parse::<Kind>().unwrap_err().to_string();
    assert!(error.contains("unknown diagnostic `sinks`") && error.contains("sink"), "{error}");
}

#[test]
fn numbers_that_overflow_are_refused() {
    let decoder = model(&config("prenorm", 2), |name, shape| {
        name.contains("norm").then(|| vec![f32::MAX; shape.iter().product()])
    });
    let error = looked(&decoder, &samples(2, 5), &Options::default()).unwrap_err();
    assert!(matches!(error, DiagnoseError::NotFinite { .. }), "{error}");
}

#[test]
fn what_is_written_reads_back_as_the_figures_of_a_run() {
    let Diagnosis { summary, mut figures, .. } = quick(&fresh(&config("nag", 2)));
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("config.toml"), "seed = 1\n").unwrap();
    let out = directory.path().join("diagnosis");
    write(&out, &figures, std::slice::from_ref(&summary), None).unwrap();
    let run = Run::read(directory.path()).unwrap();
    figures.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(run.figures.len(), figures.len());
    for (read, written) in run.figures.iter().zip(&figures) {
        assert_eq!((&read.name, &read.title), (&written.name, &written.title));
        let csv = fs::read_to_string(out.join(format!("{}.csv", read.name))).unwrap();
        assert!(csv.lines().count() > 1, "{}", read.name);
    }
    let text = fs::read_to_string(out.join("about/summary.json")).unwrap();
    assert_eq!(serde_json::from_str::<Summary>(&text).unwrap().residual, summary.residual);
}
