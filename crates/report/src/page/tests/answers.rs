//! What a report says first, and of which runs it says it together.

use super::*;
use crate::figure::{Axis, Line, Marks};

/// Three seeds of two policies; `learns` is the second one's advantage.
fn pairs(folder: &Path, learns: f64) -> Vec<PathBuf> {
    (0..3)
        .flat_map(|seed| {
            let own = 0.01 * f64::from(seed);
            let (base, other) = (1.0 + own, 1.0 - learns + own * own);
            [
                run(folder, &format!("prenorm-s{seed}"), "prenorm", seed, base),
                run(folder, &format!("mgr-s{seed}"), "mgr", seed, other),
            ]
        })
        .collect()
}

/// Appends to the settings of a run.
fn with(run: &Path, settings: &str) {
    let config = run.join("config.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text + settings).unwrap();
}

#[test]
fn no_verdict_is_given_across_data_tasks_lengths_or_evaluations() {
    let task = |task: &str| {
        format!("[data.generated]\ntask = \"{task}\"\nk = 3\nalphabet = 4\nlength = 64\n")
    };
    let cases = [
        (task("khop"), "[data]\ntrain = \"/home/me/book\"\n".into(), "different tasks"),
        (task("khop"), task("khop").replace("k = 3", "k = 4"), "different settings of the task"),
        ("[data]\ntrain = \"a\"\n".into(), "[data]\ntrain = \"b\"\n".into(), "different data"),
        (
            "[model]\nvocab_size = 256\n".into(),
            "[model]\nvocab_size = 512\n".into(),
            "different vocabularies",
        ),
        (
            "[eval]\nbatches = 4\n".into(),
            "[eval]\nbatches = 8\n".into(),
            "different amounts of held-out data",
        ),
    ];
    for (first, second, why) in cases {
        let folder = tempfile::tempdir().unwrap();
        let runs = pairs(folder.path(), 0.1);
        for run in &runs {
            let config = run.join("config.toml");
            let text =
                fs::read_to_string(&config).unwrap().replace("steps = 3", "steps = 3\nbatch = 2");
            fs::write(&config, text).unwrap();
        }
        assert!(report(&runs).1.headline.starts_with("mgr is better"));
        for (i, run) in runs.iter().enumerate() {
            with(run, if i % 2 == 0 { &first } else { &second });
        }
        let (html, written) = report(&runs);
        assert!(written.headline.starts_with("Two answers"), "{why}: {}", written.headline);
        assert!(html.contains(why), "{why}");
        assert!(written.answers.iter().all(|answer| !answer.contains("better")), "{written:?}");
        assert_eq!(written.runs, 6);
    }
}

#[test]
fn data_that_runs_name_by_hash_decides_and_not_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let runs = pairs(folder.path(), 0.1);
    for (i, run) in runs.iter().enumerate() {
        with(run, &format!("[data]\ntrain = \"place-{}\"\n", i % 2));
        made(run, "one", "e");
    }
    assert!(report(&runs).1.headline.starts_with("mgr is better"));
    for run in runs.iter().skip(1).step_by(2) {
        made(run, "two", "e");
    }
    let (html, written) = report(&runs);
    assert!(written.headline.starts_with("Two answers"), "{}", written.headline);
    assert!(html.contains("It stands apart from prenorm: different data."));
}

#[test]
fn a_run_that_is_running_takes_no_part_and_it_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let runs = [run(folder.path(), "a", "prenorm", 0, 1.0), run(folder.path(), "b", "mgr", 0, 0.5)];
    fs::remove_dir(runs[1].join("model")).unwrap();
    let lock = fs::File::create(runs[1].join("lock")).unwrap();
    lock.lock().unwrap();
    let (html, written) = report(&runs);
    assert_eq!(written.headline, "No comparison yet: 1 of 2 runs are done");
    assert!(
        written.notes.contains(&"b is still running, so not compared yet.".to_owned()),
        "{written:?}"
    );
    assert!(html.contains("not compared (running)"));
    assert!(!html.contains("told apart"));
    let alone = report(&runs[1..]).1.headline;
    assert!(alone.contains("at step 3; it is still running"), "{alone}");
}

#[test]
fn a_damaged_run_alone_is_said_to_be_damaged_and_still_measured() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(folder.path(), "a", "prenorm", 0, 1.0);
    let metrics = path.join("metrics.jsonl");
    let text = fs::read_to_string(&metrics).unwrap();
    fs::write(&metrics, format!("?\n{text}")).unwrap();
    let headline = report(&[path]).1.headline;
    assert_eq!(headline, "a: held-out loss of 1.0000 nats, as far as its files can be read");
}

