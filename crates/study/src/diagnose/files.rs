//! A diagnosis as files: each figure as JSON, CSV, SVG and PNG, and `about/summary.json`.

use super::Summary;
use super::error::DiagnoseError;
use hadal_files::{Action, create_directory, file_error, pretty_json, write_whole};
use hadal_report::figure::picture::PictureError;
use hadal_report::figure::plotly::Shared;
use hadal_report::figure::{Figure, drawable, picture, table};
use serde::Serialize;
use std::io;
use std::path::Path;

/// Writes the figures and their summary. A reader never sees half a file.
pub fn write(
    directory: &Path,
    figures: &[Figure],
    summaries: &[Summary],
) -> Result<(), DiagnoseError> {
    // Apart from the figures: readers of a figure directory take every JSON file for one.
    let about = directory.join("about");
    create_directory(&about)?;
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
        write_whole(&beside("csv"), table::csv(figure))?;
        // A figure with nothing to draw is still worth its data.
        if drawable(figure).is_some() {
            let svg = picture::svg(figure, Shared::default()).map_err(undrawn(&beside("svg")))?;
            write_whole(&beside("svg"), svg)?;
            let png = picture::png(figure, Shared::default()).map_err(undrawn(&beside("png")))?;
            write_whole(&beside("png"), png)?;
        }
    }
    Ok(())
}

fn undrawn(path: &Path) -> impl FnOnce(PictureError) -> DiagnoseError {
    let path = path.to_owned();
    move |error| file_error(Action::Draw, &path)(io::Error::other(error)).into()
}

pub(crate) fn json(path: &Path, value: &impl Serialize) -> Result<(), DiagnoseError> {
    Ok(write_whole(path, pretty_json(path, value)?)?)
}
