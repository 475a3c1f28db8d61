//! What a run shows of its model during training.

use super::{Trainer, warmth};
use crate::error::TrainError;
use crate::evaluate::{Evaluation, measure};
use crate::observer::{Midway, Observer};
use crate::team::{measured_together, share};
use burn::module::Module;
use hadal_model::{ConfigError, Decoder, Limits, Sampler, Sampling, Session, Variant, generate};
use hadal_report::run::{EvaluationPoint, Metric};
use hadal_residual::StepMode;
use serde_json::json;
use std::ops::ControlFlow;

impl Trainer {
    /// The model with its present thresholds, for gains at this share of their full size.
    pub(super) fn as_used(&self, warmth: f64) -> Result<Decoder, ConfigError> {
        let mut decoder = self.decoder.clone();
        if let (Some(skipper), Some(state)) = (&self.skipper, &self.state.skip) {
            decoder.set_skipping(skipper.skipping(state, self.state.step, warmth))?;
        }
        Ok(decoder)
    }

    /// The model in use in the middle of its training, and its mode: no token is made to run, and decisions use nothing
    /// that only training has.
    fn as_it_is(&self) -> Result<(Decoder, StepMode), ConfigError> {
        let warmth = warmth(&self.config, self.state.step);
        Ok((self.as_used(warmth)?, StepMode { warmth, ..StepMode::default() }))
    }

    /// Measures a model that the run goes on from before anything changes it, so that the end has something to be
    /// compared with.
    pub(super) fn measure_start(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        if self.config.from.is_some() && self.state.step == 0 && self.state.best.is_none() {
            self.evaluate(observer)?;
        }
        Ok(())
    }

    pub(super) fn evaluate(
        &mut self,
        observer: &mut dyn Observer,
    ) -> Result<Evaluation, TrainError> {
        let (batches, batch) = (self.config.eval.batches.max(1), self.config.train.batch);
        let (decoder, mode) = self.as_it_is()?;
        let precision = self.config.train.precision;
        let variant = Variant { precision, ..Variant::in_mode(&mode) };
        let own = share(batches, self.team.rank(), self.team.size());
        let measured = measure(&decoder.valid(), variant, &self.feed, own, batch);
        let measured = measured_together(&mut self.team, measured)?;
        let evaluation = Evaluation::of(&measured, &self.feed);
        let step = self.state.step;
        let point = EvaluationPoint {
            step,
            loss: Some(evaluation.loss),
            perplexity: Some(evaluation.perplexity),
            bits_per_byte: evaluation.bits_per_byte,
            accuracy: evaluation.accuracy,
            exact_match: evaluation.exact_match,
        };
        self.logged(|logs| logs.record(step, &Metric::Eval(point)))?;
        let better = self.state.best.is_none_or(|(best, _)| evaluation.loss < best);
        if better && evaluation.loss.is_finite() {
            self.state.best = Some((evaluation.loss, step));
        }
        observer.evaluated(step, &evaluation);
        Ok(evaluation)
    }

    /// Lets the observer look into the model. This changes nothing of the run, so a failure here does not end the run.
    pub(super) fn diagnose(&self, observer: &mut dyn Observer) {
        let step = self.state.step;
        match self.as_it_is() {
            Ok((decoder, mode)) => observer.diagnose(&Midway {
                step,
                decoder: &decoder,
                mode: &mode,
                feed: &self.feed,
                folder: self.folder.path(),
                name: &self.folder.name(),
                batches: self.config.diagnose.batches,
            }),
            Err(error) => observer.recovered(&format!("step {step}: no diagnosis: {error}")),
        }
    }

    /// Writes a text. The run goes on without one if that fails: a model that is not finite has none, and the next
    /// step notices that.
    pub(super) fn sample(&mut self, observer: &mut dyn Observer) {
        let step = self.state.step;
        match self.write_sample() {
            Ok(Some(text)) => observer.sampled(step, &text),
            Ok(None) => {}
            Err(error) => observer.recovered(&format!("step {step}: no sample: {error}")),
        }
    }

    fn write_sample(&mut self) -> Result<Option<String>, TrainError> {
        let Some(tokenizer) = self.feed.tokenizer()? else { return Ok(None) };
        let settings = &self.config.sample;
        let step = self.state.step;
        let mut sampler = Sampler::new(Sampling {
            temperature: settings.temperature,
            seed: self.config.seed ^ step,
            ..Sampling::default()
        })?;
        let prompt = match settings.prompt.as_str() {
            "" => tokenizer.begin().into_iter().collect(),
            text => tokenizer.encode(text)?,
        };
        let limits = Limits {
            max_tokens: settings.tokens,
            ends: &tokenizer.ends(),
            vocabulary: tokenizer.vocab_size(),
        };
        let (decoder, mode) = self.as_it_is()?;
        let decoder = decoder.valid();
        let mut session = Session::new(&decoder, Variant::in_mode(&mode))?;
        let listen = |_| ControlFlow::Continue(());
        let generated = generate(&mut session, &prompt, &limits, &mut sampler, listen)?;
        let text = tokenizer.decode(&generated.tokens)?;
        self.logged(|logs| logs.sample(&json!({ "step": step, "prompt": prompt, "text": text })))?;
        Ok(Some(text))
    }
}
