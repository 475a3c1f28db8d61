//! `hadal train`: a config in, a model out.

mod progress;
mod summary;

use crate::device::DeviceOption;
use crate::failure::Failure;
use crate::job;
use crate::output::{bytes, duration, grouped, scaled, spinner, warn};
use crate::standard::{stdout, tell};
use clap::Args;
use hadal_cpu::pool::{in_pool, start_pool};
use hadal_model::{CPU, read_config};
use hadal_residual::ResidualConfig;
use hadal_train::{
    ConfigLayers, Finished, PRESETS, RunConfig, RunConfigError, Trainer, estimate, for_depth,
};
use progress::Progress;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use summary::{Summary, describe, healed};

/// Train a model
///
/// Settings come in layers: a preset, then CONFIG.toml, then --residual, --seed and --set. All files of a run are in
/// the folder RUN, the finished model in RUN/model. A run that was killed continues with --resume, to the same bits as
/// if nothing had happened.
#[derive(Args)]
#[command(after_help = "\
With no arguments it trains the preset nano: a Multi-Gate Residuals model on a depth task, a quarter of a minute.
micro and small need data: hadal data prepare book.txt --out book, then --set data.train=book.
Presets: nano, micro, small (CPU), s, m, l (the papers'), 7b, 70b (Llama 2's shapes, for `hadal plan`).

Examples:
  hadal train
  hadal train --preset micro --set data.train=DIR --residual nag --out runs/nag
  hadal train my.toml --seed 3 --set train.steps=2000 --set optimizer.muon.lr=0.02 --out runs/3
  hadal train --residual nag --set skip.rate=0.25 --out runs/skipping
  hadal train --depth 8 --set data.train=DIR --out runs/d8
  hadal train --from smaller --set data.train=DIR --set train.steps=200 --out runs/healed
      # DIR: hadal data prepare text.txt --tokenizer smaller --out DIR
  hadal train --resume runs/3
  hadal train --device wgpu                                   # in a build with that feature
  hadal train --preset s --dry-run --show-config")]
pub(crate) struct Train {
    /// Settings on top of the preset
    #[arg(value_name = "CONFIG.toml")]
    config: Option<PathBuf>,
    /// Settings to start from [default: nano, unless CONFIG.toml, --depth or --from is given]
    #[arg(long)]
    preset: Option<String>,
    /// One dial: this many blocks, from which width, heads, rates and horizon follow
    #[arg(long, value_name = "BLOCKS", conflicts_with = "preset")]
    depth: Option<usize>,
    /// Continue from this model: its shape, policy and parameters, e.g. to heal a cut one; rates, lengths and warm-up
    /// are those for trained models
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["preset", "depth", "residual"])]
    from: Option<PathBuf>,
    /// The residual policy, e.g. mgr:streams=8
    #[arg(long, value_name = "POLICY")]
    residual: Option<ResidualConfig>,
    /// Change one setting, e.g. train.steps=100
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Decides initial values, data order and samples
    #[arg(long, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: Option<u64>,
    /// Steps between looks into the model, as by `hadal diagnose`; the training is the same to the bit
    #[arg(long, value_name = "STEPS")]
    diagnose_every: Option<u64>,
    /// Folder of the run [default: runs/PRESET-POLICY-SEED]
    #[arg(long, value_name = "RUN")]
    out: Option<PathBuf>,
    #[command(flatten)]
    device: DeviceOption,
    /// Continue this run
    #[arg(long, value_name = "RUN", conflicts_with_all = ["config", "preset", "depth", "from", "residual", "settings", "seed", "out", "dry_run", "show_config", "diagnose_every"])]
    resume: Option<PathBuf>,
    /// With --resume: stop at a damaged checkpoint instead of going on from the one before
    #[arg(long, requires = "resume")]
    strict: bool,
    /// Print parameters, FLOPs, memory and an estimate of time, and stop
    #[arg(long)]
    dry_run: bool,
    /// Print all settings instead of one line; they are also in RUN/config.toml
    #[arg(long)]
    show_config: bool,
    /// Save and stop when standard input ends: the process that started this run has gone
    #[arg(long, hide = true)]
    leash: bool,
}

