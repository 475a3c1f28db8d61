//! Results as people read them: a table, sentences, and the same as CSV.

use super::figures::figures;
use super::results::{Against, Cell, METRIC, Results, RunState};
use super::shape_table::{SHAPE_CSV, chosen, shape_columns, shape_csv};
use super::suite::Suite;
use super::tune::Tuning;
use hadal_report::figure::table::cell as csv_cell;
use hadal_report::palette::kind;
use hadal_report::statistics::{SpeedUp, Summary, Verdict};
use hadal_report::suite::SuiteTable;

/// With this many seeds or fewer, only differences far larger than the seeds' can be told apart.
const FEW_SEEDS: usize = 4;

/// A name, and a cell's text.
pub(super) type Column = (&'static str, fn(&Cell) -> String);

impl Results {
    /// The table, the verdict in words, and the figures.
    pub fn table(&self, suite: &Suite) -> SuiteTable {
        let columns = self.columns();
        SuiteTable {
            baseline: self.baseline.clone(),
            metric: self.metric.into(),
            verdict: self.sentences(suite),
            rows: self
                .cells
                .iter()
                .map(|cell| columns.iter().map(|(_, text)| text(cell)).collect())
                .collect(),
            kinds: self.cells.iter().map(|cell| kind(&cell.policy).to_owned()).collect(),
            columns: columns.into_iter().map(|(name, _)| name.into()).collect(),
            figures: figures(self, suite),
            looks: self.looks.clone(),
            tables: self.tuning.iter().map(Tuning::table).collect(),
            notes: self.tuning.iter().flat_map(Tuning::warnings).collect(),
        }
    }

    /// Columns that have anything to say.
    fn columns(&self) -> Vec<Column> {
        let mut columns: Vec<Column> = vec![("policy", |cell| cell.variant.clone())];
        if self.cells.iter().any(|cell| cell.depth.is_some()) {
            columns.push(("blocks", |cell| or_dash(cell.depth.map(|depth| depth.to_string()))));
        }
        // What people look for comes first: on a narrow page the rest is scrolled to.
        columns.push(("verdict", |cell| match &cell.against {
            Some(against) => against.verdict.to_string(),
            None => "baseline".into(),
        }));
        columns.push((METRIC, |cell| with_spread(&cell.validation_loss, 4, 1.0)));
        columns.push(("difference", |cell| compared(cell, difference)));
        columns.push(("95 % interval", |cell| {
            compared(cell, |a| or_dash(a.paired.interval95.map(interval)))
        }));
        columns.push(("p (Holm)", |cell| compared(cell, |a| or_dash(a.p_holm.map(p)))));
        columns.push(("p (t test)", |cell| compared(cell, |a| or_dash(a.paired.p_t.map(p)))));
        columns.push(("p (bootstrap)", |cell| {
            compared(cell, |a| or_dash(a.paired.p_bootstrap.map(p)))
        }));
        columns.push(("train loss", |cell| with_spread(&cell.train_loss, 4, 1.0)));
        columns.push(("runs", |cell| format!("{}/{}", cell.done.0, cell.done.1)));
        if self.cells.iter().any(|cell| cell.accuracy.is_some()) {
            columns.push(("accuracy, %", |cell| {
                or_dash(cell.accuracy.as_ref().map(|accuracy| with_spread(accuracy, 1, 100.0)))
            }));
        }
        if self.tuning.is_some() {
            columns.push(("tuned to", |cell| cell.tuned.clone().unwrap_or_default()));
        }
        columns.push(("parameters", |cell| cell.parameters.to_string()));
        if self.cells.iter().any(|cell| cell.shape.is_some()) {
            columns.extend(shape_columns());
        }
        columns.push(("steps", |cell| cell.steps.to_string()));
        columns.push(("tokens", |cell| cell.tokens.to_string()));
        columns.push(("FLOPs planned", |cell| format!("{:.3e}", cell.flops)));
        columns.push(("FLOPs spent", |cell| match cell.spent_flops.n {
            0 => DASH.into(),
            _ => format!("{:.3e}", cell.spent_flops.mean),
        }));
        if self.cells.iter().any(|cell| cell.skip_rate.is_some()) {
            columns.push(("skipped, %", |cell| {
                or_dash(cell.skip_rate.as_ref().map(|rate| with_spread(rate, 1, 100.0)))
            }));
        }
        columns.push(("tokens/s", |cell| with_spread(&cell.tokens_per_second, 0, 1.0)));
        columns.push(("peak memory, MB", |cell| with_spread(&cell.peak_rss_mb, 0, 1.0)));
        columns.push(("speed-up, tokens", |cell| compared(cell, |a| speed_up(a.speed_up_tokens))));
        columns.push(("speed-up, time", |cell| compared(cell, |a| speed_up(a.speed_up_seconds))));
        columns
    }

    fn sentences(&self, suite: &Suite) -> Vec<String> {
        let mut sentences = self.answer();
        sentences.extend(chosen(&self.cells, suite));
        sentences.extend(self.tuning.iter().flat_map(Tuning::sentences));
        for run in &self.runs {
            match &run.state {
                RunState::Done => {}
                RunState::Diverged(said) => {
                    sentences.push(format!("{} diverged: {}.", run.name, short(said)));
                }
                RunState::Failed(said) => {
                    sentences.push(format!("{} failed: {}.", run.name, short(said)));
                }
                RunState::Damaged(said) => {
                    sentences.push(format!("{} is damaged: {}.", run.name, short(said)));
                }
                RunState::Stopped => sentences.push(format!("{} is not done yet.", run.name)),
            }
        }
        let mut verdicts =
            self.cells.iter().filter_map(|cell| Some(cell.against.as_ref()?.verdict));
        if self.seeds.len() <= FEW_SEEDS
            && verdicts.any(|verdict| verdict == Verdict::NotDistinguishable)
        {
            sentences.push(format!(
                "\"No difference seen\" is no proof of equality: {} seeds show only differences that are large against those between seeds.",
                self.seeds.len()
            ));
        }
        sentences.extend(self.runs.iter().flat_map(|run| run.damage.iter().cloned()));
        sentences.push(self.earlier.sentence());
        sentences.extend(self.earlier.warnings.iter().cloned());
        sentences
    }

    /// Every cell with all digits, for spreadsheets and scripts.
    pub fn csv(&self) -> String {
        let mut text = String::from(
            "variant,policy,blocks,runs,runs_done,parameters,steps,flops,train_loss,train_loss_sd,\
             validation_loss,validation_loss_sd,accuracy,accuracy_sd,difference,interval95_low,\
             interval95_high,p_t,bootstrap_low,bootstrap_high,p_bootstrap,p_holm,verdict,\
             tokens_per_second,peak_rss_mb,speed_up_tokens,speed_up_seconds,tokens,tokens_spent,\
             flops_spent,skip_rate",
        );
        let shaped = self.cells.iter().any(|cell| cell.shape.is_some());
        text += if shaped { SHAPE_CSV } else { "" };
        text.push('\n');
        for cell in &self.cells {
            text += &csv_row(cell).join(",");
            text += &cell.shape.as_ref().map(shape_csv).unwrap_or_default();
            text.push('\n');
        }
        text
    }
}

fn csv_row(cell: &Cell) -> Vec<String> {
    let number = |value: Option<f64>| {
        value.filter(|value| value.is_finite()).map_or_else(String::new, |value| value.to_string())
    };
    let ends = |ends: Option<(f64, f64)>| [number(ends.map(|e| e.0)), number(ends.map(|e| e.1))];
    let times = |speed_up: SpeedUp| match speed_up {
        SpeedUp::Times(times) => number(Some(times)),
        SpeedUp::NotReached | SpeedUp::NoCurve => String::new(),
    };
    let of = |summary: &Summary| [number(Some(summary.mean)), number(summary.sd)];
    let mut row = vec![
        csv_cell(&cell.variant),
        csv_cell(&cell.policy),
        cell.depth.map_or_else(String::new, |depth| depth.to_string()),
        cell.done.1.to_string(),
        cell.done.0.to_string(),
        cell.parameters.to_string(),
        cell.steps.to_string(),
        number(Some(cell.flops)),
    ];
    row.extend(of(&cell.train_loss));
    row.extend(of(&cell.validation_loss));
    row.extend(cell.accuracy.as_ref().map_or_else(|| [String::new(), String::new()], of));
    match &cell.against {
        Some(against) => {
            let paired = &against.paired;
            row.push(number(Some(paired.mean_difference)));
            row.extend(ends(paired.interval95));
            row.push(number(paired.p_t));
            row.extend(ends(paired.bootstrap_interval95));
            row.push(number(paired.p_bootstrap));
            row.push(number(against.p_holm));
            row.push(against.verdict.to_string());
        }
        None => {
            row.extend(vec![String::new(); 8]);
            row.push("baseline".into());
        }
    }
    row.push(number(Some(cell.tokens_per_second.mean)));
    row.push(number(Some(cell.peak_rss_mb.mean)));
    match &cell.against {
        Some(against) => {
            row.extend([times(against.speed_up_tokens), times(against.speed_up_seconds)]);
        }
        None => row.extend([String::new(), String::new()]),
    }
    row.push(cell.tokens.to_string());
    row.extend([&cell.spent_tokens, &cell.spent_flops].map(|spent| number(Some(spent.mean))));
    row.push(number(cell.skip_rate.as_ref().map(|rate| rate.mean)));
    row
}

const DASH: &str = "–";

pub(super) fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| DASH.into())
}

