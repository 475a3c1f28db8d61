//! Run folders, as reports read them.

use crate::{folder, scratch};
use hadal_report::figure::plotly::Shared;
use hadal_report::figure::{drawable, heat_range, overlay, picture, plotly, table};
use hadal_report::page::{Request, write};
use hadal_report::run::Run;
use hadal_report::suite::SuiteTable;
use std::path::PathBuf;

fn written(bytes: &[u8]) -> PathBuf {
    let run = scratch::empty("run");
    folder::write(&folder::split(bytes), &run);
    run
}

/// Any folder is a run whose figures can be drawn, or is refused.
pub(super) fn run(bytes: &[u8]) {
    let path = written(bytes);
    let _ = SuiteTable::read(&path).map_err(|error| error.to_string());
    let run = match Run::read(&path) {
        Ok(run) => run,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let _ = (run.residual(), run.seed());
    let _ = heat_range(&run.figures);
    for figure in &run.figures {
        let _ = table::csv(figure);
        if let Some(figure) = drawable(figure) {
            let _ = plotly::chart(&figure, Shared::default()).to_string();
            let _ = picture::svg(&figure, Shared::default());
        }
    }
    let labelled: Vec<_> =
        run.figures.iter().flat_map(|f| ["a", "b"].map(|l| (l.to_owned(), f.clone()))).collect();
    let _ = overlay(&labelled);
}

/// Any folder is reported, or refused.
pub(super) fn report(bytes: &[u8]) {
    let path = written(bytes);
    let out = scratch::empty("report");
    let request = Request {
        inputs: vec![path],
        output: out.join("report.html"),
        csv: Some(out.join("csv")),
        svg: None,
        png: None,
    };
    let _ = write(&request, |_| ()).map_err(|error| error.to_string());
}
