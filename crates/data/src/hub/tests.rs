//! A small hub: its requests and its answers.

use super::error::RequestError;
use super::{Repository, RepositoryKind, Settings};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const CONTENT: &[u8] = b"weights that are longer than one line";

/// A request: its first line, and its headers in small letters.
#[derive(Clone, Debug)]
struct Request {
    line: String,
    headers: Vec<String>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// Status, headers and body.
type Answer = (&'static str, Vec<String>, Vec<u8>);

struct Server {
    address: String,
    asked: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    fn start(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(stream, &log, &answer);
            }
        });
        Self { address, asked }
    }

    fn model(&self, cache: &Path) -> Repository {
        let token = Some("secret".into());
        let settings = Settings { token, ..Settings::at(&self.address, cache) };
        Repository::new(&settings, RepositoryKind::Model, "o", "n")
    }

    /// Requests whose first line begins like this.
    fn requests(&self, start: &str) -> Vec<Request> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|request| request.line.starts_with(start)).cloned().collect()
    }
}

fn serve(mut stream: TcpStream, log: &Mutex<Vec<Request>>, answer: &dyn Fn(&Request) -> Answer) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let Some(line) = lines.next() else { return };
    let headers = lines.take_while(|line| !line.is_empty());
    let request = Request { line, headers: headers.map(|line| line.to_lowercase()).collect() };
    log.lock().unwrap().push(request.clone());
    let (status, headers, body) = answer(&request);
    let mut head = format!("HTTP/1.1 {status}\r\nConnection: close\r\n");
    if !headers.iter().any(|header| header.starts_with("Content-Length")) {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    for header in headers {
        head += &format!("{header}\r\n");
    }
    let body = if request.line.starts_with("HEAD") { &[][..] } else { &body };
    // The client may have given up.
    let _ =
        stream.write_all(format!("{head}\r\n").as_bytes()).and_then(|()| stream.write_all(body));
}

fn described() -> Vec<String> {
    vec!["ETag: \"abc\"".into(), format!("X-Repo-Commit: {COMMIT}")]
}

#[test]
fn the_token_is_not_sent_to_another_server() {
    let cache = TempDir::new().unwrap();
    let elsewhere = Server::start(|_| ("200 OK", Vec::new(), CONTENT.into()));
    let there = format!("Location: {}/blob", elsewhere.address);
    let hub = Server::start(move |request| {
        if request.line.contains("/old/")
            || request.line.contains("/o/n/") && !request.line.contains("/moved/")
        {
            return ("307 Temporary Redirect", vec!["Location: /moved/w.bin".into()], Vec::new());
        }
        let linked = format!("X-Linked-Size: {}", CONTENT.len());
        let headers =
            [described(), vec![there.clone(), linked, "X-Linked-Etag: \"big\"".into()]].concat();
        ("302 Found", headers, Vec::new())
    });
    let path = hub.model(cache.path()).fetch("main", "w.bin", &|_, _| ()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), CONTENT);
    assert_eq!(fs::read_link(&path).unwrap(), Path::new("../../blobs/big"));
    // The hub itself sees it, before and after a redirect of its own.
    for request in hub.asked.lock().unwrap().iter() {
        assert_eq!(request.header("authorization"), Some("bearer secret"), "{request:?}");
    }
    assert_eq!(hub.requests("GET /moved/w.bin").len(), 1);
    let sent = elsewhere.requests("");
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!(sent[0].header("authorization"), None);
}

#[test]
fn what_arrived_before_a_connection_broke_is_not_sent_again() {
    let cache = TempDir::new().unwrap();
    let half = CONTENT.len() / 2;
    let hub = Server::start(move |request| {
        let from = request
            .header("range")
            .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
        match from.map(|from| from.parse::<usize>().unwrap()) {
            Some(from) => {
                let range =
                    format!("Content-Range: bytes {from}-{}/{}", CONTENT.len() - 1, CONTENT.len());
                ("206 Partial Content", [described(), vec![range]].concat(), CONTENT[from..].into())
            }
            None => {
                let length = format!("Content-Length: {}", CONTENT.len());
                ("200 OK", [described(), vec![length]].concat(), CONTENT[..half].into())
            }
        }
    });
    let repository = hub.model(cache.path());
    let error = repository.fetch(COMMIT, "w.bin", &|_, _| ()).unwrap_err();
    assert!(matches!(error, RequestError::Unreachable(_)), "{error}");
    assert!(repository.cached(COMMIT, "w.bin").is_err(), "a half is no file");
    let seen = Mutex::new(Vec::new());
    let progress = |done, total| seen.lock().unwrap().push((done, total));
    let path = repository.fetch(COMMIT, "w.bin", &progress).unwrap();
    assert_eq!(fs::read(path).unwrap(), CONTENT);
    let ranges: Vec<_> =
        hub.requests("GET").iter().map(|r| r.header("range").map(str::to_owned)).collect();
    assert_eq!(ranges, [None, Some(format!("bytes={half}-"))]);
    let all = CONTENT.len() as u64;
    assert_eq!(seen.lock().unwrap().last(), Some(&(all, all)));
}

