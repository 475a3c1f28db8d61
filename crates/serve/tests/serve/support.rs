//! Folders of runs that were never trained, and a client that speaks just enough HTTP.

use hadal_serve::{Handle, Options, Server};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// A folder of runs and the server over it.
pub(crate) struct Site {
    pub(crate) folder: TempDir,
    pub(crate) server: Handle,
}

impl Site {
    pub(crate) fn new(make: impl FnOnce(&Path)) -> Self {
        Self::with_token(None, make)
    }

    pub(crate) fn with_token(token: Option<&str>, make: impl FnOnce(&Path)) -> Self {
        Self::with(|options| options.token = token.map(str::to_owned), make)
    }

    /// With other options.
    pub(crate) fn with(change: impl FnOnce(&mut Options), make: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        make(folder.path());
        let mut options = Options { port: 0, ..Options::new(folder.path()) };
        change(&mut options);
        let server = Server::bind(options).unwrap().spawn();
        Self { folder, server }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
    }

    pub(crate) fn json(&self, path: &str) -> Value {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    }

    pub(crate) fn ask(&self, request: &str) -> Answer {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        Answer::parse(bytes)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Follows a run's events.
    pub(crate) fn events(&self, id: &str, header: &str) -> Events {
        let mut stream = self.connect();
        let request =
            format!("GET /api/runs/{id}/events HTTP/1.1\r\nHost: localhost\r\n{header}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        Events(BufReader::new(stream))
    }
}

/// The answer to a request.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn parse(bytes: Vec<u8>) -> Self {
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, head: head.to_lowercase(), body: body.to_owned() }
    }
}

/// A stream of events.
pub(crate) struct Events(BufReader<TcpStream>);

impl Events {
    /// The next event of this name, with its id. Others are ignored.
    pub(crate) fn wait_for(&mut self, name: &str) -> (String, Value) {
        let (mut event, mut id) = (String::new(), String::new());
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream ended before {name}");
            let line = line.trim_end();
            if let Some(text) = line.strip_prefix("event: ") {
                event = text.to_owned();
            } else if let Some(text) = line.strip_prefix("id: ") {
                id = text.to_owned();
            } else if let Some(text) = line.strip_prefix("data: ") {
                // The id may come before or after the data.
                let data = serde_json::from_str(text).unwrap();
                let mut rest = String::new();
                self.0.read_line(&mut rest).unwrap();
                if let Some(text) = rest.trim_end().strip_prefix("id: ") {
                    id = text.to_owned();
                }
                if event == name {
                    return (id, data);
                }
            }
        }
    }

    /// Whether the server has closed it.
    pub(crate) fn ends(mut self) -> bool {
        self.0.read_to_end(&mut Vec::new()).is_ok()
    }
}

/// Steps of a run whose loss falls nicely.
pub(crate) fn lines(steps: std::ops::RangeInclusive<u64>) -> String {
    let mut text = String::new();
    for step in steps {
        let wave = (step.wrapping_mul(2_654_435_761) % 1000) as f64 / 1000.0;
        let loss = 1.0 + 3.0 / (1.0 + step as f64 / 30.0) + 0.1 * wave;
        let _ = writeln!(
            text,
            "{{\"kind\":\"train\",\"step\":{step},\"loss\":{loss},\"gradient_norm\":{},\"rate\":1.0,\
             \"tokens\":{},\"tokens_per_second\":{}}}",
            0.5 + wave,
            step * 1600,
            30_000.0 + 2000.0 * wave
        );
        if step % 50 == 0 {
            let _ = writeln!(
                text,
                "{{\"kind\":\"eval\",\"step\":{step},\"loss\":{},\"accuracy\":{},\"exact_match\":0.0}}",
                loss + 0.05,
                1.0 - loss / 5.0
            );
        }
    }
    text
}

/// Makes a run's folder.
pub(crate) fn run(root: &Path, name: &str, policy: &str, steps: u64) -> PathBuf {
    let folder = root.join(name);
    fs::create_dir_all(&folder).unwrap();
    let config = format!(
        "seed = 1\n[train]\nsteps = {steps}\n[model]\nn_layers = 4\nd_model = 64\n[residual]\nkind = \"{policy}\"\n"
    );
    fs::write(folder.join("config.toml"), config).unwrap();
    fs::write(folder.join("metrics.jsonl"), lines(1..=steps)).unwrap();
    folder
}

/// Appends to a run's metrics.
pub(crate) fn append(run: &Path, text: &str) {
    let mut file = File::options().append(true).open(run.join("metrics.jsonl")).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// Makes many runs of several policies.
pub(crate) fn many(root: &Path, count: usize, steps: u64) {
    const POLICIES: [&str; 5] = ["prenorm", "lns", "attnres", "mgr", "nag"];
    for place in 0..count {
        let policy = POLICIES[place % POLICIES.len()];
        let folder = run(root, &format!("{policy}-{place:03}"), policy, steps);
        fs::create_dir(folder.join("model")).unwrap();
    }
}
