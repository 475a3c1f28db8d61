//! Run folders, as the live pages read them, through the server itself.

use crate::{folder, scratch};
use hadal_serve::{Handle, Options, Server};
use std::cell::RefCell;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use tempfile::TempDir;

/// What is asked about the run `a`.
const PAGES: [&str; 6] = [
    "/api/runs/a/series",
    "/api/runs/a",
    "/api/runs/a/figures",
    "/api/compare?run=a",
    "/runs/a",
    "/api/runs",
];

struct Site {
    connection: BufReader<TcpStream>,
    server: Handle,
    root: TempDir,
}

thread_local! {
    static SITE: RefCell<Option<Site>> = const { RefCell::new(None) };
}

fn start() -> Site {
    let root = scratch::fresh();
    fs::create_dir(root.path().join("a")).expect("room for a run");
    fs::write(root.path().join("a/config.toml"), "").expect("room for a run");
    let options = Options { port: 0, ..Options::new(root.path()) };
    let server = Server::bind(options).expect("a free port").spawn();
    Site { connection: connect(&server), server, root }
}

fn connect(server: &Handle) -> BufReader<TcpStream> {
    BufReader::new(TcpStream::connect(server.address()).expect("a server that listens"))
}

/// Any folder is shown, or an error is.
pub(super) fn serve(bytes: &[u8]) {
    SITE.with_borrow_mut(|site| {
        let current = site.get_or_insert_with(start);
        let run = current.root.path().join("a");
        for entry in fs::read_dir(&run).into_iter().flatten().flatten() {
            let _ = fs::remove_file(entry.path()).or_else(|_| fs::remove_dir_all(entry.path()));
        }
        folder::write(&folder::split(bytes), &run);
        for page in PAGES {
            // A server may close a connection that was quiet, but not two in a row.
            let status = ask(&mut current.connection, page).or_else(|_| {
                current.connection = connect(&current.server);
                ask(&mut current.connection, page)
            });
            match status {
                // A folder without settings and metrics is no run.
                Ok(status) => assert!([200, 404, 422].contains(&status), "{page}: {status}"),
                Err(error) => panic!("{page}: {error}"),
            }
        }
    });
}

/// One request on a connection that stays open; the answer's status.
fn ask(connection: &mut BufReader<TcpStream>, page: &str) -> io::Result<u16> {
    let request = format!("GET {page} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    connection.get_mut().write_all(request.as_bytes())?;
    let (mut status, mut length) = (0, 0);
    loop {
        let mut line = String::new();
        if connection.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(rest) = line.strip_prefix("http/1.1 ") {
            status = rest.get(..3).and_then(|code| code.parse().ok()).unwrap_or(0);
        } else if let Some(bytes) = line.strip_prefix("content-length: ") {
            length = bytes.parse().unwrap_or(0);
        } else if line.is_empty() {
            break;
        }
    }
    io::copy(&mut connection.take(length), &mut io::sink())?;
    Ok(status)
}