#[test]
fn a_long_list_has_several_pages() {
    let cache = TempDir::new().unwrap();
    let entry =
        |path: &str, kind: &str| format!(r#"{{"type": "{kind}", "path": "{path}", "size": 3}}"#);
    let hub = Server::start(move |request| {
        if request.line.contains("cursor=2") {
            return ("200 OK", Vec::new(), format!("[{}]", entry("b", "file")).into());
        }
        let link = "Link: </api/models/o/n/tree/x?cursor=2>; rel=\"next\"".into();
        let entries = format!("[{},{}]", entry("a", "file"), entry("d", "directory"));
        ("200 OK", vec![link], entries.into())
    });
    let files = hub.model(cache.path()).files(COMMIT, Some("some folder")).unwrap();
    assert_eq!(
        files.iter().map(|file| (&*file.path, file.size)).collect::<Vec<_>>(),
        [("a", 3), ("b", 3)]
    );
    let first = format!("GET /api/models/o/n/tree/{COMMIT}/some%20folder?recursive=true ");
    assert_eq!(hub.requests(&first).len(), 1, "{:?}", hub.requests(""));
}

#[test]
fn answers_say_what_is_wrong() {
    let cache = TempDir::new().unwrap();
    let hub = Server::start(|request| {
        let path = request.line.split(' ').nth(1).unwrap_or_default();
        let (status, code) = match path.rsplit('/').next().unwrap_or_default() {
            "unauthorized" => ("401 Unauthorized", ""),
            "forbidden" => ("403 Forbidden", "GatedRepo"),
            "gone" => ("404 Not Found", ""),
            "norepository" => ("404 Not Found", "RepoNotFound"),
            "broken" => ("500 Internal Server Error", ""),
            // Names that no server may choose.
            "escapes" => return ("200 OK", vec!["ETag: \"../../up\"".into()], Vec::new()),
            _ => ("418 I am a teapot", ""),
        };
        (status, vec![format!("X-Error-Code: {code}")], Vec::new())
    });
    let repository = hub.model(cache.path());
    let fetch = |file: &str| repository.fetch("main", file, &|_, _| ()).unwrap_err();
    assert!(matches!(fetch("unauthorized"), RequestError::Unauthorized));
    assert!(matches!(fetch("forbidden"), RequestError::Forbidden));
    assert!(matches!(fetch("gone"), RequestError::NoEntry));
    assert!(matches!(fetch("norepository"), RequestError::NoRepository));
    assert!(matches!(fetch("broken"), RequestError::Refused { status: 500, .. }));
    assert!(matches!(fetch("teapot"), RequestError::Refused { status: 418, .. }));
    assert!(matches!(fetch("escapes"), RequestError::Unusable { .. }));
    assert!(matches!(fetch("../up"), RequestError::NoEntry));
    assert!(
        matches!(repository.commit(Some("gone")), Err(RequestError::NoRevision(name)) if name == "gone")
    );
    assert!(
        matches!(repository.commit(Some("a/b")), Err(RequestError::Refused { url, .. }) if url.ends_with("a%2Fb"))
    );
}

#[test]
fn a_server_that_is_busy_is_asked_again() {
    let cache = TempDir::new().unwrap();
    let tries = Mutex::new(0);
    let hub = Server::start(move |_| {
        *tries.lock().unwrap() += 1;
        if *tries.lock().unwrap() < 3 {
            return ("503 Service Unavailable", Vec::new(), Vec::new());
        }
        ("200 OK", Vec::new(), format!(r#"{{"sha": "{COMMIT}"}}"#).into())
    });
    let settings = Settings { retries: 2, ..Settings::at(&hub.address, cache.path()) };
    let repository = Repository::new(&settings, RepositoryKind::Dataset, "o", "n");
    assert_eq!(repository.commit(None).unwrap(), COMMIT);
    assert_eq!(hub.requests("GET /api/datasets/o/n ").len(), 3);
}
