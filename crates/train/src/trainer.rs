//! The training loop.

mod course;
mod device;
mod finish;
mod join;
mod local;
mod look;
mod recover;
mod resume;
mod save;

pub use course::Course;

use super::config::RunConfig;
use super::error::TrainError;
use super::fingerprint::fingerprint;
use super::folder::RunFolder;
use super::gradient::loss_and_gradient;
use super::metrics::Logs;
use super::observer::{Finished, Observer, StepReport, Unobserved};
use super::skip::Skipper;
use super::start;
use super::state::State;
use super::team::{self, Division, Seen, Sums, Team};
use crate::optim::{DeviceOptimizer, Optimizer, Schedule, clip_norm, project, squares};
use hadal_data::{Batch, Feed, FeedError};
use hadal_files::FileError;
use hadal_kernels::has_bf16;
use hadal_model::{CPU, CheckpointError, Decoder, ModelConfig, Pass, Precision, companions};
use hadal_report::run::{Metric, StepPoint};
use hadal_residual::StepMode;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A run in progress.
pub struct Trainer {
    config: RunConfig,
    feed: Feed,
    /// The tokenizer's file, for the model's directory: it may be gone when the model is there.
    tokenizer: Option<Vec<u8>>,
    decoder: Decoder,
    optimizer: Optimizer,
    /// What moves the parameters on another device than the CPU; [`Trainer::optimizer`](Self) then holds what was saved last.
    on_device: Option<DeviceOptimizer>,
    schedule: Schedule,
    skipper: Option<Skipper>,
    state: State,
    folder: RunFolder,
    /// `None` on a rank that writes nothing.
    logs: Option<Logs>,
    /// The ranks of the run, and what belongs to which of them.
    team: Team,
    division: Division,
    /// Where ranks make steps by themselves.
    round: Option<local::Round>,
    /// Whether some rank was asked to stop.
    stopping: bool,
    /// Whether a checkpoint is due by the clock.
    clock: bool,
    warnings: Vec<String>,
    last_saved: Instant,
    /// The step whose checkpoint this process has written or read, so that it is known to be whole.
    known: Option<u64>,
    /// Old checkpoints that could not be removed, which is said once.
    stubborn: BTreeSet<u64>,
}

impl Trainer {
    /// Starts a run in a new folder.
    pub fn create(config: RunConfig, out: &Path) -> Result<Self, TrainError> {
        // The least that can be missing: before anything is read.
        start::device(&config)?;
        let feed = config.open_feed()?;
        let model = model_config(&config, &feed)?;
        feed.verify()?;
        let mut decoder = start::start(&config, &model, &feed)?;
        // Files of a chat, e.g.: what the model could say it still can.
        let companions = config.from.as_deref().map(companions).transpose()?.unwrap_or_default();
        let folder = RunFolder::create(out, &config, &companions)?;
        project(&mut decoder);
        let optimizer = optimizer(&config, &decoder);
        let state = first_state(&folder, &feed)?;
        let mut trainer = Self::assemble(config, feed, decoder, optimizer, state, folder)?;
        // The start is worth keeping until there is something better: other runs can begin from the same parameters,
        // and a failure in the first steps has a state to go back to.
        trainer.checkpoint(&mut Unobserved)?;
        Ok(trainer)
    }

    fn assemble(
        config: RunConfig,
        feed: Feed,
        decoder: Decoder,
        optimizer: Optimizer,
        state: State,
        folder: RunFolder,
    ) -> Result<Self, TrainError> {
        let (logs, mut warnings) = Logs::open(folder.path(), &state).map_err(TrainError::Logs)?;
        let mut trainer = Self::without_logs(config, feed, decoder, optimizer, state, folder)?;
        warnings.append(&mut trainer.warnings);
        Ok(Self { logs: Some(logs), warnings, ..trainer })
    }

