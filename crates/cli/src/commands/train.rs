//! `hadal train`: a config in, a model out.

use crate::failure::Failure;
use crate::output::{grouped, line, scaled};
use crate::standard::{stderr, stdout, tell};
use clap::Args;
use hadal_cpu::pool::{in_pool, start_pool};
use hadal_model::read_config;
use hadal_residual::ResidualConfig;
use hadal_study::diagnose::diagnose_midway;
use hadal_train::{
    ConfigLayers, DEFAULT_DATA, Evaluation, Finished, Midway, Observer, PRESETS, RunConfig,
    RunConfigError, StepReport, Trainer, estimate, for_depth,
};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Train a model
///
/// Settings come in layers: a preset, then CONFIG.toml, then --residual, --seed and --set. All files of a run are in
/// the folder RUN, the finished model in RUN/model. A run that was killed continues with --resume, to the same bits as
/// if nothing had happened.
#[derive(Args)]
#[command(after_help = "\
With no arguments it trains the preset nano: a Multi-Gate Residuals model on a depth task, a quarter of a minute.
Presets: nano, micro, small (CPU), s, m, l (the papers').

Examples:
  hadal train
  hadal train --preset micro --set data.train=DIR --residual nag --out runs/nag
  hadal train my.toml --seed 3 --set train.steps=2000 --set optimizer.muon.lr=0.02 --out runs/3
  hadal train --residual nag --set skip.rate=0.25 --out runs/skipping
  hadal train --depth 8 --set data.train=DIR --out runs/d8
  hadal train --from smaller --set data.train=DIR --set train.steps=200 --out runs/healed
  hadal train --resume runs/3
  hadal train --preset s --dry-run")]
pub(crate) struct Train {
    /// Settings on top of the preset
    #[arg(value_name = "CONFIG.toml")]
    config: Option<PathBuf>,
    /// Settings to start from [default: nano, unless CONFIG.toml or --depth is given]
    #[arg(long)]
    preset: Option<String>,
    /// One dial: this many blocks, from which width, heads, rates and horizon follow
    #[arg(long, value_name = "BLOCKS", conflicts_with = "preset")]
    depth: Option<usize>,
    /// Continue from this model: its shape, policy and parameters, e.g. to heal a cut one
    #[arg(long, value_name = "DIR", conflicts_with_all = ["depth", "residual"])]
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
    /// Continue this run
    #[arg(long, value_name = "RUN", conflicts_with_all = ["config", "preset", "depth", "from", "residual", "settings", "seed", "out", "dry_run", "diagnose_every"])]
    resume: Option<PathBuf>,
    /// With --resume: stop at a damaged checkpoint instead of going on from the one before
    #[arg(long, requires = "resume")]
    strict: bool,
    /// Print the settings, parameters, FLOPs, memory and an estimate of time, and stop
    #[arg(long)]
    dry_run: bool,
    /// Save and stop when standard input ends: the process that started this run has gone
    #[arg(long, hide = true)]
    leash: bool,
}

impl Train {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let trainer = match &self.resume {
            Some(run) => {
                let resumed =
                    if self.strict { Trainer::resume_strictly(run) } else { Trainer::resume(run) };
                let trainer = resumed?;
                tell(&format!("resuming {} at step {}", run.display(), trainer.step()));
                trainer
            }
            None => {
                let config = self.settings().map_err(Failure::usage)?;
                let text = toml::to_string(&config).map_err(Failure::failed)?;
                if self.dry_run {
                    return dry_run(&config, &text);
                }
                let out = self.out.clone().unwrap_or_else(|| self.default_out(&config));
                tell(&format!("{}\n# {} in {}", text.trim_end(), config.residual, out.display()));
                Trainer::create(config, &out)?
            }
        };
        for warning in trainer.warnings() {
            tell(&format!("warning: {warning}"));
        }
        let folder = self.resume.clone().or(self.out.clone());
        train(trainer, folder, self.leash)
    }

    fn settings(&self) -> Result<RunConfig, RunConfigError> {
        let name = self.preset.clone().or_else(|| {
            (self.config.is_none() && self.depth.is_none()).then(|| PRESETS[0].name.to_owned())
        });
        let mut layers = match (&name, self.depth) {
            (Some(name), _) => ConfigLayers::from_preset(name)?,
            (None, Some(blocks)) => ConfigLayers::default()
                .with_toml(&for_depth(blocks), &format!("--depth {blocks}"))?,
            (None, None) => ConfigLayers::default(),
        };
        if let Some(path) = &self.config {
            layers = layers.with_file(path)?;
        }
        if let Some(from) = &self.from {
            let model = read_config(from).map_err(|error| RunConfigError::Malformed {
                origin: "--from".into(),
                reason: error.to_string(),
            })?;
            layers = layers.with_model(from, &model)?;
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
        for setting in &self.settings {
            layers = layers.with_setting(setting)?;
        }
        // A config says what to learn from; a preset or a dial may leave that open.
        if self.config.is_none() && !layers.has_data() {
            layers = layers.with_toml(DEFAULT_DATA, "the default task")?;
        }
        layers.finish()
    }

    fn default_out(&self, config: &RunConfig) -> PathBuf {
        let start = match (&self.config, &self.preset, self.depth) {
            (Some(path), ..) => {
                path.file_stem().map_or("run".into(), |s| s.to_string_lossy().into_owned())
            }
            (_, Some(preset), _) => preset.clone(),
            (.., Some(depth)) => format!("depth{depth}"),
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
    // If the pool cannot be made here, rayon makes one when it is first needed.
    let _ = start_pool(None);
    let mut progress = Progress::new(&trainer);
    let finished = in_pool(|| trainer.run(&mut progress, &stop))?;
    progress.bar.finish_and_clear();
    let run = folder.unwrap_or_else(|| trainer.folder().to_owned());
    match finished {
        Finished::Interrupted { step } => {
            tell(&format!("interrupted; step {step} is saved"));
            tell(&format!("go on with: hadal train --resume {}", run.display()));
            Ok(ExitCode::from(signal.exit_code()))
        }
        Finished::Done { evaluation, model } => {
            if let Some((from, to)) = progress.loss {
                tell(&format!("training loss {from:.4} -> {to:.4}"));
            }
            writeln!(stdout(), "{}", describe(&evaluation))?;
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

fn describe(evaluation: &Evaluation) -> String {
    let mut text =
        format!("held-out loss {:.4}, perplexity {:.3}", evaluation.loss, evaluation.perplexity);
    if let Some(bits) = evaluation.bits_per_byte {
        text += &format!(", {bits:.4} bits per byte");
    }
    if let Some(accuracy) = evaluation.accuracy {
        text += &format!(", accuracy {:.1} %", 100.0 * accuracy);
    }
    if let Some(exact) = evaluation.exact_match {
        text += &format!(", all answers right {:.1} %", 100.0 * exact);
    }
    text
}

/// A bar on a terminal, lines in a log.
struct Progress {
    bar: ProgressBar,
    peak: f64,
    loss: Option<(f64, f64)>,
}

impl Progress {
    fn new(trainer: &Trainer) -> Self {
        let watched = stderr().is_terminal();
        let bar = if watched { ProgressBar::new(trainer.steps()) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template(
            "{bar:24} {pos}/{len} steps, {msg}, {elapsed} elapsed, {eta} left",
        );
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_position(trainer.step());
        bar.reset_eta();
        Self {
            bar,
            peak: if watched { estimate::matmul_flops_per_second() } else { 0.0 },
            loss: None,
        }
    }

    fn line(&self, text: String) {
        line(&self.bar, &text);
    }
}

impl Observer for Progress {
    fn stepped(&mut self, report: &StepReport) {
        let seconds = report.time.as_secs_f64();
        let rate = report.tokens as f64 / seconds;
        let first = self.loss.map_or(report.loss, |(first, _)| first);
        self.loss = Some((first, report.loss));
        let utilisation = match self.peak {
            0.0 => String::new(),
            peak => format!(", MFU {:.0} %", 100.0 * report.flops as f64 / seconds / peak),
        };
        let skipped = report
            .skip
            .map_or(String::new(), |skip| format!(", {:.0} % skipped", 100.0 * skip.rate));
        self.bar.set_position(report.step);
        self.bar.set_message(format!(
            "loss {:.4}{skipped}, {} tokens/s{utilisation}",
            report.loss,
            scaled(rate.round())
        ));
    }

    fn evaluated(&mut self, step: u64, evaluation: &Evaluation) {
        self.line(format!("step {step}: {}", describe(evaluation)));
    }

    fn diagnose(&mut self, midway: &Midway<'_>) {
        let step = midway.step;
        let (summary, path) = match diagnose_midway(midway) {
            Ok(found) => found,
            Err(error) => return self.recovered(&format!("step {step}: no diagnosis: {error}")),
        };
        let useless = summary.useless().len();
        let growth = summary.norm_growth.map_or(String::new(), |g| format!("norm growth {g:.2}, "));
        self.line(format!(
            "step {step}: {growth}{useless} of {} blocks nearly free; figures in {}",
            summary.blocks,
            path.display()
        ));
    }

    fn sampled(&mut self, step: u64, text: &str) {
        self.line(format!("step {step} writes: {text}"));
    }

    fn recovered(&mut self, message: &str) {
        self.line(format!("warning: {message}"));
    }
}

fn dry_run(config: &RunConfig, text: &str) -> Result<ExitCode, Failure> {
    let plan = estimate::plan(config)?;
    let mut out = stdout();
    writeln!(out, "{}\n", text.trim_end())?;
    writeln!(out, "policy      {}", config.residual)?;
    writeln!(out, "parameters  {}", grouped(plan.cost.parameters.total().into()))?;
    writeln!(
        out,
        "steps       {} of {} tokens",
        grouped(plan.steps.into()),
        grouped(plan.tokens_per_step.into())
    )?;
    writeln!(out, "tokens      {}", scaled(plan.tokens as f64))?;
    writeln!(out, "training    {}FLOPs", scaled(plan.flops))?;
    writeln!(out, "memory      at most about {}B (fused kernels keep less)", scaled(plan.memory))?;
    writeln!(
        out,
        "time        about {} here, if half of the matrix peak ({}FLOP/s) is reached",
        indicatif::HumanDuration(plan.time),
        scaled(plan.peak)
    )?;
    Ok(ExitCode::SUCCESS)
}
