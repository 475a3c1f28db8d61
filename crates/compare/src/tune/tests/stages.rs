//! Whole suites whose runs are shell commands that write a loss.

use super::*;
use crate::{Compared, Lanes, Results, RunState, Start, SuiteFolder, Watch, Work, compare};
use hadal_report::figure::Marks;
use hadal_report::suite::SuiteTable;
use hadal_train::RunConfig;
use serde_json::Value;
use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

#[derive(Default)]
struct Heard(Vec<String>);

impl Watch for Heard {
    fn said(&mut self, sentence: &str) {
        self.0.push(sentence.into());
    }
}

/// What a run learns, from its settings; `None` if it diverges.
type Loss<'a> = &'a dyn Fn(&RunConfig) -> Option<f64>;

struct Ended {
    results: Results,
    table: SuiteTable,
    /// Names of the runs that were started.
    started: Vec<String>,
    said: Vec<String>,
}

fn command(start: Start<'_>, loss: Loss<'_>) -> Command {
    let (run, settings) = match start {
        Start::New { settings, run } => (run, settings.to_owned()),
        Start::Resume { run } => (run, run.join("config.toml")),
    };
    let text = fs::read_to_string(&settings).unwrap();
    let config = RunConfig::parse(&text, "settings").unwrap();
    let mut command = Command::new("sh");
    command.env("RUN", run).env("SETTINGS", &settings);
    let script = match loss(&config) {
        None => {
            "mkdir -p $RUN; cp $SETTINGS $RUN/config.toml; echo 'error: step 3: NaN'; exit 3".into()
        }
        Some(loss) => format!(
            "mkdir -p $RUN/model; test -e $RUN/config.toml || cp $SETTINGS $RUN/config.toml; \
             echo '{{\"kind\": \"eval\", \"step\": {}, \"loss\": {loss}}}' > $RUN/metrics.jsonl",
            config.train.steps.unwrap()
        ),
    };
    command.args(["-c", &script]);
    command
}

fn run(suite: &Suite, out: &Path, loss: Loss<'_>) -> Ended {
    let folder = SuiteFolder::open(out, suite).unwrap();
    let started = RefCell::new(Vec::new());
    let make = |start: Start<'_>| {
        let (Start::New { run, .. } | Start::Resume { run }) = start;
        started.borrow_mut().push(run.file_name().unwrap().to_string_lossy().into_owned());
        command(start, loss)
    };
    let mut heard = Heard::default();
    let lanes = Lanes { jobs: 4, threads: 1 };
    let work = Work { lanes, command: &make, waits: true, stop: &AtomicBool::new(false) };
    let Compared::Table(done) = compare(suite, &folder, &work, &mut heard).unwrap() else {
        panic!("there is no table")
    };
    let (results, table) = *done;
    Ended { results, table, started: started.into_inner(), said: heard.0 }
}

/// A valley around the rate that fits the policy, with some luck by seed.
fn valley(config: &RunConfig) -> Option<f64> {
    let best: f64 = if config.residual.to_string().starts_with("mgr") { 0.012 } else { 0.0028 };
    let off = (config.optimizer.adamw.lr / best).ln().abs();
    Some(2.0 + 0.1 * off + 0.001 * (config.seed % 7) as f64)
}

fn chosen(results: &Results) -> Vec<String> {
    let tuning = results.tuning.as_ref().unwrap();
    tuning.variants.iter().map(|tuned| tuned.chosen.as_ref().unwrap().label()).collect()
}

const GRID: &str = "[tune]\nlr_scale = [0.5, 1, 2, 4]\n";

