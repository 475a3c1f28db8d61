//! `hadal report`: runs and suites as one file that opens in any browser.

use crate::failure::Failure;
use crate::output::{print_json, spinner};
use crate::place::Place;
use crate::standard::{stdout, tell};
use clap::Args;
use hadal_report::page::{Request, is_page, write};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Write a report of runs: the answer, a picture of all differences, tables, charts, settings, in one HTML file
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal report runs/prenorm runs/mgr -o report.html
  hadal report SUITE_DIR                        what hadal compare wrote
  hadal report runs                             every run and suite below a folder, as hadal serve finds them
  hadal report runs/* --png figures --csv numbers")]
pub(crate) struct Report {
    /// Runs, suites of hadal compare, or folders that hold them at any depth; what cannot be compared stands apart
    #[arg(value_name = "RUNS", required = true)]
    inputs: Vec<PathBuf>,
    /// The file to write
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// Also write every figure's numbers into this directory
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
    /// Also write every figure as SVG into this directory
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Also write every figure as PNG into this directory
    #[arg(long, value_name = "DIR")]
    png: Option<PathBuf>,
    /// Print what was written as JSON
    #[arg(long)]
    json: bool,
}

impl Report {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let taken = &self.output;
        if fs::symlink_metadata(taken).is_ok() && !is_page(taken) {
            let taken = taken.display();
            let said = format!(
                "{taken} exists already and is no page of hadal; name another file with -o"
            );
            return Err(Failure::usage(said));
        }
        Place { path: taken, option: "-o", example: "other.html" }.writable()?;
        let spinner = spinner("reading runs".into());
        let Self { inputs, output, csv, svg, png, json } = self;
        let request = Request { inputs, output, csv, svg, png };
        let written = write(&request, |file| spinner.set_message(format!("writing {file}")));
        spinner.finish_and_clear();
        let written = written?;
        if json {
            print_json(&written)?;
            return Ok(ExitCode::SUCCESS);
        }
        for note in &written.notes {
            tell(&format!("note: {note}"));
        }
        let mut out = stdout();
        writeln!(out, "{}", written.headline)?;
        if written.answers.len() > 1 {
            for answer in &written.answers {
                writeln!(out, "- {answer}")?;
            }
        }
        writeln!(
            out,
            "{}: {} charts of {}",
            written.report.display(),
            written.charts,
            written.taken
        )?;
        if !written.files.is_empty() {
            writeln!(out, "and {} files of figures", written.files.len())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
