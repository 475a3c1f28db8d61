//! What a browser opens or saves beside pages: reports, diagnoses, CSV; and tags, which people leave.

use crate::browser::browser;
use crate::support::{Answer, Site, run};
use serde_json::json;
use std::fs;

const SCRIPT: &str = "<title>mine</title><script>document.title = 'ran'; fetch('/api/runs').then(() => { document.title = 'read'; }, () => { document.title = 'alone'; });</script>";

fn site() -> Site {
    Site::new(|root| {
        let folder = run(root, "mine", "mgr", 60);
        fs::write(folder.join("report.html"), SCRIPT).unwrap();
        fs::create_dir(folder.join("diagnosis")).unwrap();
        fs::write(folder.join("diagnosis/diagnosis.html"), "<h1>three sentences</h1>").unwrap();
        run(root, "other", "mgr", 10);
    })
}

#[test]
fn written_pages_are_shown_in_a_sandbox() {
    let site = site();
    for path in ["/runs/mine/report", "/runs/mine/diagnosis"] {
        let answer = site.get(path);
        assert_eq!(answer.status, 200, "{path}");
        assert!(
            answer.head.contains("content-security-policy: sandbox allow-scripts"),
            "{}",
            answer.head
        );
        assert!(!answer.head.contains("allow-same-origin"), "{}", answer.head);
        assert_eq!(answer.head.matches("content-security-policy").count(), 1);
    }
    assert!(site.get("/runs/mine/diagnosis").body.contains("three sentences"));
    let page = site.get("/runs/mine").body;
    for link in ["/runs/mine/report", "/runs/mine/diagnosis", "/runs/mine/metrics.csv"] {
        assert!(page.contains(&format!("href=\"{link}\"")), "{link}: {page}");
    }
    for path in
        ["/runs/other/report", "/runs/other/diagnosis", "/runs/none/report", "/suites/mine/report"]
    {
        assert_eq!(site.get(path).status, 404, "{path}");
    }
    let page = site.get("/runs/other").body;
    assert!(!page.contains("/runs/other/report") && !page.contains("/runs/other/diagnosis"));
}

#[test]
fn a_written_page_cannot_read_this_server() {
    let Some(mut browser) = browser(1280) else { return };
    let site = site();
    browser.open(&format!("{}runs/mine/report", site.server.url()));
    browser.until("document.title === 'alone'");
}

#[test]
fn a_page_that_leads_out_of_its_folder_is_not_shown() {
    let site = site();
    let root = site.folder.path();
    fs::write(root.join("secret.html"), "secret").unwrap();
    std::os::unix::fs::symlink(root.join("secret.html"), root.join("other/report.html")).unwrap();
    let answer = site.get("/runs/other/report");
    assert!(answer.status >= 400 && !answer.body.contains("<html"), "{}", answer.body);
    assert!(!answer.body.ends_with("secret"), "{}", answer.body);
}

#[test]
fn metrics_are_saved_as_csv() {
    let site = site();
    let answer = site.get("/runs/mine/metrics.csv");
    assert!(answer.head.contains("content-type: text/csv"), "{}", answer.head);
    assert!(answer.head.contains("attachment; filename=\"mine.csv\""), "{}", answer.head);
    assert_eq!(answer.body.matches("\n").count() - answer.body.matches("\r\n").count(), 61);
    assert!(answer.body.contains("step,tokens,seconds,train_loss"), "{}", answer.body);
    assert_eq!(site.get("/runs/none/metrics.csv").status, 404);
}

fn put(site: &Site, header: &str, tags: &str) -> Answer {
    let body = json!({ "text": tags }).to_string();
    let length = body.len();
    site.ask(&format!(
        "PUT /api/runs/mine/tags HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{header}Connection: close\r\n\r\n{body}"
    ))
}

#[test]
fn tags_are_put_on_a_run_only_with_the_token() {
    let right = "Authorization: Bearer open sesame\r\n";
    let site = Site::new(|root| drop(run(root, "mine", "mgr", 10)));
    assert_eq!(put(&site, right, "best").status, 403);
    let site = Site::with_token(Some("open sesame"), |root| drop(run(root, "mine", "mgr", 10)));
    let file = site.folder.path().join("mine/tags.txt");
    assert_eq!(put(&site, "", "best").status, 401);
    assert_eq!(put(&site, "Authorization: Bearer open\r\n", "best").status, 401);
    assert_eq!(put(&site, right, "<b>").status, 400);
    assert!(!file.exists());
    let answer = put(&site, right, "best, #lr=3e-4");
    assert_eq!(
        (answer.status, fs::read_to_string(&file).unwrap().as_str()),
        (200, "best\nlr=3e-4\n")
    );
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(site.json("/api/runs")["runs"][0]["tags"], json!(["best", "lr=3e-4"]));
    assert!(site.get("/").body.contains("data-tag=\"lr=3e-4\""));
    assert_eq!(put(&site, right, "").status, 200);
    assert!(!file.exists());
}

#[test]
fn a_note_and_tags_are_saved_in_one_go() {
    let Some(mut browser) = browser(1280) else { return };
    let site = Site::with_token(Some("open"), |root| drop(run(root, "mine", "mgr", 60)));
    browser.open(&format!("{}runs/mine", site.server.url()));
    for (place, text) in [("#note", "try more"), ("#tags", "best"), ("#token", "open")] {
        browser.click(place);
        browser.type_text(text);
    }
    browser.click("#save");
    browser.until("document.getElementById('saved').textContent === 'saved'");
    let read = |name: &str| fs::read_to_string(site.folder.path().join("mine").join(name)).unwrap();
    assert_eq!((read("note.txt").trim(), read("tags.txt").trim()), ("try more", "best"));
    assert_eq!(browser.complaints, Vec::<String>::new());
}