    /// A rank that writes nothing.
    fn without_logs(
        config: RunConfig,
        feed: Feed,
        decoder: Decoder,
        optimizer: Optimizer,
        state: State,
        folder: RunFolder,
    ) -> Result<Self, TrainError> {
        let mut warnings = Vec::new();
        let schedule = Schedule::new(&config.schedule, config.steps(feed.seq_len()));
        let skipper = Skipper::new(&config, decoder.config(), feed.seq_len())?;
        let tokenizer = feed.tokenizer_file().map(|file| hadal_files::read(&file)).transpose();
        let device = start::device(&config)?;
        let elsewhere = config.train.device != CPU;
        let on_device = elsewhere.then(|| DeviceOptimizer::of(&optimizer, &device));
        let by_host = match config.train.precision {
            Precision::F32 => false,
            Precision::Bf16 => !has_bf16(&device),
            Precision::Bf16x3 => true,
        };
        if elsewhere && by_host {
            warnings.push(format!(
                "{} on {} rounds operands on the host, which is slow",
                config.train.precision, config.train.device
            ));
        }
        Ok(Self {
            on_device,
            config,
            feed,
            tokenizer: tokenizer.map_err(CheckpointError::from)?,
            skipper,
            decoder,
            optimizer,
            schedule,
            state,
            folder,
            logs: None,
            division: Division::default(),
            team: Team::alone(),
            round: None,
            stopping: false,
            clock: false,
            warnings,
            last_saved: Instant::now(),
            known: None,
            stubborn: BTreeSet::new(),
        })
    }

    /// The settings.
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// The model's shape.
    pub fn model(&self) -> &ModelConfig {
        self.decoder.config()
    }

    /// Steps done.
    pub fn step(&self) -> u64 {
        self.state.step
    }

    /// Steps of the whole run.
    pub fn steps(&self) -> u64 {
        self.config.steps(self.feed.seq_len())
    }

    /// Tokens of one step.
    pub fn tokens_per_step(&self) -> u64 {
        self.config.tokens_per_step(self.feed.seq_len())
    }

    /// The run's folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Whether this is the rank that writes and reports: the only one, or the first of several.
    pub fn leads(&self) -> bool {
        self.team.leads()
    }

    /// What had to be mended before the run could start or go on, for whoever started it.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Trains to the end, or until `stop` is set.
    ///
    /// Where there are several ranks, all of them call this, and one that is asked to stop is enough. Only rank 0 reports
    /// to its observer.
    pub fn run(
        &mut self,
        observer: &mut dyn Observer,
        stop: &AtomicBool,
    ) -> Result<Finished, TrainError> {
        let mut silent = Unobserved;
        let observer = if self.team.leads() { observer } else { &mut silent };
        let finished = self.train(observer, stop);
        if let Err(error) = &finished {
            self.team.fail(error);
        }
        finished
    }

    fn train(
        &mut self,
        observer: &mut dyn Observer,
        stop: &AtomicBool,
    ) -> Result<Finished, TrainError> {
        self.check_ranks()?;
        let steps = self.steps();
        let asked = Seen { stop: stop.load(Ordering::Relaxed), ..Seen::default() };
        self.stopping = asked.together(&mut self.team)?.stop;
        while self.state.step < steps {
            if self.is_stopping(stop) {
                self.checkpoint(observer)?;
                self.team.part()?;
                return Ok(Finished::Interrupted { step: self.state.step });
            }
            self.measure_start(observer)?;
            let report = match self.is_local() {
                true => Some(self.local_step(stop)?),
                false => self.one_step(observer, stop)?,
            };
            let Some(report) = report else { continue };
            observer.stepped(&report);
            self.record_step(&report)?;
            let mut better = false;
            if due(self.config.eval.every_steps, self.state.step) && self.state.step < steps {
                self.evaluate(observer)?;
                better = self.state.best.is_some_and(|(_, best)| best == self.state.step);
            }
            if due(self.config.diagnose.every_steps, self.state.step) && self.team.leads() {
                self.diagnose(observer);
            }
            if due(self.config.sample.every_steps, self.state.step) && self.team.leads() {
                self.sample(observer);
            }
            // After everything else in this step: a run that resumes from here repeats none of it.
            if better
                || due(self.config.checkpoint.every_steps, self.state.step)
                || self.is_due_by_clock()
            {
                self.checkpoint(observer)?;
            }
        }
        self.finish(observer)
    }

