mod answers;

use super::*;
use crate::figure::plotly;
use crate::figure::{Axis, Figure, Line, Marks};
use crate::palette;
use crate::suite::{SideTable, SuiteTable};
use std::fs;
use std::path::Path;

/// A run folder as `hadal train` leaves it.
fn run(parent: &Path, name: &str, kind: &str, seed: u32, loss: f64) -> PathBuf {
    let path = parent.join(name);
    fs::create_dir_all(path.join("model")).unwrap();
    let config = format!("seed = {seed}\n[residual]\nkind = \"{kind}\"\n[train]\nsteps = 3\n");
    fs::write(path.join("config.toml"), config).unwrap();
    fs::write(path.join("run.json"), "{\"os\": \"</script>\"}").unwrap();
    let mut metrics = String::new();
    for step in 1..=3 {
        let tokens = step * 100;
        metrics += &format!(
            "{{\"kind\":\"train\",\"step\":{step},\"loss\":{loss},\"gradient_norm\":1.0,\"rate\":1.0,\
             \"tokens\":{tokens},\"tokens_per_second\":50.0}}\n"
        );
    }
    metrics += &format!("{{\"kind\":\"eval\",\"step\":3,\"loss\":{loss}}}\n");
    fs::write(path.join("metrics.jsonl"), metrics).unwrap();
    fs::write(
        path.join("samples.jsonl"),
        "{\"step\":3,\"text\":\"<img src=x onerror=alert(1)>\"}\n",
    )
    .unwrap();
    path
}

fn report(inputs: &[PathBuf]) -> (String, Written) {
    let out = tempfile::tempdir().unwrap();
    let request = Request {
        inputs: inputs.to_vec(),
        output: out.path().join("r.html"),
        ..Request::default()
    };
    let written = write(&request, |_| {}).unwrap();
    (fs::read_to_string(&written.report).unwrap(), written)
}

/// The page without plotly's script.
fn ours(html: &str) -> String {
    html.replace(plotly::script(), "")
}

#[test]
fn a_run_with_a_hostile_name_and_text_is_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(folder.path(), "<script>alert(1)<", "prenorm", 0, 1.0);
    let html = ours(&report(&[path]).0);
    assert!(!html.contains("<script>alert") && !html.contains("<img"), "escaped");
    assert!(html.contains("&lt;script&gt;alert(1)"));
    // Plotly's, ours, and one for each chart: held-out loss, loss, gradient, speed.
    assert_eq!(html.matches("<script").count(), 2 + 4);
    assert_eq!(html.matches("</script>").count(), 2 + 4);
}

#[test]
fn a_report_needs_no_network() {
    let folder = tempfile::tempdir().unwrap();
    let html = ours(&report(&[run(folder.path(), "a", "prenorm", 0, 1.0)]).0);
    for outside in ["http://", "https://", "src=\"", "<link", "@import", "url("] {
        assert!(!html.contains(outside), "{outside}");
    }
    assert!(html.contains("name=\"viewport\"") && html.contains("@media print"));
}

#[test]
fn a_difference_that_every_seed_has_is_the_headline() {
    let folder = tempfile::tempdir().unwrap();
    let noise = [0.000, 0.020, -0.010, 0.005];
    let runs: Vec<PathBuf> = (0..4)
        .flat_map(|seed| {
            let shared = noise[seed as usize];
            let own = 0.001 * f64::from(seed % 2);
            [
                run(folder.path(), &format!("prenorm-seed{seed}"), "prenorm", seed, 1.0 + shared),
                run(folder.path(), &format!("mgr-seed{seed}"), "mgr", seed, 0.99 + shared + own),
            ]
        })
        .collect();
    let (html, written) = report(&runs);
    assert_eq!(written.runs, 8);
    assert!(
        written.headline.starts_with("mgr is better than prenorm: 0.0095 nats less held-out loss"),
        "{}",
        written.headline
    );
    assert!(html.contains("over 4 seeds"));
    assert!(html.contains("8 runs of 2 kinds"));
}