#[test]
fn suites_and_runs_below_a_folder_are_found_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    pairs(&folder.path().join("group/suite/runs"), 0.1);
    fs::write(folder.path().join("group/suite/suite.json"), "{}").unwrap();
    run(folder.path(), "alone", "lns", 0, 1.0);
    fs::create_dir(folder.path().join("broken")).unwrap();
    fs::write(folder.path().join("broken/metrics.jsonl"), "").unwrap();
    let (html, written) = report(&[folder.path().to_owned()]);
    assert_eq!((written.runs, written.taken.as_str()), (7, "6 runs of the suite suite, 1 beside"));
    assert!(written.notes.iter().any(|note| note.contains("broken is left out")), "{written:?}");
    assert!(html.contains("a suite is compared within itself"));
    assert!(written.answers[0].starts_with("mgr is better than prenorm"), "{:?}", written.answers);
}

#[test]
fn the_picture_of_differences_stands_first_with_the_best_first_and_marked() {
    let folder = tempfile::tempdir().unwrap();
    let mut runs = pairs(folder.path(), 0.1);
    for seed in 0..3 {
        let loss = 1.0 + 0.02 * f64::from(seed * seed) - 0.01;
        runs.push(run(folder.path(), &format!("lns-s{seed}"), "lns", seed, loss));
    }
    let html = ours(&report(&runs).0);
    let place = |part: &str| html.find(part).unwrap_or_else(|| panic!("{part}"));
    let order = [
        "<h1>mgr is better",
        "class=\"forest\"",
        ">prenorm</text>",
        "class=\"row best\"",
        "class=\"lead found\"",
        "<table>",
        "id=\"training\"",
    ];
    let places: Vec<usize> = order.iter().map(|part| place(part)).collect();
    assert!(places.is_sorted(), "{places:?}");
    assert_eq!(html.matches("class=\"row best\"").count(), 1);
    assert!(html.contains("mgr <b class=\"badge\">best</b></td>"), "more than a colour");
    assert!(html.contains("lns: no difference seen"));
    // Six columns, and the rest folded.
    let table = &html[place("<table>")..];
    assert_eq!(table[..table.find("</tr>").unwrap()].matches("<th").count(), 1 + 6);
    assert!(html.contains("<details><summary>All "));
}

#[test]
fn the_line_says_task_chance_model_budget_and_seeds() {
    let folder = tempfile::tempdir().unwrap();
    let runs = pairs(folder.path(), 0.1);
    for run in &runs {
        with(
            run,
            "[model]\nd_model = 48\nn_layers = 6\n[data.generated]\ntask = \"khop\"\nk = 3\nalphabet = 4\nlength = 64\n",
        );
    }
    let html = report(&runs).0;
    let line = "Three-hop lookup in sequences of 64 over 4 symbols (blind guesses are 25 % right) · 6 blocks, width 48 · 3 steps, 300 tokens · 3 seeds";
    assert!(html.contains(line));
    assert!(report(&runs).1.headline.contains("on three-hop lookup"));
    let book = Task::of(&serde_json::json!({ "text": "yankee" }));
    assert_eq!(
        (book.name.as_str(), book.about.as_str()),
        ("the book yankee", "bytes of the built-in book yankee")
    );
    assert_eq!(Task::of(&serde_json::json!({ "train": "/a/book/" })).name, "the text book");
}