fn compared(cell: &Cell, text: impl Fn(&Against) -> String) -> String {
    cell.against.as_ref().map_or_else(String::new, text)
}

/// `1.2340 ± 0.0100`, mean and standard deviation.
fn with_spread(summary: &Summary, digits: usize, factor: f64) -> String {
    if summary.n == 0 {
        return DASH.into();
    }
    let mean = format!("{:.digits$}", factor * summary.mean);
    match summary.sd {
        Some(sd) => format!("{mean} ± {:.digits$}", factor * sd),
        None => mean,
    }
}

fn difference(against: &Against) -> String {
    match against.paired.n {
        0 => DASH.into(),
        _ => format!("{:+.4}", against.paired.mean_difference),
    }
}

fn interval((low, high): (f64, f64)) -> String {
    format!("{low:+.4} to {high:+.4}")
}

fn p(value: f64) -> String {
    if value < 1e-4 { "< 0.0001".into() } else { format!("{value:.4}") }
}

fn speed_up(speed_up: SpeedUp) -> String {
    match speed_up {
        SpeedUp::Times(times) => format!("{times:.2}x"),
        SpeedUp::NotReached => "not reached".into(),
        SpeedUp::NoCurve => DASH.into(),
    }
}

/// What went wrong, without what to do about it.
fn short(said: &str) -> &str {
    said.split(';').next().unwrap_or(said).trim_end_matches('.')
}
