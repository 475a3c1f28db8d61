use crate::support::{Site, append, lines, run};
use serde_json::{Value, json};
use std::fs;

fn steps(data: &Value) -> Vec<u64> {
    data["steps"].as_array().unwrap().iter().map(|step| step["step"].as_u64().unwrap()).collect()
}

#[test]
fn new_points_arrive_as_they_are_appended() {
    let site = Site::new(|root| drop(run(root, "mine", "mgr", 2)));
    let folder = site.folder.path().join("mine");
    let mut events = site.events("mine", "");
    assert_eq!(steps(&events.wait_for("points").1), [1, 2]);
    assert_eq!(events.wait_for("status").1["status"], "stopped");
    let next = lines(3..=4);
    append(&folder, &next[..next.len() - 5]);
    assert_eq!(steps(&events.wait_for("points").1), [3]);
    append(&folder, &next[next.len() - 5..]);
    let (id, data) = events.wait_for("points");
    assert_eq!(steps(&data), [4]);
    append(&folder, &lines(5..=5));
    let mut again = site.events("mine", &format!("Last-Event-ID: {id}\r\n"));
    assert_eq!(steps(&again.wait_for("points").1), [5]);
}

#[test]
fn a_run_that_is_cut_back_and_resumed_comes_again_from_the_start() {
    let site = Site::new(|root| drop(run(root, "mine", "mgr", 5)));
    let file = site.folder.path().join("mine/metrics.jsonl");
    let mut events = site.events("mine", "");
    assert_eq!(steps(&events.wait_for("points").1).len(), 5);
    fs::write(&file, lines(1..=3)).unwrap();
    events.wait_for("reset");
    assert_eq!(steps(&events.wait_for("points").1), [1, 2, 3]);
    fs::write(&file, lines(1..=9).replace("\"rate\":1.0", "\"rate\":0.5")).unwrap();
    events.wait_for("reset");
    assert_eq!(steps(&events.wait_for("points").1).len(), 9);
}

#[test]
fn status_and_trouble_are_told() {
    let site = Site::new(|root| drop(run(root, "mine", "mgr", 2)));
    let folder = site.folder.path().join("mine");
    let mut events = site.events("mine", "");
    events.wait_for("status");
    let lock = fs::File::create(folder.join("lock")).unwrap();
    lock.try_lock().unwrap();
    assert_eq!(events.wait_for("status").1, json!({"status": "running"}));
    append(&folder, "no json\n");
    let reason = events.wait_for("trouble").1["reason"].to_string();
    assert!(reason.contains("damaged"), "{reason}");
    drop(lock);
    assert_eq!(events.wait_for("status").1, json!({"status": "stopped"}));
}

#[test]
fn a_server_ends_although_somebody_watches() {
    let site = Site::new(|root| drop(run(root, "mine", "mgr", 2)));
    let mut events = site.events("mine", "");
    events.wait_for("points");
    // Waits for its end.
    drop(site.server);
    assert!(events.ends());
}