#[test]
fn a_name_ends_before_the_seed_whatever_the_seeds_share() {
    let folder = tempfile::TempDir::new().unwrap();
    let of = |kind: &str, seed: u32| {
        let name = format!("{kind}-s{seed}");
        crate::run::Run::read(&run(folder.path(), &name, kind, seed, 1.0)).unwrap()
    };
    let groups =
        super::group::groups(vec![of("nag", 100), of("hc", 100), of("nag", 101), of("hc", 101)]);
    let labels: Vec<&str> = groups.iter().map(|group| group.label.as_str()).collect();
    assert_eq!(labels, ["nag", "hc"]);
}

#[test]
fn one_seed_is_no_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let runs = [run(folder.path(), "a", "prenorm", 0, 1.0), run(folder.path(), "b", "mgr", 0, 0.5)];
    let (html, written) = report(&runs);
    assert!(written.headline.contains("one seed cannot tell"), "{}", written.headline);
    assert!(html.contains("one seed: no interval"));
    assert!(
        html.contains("<td class=\"differs\" data-label=\"b\">mgr</td>"),
        "settings that differ stand out"
    );
    let level = [run(folder.path(), "c", "mgr", 0, 1.0), runs[0].clone()];
    assert!(report(&level).1.headline.starts_with("a ends lowest"), "nobody has beaten it");
}

#[test]
fn a_run_that_is_not_done_enters_no_comparison() {
    let folder = tempfile::tempdir().unwrap();
    let mut runs = Vec::new();
    for seed in 0..3 {
        let own = 0.01 * f64::from(seed);
        runs.push(run(folder.path(), &format!("prenorm-s{seed}"), "prenorm", seed, 1.0 + own));
        runs.push(run(folder.path(), &format!("mgr-s{seed}"), "mgr", seed, 0.9 + own * own));
    }
    fs::remove_dir(runs[5].join("model")).unwrap();
    let html = report(&runs).0;
    assert!(html.contains("over 2 seeds") && html.contains("1 stopped early"));
    fs::remove_dir(runs[1].join("model")).unwrap();
    fs::remove_dir(runs[3].join("model")).unwrap();
    assert!(report(&runs).0.contains("mgr has no finished run with a seed of prenorm"));
}

#[test]
fn runs_that_differ_in_more_than_their_stream_come_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let runs = [run(folder.path(), "a", "prenorm", 0, 1.0), run(folder.path(), "b", "mgr", 0, 0.5)];
    assert!(!report(&runs).0.contains("Take care"));
    let config = runs[1].join("config.toml");
    let text = fs::read_to_string(&config).unwrap().replace("steps = 3", "steps = 4");
    fs::write(&config, text).unwrap();
    assert!(report(&runs).0.contains("more than their residual stream (train.steps)"));
}

#[test]
fn a_suite_brings_its_table() {
    let folder = tempfile::tempdir().unwrap();
    run(&folder.path().join("runs"), "prenorm-0", "prenorm", 0, 1.0);
    let table = SuiteTable {
        baseline: "prenorm".into(),
        metric: "validation loss".into(),
        verdict: vec!["mgr wins <b>".into(), "By a bit.".into()],
        columns: vec!["policy".into(), "verdict".into()],
        rows: vec![vec!["mgr".into(), "better".into()]],
        ..SuiteTable::default()
    };
    fs::write(folder.path().join(SuiteTable::FILE), serde_json::to_string(&table).unwrap())
        .unwrap();
    let (html, written) = report(&[folder.path().to_owned()]);
    assert_eq!(written.headline, "prenorm-0: held-out loss of 1.0000 nats");
    assert!(html.contains("<li>mgr wins &lt;b&gt;</li><li>By a bit.</li>"));
    assert!(html.contains("All 2 columns") && html.contains("data-label=\"mgr\">better</td>"));
}

