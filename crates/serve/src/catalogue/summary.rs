//! What the list shows of a run.

use crate::series::{Curves, finite_median};
use crate::tail::Tail;
use crate::{files, note, tags};
use hadal_report::run::{self, Status};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::UNIX_EPOCH;

/// Points of a sparkline.
const SPARK: usize = 48;
/// The speed that is shown is the median of this many last steps.
const RECENT: usize = 50;

/// One line of the list. Unknown values are `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// The path below the folder of runs.
    pub(crate) id: String,
    /// `done`, `running`, `failed`, `stopped` or `broken`.
    pub(crate) status: Standing,
    /// Why it is broken, or what is left out.
    pub(crate) reason: Option<String>,
    pub(crate) residual: String,
    pub(crate) seed: Option<i64>,
    pub(crate) blocks: Option<i64>,
    pub(crate) width: Option<i64>,
    pub(crate) step: u64,
    pub(crate) steps: Option<u64>,
    pub(crate) tokens: u64,
    pub(crate) train_loss: Option<f64>,
    pub(crate) held_out_loss: Option<f64>,
    pub(crate) accuracy: Option<f64>,
    pub(crate) tokens_per_second: Option<f64>,
    /// When metrics were last written, in seconds since 1970.
    pub(crate) changed: u64,
    pub(crate) note: String,
    pub(crate) tags: Vec<String>,
    /// The same for runs that differ in their seed alone.
    pub(crate) settings: String,
    /// What can be opened beside the run's own page.
    pub(crate) has_diagnosis: bool,
    pub(crate) has_report: bool,
    /// Training loss, thinned.
    pub(crate) spark: Vec<(f32, f32)>,
}

/// The status of a run, or `broken` if it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Standing {
    Done,
    Running,
    Failed,
    Stopped,
    #[default]
    Broken,
}

impl Standing {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Running => "running",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
            Self::Broken => "broken",
        }
    }
}

impl From<Status> for Standing {
    fn from(status: Status) -> Self {
        match status {
            Status::Done => Self::Done,
            Status::Running => Self::Running,
            Status::Failed => Self::Failed,
            Status::Stopped => Self::Stopped,
        }
    }
}

impl Summary {
    /// Reads what the list shows: settings and metrics, not samples or figures. The other value says whether the same
    /// files would be read the same way again; if not, the machine is in trouble.
    pub(crate) fn read(id: &str, path: &Path) -> (Self, bool) {
        let mut summary = Self { id: id.into(), changed: changed(path), ..Self::default() };
        (summary.note, summary.tags) = (note::read(path), tags::read(path));
        summary.has_diagnosis = !files::figure_files(path).is_empty();
        summary.has_report = files::open(path, "report.html").is_ok();
        let mut lasts = true;
        match summary.fill(path) {
            Ok(()) => summary.status = run::status(path).into(),
            Err((reason, is_passing)) => {
                summary.reason = Some(reason);
                lasts = !is_passing;
            }
        }
        (summary, lasts)
    }

    /// Seconds that all its steps take at the present speed.
    pub(crate) fn length(&self) -> Option<f64> {
        let speed = self.tokens_per_second.filter(|speed| *speed > 0.0)?;
        let of_a_step = self.tokens as f64 / (self.step > 0).then_some(self.step as f64)?;
        Some(self.steps? as f64 * of_a_step / speed)
    }

    /// Seconds until it is done, if it is under way.
    pub(crate) fn left(&self) -> Option<f64> {
        if self.status != Standing::Running {
            return None;
        }
        let done = self.step as f64 / (self.steps?.max(1)) as f64;
        Some(self.length()? * (1.0 - done).max(0.0))
    }

    /// An error comes with whether it may pass.
    fn fill(&mut self, path: &Path) -> Result<(), (String, bool)> {
        let config = path.join("config.toml");
        if fs::symlink_metadata(config).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
            let reason = "no config.toml: not a run of hadal train, or one that lost its settings";
            return Err((reason.into(), false));
        }
        let settings = files::settings(path).map_err(|e| (e.to_string(), e.is_passing()))?;
        let integer = |table: &str, key: &str| settings.get(table)?.get(key)?.as_integer();
        let kind = settings.get("residual").and_then(|table| table.get("kind"));
        self.residual = kind.and_then(toml::Value::as_str).unwrap_or("unknown").to_owned();
        self.seed = settings.get("seed").and_then(toml::Value::as_integer);
        self.blocks = integer("model", "n_layers");
        self.width = integer("model", "d_model");
        self.steps = integer("train", "steps").and_then(|steps| u64::try_from(steps).ok());
        self.settings = without_seed(&settings);
        let mut recent = VecDeque::new();
        let curves = Curves::read(&mut Tail::new(path), SPARK, |step| {
            if recent.len() == RECENT {
                recent.pop_front();
            }
            recent.push_back(step.tokens_per_second);
        });
        let curves = curves.map_err(|error| (error.to_string(), error.is_passing()))?;
        if let Some((last, _)) = curves.steps.last() {
            (self.step, self.tokens) = (last.step, last.tokens);
            self.train_loss = last.loss;
        }
        if let Some((last, ..)) = curves.evaluations.last() {
            (self.held_out_loss, self.accuracy) = (last.loss, last.accuracy);
        }
        self.tokens_per_second = finite_median(recent.into_iter());
        let spark = curves.steps.points(SPARK).into_iter();
        self.spark =
            spark.filter_map(|(step, _)| Some((step.step as f32, step.loss? as f32))).collect();
        self.reason = curves.damage.map(|damage| damage.to_string());
        Ok(())
    }
}

/// A mark of settings but for the seed.
fn without_seed(settings: &toml::Table) -> String {
    let mut settings = settings.clone();
    settings.remove("seed");
    let mut hasher = DefaultHasher::new();
    settings.to_string().hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Changes when something that a summary reads has changed.
pub(crate) fn stamp(path: &Path) -> String {
    let files =
        ["config.toml", "metrics.jsonl", "note.txt", tags::FILE, "diagnosis", "report.html"];
    files::stamps(path, &files)
}

fn changed(path: &Path) -> u64 {
    let time = ["metrics.jsonl", "config.toml"].into_iter().find_map(|file| {
        let time = fs::metadata(path.join(file)).ok()?.modified().ok()?;
        time.duration_since(UNIX_EPOCH).ok()
    });
    time.map_or(0, |time| time.as_secs())
}