#[test]
fn every_variant_enters_the_table_at_its_own_best_and_the_edge_is_told() {
    let directory = TempDir::new().unwrap();
    let suite = suite("seeds = [0, 1]", &format!("{GRID}{TWO}"));
    let ended = run(&suite, directory.path(), &valley);
    assert_eq!(chosen(&ended.results), ["lr_scale=1", "lr_scale=4"]);
    assert_eq!(ended.started.len(), 2 * 4 * 2 + 2 * 2);
    let config = fs::read_to_string(directory.path().join("runs/wide-s0/config.toml")).unwrap();
    assert!(config.contains("lr = 0.012") && config.contains("lr = 0.08"), "{config}");
    let tuning = ended.results.tuning.as_ref().unwrap();
    let sides: Vec<_> = tuning.variants.iter().map(|t| t.edges.first().map(|e| e.side)).collect();
    assert_eq!(sides, [None, Some(Side::Highest)]);

    let said = ended.table.verdict.join("\n");
    let summary = "own best of 4 points (lr_scale), by mean held-out loss over 2 seeds that the table does not use. Tuning took 16 runs, ";
    assert!(said.contains(summary), "{said}");
    let edge = "wide: lr_scale 4 is the highest of its grid, so a better learning rate may lie beyond; add 8 to lr_scale";
    assert!(said.contains(edge) && ended.table.notes[0].contains(edge), "{said}");
    let column = ended.table.columns.iter().position(|name| name == "tuned to").unwrap();
    assert_eq!(ended.table.rows[1][column], "lr_scale 4 (edge)");
    assert_eq!(ended.table.tables[0].rows[1][..4], ["wide", "4", "0.012", "0.08"]);
    assert!(ended.said.iter().any(|said| said.starts_with("wide is tuned to lr_scale 4 (edge)")));

    let written: Value =
        serde_json::from_str(&fs::read_to_string(directory.path().join(FILE)).unwrap()).unwrap();
    assert_eq!(written["variants"][1]["chosen"]["lr_scale"], 4);
    assert_eq!(written["variants"][1]["grid"]["lr_scale"], serde_json::json!([0.5, 1, 2, 4]));
    assert_eq!(written["variants"][1]["points"].as_array().unwrap().len(), 4);
    assert_eq!(written["variants"][1]["edges"][0]["side"], "highest");
    assert_eq!(serde_json::to_value(&ended.results).unwrap()["tuning"], written);
}

#[test]
fn the_response_curves_show_every_value_with_its_seeds_and_mark_what_was_chosen() {
    let directory = TempDir::new().unwrap();
    let text = format!("{GRID}schedule.final_share = [0, 0.1]\n{TWO}");
    let suite = suite("seeds = [0, 1]", &text);
    let loss = |config: &RunConfig| match config.optimizer.adamw.lr {
        lr if lr < 0.002 => None,
        _ => Some(valley(config)? + config.schedule.final_share),
    };
    let ended = run(&suite, directory.path(), &loss);
    let named = |name: &str| ended.table.figures.iter().find(|figure| figure.name == name);
    let Marks::Lines { series } = &named("tuning-lr-scale").unwrap().marks else { panic!() };
    assert_eq!((series[0].name.as_str(), series[1].name.as_str()), ("prenorm", "wide"));
    assert_eq!(series[0].x, [0.5, 1.0, 2.0, 4.0]);
    // What diverged is a gap, and of the other key the best value counts.
    assert_eq!(series[0].y[0], None);
    let mean = 2.0 + 0.1 * (0.003_f64 / 0.0028).ln() + 0.003;
    assert!((series[0].y[1].unwrap() - mean).abs() < 1e-12, "{:?}", series[0].y);
    assert_eq!((&series[0].marked, &series[1].marked), (&vec![1], &vec![3]));
    let (low, high) = series[0].band.as_ref().unwrap();
    assert!(low[1] < series[0].y[1].unwrap() && series[0].y[1].unwrap() < high[1]);
    assert!(named("tuning-schedule-final-share").is_some());
}

#[test]
fn a_point_that_fails_on_one_seed_is_the_worst_and_is_told_of() {
    let directory = TempDir::new().unwrap();
    let suite = suite("seeds = [0]", &format!("{GRID}{TWO}"));
    // The best rate of prenorm diverges on the second seed alone.
    let loss = |config: &RunConfig| match (config.optimizer.adamw.lr, config.seed) {
        (0.003, 1001) => None,
        (0.012, _) => None,
        _ => valley(config),
    };
    let ended = run(&suite, directory.path(), &loss);
    assert_eq!(chosen(&ended.results), ["lr_scale=0.5", "lr_scale=2"]);
    let said = ended.table.verdict.join("\n");
    // Beyond its own best all diverged, so that the grid was wide enough; the other end was not.
    assert!(said.contains("prenorm: lr_scale 0.5 is the lowest of its grid"), "{said}");
    assert!(!said.contains("wide: lr_scale"), "{said}");
    let told = "6 of 16 tuning runs came to no result, which counts as the worst: prenorm-lr_scale=1-n40-s1001 diverged (step 3: NaN), ";
    assert!(said.contains(told), "{said}");
    let tuning = ended.results.tuning.as_ref().unwrap();
    let lost = tuning.all_runs().filter(|run| matches!(run.state, RunState::Diverged(_))).count();
    assert_eq!(lost, 6);
}