#[test]
fn a_suite_that_goes_through_depths_is_compared_within_each() {
    let folder = tempfile::tempdir().unwrap();
    let runs = folder.path().join("runs");
    for (blocks, gain) in [(2, 0.0), (10, 0.1)] {
        for seed in 0..3 {
            let own = 0.01 * f64::from(seed);
            // Deeper is worse here, so a baseline of another depth would turn the verdict.
            let base = 1.0 + 0.5 * f64::from(blocks) + own;
            for (kind, loss) in [("prenorm", base), ("nag", base - gain + own * own)] {
                let name = format!("{kind}-d{blocks}-s{seed}");
                let path = run(&runs, &name, kind, seed, loss);
                with(&path, &format!("[model]\nn_layers = {blocks}\n"));
            }
        }
    }
    let line = |name: &str| Line {
        name: name.into(),
        x: vec![1.0],
        y: vec![Some(1.0)],
        ..Line::default()
    };
    let figure = Figure {
        name: "validation-loss-d2".into(),
        title: "At 2 blocks".into(),
        caption: String::new(),
        x: Axis::new("tokens"),
        y: Axis::new("loss"),
        marks: Marks::Lines { series: vec![line("prenorm"), line("nag")] },
    };
    let row = |policy: &str, blocks: &str| vec![policy.to_owned(), blocks.to_owned()];
    let table = SuiteTable {
        baseline: "prenorm".into(),
        columns: vec!["policy".into(), "blocks".into()],
        rows: vec![row("prenorm", "2"), row("nag", "2"), row("prenorm", "10"), row("nag", "10")],
        figures: vec![figure],
        ..SuiteTable::default()
    };
    fs::write(folder.path().join(SuiteTable::FILE), serde_json::to_string(&table).unwrap())
        .unwrap();
    let (html, written) = report(&[folder.path().to_owned()]);
    let html = ours(&html);
    assert!(
        written.headline.starts_with("nag at 10 blocks is better than prenorm: 0.0998 nats less"),
        "{}",
        written.headline
    );
    assert!(written.headline.ends_with("nag at 2 blocks: no difference seen"));
    assert!(!html.contains("nag-d10<") && !html.contains("prenorm-d2<"));
    let parts = ["<h3>2 blocks</h3>", "<h3>10 blocks</h3>", "</i>nag <b class=\"badge\">best"];
    let places: Vec<usize> = parts.iter().map(|part| html.find(part).unwrap()).collect();
    assert!(places.is_sorted(), "{places:?}");
    // One colour in the picture, the table, and the suite's own charts.
    let colour = palette::looks(["nag"])[0].colour;
    assert!(html.contains(&format!("<i class=\"swatch k{colour} v0\"></i>nag at 10 blocks")));
    let chart = &html[html.find("id=\"validation-loss-d2\"").unwrap()..];
    let meta = format!("\"meta\":{{\"colour\":{colour},\"variant\":0}}");
    assert!(chart[..chart.find("</figure>").unwrap()].contains(&meta));
    // Curves of training: a choice of depths, the deepest first.
    let chart = &html[html.find("id=\"train-loss-by-steps-d10\"").unwrap()..];
    let labels = ["\"label\":\"10 blocks\"", "\"label\":\"2 blocks\""];
    assert!(labels.map(|label| chart.find(label).unwrap()).is_sorted());
}

/// The level of a suite's looks is not that of a single test.
#[test]
fn a_suite_is_judged_at_the_looks_that_it_planned() {
    let folder = tempfile::tempdir().unwrap();
    let differences = [0.10, 0.02, 0.09, 0.06];
    for (seed, own) in (0..).zip(differences) {
        let runs = folder.path().join("runs");
        run(&runs, &format!("prenorm-s{seed}"), "prenorm", seed, 1.0 + 0.1 * f64::from(seed));
        run(&runs, &format!("mgr-s{seed}"), "mgr", seed, 1.0 + 0.1 * f64::from(seed) + own);
    }
    let told = |looks: serde_json::Value| {
        let table = SuiteTable { baseline: "prenorm".into(), ..SuiteTable::default() };
        let mut table = serde_json::to_value(&table).unwrap();
        table["looks"] = looks;
        fs::write(folder.path().join(SuiteTable::FILE), table.to_string()).unwrap();
        report(&[folder.path().to_owned()])
    };
    let at_once = "Nothing here is better than prenorm; mgr is worse";
    let (html, written) = told(serde_json::Value::Null);
    assert_eq!(written.headline, at_once);
    assert!(html.contains("With 4 seeds a difference of 0.") && !html.contains("looks was"));
    let looks = |looks: &[usize]| {
        let rule =
            serde_json::json!({"first": 0, "looks": looks, "alpha": 0.05, "spending": "pocock"});
        serde_json::json!({"rule": rule, "taken": 1})
    };
    let (html, written) = told(looks(&[4, 8, 12]));
    assert_eq!(written.headline, "No difference seen between mgr and prenorm");
    assert!(html.contains("One of 3 looks was taken, at a level of 0.0"));
    assert!(html.contains(">undecided<"));
    // Whoever wrote a table cannot make a page compute for ever.
    for hostile in [&[4, usize::MAX][..], &[], &[0, 5], &[9, 9]] {
        assert_eq!(told(looks(hostile)).1.headline, at_once, "{hostile:?}");
    }
}