/// A suite's side table, its figures and what readers must know have their places, and nothing leaves them.
#[test]
fn a_side_table_stands_with_its_figures_in_a_section_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    run(&folder.path().join("runs"), "prenorm-0", "prenorm", 0, 1.0);
    let line = Line {
        name: "prenorm".into(),
        x: vec![1.0, 2.0],
        y: vec![Some(1.0), Some(0.5)],
        marked: vec![1],
        ..Line::default()
    };
    let figure = |name: &str| Figure {
        name: name.into(),
        title: name.into(),
        caption: String::new(),
        x: Axis::new("rate"),
        y: Axis::new("loss"),
        marks: Marks::Lines { series: vec![line.clone()] },
    };
    let side = SideTable {
        name: "tuning".into(),
        title: "What <b> was".into(),
        caption: "Over <i>.".into(),
        columns: vec!["policy".into(), "edge".into()],
        rows: vec![vec!["prenorm".into(), "<u> is the highest".into()]],
    };
    let table = SuiteTable {
        baseline: "prenorm".into(),
        verdict: vec!["First.".into(), "Widen <s>.".into()],
        figures: vec![figure("loss-by-depth"), figure("tuning-lr-scale")],
        tables: vec![side],
        notes: vec!["Widen <s>.".into()],
        ..SuiteTable::default()
    };
    fs::write(folder.path().join(SuiteTable::FILE), serde_json::to_string(&table).unwrap())
        .unwrap();
    let (html, _) = report(&[folder.path().to_owned()]);
    let at = |text: &str| html.find(text).unwrap_or_else(|| panic!("no {text}"));
    let places = [
        "<li>Widen &lt;s&gt;.</li>",
        "id=\"suite\"",
        "id=\"loss-by-depth\"",
        "<section id=\"tuning\"",
        "id=\"tuning-lr-scale\"",
        "<h3>What &lt;b&gt; was</h3>",
        "class=\"bad\" data-label=\"edge\">&lt;u&gt; is the highest</td>",
    ];
    assert!(places.map(at).is_sorted(), "{:?}", places.map(at));
    assert!(html.contains("\"marked\":[1]"));
    // It is told once.
    assert_eq!(html.matches("Widen").count(), 1);
}

#[test]
fn runs_of_a_suite_are_called_as_in_its_table_and_stand_in_its_order() {
    let folder = tempfile::tempdir().unwrap();
    let runs = folder.path().join("runs");
    for (kind, seed) in [("mgr", 0), ("mgr", 1), ("prenorm", 0), ("prenorm", 1), ("lns", 0)] {
        run(&runs, &format!("{kind}-s{seed}"), kind, seed, 1.0);
    }
    let rows = ["prenorm", "mgr", "lns"].map(|policy| vec![policy.to_owned()]).to_vec();
    let table = SuiteTable { rows, columns: vec!["policy".into()], ..SuiteTable::default() };
    fs::write(folder.path().join(SuiteTable::FILE), serde_json::to_string(&table).unwrap())
        .unwrap();
    let report = Report::read(&[folder.path().to_owned()]).unwrap();
    let labels: Vec<&str> = report.parts[0].groups.iter().map(|g| g.label.as_str()).collect();
    assert_eq!(labels, ["prenorm", "mgr", "lns"]);
}

/// What `run.json` says of a run.
fn made(run: &Path, data: &str, executable: &str) {
    let made = crate::provenance::Provenance {
        version: Some("0.1.0".into()),
        executable: Some(executable.into()),
        data: Some(data.into()),
        ..Default::default()
    };
    fs::write(run.join("run.json"), serde_json::to_string(&made).unwrap()).unwrap();
}

#[test]
fn runs_of_other_builds_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let runs = [run(folder.path(), "a", "prenorm", 0, 1.0), run(folder.path(), "b", "mgr", 0, 0.5)];
    assert!(report(&runs).0.contains("a, b do not say which data they were trained on."));
    made(&runs[0], "one", "e");
    assert!(report(&runs).0.contains("b does not say which data it was trained on."));
    made(&runs[1], "one", "f");
    let (html, written) = report(&runs);
    assert!(html.contains("made by different builds"));
    assert!(written.notes[0].contains("b (by hadal 0.1.0, commit unknown, executable f)"));
}

