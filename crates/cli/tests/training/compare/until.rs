//! Seeds until all is decided: a suite that ends by itself, killed and resumed.

use super::*;

/// Two policies that differ with every seed, so that few of them tell so.
const TWO: &str = "
[[variant]]
residual = \"prenorm\"
[[variant]]
residual = \"nag\"
";

pub(crate) fn until(directory: &Path, looks: &str, variants: &str) -> PathBuf {
    let head = format!("seeds = \"until decided\"\nlooks = {{ {looks} }}");
    written(directory, &head, variants)
}

fn runs(out: &Path) -> Vec<String> {
    let folders = fs::read_dir(out.join("runs")).unwrap();
    let mut names: Vec<String> =
        folders.map(|run| run.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn seeds_are_added_while_a_comparison_is_open_and_no_further_than_planned() {
    let directory = temporary();
    let out = directory.path().join("out");
    // `again` is the baseline once more, so all its differences are zero.
    let suite = until(directory.path(), "first = 2, every = 1, most = 4", THREE);
    let shown = finish(compare(&suite, &out).arg("--dry-run")).succeeded().stdout;
    assert!(shown.contains("looks after 2, 3, 4 seeds"), "{shown}");
    assert!(shown.contains("the first look takes 6 of them"), "{shown}");
    let ended = finish(&mut compare(&suite, &out)).succeeded();
    for words in
        ["2 to 4 seeds", "look after 2 seeds: ", "look after 4 seeds: ", "with the most seeds"]
    {
        assert!(ended.stderr.contains(words), "no {words} in {}", ended.stderr);
    }
    assert!(
        ended.stdout.contains("Three of 3 looks were taken, at levels of "),
        "{}",
        ended.stdout
    );
    let results = json(&out.join("results.json"));
    assert_eq!(results["looks"]["taken"], 3);
    assert_eq!(results["looks"]["rule"]["looks"], serde_json::json!([2, 3, 4]));
    assert_eq!(results["cells"][1]["against"]["verdict"], "undecided");
    assert_eq!(runs(&out).len(), 12);
    let report = fs::read_to_string(out.join("report.html")).unwrap();
    for words in ["Three of 3 looks were taken", "undecided"] {
        assert!(report.contains(words), "no {words} in the report");
    }
    // The report judges the runs itself, and comes to the same.
    let headline = ended.stdout.lines().next().unwrap();
    assert!(report.contains(headline), "{headline}");
}

#[test]
fn a_suite_ends_at_the_first_look_that_decides_all() {
    let directory = temporary();
    let out = directory.path().join("out");
    // An error that large is spent by the first look alone.
    let looks = "first = 3, every = 1, most = 5, alpha = 0.5, seed = 40";
    let suite = until(directory.path(), looks, TWO);
    let ended = finish(&mut compare(&suite, &out)).succeeded();
    let results = json(&out.join("results.json"));
    let taken = results["looks"]["taken"].as_u64().unwrap() as usize;
    let against = &results["cells"][1]["against"];
    assert_ne!(against["verdict"], "undecided", "{against}");
    assert!(ended.stderr.contains(&format!("look after {} seeds: the suite ends", 2 + taken)));
    assert_eq!(results["seeds"].as_array().unwrap().len(), 2 + taken);
    assert_eq!(results["seeds"][0], 40);
    assert!(taken < 3 && runs(&out).len() == 2 * (2 + taken), "{:?}", runs(&out));
}

#[test]
fn a_suite_that_was_killed_takes_the_same_looks_again() {
    let directory = temporary();
    let suite = until(directory.path(), "first = 2, every = 1, most = 3", THREE);
    let (whole, parts) = (directory.path().join("whole"), directory.path().join("parts"));
    let began = Instant::now();
    finish(&mut compare(&suite, &whole)).succeeded();
    let latest = (began.elapsed().as_millis() as u64 / 4).max(1);
    let mut dice = Dice(11);
    for _ in 0..6 {
        let mut child = started(&mut compare(&suite, &parts));
        sleep(Duration::from_millis(10 + dice.below(latest)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    finish(&mut compare(&suite, &parts)).succeeded();
    assert_eq!(findings(&parts), findings(&whole));
    assert_eq!(table(&parts), table(&whole));
}

#[test]
fn a_process_that_failed_is_no_reason_for_a_look() {
    let directory = temporary();
    let suite = until(directory.path(), "first = 2, every = 1, most = 3", THREE);
    let out = directory.path().join("out");
    fs::create_dir_all(out.join("runs")).unwrap();
    fs::write(out.join("runs/mgr-s1"), "in the way").unwrap();
    finish(&mut compare(&suite, &out)).refused(1, &["1 of 6 runs failed"]);
    assert_eq!(json(&out.join("results.json"))["looks"]["taken"], 0);
    fs::remove_file(out.join("runs/mgr-s1")).unwrap();
    finish(&mut compare(&suite, &out)).succeeded();
    assert_eq!(json(&out.join("results.json"))["looks"]["taken"], 2);
}

/// Minutes are measured at the shapes that run.
#[test]
fn minutes_matched_counts_and_looks_go_together() {
    let directory = temporary();
    let body = BODY
        .replace("steps = 30", "")
        .replace("d_model = 16", "d_model = 32\nd_ff = 96\nmlp = \"swiglu\"");
    let suite = directory.path().join("suite.toml");
    let head = "seeds = \"until decided\"\nlooks = { first = 2, most = 3 }\nbudget.minutes = 0.002\nmatch = \"parameters\"";
    fs::write(&suite, format!("{head}\n{body}\n{THREE}")).unwrap();
    let out = directory.path().join("out");
    let shown = finish(compare(&suite, &out).arg("--dry-run")).succeeded().stdout;
    assert!(shown.contains("d_ff") && shown.contains("budget.minutes is 0.002"), "{shown}");
    finish(&mut compare(&suite, &out)).succeeded();
    let results = json(&out.join("results.json"));
    let cells = results["cells"].as_array().unwrap();
    assert!(cells.iter().all(|cell| cell["steps"].as_u64().unwrap() > 1), "{cells:?}");
    assert_ne!(cells[0]["shape"]["d_ff"], cells[2]["shape"]["d_ff"]);
    assert_eq!(results["looks"]["taken"], 2);
}

#[test]
fn seeds_that_are_added_after_a_table_are_called_what_they_are() {
    let directory = temporary();
    let out = directory.path().join("out");
    let suite = written(directory.path(), "seeds = [0, 1]", TWO);
    let first = finish(&mut compare(&suite, &out)).succeeded();
    assert!(!first.stdout.contains("was seen before"), "{}", first.stdout);
    written(directory.path(), "seeds = [0, 1, 2]", TWO);
    for _ in 0..2 {
        let ended = finish(&mut compare(&suite, &out)).succeeded();
        let words = "A table with the seeds 0, 1 was seen before the seeds became 0, 1, 2";
        assert!(ended.stderr.contains(&format!("warning: {words}")), "{}", ended.stderr);
        assert!(ended.stdout.contains(words), "{}", ended.stdout);
        assert!(fs::read_to_string(out.join("report.html")).unwrap().contains(words));
    }
}