#[test]
fn a_variant_whose_every_point_fails_runs_as_it_is_and_is_told_of() {
    let directory = TempDir::new().unwrap();
    let suite = suite("seeds = [0]", &format!("{GRID}{TWO}"));
    let loss = |config: &RunConfig| match config.seed {
        0 => Some(1.0),
        _ if config.residual.to_string().starts_with("mgr") => None,
        _ => valley(config),
    };
    let ended = run(&suite, directory.path(), &loss);
    let config = fs::read_to_string(directory.path().join("runs/wide-s0/config.toml")).unwrap();
    assert!(config.contains("lr = 0.003"), "{config}");
    let column = ended.table.columns.iter().position(|name| name == "tuned to").unwrap();
    assert_eq!(ended.table.rows[1][column], "not tuned: every point failed");
    assert!(ended.table.verdict.iter().any(|said| said.starts_with("wide: no point of its grid")));
}

#[test]
fn halving_trains_the_better_points_longer_and_chooses_by_the_last_round() {
    let directory = TempDir::new().unwrap();
    let text = format!("{GRID}seeds = [9]\nrounds = 2\nkeep = 0.5\n{TWO}");
    let suite = suite("seeds = [0]", &text);
    // Short runs like it fast: what is second there wins in the end.
    let loss = |config: &RunConfig| {
        let fast = config.train.steps == Some(20) && config.optimizer.adamw.lr == 0.006;
        if fast { Some(0.5) } else { valley(config) }
    };
    let ended = run(&suite, directory.path(), &loss);
    let mut longer: Vec<&String> =
        ended.started.iter().filter(|name| name.contains("-n40-")).collect();
    longer.sort();
    let expected = [
        "prenorm-lr_scale=1-n40-s9",
        "prenorm-lr_scale=2-n40-s9",
        "wide-lr_scale=2-n40-s9",
        "wide-lr_scale=4-n40-s9",
    ];
    assert_eq!(longer, expected);
    assert_eq!(chosen(&ended.results), ["lr_scale=1", "lr_scale=4"]);
    let names: Vec<&str> = ended.table.figures.iter().map(|f| f.name.as_str()).collect();
    assert!(names.contains(&"tuning-lr-scale") && names.contains(&"tuning-lr-scale-round-1"));
}

#[test]
fn a_grid_that_grew_trains_what_is_new_and_moves_the_table_to_the_new_choice() {
    let directory = TempDir::new().unwrap();
    let out = directory.path();
    let seeds = "seeds = [0, 1]";
    let small = suite(seeds, &format!("[tune]\nlr_scale = [1, 2]\n{TWO}"));
    let first = run(&small, out, &valley);
    assert_eq!(chosen(&first.results), ["lr_scale=1", "lr_scale=2"]);
    assert!(run(&small, out, &valley).started.is_empty(), "nothing is trained twice");

    let mut grown =
        run(&suite(seeds, &format!("[tune]\nlr_scale = [4, 2, 1]\n{TWO}")), out, &valley);
    grown.started.sort();
    let expected = [
        "prenorm-lr_scale=4-n40-s1000",
        "prenorm-lr_scale=4-n40-s1001",
        "wide-lr_scale=4-n40-s1000",
        "wide-lr_scale=4-n40-s1001",
        "wide-s0",
        "wide-s1",
    ];
    assert_eq!(grown.started, expected);
    assert_eq!(chosen(&grown.results), ["lr_scale=1", "lr_scale=4"]);
    assert!(
        out.join("replaced/wide-s1/model").is_dir() && !out.join("replaced/prenorm-s0").exists()
    );
    assert!(grown.said.iter().any(|said| said.starts_with(
        "wide-s0 was made with other tuned settings (optimizer.adamw.lr, optimizer.muon.lr)"
    )));
}

/// Settings that no grid may touch are still refused.
#[test]
fn a_run_of_another_suite_is_refused_and_not_moved_away() {
    let directory = TempDir::new().unwrap();
    let seeds = "seeds = [0]";
    run(&suite(seeds, &format!("{GRID}{TWO}")), directory.path(), &valley);
    // Tuning is refused first; without its runs those of the table are in the way.
    for in_tuning in [true, false] {
        let other = suite(seeds, &format!("{GRID}{TWO}")).with_setting("eval.batches=3").unwrap();
        let folder = SuiteFolder::open(directory.path(), &other).unwrap();
        let make = |start: Start<'_>| command(start, &valley);
        let lanes = Lanes { jobs: 1, threads: 1 };
        let stop = AtomicBool::new(false);
        let work = Work { lanes, command: &make, waits: true, stop: &stop };
        let error = compare(&other, &folder, &work, &mut Heard::default());
        let said = error.map(|_| ()).unwrap_err().to_string();
        assert!(said.contains("eval.batches is 8, not 3"), "{said}");
        assert_eq!(said.contains("/tune/"), in_tuning, "{said}");
        fs::remove_dir_all(directory.path().join("tune")).unwrap();
    }
    assert!(!directory.path().join("replaced").exists());
}

