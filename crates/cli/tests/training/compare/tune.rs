//! `[tune]` in suites whose runs take a second.

use super::*;

pub(crate) const GRID: &str = "
[tune]
seeds = [8]
lr_scale = [0.25, 1, 4]
";

pub(crate) fn tuned(directory: &Path, grid: &str) -> PathBuf {
    written(directory, "seeds = [0, 1]", &format!("{grid}{THREE}"))
}

/// What was found, without times and what was there before.
pub(crate) fn found(out: &Path) -> Value {
    fn timeless(value: &mut Value) {
        match value {
            Value::Object(map) => {
                ["seconds", "tokens_per_second", "peak_rss_mb", "earlier"].iter().for_each(|key| {
                    map.remove(*key);
                });
                map.values_mut().for_each(timeless);
            }
            Value::Array(values) => values.iter_mut().for_each(timeless),
            _ => {}
        }
    }
    let mut tuning = json(&out.join("results.json"))["tuning"].take();
    timeless(&mut tuning);
    tuning
}

#[test]
fn every_variant_is_tuned_first_and_the_page_and_the_table_say_to_what() {
    let directory = temporary();
    let suite = tuned(directory.path(), GRID);
    let out = directory.path().join("out");
    let first = finish(&mut compare(&suite, &out)).succeeded();
    for words in ["tuned to", "own best of 3 points (lr_scale)", "Tuning took 9 runs, "] {
        assert!(first.stdout.contains(words), "no {words:?} in {}", first.stdout);
    }
    for words in ["tuning: 9 runs of 30 steps; 0 of 9 runs were done before", "mgr is tuned to lr_"]
    {
        assert!(first.stderr.contains(words), "no {words:?} in {}", first.stderr);
    }
    let tuning = found(&out);
    assert_eq!((&tuning["seeds"], &tuning["runs"]), (&serde_json::json!([8]), &9.into()));
    assert!(tuning["spent"]["flops"].as_f64().unwrap() > 0.0);
    // Twins have the same best, and everybody runs with it.
    assert_eq!(tuning["variants"][0]["chosen"], tuning["variants"][1]["chosen"]);
    for variant in tuning["variants"].as_array().unwrap() {
        let best = variant["points"].as_array().unwrap().iter();
        let best =
            best.min_by(|a, b| a["loss"].as_f64().unwrap().total_cmp(&b["loss"].as_f64().unwrap()));
        let best = best.unwrap();
        assert_eq!(variant["chosen"], best["values"]);
        let run = out.join(format!("runs/{}-s1/config.toml", variant["variant"].as_str().unwrap()));
        let settings: toml::Table = fs::read_to_string(run).unwrap().parse().unwrap();
        let rate = settings["optimizer"]["adamw"]["lr"].as_float().unwrap();
        assert_eq!(Some(rate), best["rates"][0].as_f64());
        let point = out.join("tune").join(best["runs"][0]["name"].as_str().unwrap());
        assert!(point.join("model").is_dir() && point.join("metrics.jsonl").is_file());
    }
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    for words in ["What each policy was tuned to", "id=\"tuning-lr-scale\"", "id=\"tuning\""] {
        assert!(page.contains(words), "no {words:?}");
    }
    // Files of tuning are apart from those by which `hadal serve` counts what is planned.
    let planned = fs::read_dir(out.join("settings")).unwrap();
    assert_eq!(planned.filter(|entry| entry.as_ref().unwrap().path().is_file()).count(), 6);
    // Runs of tuning are no part of the comparison.
    assert!(page.contains("6 runs of 3 kinds"));
    let again = finish(&mut compare(&suite, &out)).succeeded();
    assert_eq!(again.stderr.matches("was done before").count(), 9 + 6, "{}", again.stderr);
    assert_eq!(found(&out), tuning);
}

#[test]
fn tuning_that_was_killed_anywhere_comes_to_the_same_choice_and_table() {
    let directory = temporary();
    let suite = tuned(directory.path(), &format!("{GRID}rounds = 2\n"));
    let (whole, parts) = (directory.path().join("whole"), directory.path().join("parts"));
    let began = Instant::now();
    finish(&mut compare(&suite, &whole)).succeeded();
    let latest = (began.elapsed().as_millis() as u64 / 5).max(1);
    let mut dice = Dice(7);
    let mut kills = 0;
    for _ in 0..8 {
        let mut child = started(&mut compare(&suite, &parts));
        sleep(Duration::from_millis(10 + dice.below(latest)));
        child.kill().unwrap();
        kills += usize::from(child.wait_with_output().unwrap().status.code().is_none());
    }
    assert!(kills >= 2, "only {kills} of 8 kills came in time");
    finish(&mut compare(&suite, &parts)).succeeded();
    assert_eq!(found(&parts), found(&whole));
    let rows = |out: &Path| table(out)["rows"].clone();
    assert_eq!(rows(&parts), rows(&whole));
}

/// A step that a stop came into is made once more, so that nothing is lost or counted twice.
#[test]
fn a_stop_during_tuning_says_how_to_go_on() {
    let directory = temporary();
    let suite = tuned(directory.path(), GRID);
    let out = directory.path().join("out");
    let mut command = compare(&suite, &out);
    set(&mut command, &["train.steps=300"]);
    let metrics = out.join("tune/prenorm-lr_scale=0.25-n300-s8/metrics.jsonl");
    let stopped = signalled(&mut command, "-TERM", || lines(&metrics) > 5);
    assert_eq!(stopped.code, Some(143), "{}", stopped.stderr);
    assert!(stopped.stderr.contains("go on with: hadal compare "), "{}", stopped.stderr);
    assert!(!out.join("tune.json").exists() && !out.join("table.json").exists());
}

#[test]
fn a_dry_run_shows_the_runs_of_tuning_and_what_they_cost() {
    let directory = temporary();
    let suite = tuned(directory.path(), &format!("{GRID}rounds = 2\n"));
    let out = directory.path().join("out");
    let shown = finish(compare(&suite, &out).arg("--dry-run")).succeeded().stdout;
    for words in [
        "mgr-lr_scale=4-n15-s8",
        "mgr, round 2: the best, 2 runs",
        "Tuning: 15 runs, ",
        "mgr-s1",
        "6 runs, ",
        "With tuning: about ",
    ] {
        assert!(shown.contains(words), "no {words:?} in {shown}");
    }
    let listed = finish(compare(&suite, &out).args(["--dry-run", "--json"])).succeeded().stdout;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["tuning"][0]["runs"].as_array().unwrap().len(), 9);
    assert_eq!(listed["runs"].as_array().unwrap().len(), 6);
    assert!(!out.exists());
}

#[test]
fn tuning_that_makes_no_sense_is_refused_before_there_is_a_folder() {
    let directory = temporary();
    let out = directory.path().join("out");
    for (grid, words) in [
        ("lr_scale = []", "tune holds an empty list for lr_scale"),
        ("lr_scale = [1]\nseeds = [1]", "tune.seeds holds 1, and so does seeds"),
        ("optimizer.adamw.lrr = [1]", "optimizer.adamw: unknown field `lrr`"),
        ("optimizer.adamw.lr = [-1]", "optimizer.adamw.lr is -1: it must be zero"),
        ("seed = [1]", "tune holds seed, which is the suite's"),
    ] {
        let suite = tuned(directory.path(), &format!("[tune]\n{grid}\n"));
        finish(&mut compare(&suite, &out)).refused(2, &["suite.toml", words]);
        assert!(!out.exists());
    }
}
