//! A diagnosis as files: each figure as JSON, CSV, SVG and PNG, and `about/summary.json`.

use super::Summary;
use super::error::{DiagnoseError, io_error};
use hadal_report::figure::picture::PictureError;
use hadal_report::figure::plotly::Shared;
use hadal_report::figure::{Figure, drawable, picture, table};
use serde::Serialize;
use std::fs;
use std::io;
use std::path::Path;

/// Writes figures and what they come to. A reader never sees half a file.
pub fn write(
    directory: &Path,
    figures: &[Figure],
    summaries: &[Summary],
) -> Result<(), DiagnoseError> {
    // Apart from the figures: whoever reads those takes every JSON file for one.
    let about = directory.join("about");
    fs::create_dir_all(&about).map_err(io_error("write", &about))?;
    write_figures(directory, figures)?;
    match summaries {
        [one] => json(&about.join("summary.json"), one),
        all => json(&about.join("summary.json"), &all),
    }
}

/// Writes figures as JSON, CSV, SVG and PNG into a directory that exists.
pub(crate) fn write_figures(directory: &Path, figures: &[Figure]) -> Result<(), DiagnoseError> {
    for figure in figures {
        let beside = |extension: &str| directory.join(format!("{}.{extension}", figure.name));
        json(&beside("json"), figure)?;
        whole(&beside("csv"), table::csv(figure).as_bytes())?;
        // What has nothing to draw is still worth its data.
        if drawable(figure).is_some() {
            let svg = picture::svg(figure, Shared::default()).map_err(undrawn(&beside("svg")))?;
            whole(&beside("svg"), svg.as_bytes())?;
            let png = picture::png(figure, Shared::default()).map_err(undrawn(&beside("png")))?;
            whole(&beside("png"), &png)?;
        }
    }
    Ok(())
}

fn undrawn(path: &Path) -> impl FnOnce(PictureError) -> DiagnoseError {
    let path = path.to_owned();
    move |error| io_error("draw", &path)(io::Error::other(error))
}

pub(crate) fn json(path: &Path, value: &impl Serialize) -> Result<(), DiagnoseError> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| io_error("write", path)(io::Error::other(error)))?;
    whole(path, text.as_bytes())
}

/// Puts a file in its place when all of it is written.
pub(crate) fn whole(path: &Path, content: &[u8]) -> Result<(), DiagnoseError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let beside = path.with_file_name(name);
    fs::write(&beside, content).map_err(io_error("write", &beside))?;
    fs::rename(&beside, path).map_err(io_error("write", path))
}