/// It is written for people and scripts, and never read.
#[test]
fn a_hostile_record_of_the_choice_changes_nothing() {
    let directory = TempDir::new().unwrap();
    let suite = suite("seeds = [0]", &format!("{GRID}{TWO}"));
    let first = run(&suite, directory.path(), &valley);
    for hostile in [
        "{",
        "\u{0}\u{1}",
        "{\"variants\": [{\"variant\": \"prenorm\", \"chosen\": {\"lr_scale\": 1e308}}]}",
        "[[[[[[[[[[",
    ] {
        fs::write(directory.path().join(FILE), hostile).unwrap();
        let again = run(&suite, directory.path(), &valley);
        assert!(again.started.is_empty());
        assert_eq!(chosen(&again.results), chosen(&first.results));
        assert_eq!(again.table.rows, first.table.rows);
    }
}

/// A digit that changed, or a line that is gone.
#[test]
fn a_damaged_tuning_run_counts_as_the_worst_and_is_named() {
    let directory = TempDir::new().unwrap();
    let suite = suite("seeds = [0]", &format!("{GRID}{TWO}"));
    run(&suite, directory.path(), &valley);
    let run_folder = directory.path().join("tune/prenorm-lr_scale=1-n40-s1000");
    fs::write(run_folder.join("metrics.jsonl"), "{\"kind\": \"eval\", \"st").unwrap();
    let again = run(&suite, directory.path(), &valley);
    assert_ne!(chosen(&again.results)[0], "lr_scale=1");
    let said = again.table.verdict.join("\n");
    assert!(said.contains("prenorm-lr_scale=1-n40-s1000 is damaged"), "{said}");
}

#[test]
fn a_stop_in_the_middle_leaves_no_choice_and_the_next_call_comes_to_the_same_one() {
    struct StopAt<'a>(&'a AtomicBool, usize);
    impl Watch for StopAt<'_> {
        fn ended(&mut self, _: &crate::Task, _: &crate::End) {
            self.1 = self.1.saturating_sub(1);
            if self.1 == 0 {
                self.0.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        }
    }
    let (whole, parts) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let suite = suite("seeds = [0]", &format!("{GRID}rounds = 2\n{TWO}"));
    let expected = run(&suite, whole.path(), &valley);
    for after in [1, 5, 4] {
        let folder = SuiteFolder::open(parts.path(), &suite).unwrap();
        let stop = AtomicBool::new(false);
        let make = |start: Start<'_>| command(start, &valley);
        let lanes = Lanes { jobs: 1, threads: 1 };
        let mut watch = StopAt(&stop, after);
        let work = Work { lanes, command: &make, waits: true, stop: &stop };
        let ended = compare(&suite, &folder, &work, &mut watch).unwrap();
        assert!(matches!(ended, Compared::Stopped) && !parts.path().join(FILE).exists());
    }
    let ended = run(&suite, parts.path(), &valley);
    assert_eq!(chosen(&ended.results), chosen(&expected.results));
    assert_eq!(ended.table.figures, expected.table.figures);
}

/// The share of all work never falls, and it ends with everything.
#[test]
fn progress_is_that_of_tuning_and_the_table_together() {
    #[derive(Default)]
    struct Shares(Vec<(f64, usize, usize)>);
    impl Watch for Shares {
        fn progress(&mut self, progress: &crate::Progress) {
            self.0.push((progress.share, progress.ended, progress.runs));
        }
    }
    let directory = TempDir::new().unwrap();
    let suite = suite("seeds = [0, 1]", &format!("{GRID}rounds = 2\n{TWO}"));
    let folder = SuiteFolder::open(directory.path(), &suite).unwrap();
    let make = |start: Start<'_>| command(start, &valley);
    let mut shares = Shares::default();
    let lanes = Lanes { jobs: 1, threads: 1 };
    let work = Work { lanes, command: &make, waits: true, stop: &AtomicBool::new(false) };
    compare(&suite, &folder, &work, &mut shares).unwrap();
    let shares = shares.0;
    assert!(shares.windows(2).all(|two| two[0].0 <= two[1].0 + 1e-9 && two[0].1 <= two[1].1));
    let all = 2 * 2 * (4 + 2) + 4;
    assert!(shares.iter().all(|(.., runs)| *runs == all));
    let last = shares.last().unwrap();
    assert!((last.0 - 1.0).abs() < 1e-9 && last.1 == all, "{last:?}");
    assert!(shares.iter().any(|(share, ..)| *share > 0.1 && *share < 0.8));
}
