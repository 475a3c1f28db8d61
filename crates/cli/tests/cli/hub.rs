//! `hadal import` by name, from a hub that runs inside the test.

use crate::support::*;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The little of Hugging Face's protocol that a download needs, with stories260K as `tiny/stories`.
struct Hub {
    address: String,
    /// The requests received, such as `GET /tiny/stories/resolve/../config.json`.
    asked: Arc<Mutex<Vec<String>>>,
    /// Whether connections break in the middle of the weights.
    breaks: Arc<AtomicBool>,
}

impl Hub {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let hub = Self { address, asked: Arc::default(), breaks: Arc::default() };
        let (asked, breaks) = (hub.asked.clone(), hub.breaks.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (asked, breaks) = (asked.clone(), breaks.clone());
                std::thread::spawn(move || answer(stream, &asked, &breaks));
            }
        });
        hub
    }

    fn import(&self, name: &str, cache: &Path, out: &Path) -> Command {
        let mut command = command("import");
        command.arg(name).arg("--out").arg(out);
        command.env("HF_ENDPOINT", &self.address).env("HF_HOME", cache);
        for proxy in ["HF_TOKEN", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
            command.env_remove(proxy);
        }
        command
    }

    /// How often a file was sent.
    fn sent(&self, file: &str) -> usize {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|line| line.starts_with("GET") && line.ends_with(file)).count()
    }
}

fn answer(mut stream: TcpStream, asked: &Mutex<Vec<String>>, breaks: &AtomicBool) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let Some(request) = lines.next() else { return };
    while lines.next().is_some_and(|line| !line.is_empty()) {}
    let mut words = request.split(' ');
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    asked.lock().unwrap().push(format!("{method} {path}"));
    let files = ["config.json", "model.safetensors", "tokenizer.json", "greedy.json"];
    let file = files.iter().find(|file| path.ends_with(&format!("/resolve/{COMMIT}/{file}")));
    let (status, body) = if path.starts_with("/api/models/tiny/stories/revision/main") {
        ("200 OK", format!(r#"{{"id": "tiny/stories", "sha": "{COMMIT}"}}"#).into_bytes())
    } else if path.starts_with("/api/models/tiny/stories/tree/") {
        let entry =
            |file: &&str| format!(r#"{{"type": "file", "oid": "x", "size": 1, "path": "{file}"}}"#);
        let entries: Vec<String> = files.iter().map(entry).collect();
        ("200 OK", format!("[{}]", entries.join(",")).into_bytes())
    } else if let Some(file) = file {
        ("200 OK", fs::read(stories().join(file)).unwrap())
    } else {
        // The hub's answer to clients without a token for models that do not exist.
        let known = path.contains("tiny/stories");
        (if known { "404 Not Found" } else { "401 Unauthorized" }, Vec::new())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: \"{}\"\r\nX-Repo-Commit: {COMMIT}\r\nConnection: close\r\n\r\n",
        body.len(),
        path.rsplit('/').next().unwrap_or("")
    );
    let end = match file {
        Some(&"model.safetensors") if method == "GET" && breaks.load(SeqCst) => {
            // The other files, which are fetched at the same time, arrive first.
            std::thread::sleep(std::time::Duration::from_secs(2));
            body.len() / 2
        }
        _ => body.len(),
    };
    let body = if method == "HEAD" { &[][..] } else { &body[..end] };
    // The client may have given up.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

#[test]
fn a_model_is_fetched_once_and_then_read_from_the_cache() {
    let (hub, folder) = (Hub::start(), TempDir::new().unwrap());
    let (cache, out) = (folder.path().join("cache"), folder.path().join("stories"));
    run(&mut hub.import("tiny/stories", &cache, &out)).succeeded();
    let written =
        |name: &str| fs::read(folder.path().join(name).join("model.safetensors")).unwrap();
    assert!(out.join("tokenizer.json").is_file());
    assert_eq!((hub.sent("model.safetensors"), hub.sent("greedy.json")), (1, 0));

    let again = folder.path().join("again");
    run(&mut hub.import("tiny/stories@main", &cache, &again)).succeeded();
    assert_eq!(hub.sent("model.safetensors"), 1, "it is in the cache");
    // Nothing listens on port 1.
    let away = Hub { address: "http://127.0.0.1:1".into(), ..Hub::start() };
    let offline = folder.path().join("offline");
    run(&mut away.import("tiny/stories", &cache, &offline)).succeeded();
    let forbidden = folder.path().join("forbidden");
    run(hub.import("tiny/stories", &cache, &forbidden).env("HF_HUB_OFFLINE", "1")).succeeded();
    for other in ["again", "offline", "forbidden"] {
        assert_eq!(written("stories"), written(other), "{other}");
    }
}

#[test]
fn a_broken_download_goes_on_where_it_was() {
    let (hub, folder) = (Hub::start(), TempDir::new().unwrap());
    let (cache, out) = (folder.path().join("cache"), folder.path().join("stories"));
    hub.breaks.store(true, SeqCst);
    let broken = run(&mut hub.import("tiny/stories", &cache, &out));
    assert_eq!(broken.code, 1, "{}", broken.stderr);
    assert!(broken.stderr.contains("tiny/stories"), "{}", broken.stderr);
    assert!(!out.exists());
    // A partial download is not taken for a model.
    let offline = run(hub.import("tiny/stories", &cache, &out).env("HF_HUB_OFFLINE", "1"));
    assert_eq!(offline.code, 1, "{}", offline.stderr);
    assert!(!out.exists());
    hub.breaks.store(false, SeqCst);
    let before = hub.sent("tokenizer.json");
    run(&mut hub.import("tiny/stories", &cache, &out)).succeeded();
    assert_eq!(hub.sent("tokenizer.json"), before, "what had arrived is kept");
    assert!(out.join("model.safetensors").is_file());
}

#[test]
fn a_model_that_is_not_there_is_named() {
    let (hub, folder) = (Hub::start(), TempDir::new().unwrap());
    let (cache, out) = (folder.path().join("cache"), folder.path().join("out"));
    run(&mut hub.import("tiny/nothing", &cache, &out))
        .refused(1, &["tiny/nothing", "no such model", "HF_TOKEN"]);
    run(&mut hub.import("tiny/stories@v2", &cache, &out)).refused(1, &["no revision `v2`"]);
    run(&mut hub.import("tiny/stories:x.gguf", &cache, &out)).refused(1, &["no such file"]);
    assert!(!out.exists());
}
