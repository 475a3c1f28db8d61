//! Writes a report as `hadal report` does: `cargo run -p hadal-report --example report -- OUT.html RUNS...`;
//! with `FIGURES=DIR` in the environment, pictures and tables too.

use hadal_report::page::{Request, write};
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut paths = std::env::args_os().skip(1).map(PathBuf::from);
    let output = paths.next().ok_or("usage: report OUT.html RUNS...")?;
    let figures = std::env::var_os("FIGURES").map(PathBuf::from);
    let request = Request {
        inputs: paths.collect(),
        output,
        csv: figures.clone(),
        svg: figures.clone(),
        png: figures,
    };
    let written = write(&request, |_| {})?;
    assert!(written.charts > 0, "a run has charts");
    Ok(())
}
