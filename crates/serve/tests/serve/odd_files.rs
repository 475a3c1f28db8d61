//! Files that no run writes: each harms at most its own run.

use crate::support::{Answer, Site, run};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

const FILES: [&str; 8] = [
    "note.txt",
    "metrics.jsonl",
    "lock",
    "samples.jsonl",
    "outcome.json",
    "config.toml",
    "run.json",
    "diagnosis/gates.json",
];

fn pipe(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

/// Puts something else in the place of each file, one run for each.
fn spoil(root: &Path, name: &str, make: impl Fn(&Path)) {
    for (place, file) in FILES.iter().enumerate() {
        let folder = run(root, &format!("{name}-{place}"), "mgr", 10);
        fs::create_dir(folder.join("diagnosis")).unwrap();
        let path = folder.join(file);
        let _ = fs::remove_file(&path);
        make(&path);
    }
}

/// Everything about a run.
fn everything(site: &Site, id: &str) -> Vec<(String, Answer)> {
    let paths = ["/runs/{}", "/api/runs/{}", "/api/runs/{}/series", "/api/runs/{}/figures"];
    let more = ["/api/runs/{}/resources", "/compare?run={}", "/api/compare?run={}"];
    let paths = paths.into_iter().chain(more).map(|path| path.replace("{}", id));
    paths.map(|path| (path.clone(), site.get(&path))).collect()
}

fn summary<'a>(list: &'a Value, id: &str) -> &'a Value {
    list["runs"].as_array().unwrap().iter().find(|run| run["id"] == id).unwrap()
}

#[test]
fn pipes_devices_and_huge_files_harm_only_their_own_run() {
    let site = Site::new(|root| {
        run(root, "whole", "mgr", 10);
        spoil(root, "pipe", pipe);
        spoil(root, "zeros", |path| symlink("/dev/zero", path).unwrap());
        spoil(root, "huge", |path| File::create(path).unwrap().set_len(1 << 32).unwrap());
        spoil(root, "folder", |path| fs::create_dir(path).unwrap());
    });
    let list = site.json("/api/runs");
    for name in ["pipe", "zeros", "huge", "folder"] {
        for (place, file) in FILES.iter().enumerate() {
            let id = format!("{name}-{place}");
            let is_broken = summary(&list, &id)["status"] == "broken";
            let must_break = matches!(*file, "config.toml" | "metrics.jsonl");
            assert_eq!(is_broken, must_break, "{id}: {file}");
            for (path, answer) in everything(&site, &id) {
                assert!(matches!(answer.status, 200 | 422), "{path} ({file}): {}", answer.status);
                assert!(answer.body.len() < 200_000, "{path} ({file})");
            }
        }
    }
    assert_eq!(summary(&list, "whole")["step"], 10);
    assert!(everything(&site, "whole").iter().all(|(_, answer)| answer.status == 200));
    // Named on their pages.
    assert!(site.get("/runs/pipe-4").body.contains("cannot read outcome.json"));
    assert!(
        site.get("/runs/huge-1").body.contains("metrics.jsonl has 4294 MB; those of more than")
    );
}

#[test]
fn a_pipe_that_appears_while_serving_stops_no_page() {
    let site = Site::new(|root| {
        run(root, "whole", "mgr", 10);
        run(root, "odd", "mgr", 10);
    });
    assert_eq!(site.get("/").status, 200);
    pipe(&site.folder.path().join("odd/note.txt"));
    pipe(&site.folder.path().join("odd/lock"));
    // Until then the folder is not looked at again.
    std::thread::sleep(Duration::from_secs(1));
    for path in ["/", "/runs/whole", "/runs/odd", "/api/runs"] {
        assert_eq!(site.get(path).status, 200, "{path}");
    }
}

#[test]
fn what_a_link_out_of_the_folder_leads_to_is_not_shown() {
    let secrets = tempfile::tempdir().unwrap();
    let secret = secrets.path().join("secret");
    fs::write(&secret, "{\"step\":1,\"text\":\"TOPSECRET\"}\nTOPSECRET = 1\n").unwrap();
    let site = Site::new(|root| spoil(root, "link", |path| symlink(&secret, path).unwrap()));
    let list = site.get("/api/runs");
    assert!(!list.body.contains("TOPSECRET"), "{}", list.body);
    for place in 0..FILES.len() {
        for (path, answer) in everything(&site, &format!("link-{place}")) {
            assert!(!answer.body.contains("TOPSECRET"), "{path}: {}", answer.body);
        }
    }
}

#[test]
fn damaged_lines_of_metrics_cost_only_themselves() {
    let site = Site::new(|root| {
        let folder = run(root, "mine", "mgr", 10);
        let path = folder.join("metrics.jsonl");
        let text = fs::read_to_string(&path).unwrap().replacen("\"loss\"", "\"los", 1);
        fs::write(&path, text).unwrap();
    });
    let list = site.json("/api/runs");
    let run = summary(&list, "mine");
    assert_eq!((&run["step"], &run["status"]), (&10.into(), &"stopped".into()));
    let series = site.json("/api/runs/mine/series");
    assert_eq!(series["train"]["step"].as_array().unwrap().len(), 9);
    for text in [series["damage"].as_str().unwrap(), &site.get("/runs/mine").body] {
        assert!(text.contains("damaged at byte 0") && text.contains("left out"), "{text}");
    }
}
