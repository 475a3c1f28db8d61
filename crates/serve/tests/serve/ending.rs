//! Servers in a process of their own: signals, and a machine that has nothing left.

use crate::support::{Answer, run};
use hadal_serve::{Options, Server};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Set in the process that a test starts, to the folder of runs.
const FOLDER: &str = "HADAL_TEST_SERVE";

fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// Runs one test of this program again, as a shell script ends: `exec "$@"`.
fn again(test: &str, script: &str, folder: &std::path::Path) -> Child {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(program).args(["--exact", test, "--nocapture"]);
    command.env(FOLDER, folder).stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_signal_ends_it_soon_although_slow_clients_hang_on() {
    if let Some(folder) = folder() {
        let server = Server::bind(Options { port: 0, ..Options::new(folder) }).unwrap();
        let _ = writeln!(std::io::stdout(), "\n{}", server.address());
        server.run().unwrap();
        return;
    }
    let root = tempfile::tempdir().unwrap();
    run(root.path(), "mine", "mgr", 50);
    for signal in ["TERM", "HUP", "INT"] {
        let test = "ending::a_signal_ends_it_soon_although_slow_clients_hang_on";
        let mut server = again(test, "exec \"$@\"", root.path());
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let address = lines.find_map(|line| line.unwrap().parse().ok()).unwrap();
        let connect = |_| TcpStream::connect::<std::net::SocketAddr>(address).unwrap();
        let mut streams: Vec<TcpStream> = (0..64).map(connect).collect();
        for (place, stream) in streams.iter_mut().enumerate() {
            let events = "GET /api/runs/mine/events HTTP/1.1\r\nHost: localhost\r\n\r\n";
            let pages = "GET /assets/chart.js HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1000);
            let half = "GET / HTTP/1.1\r\nHost: local";
            stream.write_all([events, &pages, half, ""][place % 4].as_bytes()).unwrap();
        }
        // The streams are there.
        streams[0].read_exact(&mut [0; 12]).unwrap();
        let start = Instant::now();
        let id = server.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
        let ended = server.wait().unwrap();
        assert!(ended.success(), "{signal}: {ended}");
        assert!(start.elapsed() < Duration::from_secs(8), "{signal}: {:?}", start.elapsed());
    }
}

#[test]
fn without_descriptors_no_run_is_forgotten() {
    let Some(folder) = folder() else {
        let root = tempfile::tempdir().unwrap();
        for name in ["a", "group/b", "c"] {
            run(root.path(), name, "mgr", 5);
        }
        let test = "ending::without_descriptors_no_run_is_forgotten";
        let child = again(test, "ulimit -n 64; exec \"$@\"", root.path());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    };
    let server = Server::bind(Options { port: 0, ..Options::new(&folder) }).unwrap().spawn();
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut reader = BufReader::new(stream);
    let mut list = || -> Value {
        let request = b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\n";
        reader.get_mut().write_all(request).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            reader.read_until(b'\n', &mut head).unwrap();
        }
        let head = Answer::parse(head).head;
        let length = head.split("content-length: ").nth(1).unwrap();
        let length = length.split("\r\n").next().unwrap().parse().unwrap();
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        serde_json::from_slice(&body).unwrap()
    };
    let steps = |list: &Value| -> Vec<(String, u64)> {
        let runs = list["runs"].as_array().unwrap().iter();
        runs.map(|run| (run["id"].to_string(), run["step"].as_u64().unwrap())).collect()
    };
    let before = steps(&list());
    assert_eq!(before.len(), 3);
    let mut all = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        all.push(file);
    }
    // A run that changed cannot be read now, either: what is known of it stays.
    all.pop();
    let mut file = File::options().append(true).open(folder.join("a/metrics.jsonl")).unwrap();
    file.write_all(crate::support::lines(6..=7).as_bytes()).unwrap();
    drop(file);
    all.extend(File::open("/dev/null"));
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(steps(&list()), before);
    drop(all);
    std::thread::sleep(Duration::from_secs(1));
    let mut after = before;
    after[0].1 = 7;
    assert_eq!(steps(&list()), after);
}