/// What is damaged is named, and nothing else is lost.
#[test]
fn a_damaged_run_is_named_and_stops_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let mut runs = Vec::new();
    for seed in 0..3 {
        let own = 0.01 * f64::from(seed);
        runs.push(run(folder.path(), &format!("prenorm-s{seed}"), "prenorm", seed, 1.0 + own));
        runs.push(run(folder.path(), &format!("mgr-s{seed}"), "mgr", seed, 0.9 + own * own));
    }
    assert!(report(&runs).0.contains("over 3 seeds"));
    let metrics = runs[5].join("metrics.jsonl");
    let mut bytes = fs::read(&metrics).unwrap();
    bytes[0] ^= 1;
    fs::write(&metrics, bytes).unwrap();
    let (html, written) = report(&runs);
    assert!(html.contains("over 2 seeds"));
    let said = [
        "metrics.jsonl of mgr-s2: 1 line cannot be read and is left out.",
        "mgr-s2 is left out of comparisons; make it again.",
    ];
    assert_eq!(written.notes[1..], said, "the first is that they do not say their data");
    fs::write(runs[5].join("config.toml"), "[").unwrap();
    let (html, written) = report(&runs);
    assert!(html.contains("over 2 seeds"));
    assert_eq!(written.runs, 5);
    assert!(written.notes[1].contains("mgr-s2 is left out: "), "{:?}", written.notes);
    assert!(html.contains("mgr-s2 is left out: "));
    let request = Request { inputs: vec![runs[5].clone()], ..Request::default() };
    assert!(write(&request, |_| {}).unwrap_err().to_string().contains("config.toml is damaged"));
}

#[test]
fn a_damaged_table_does_not_stop_a_report_of_its_runs() {
    let folder = tempfile::tempdir().unwrap();
    run(&folder.path().join("runs"), "prenorm-0", "prenorm", 0, 1.0);
    fs::write(folder.path().join(SuiteTable::FILE), "{").unwrap();
    let written = report(&[folder.path().to_owned()]).1;
    assert!(written.notes[0].contains("hadal compare writes it again"), "{:?}", written.notes);
}

#[test]
fn figures_are_written_as_files_and_the_empty_ones_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(folder.path(), "a", "prenorm", 0, 1.0);
    let out = |name: &str| Some(folder.path().join(name));
    let request = Request {
        inputs: vec![path],
        output: folder.path().join("r.html"),
        csv: out("csv"),
        svg: out("svg"),
        png: None,
    };
    let written = write(&request, |_| {}).unwrap();
    // Four charts by steps, tokens and seconds; nothing has an accuracy.
    assert_eq!(written.files.len(), 4 * 3 * 2);
    let csv = fs::read_to_string(folder.path().join("csv/train-loss-by-seconds.csv")).unwrap();
    assert_eq!(csv.lines().nth(3), Some("a,6,1,,"), "{csv}");
    assert!(!folder.path().join("csv/accuracy-by-steps.csv").exists());
    let left: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with('.')), "{left:?}");
}

#[test]
fn a_folder_without_runs_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = vec![folder.path().to_owned()];
    let request = Request { inputs, output: folder.path().join("r.html"), ..Request::default() };
    let error = write(&request, |_| {}).unwrap_err().to_string();
    assert!(error.contains("holds no run") && error.contains("hadal train"), "{error}");
    assert!(!folder.path().join("r.html").exists());
}

/// A run's name does not matter, and neither does what stands beside it.
#[test]
fn a_policy_has_its_colour_in_tables_and_charts() {
    let folder = tempfile::tempdir().unwrap();
    let runs = [run(folder.path(), "b", "prenorm", 0, 1.0), run(folder.path(), "a", "mgr", 0, 0.5)];
    let colour = palette::looks(["mgr"])[0].colour;
    for inputs in [&runs[..], &runs[1..]] {
        let html = ours(&report(inputs).0);
        let swatch = format!("<i class=\"swatch k{colour} v0\"></i>a");
        assert!(html.contains(&swatch));
        let meta = format!("\"meta\":{{\"colour\":{colour},\"variant\":0}}");
        assert!(html.contains(&meta));
        assert!(html.contains(&format!("--series-{colour}:#")));
    }
}