impl Train {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let ranks = job::join()?;
        let leads = ranks.rank() == 0;
        let threads = job::threads(&*ranks)?;
        if let Some(threads) = threads {
            hadal_train::provenance::set_threads(threads);
        }
        // Before anything computes: the first to do so would make another pool.
        let _ = start_pool(threads);
        let trainer = match &self.resume {
            Some(run) => {
                let trainer = Trainer::resume_among(run, self.device.given(), self.strict, ranks)?;
                tell(&format!("resuming {} at step {}", run.display(), trainer.step()));
                trainer
            }
            None => {
                let (config, notes) = self.settings().map_err(Failure::usage)?;
                let text = toml::to_string(&config).map_err(Failure::failed)?;
                let shown = self.show_config.then_some(text.trim_end());
                if self.dry_run && !leads {
                    return Ok(ExitCode::SUCCESS);
                }
                if self.dry_run {
                    return dry_run(&config, shown, &notes);
                }
                let out = self.out.clone().unwrap_or_else(|| self.default_out(&config));
                let reading = spinner("checking the data and making the model".into());
                let created = Trainer::create_among(config, &out, ranks);
                reading.finish_and_clear();
                let trainer = created?;
                if leads {
                    introduce(&trainer, shown, &notes);
                }
                trainer
            }
        };
        for warning in trainer.warnings() {
            tell(&format!("warning: {warning}"));
        }
        let folder = self.resume.clone().or(self.out.clone());
        train(trainer, folder, self.leash)
    }

    /// The settings, and what should be known about those that nobody said.
    fn settings(&self) -> Result<(RunConfig, Vec<String>), RunConfigError> {
        let model = self.from.as_deref().map(read_config).transpose();
        let model = model.map_err(|error| RunConfigError::Malformed {
            origin: "--from".into(),
            reason: error.to_string(),
        })?;
        let base = self.from.as_deref().zip(model.as_ref());
        let mut layers = match (&self.preset, self.depth, base) {
            (Some(name), ..) => ConfigLayers::from_preset(name)?,
            (None, Some(blocks), _) => ConfigLayers::default()
                .with_toml(&for_depth(blocks), &format!("--depth {blocks}"))?,
            (None, None, Some((from, model))) => ConfigLayers::for_model(from, model)?,
            (None, None, None) if self.config.is_some() => ConfigLayers::default(),
            (None, None, None) => ConfigLayers::from_preset(PRESETS[0].name)?,
        };
        if let Some(path) = &self.config {
            layers = layers.with_file(path)?;
        }
        // Shape and policy are the model's, whatever a file says.
        if let Some((from, model)) = base {
            layers = layers.with_model(from, model)?;
        }
        if let Some(residual) = &self.residual {
            layers = layers.with_residual(residual)?;
        }
        if let Some(seed) = self.seed {
            layers = layers.with_seed(seed);
        }
        if let Some(steps) = self.diagnose_every {
            layers = layers.with_setting(&format!("diagnose.every_steps={steps}"))?;
        }
        if let Some(device) = self.device.given() {
            layers = layers.with_setting(&format!("train.device={device}"))?;
        }
        for setting in &self.settings {
            layers = layers.with_setting(setting)?;
        }
        let (layers, notes) = match &model {
            Some(model) => layers.fitted_to(model)?,
            None => (layers, Vec::new()),
        };
        Ok((layers.finish()?, notes))
    }

    fn default_out(&self, config: &RunConfig) -> PathBuf {
        let start = match (&self.config, &self.preset, self.depth) {
            (Some(path), ..) => {
                path.file_stem().map_or("run".into(), |s| s.to_string_lossy().into_owned())
            }
            (_, Some(preset), _) => preset.clone(),
            (.., Some(depth)) => format!("depth{depth}"),
            _ if self.from.is_some() => "healed".into(),
            _ => PRESETS[0].name.to_owned(),
        };
        Path::new("runs").join(format!("{start}-{}-{}", config.residual.about().kind, config.seed))
    }
}

