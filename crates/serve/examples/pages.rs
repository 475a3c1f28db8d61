//! Serves a folder of runs: `cargo run --release -p hadal-serve --example pages -- RUNS_DIR [PORT]`.

use hadal_serve::{Options, ServeError, Server};
use std::io::Write;

fn main() -> Result<(), ServeError> {
    let mut words = std::env::args().skip(1);
    let mut options = Options::new(words.next().unwrap_or_else(|| "runs".into()));
    options.port = words.next().and_then(|port| port.parse().ok()).unwrap_or(0);
    let server = Server::bind(options)?;
    let _ = writeln!(std::io::stdout(), "{} runs at {}", server.runs(), server.url());
    server.run()
}
