//! Clients that take too much: too long, too many, too large.

use crate::support::{Answer, Site, many, run};
use hadal_serve::Limits;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(20);

fn limited(limits: Limits) -> Site {
    let change = |options: &mut hadal_serve::Options| {
        options.limits = limits;
        options.token = Some("secret".into());
    };
    Site::with(change, |root| drop(run(root, "mine", "mgr", 10)))
}

/// Whether the server ends a connection, whatever it says before.
fn ends(stream: &mut TcpStream) -> bool {
    let mut rest = [0; 4096];
    loop {
        match stream.read(&mut rest) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// A connection that has been answered and stays open.
fn open(site: &Site) -> TcpStream {
    let mut stream = site.connect();
    stream.write_all(b"GET /assets/icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = [0; 4096];
    let length = stream.read(&mut answer).unwrap();
    assert!(answer[..length].starts_with(b"HTTP/1.1 200"), "{:?}", &answer[..length]);
    stream
}

/// The answer on a new connection, or what is there of it.
fn status(site: &Site) -> Option<u16> {
    let mut stream = site.connect();
    let request = b"GET /assets/icon.svg HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).ok()?;
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    (!bytes.is_empty()).then(|| Answer::parse(bytes).status)
}

fn until_served(site: &Site) {
    let start = Instant::now();
    while status(site) != Some(200) {
        assert!(start.elapsed() < PATIENCE, "never served");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn half_requests_and_silent_connections_are_closed() {
    let site = limited(Limits { head: SHORT, ..Limits::default() });
    let heads =
        ["", "G", "GET / HTTP/1.1\r\nHost: localh", "GET / HTTP/1.1\r\nHost: localhost\r\nX: "];
    for half in heads {
        let mut stream = site.connect();
        stream.write_all(half.as_bytes()).unwrap();
        assert!(ends(&mut stream), "{half:?}");
    }
    // Also one that was answered and asks for nothing more.
    assert!(ends(&mut open(&site)));
}

#[test]
fn a_body_that_does_not_arrive_is_not_waited_for() {
    let site = limited(Limits { request: SHORT, ..Limits::default() });
    let mut stream = site.connect();
    let head =
        "PUT /api/runs/mine/note HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n";
    write!(stream, "{head}Content-Length: 99\r\n\r\n{{\"text\":").unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 503");
}

#[test]
fn a_large_body_is_refused_and_without_the_token_it_is_not_even_read() {
    let site = limited(Limits::default());
    let put = |token: &str, sent: usize| {
        let body = "x".repeat(sent);
        let head = "PUT /api/runs/mine/note HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
        let mut stream = site.connect();
        write!(stream, "{head}{token}Content-Length: 100000\r\n\r\n{body}").unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        String::from_utf8(answer.into()).unwrap()
    };
    assert_eq!(put("Authorization: Bearer secret\r\n", 100_000), "HTTP/1.1 400");
    assert_eq!(put("", 10), "HTTP/1.1 401");
}

#[test]
fn too_many_connections_are_told_to_come_back() {
    let site = limited(Limits { connections: 3, ..Limits::default() });
    let mut streams: Vec<TcpStream> = (0..3).map(|_| open(&site)).collect();
    assert_eq!(status(&site), Some(503));
    streams.pop();
    until_served(&site);
}

#[test]
fn an_answer_that_nobody_takes_does_not_keep_its_place() {
    let site = limited(Limits { connections: 1, answer: SHORT, ..Limits::default() });
    let mut stream = site.connect();
    // More than the system keeps for a connection.
    let many = "GET /assets/chart.js HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(3000);
    stream.write_all(many.as_bytes()).unwrap();
    until_served(&site);
}

#[test]
fn too_many_streams_are_told_to_come_back() {
    let site = limited(Limits { streams: 2, ..Limits::default() });
    let mut streams = [site.events("mine", ""), site.events("mine", "")];
    streams.iter_mut().for_each(|stream| drop(stream.wait_for("points")));
    let head = "GET /api/runs/mine/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let answer = site.ask(head);
    assert_eq!(answer.status, 503);
    assert!(answer.head.contains("retry-after"), "{}", answer.head);
    assert_eq!(site.get("/").status, 200);
    // Whoever leaves makes room.
    drop(streams);
    let start = Instant::now();
    let mut first = [0; 12];
    while &first != b"HTTP/1.1 200" {
        assert!(start.elapsed() < PATIENCE, "never served");
        let mut stream = site.connect();
        stream.write_all(head.as_bytes()).unwrap();
        stream.read_exact(&mut first).unwrap();
    }
}

/// Threads of a server in this process.
fn threads(site: &Site) -> usize {
    let name = format!("serve-{}", site.server.address().port());
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|comm| comm.trim() == name).count()
}

#[test]
fn threads_do_not_grow_with_clients() {
    let site = Site::new(|root| many(root, 20, 400));
    let most = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..100)
            .map(|place| {
                let path =
                    ["/", "/runs/mgr-003", "/api/compare?run=mgr-003", "/api/runs"][place % 4];
                let site = &site;
                scope.spawn(move || assert!(matches!(site.get(path).status, 200 | 503)))
            })
            .collect();
        let mut most = 0;
        while !clients.iter().all(|client| client.is_finished()) {
            most = most.max(threads(&site));
        }
        most
    });
    assert!((1..=12).contains(&most), "{most} threads");
}

#[test]
fn many_curves_together_are_no_longer_than_a_page_shows() {
    let site = Site::new(|root| many(root, 60, 1500));
    let runs: Vec<String> = site.json("/api/runs")["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| format!("run={}", run["id"].as_str().unwrap()))
        .collect();
    let both = site.json(&format!("/api/compare?points=20000&{}", runs.join("&")));
    for run in both["runs"].as_array().unwrap() {
        assert!(run["train"]["step"].as_array().unwrap().len() <= 1200);
    }
}