fn train(mut trainer: Trainer, folder: Option<PathBuf>, leash: bool) -> Result<ExitCode, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let signal = hadal_train::stop_on_signals(&stop)
        .map_err(|error| Failure::failed(format!("cannot listen to signals: {error}")))?;
    if leash {
        stop_at_end_of_input(&stop);
    }
    let mut progress = Progress::new(&trainer);
    let finished = in_pool(|| trainer.run(&mut progress, &stop))?;
    progress.end();
    let run = folder.unwrap_or_else(|| trainer.folder().to_owned());
    match finished {
        Finished::Interrupted { step } => {
            tell(&format!("interrupted; step {step} is saved"));
            tell(&format!("go on with: hadal train --resume {}", run.display()));
            Ok(ExitCode::from(signal.exit_code()))
        }
        Finished::Done { evaluation, model } => {
            let course = trainer.course();
            if let Some((from, to)) = course.losses {
                tell(&format!("training loss {from:.4} -> {to:.4}"));
            }
            if let Some(share) = course.communication {
                tell(&format!("{:.1} % of the time was spent with other ranks", 100.0 * share));
            }
            writeln!(stdout(), "{}", describe(&evaluation))?;
            if let Some(text) = healed(&course, &evaluation) {
                tell(&text);
            }
            tell(&format!("the model is in {}", model.display()));
            let next = if model.join("tokenizer.json").exists() || evaluation.accuracy.is_none() {
                format!("hadal generate {} --prompt 'The '", model.display())
            } else {
                format!("hadal diagnose {}", model.parent().unwrap_or(&model).display())
            };
            tell(&format!("next: {next}"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The stop takes the same path as a signal's: the state is saved first.
fn stop_at_end_of_input(stop: &Arc<AtomicBool>) {
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        // Unreadable input has ended, too.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        stop.store(true, Ordering::Relaxed);
    });
}

/// What starts now: said once it is sure that it starts.
fn introduce(trainer: &Trainer, shown: Option<&str>, notes: &[String]) {
    let summary = Summary::of(trainer);
    if let Some(text) = shown {
        tell(text);
    }
    tell(&summary.line());
    for note in notes {
        tell(note);
    }
    if let Some(warning) = summary.warning() {
        warn(&warning);
    }
    tell(&format!("all settings: {}", trainer.folder().join("config.toml").display()));
}

fn dry_run(config: &RunConfig, shown: Option<&str>, notes: &[String]) -> Result<ExitCode, Failure> {
    let plan = estimate::plan(config)?;
    let mut out = stdout();
    if let Some(text) = shown {
        writeln!(out, "{text}\n")?;
    }
    let summary = Summary::planned(config, &plan);
    writeln!(out, "{}", summary.line())?;
    for note in notes {
        writeln!(out, "{note}")?;
    }
    if let Some(warning) = summary.warning() {
        warn(&warning);
    }
    writeln!(out, "policy      {}", config.residual)?;
    let device = &config.train.device;
    if device != CPU {
        writeln!(out, "device      {device}; memory and time below are the CPU's")?;
    }
    writeln!(out, "parameters  {}", grouped(plan.cost.parameters.total().into()))?;
    writeln!(
        out,
        "steps       {} of {} tokens",
        grouped(plan.steps.into()),
        grouped(plan.tokens_per_step.into())
    )?;
    writeln!(out, "tokens      {}", scaled(plan.tokens as f64))?;
    writeln!(out, "training    {}FLOPs", scaled(plan.flops))?;
    writeln!(out, "memory      about {}; `hadal plan` has it in parts", bytes(plan.memory))?;
    writeln!(
        out,
        "time        about {} here, if half of the matrix peak ({}FLOP/s) is reached",
        duration(plan.time.as_secs_f64()),
        scaled(plan.peak)
    )?;
    Ok(ExitCode::SUCCESS)
}