    /// Whether to stop: what all ranks know, not what one of them has heard since.
    fn is_stopping(&self, stop: &AtomicBool) -> bool {
        self.stopping || self.is_alone() && stop.load(Ordering::Relaxed)
    }

    /// Whether it is time for a checkpoint: the clock of rank 0 counts.
    fn is_due_by_clock(&self) -> bool {
        if self.is_alone() { self.minutes_are_over() } else { self.clock }
    }

    /// Whether nothing has to be decided together.
    fn is_alone(&self) -> bool {
        self.team.is_alone() && !self.is_local()
    }

    fn minutes_are_over(&self) -> bool {
        let minutes = self.last_saved.elapsed().as_secs_f64() / 60.0;
        let every_minutes = self.config.checkpoint.every_minutes;
        every_minutes > 0.0 && minutes >= every_minutes
    }

    /// One optimiser step; `None` if it was interrupted, left out or taken back.
    fn one_step(
        &mut self,
        observer: &mut dyn Observer,
        stop: &AtomicBool,
    ) -> Result<Option<StepReport>, TrainError> {
        if self.on_device.is_some() {
            return self.device_step(observer, stop);
        }
        let started = Instant::now();
        self.team.take_spent();
        let step = self.state.step;
        let mode = self.prepare()?;
        let (memory, precision) = (self.config.memory.memory(), self.config.train.precision);
        let parts = self.config.train.accumulate;
        let mut sums = Sums::new(&self.team, &self.division, parts, self.config.ranks.wire);
        let mut seen = Seen::default();
        for part in sums.range() {
            // Half a window changes nothing: the resumed run makes the whole step. Others would wait for it.
            if self.is_stopping(stop) {
                return Ok(None);
            }
            let batch = self.batch(step, part)?;
            let tally = Some(&mut seen.tally);
            let pass = Pass { mode: &mode, memory, precision, tally, ..Pass::default() };
            let (value, more) = loss_and_gradient(&self.decoder, &batch, pass)?;
            seen.losses.push(value / parts as f64);
            sums.add(&mut self.team, &self.division, part, more)?;
        }
        let mut gradients = sums.finish(&mut self.team, &self.division)?;
        seen.squares = squares(&gradients);
        (seen.stop, seen.due) = (stop.load(Ordering::Relaxed), self.minutes_are_over());
        let seen = seen.together(&mut self.team)?;
        self.stopping |= seen.stop && !self.team.is_alone();
        self.clock = seen.due;
        let (loss, norm) = (seen.loss(), seen.norm());
        if !(loss.is_finite() && norm.is_finite()) {
            let problem = format!("loss is {loss} and the gradient's norm {norm}");
            self.recover(&problem, observer)?;
            return Ok(None);
        }
        clip_norm(&mut gradients, norm, self.config.optimizer.clip);
        let rate = self.schedule.rate(step);
        self.optimizer.step(&mut self.decoder, &gradients, step, rate);
        drop(gradients);
        team::parameters(&mut self.team, &self.division, &mut self.decoder)?;
        let skip = self.skipper.as_ref().zip(self.state.skip.as_mut());
        let skip = skip.map(|(skipper, state)| skipper.learn(state, step, &seen.tally));
        self.state.step += 1;
        let communication = self.team.take_spent();
        Ok(Some(StepReport {
            step: self.state.step,
            steps: self.steps(),
            loss,
            gradient_norm: norm,
            rate,
            tokens: self.tokens_per_step(),
            // The backward pass costs twice the forward pass.
            flops: 3 * seen.tally.cost(self.decoder.config()),
            skip,
            communication: (!self.team.is_alone()).then_some(communication),
            time: started.elapsed(),
        }))
    }

