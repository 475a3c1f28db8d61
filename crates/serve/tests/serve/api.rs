use crate::support::{Site, many, run};
use serde_json::json;
use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

#[test]
fn a_run_can_be_asked_for_everything() {
    let site = Site::new(|root| {
        let folder = run(root, "mine", "mgr", 100);
        fs::write(folder.join("samples.jsonl"), "{\"step\":100,\"text\":\"<b>hello\"}\n").unwrap();
        fs::create_dir(folder.join("diagnosis")).unwrap();
        let figure = json!({
            "name": "gates", "title": "Gates", "caption": "", "x": {"label": "block"}, "y": {"label": "gate"},
            "marks": {"kind": "bars", "series": [{"name": "mgr", "values": [0.5, null]}]},
        });
        fs::write(folder.join("diagnosis/gates.json"), figure.to_string()).unwrap();
    });
    let list = site.json("/api/runs");
    let summary = &list["runs"][0];
    assert_eq!((&summary["id"], &summary["residual"]), (&json!("mine"), &json!("mgr")));
    assert_eq!((&summary["step"], &summary["status"]), (&json!(100), &json!("stopped")));
    let run = site.json("/api/runs/mine");
    assert_eq!(run["samples"][0]["text"], "<b>hello");
    assert_eq!(run["settings"]["residual"]["kind"], "mgr");
    assert_eq!(run["figures"], json!(["gates"]));
    assert_eq!(site.json("/api/runs/mine/figures")[0]["marks"]["kind"], "bars");
    let series = site.json("/api/runs/mine/series?points=20");
    assert_eq!(series["total"], 100);
    assert!(series["train"]["loss"].as_array().unwrap().len() <= 20);
    assert_eq!(series["held_out"]["step"], json!([50, 100]));
    assert!(site.json("/api/runs/mine/resources")["folder"].as_u64().unwrap() > 1000);
    assert!(site.json("/api/machine")["cores"].as_u64().unwrap() >= 1);
    let page = site.get("/runs/mine").body;
    assert!(page.contains("&lt;b&gt;hello") && page.contains("id=\"figures\""), "{page}");
}

#[test]
fn several_runs_are_compared_and_the_missing_are_named() {
    let site = Site::new(|root| many(root, 3, 50));
    let both = site.json("/api/compare?run=prenorm-000&run=lns-001&run=none&run=lns-001");
    assert_eq!(both["runs"].as_array().unwrap().len(), 2);
    assert_eq!(both["broken"][0]["id"], "none");
    assert_eq!(site.get("/api/compare").status, 400);
    let page = site.get("/compare?run=prenorm-000&run=none");
    assert!(page.body.contains("not there"), "{}", page.body);
}

#[test]
fn runs_of_other_data_are_not_compared_without_a_word() {
    let site = Site::new(|root| {
        for (name, data) in [("a", "one"), ("b", "one"), ("c", "other")] {
            let folder = run(root, name, "mgr", 10);
            fs::write(folder.join("run.json"), json!({ "data": data }).to_string()).unwrap();
        }
    });
    let sentence = "not trained on the same data and cannot be compared";
    assert!(site.get("/compare?run=a&run=c").body.contains(sentence));
    assert!(!site.get("/compare?run=a&run=b").body.contains(sentence));
}

#[test]
fn suites_show_their_table_and_their_runs() {
    let site = Site::new(|root| {
        run(root, "alone", "nag", 10);
        run(root, "suite/runs/mgr-0", "mgr", 10);
        let table = json!({
            "baseline": "mgr", "metric": "validation loss", "verdict": ["mgr is <ahead>"],
            "columns": ["policy", "validation loss"], "rows": [["mgr", "1.2500 ± 0.01"]],
            "figures": [],
        });
        fs::write(root.join("suite/table.json"), table.to_string()).unwrap();
        run(root, "bad/runs/x", "mgr", 10);
        fs::write(root.join("bad/table.json"), "{").unwrap();
    });
    assert_eq!(site.json("/api/suites"), json!(["bad", "suite"]));
    let suite = site.json("/api/suites/suite");
    assert_eq!(suite["table"]["rows"][0][0], "mgr");
    assert_eq!(suite["runs"].as_array().unwrap().len(), 1);
    let page = site.get("/suites/suite").body;
    assert!(page.contains("mgr is &lt;ahead&gt;") && page.contains("1.2500 ± 0.01"), "{page}");
    assert!(page.contains("/runs/suite%2Fruns%2Fmgr-0"), "{page}");
    let page = site.get("/suites/bad").body;
    assert!(page.contains("table.json is damaged"), "{page}");
}

#[test]
fn rows_that_changed_come_alone() {
    let site = Site::new(|root| many(root, 3, 50));
    let all = site.json("/api/rows?since=0");
    assert_eq!(all["rows"].as_array().unwrap().len(), 3);
    run(site.folder.path(), "new", "mgr", 10);
    std::thread::sleep(Duration::from_secs(1));
    let news = site.json(&format!("/api/rows?since={}", all["revision"]));
    assert_eq!(news["rows"].as_array().unwrap().len(), 1);
    assert_eq!((&news["rows"][0]["id"], &news["total"]), (&json!("new"), &json!(4)));
}

#[test]
fn five_hundred_runs_are_listed() {
    let site = Site::new(|root| many(root, 500, 100));
    let start = Instant::now();
    let page = site.get("/");
    let _ = writeln!(std::io::stderr(), "500 runs: listed after {:.0?}", start.elapsed());
    assert_eq!(page.body.matches("<tr data-id").count(), 500);
}

#[test]
fn an_empty_folder_says_how_to_fill_it() {
    let site = Site::new(|_| {});
    assert!(site.get("/").body.contains("hadal train"));
    assert_eq!(site.get("/nothing").status, 404);
    assert_eq!(site.get("/api/nothing").status, 404);
    assert_eq!(site.get("/assets/none.js").status, 404);
}