    /// The data of a step: a pure function of the counters.
    fn batch(&self, step: u64, part: usize) -> Result<Batch, TrainError> {
        let count = self.config.train.batch;
        let window = (count * self.config.train.accumulate) as u64;
        let first = step * window + (part * count) as u64 + self.state.skipped_sequences;
        self.feed.train(first, count).map_err(TrainError::Batch)
    }

    /// Sets the thresholds of a step, and says how the model goes through it.
    fn prepare(&mut self) -> Result<StepMode, TrainError> {
        let step = self.state.step;
        let warmth = warmth(&self.config, step + 1);
        let mut mode = StepMode { warmth, learning: true, ..StepMode::default() };
        if let Some(skipper) = &self.skipper {
            let state = match self.state.skip.take() {
                Some(state) => state,
                None => skipper.start(&self.decoder, &self.batch(step, 0)?)?,
            };
            mode.forced = skipper.forced(&state, step);
            self.decoder.set_skipping(skipper.skipping(&state, step, warmth))?;
            self.state.skip = Some(state);
        }
        Ok(mode)
    }

    fn record_step(&mut self, report: &StepReport) -> Result<(), TrainError> {
        let seconds = report.time.as_secs_f64();
        let point = StepPoint {
            step: report.step,
            loss: Some(report.loss),
            gradient_norm: Some(report.gradient_norm),
            rate: report.rate,
            tokens: report.step * report.tokens,
            flops: Some(report.flops),
            tokens_per_second: Some(report.tokens as f64 / seconds),
            skip_rate: report.skip.map(|skip| skip.rate),
            skip_target: report.skip.map(|skip| skip.target),
            skip_threshold: report.skip.map(|skip| skip.threshold),
            communication: report.communication.map(|time| time.as_secs_f64() / seconds),
        };
        self.logged(|logs| logs.record(report.step, &Metric::Train(point)))
    }

    fn logged(
        &mut self,
        write: impl FnOnce(&mut Logs) -> Result<(), FileError>,
    ) -> Result<(), TrainError> {
        self.logs.as_mut().map_or(Ok(()), write).map_err(TrainError::Logs)
    }
}

fn first_state(folder: &RunFolder, feed: &Feed) -> Result<State, TrainError> {
    let (config, data) = (fingerprint(folder.settings())?, feed.fingerprint()?);
    Ok(State { config, data, ..State::default() })
}

/// What a run remembers of its parameters.
fn optimizer(config: &RunConfig, decoder: &Decoder) -> Optimizer {
    let optimizer = Optimizer::new(&config.optimizer, decoder);
    if config.ranks.local_steps > 0 { optimizer.with_outer() } else { optimizer }
}

fn due(every: u64, step: u64) -> bool {
    every > 0 && step.is_multiple_of(every)
}

/// The share of their full size that gains have in the step that makes `done`, while they rise from nothing over the
/// first steps. One for policies without such gains.
pub(crate) fn warmth(config: &RunConfig, done: u64) -> f64 {
    let length = config.train.gain_warmup;
    if config.residual.warms_up() && done < length { done as f64 / length as f64 } else { 1.0 }
}

/// The model for the data; its vocabulary must hold the data's.
pub fn model_config(config: &RunConfig, feed: &Feed) -> Result<ModelConfig, TrainError> {
    let model = config.model.resolve(&config.residual, feed.vocab_size(), feed.seq_len());
    match config.from {
        None => model.check_fresh()?,
        Some(_) => model.check()?,
    }
    if model.vocab_size < feed.vocab_size() {
        return Err(FeedError::Unfit(format!(
            "model.vocab_size is {}, but the data has {} tokens",
            model.vocab_size,
            feed.vocab_size()
        ))
        .into());
    }
    if model.max_seq_len < feed.seq_len() {
        return Err(FeedError::Unfit(format!(
            "model.max_seq_len is {}, but sequences are {} long",
            model.max_seq_len,
            feed.seq_len()
        ))
        .into());
    }
    Skipper::new(config, &model, feed.seq_len())?;
    Ok(model)
}
