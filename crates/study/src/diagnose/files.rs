//! A diagnosis as files: each figure as JSON, CSV, SVG and PNG, `about/summary.json`, and `index.html` with all of it.

use super::Summary;
use super::error::DiagnoseError;
use hadal_files::{Action, StagedDirectory, WholeFile, create_directory, file_error, pretty_json};
use hadal_report::figure::picture::PictureError;
use hadal_report::figure::plotly::Shared;
use hadal_report::figure::{Figure, drawable, picture, table};
use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The page that shows it all.
pub const PAGE: &str = "index.html";

/// Writes the figures, their summary and a page of them. A new directory is whole or absent; in one that exists each file is whole.
pub fn write(
    directory: &Path,
    figures: &[Figure],
    summaries: &[Summary],
    page: Option<String>,
) -> Result<(), DiagnoseError> {
    let mut files = Files::default();
    files.figures(figures)?;
    // Apart from the figures: readers of a figure directory take every JSON file for one.
    match summaries {
        [one] => files.json("about/summary.json", one)?,
        all => files.json("about/summary.json", &all)?,
    }
    // The last: what it shows is there.
    if let Some(page) = page {
        files.add(PAGE, page);
    }
    files.write(directory)
}

/// Files that belong together.
#[derive(Debug, Default)]
pub(crate) struct Files(Vec<(PathBuf, Vec<u8>)>);

impl Files {
    /// Adds a file, named from the directory that all of them will be in.
    pub(crate) fn add(&mut self, name: impl Into<PathBuf>, content: impl Into<Vec<u8>>) {
        self.0.push((name.into(), content.into()));
    }

    /// Adds a value as JSON.
    pub(crate) fn json(
        &mut self,
        name: impl Into<PathBuf>,
        value: &impl Serialize,
    ) -> Result<(), DiagnoseError> {
        let name = name.into();
        let text = pretty_json(&name, value)?;
        self.add(name, text);
        Ok(())
    }

    /// Adds figures as JSON, CSV, SVG and PNG.
    pub(crate) fn figures(&mut self, figures: &[Figure]) -> Result<(), DiagnoseError> {
        for figure in figures {
            let name = |extension: &str| PathBuf::from(format!("{}.{extension}", figure.name));
            self.json(name("json"), figure)?;
            self.add(name("csv"), table::csv(figure));
            // A figure with nothing to draw is still worth its data.
            if drawable(figure).is_some() {
                let svg = picture::svg(figure, Shared::default()).map_err(undrawn(&name("svg")))?;
                self.add(name("svg"), svg);
                let png = picture::png(figure, Shared::default()).map_err(undrawn(&name("png")))?;
                self.add(name("png"), png);
            }
        }
        Ok(())
    }

    /// Writes all of them. A new directory is whole or absent. In one that exists, with whatever else is there, each file
    /// is whole, and none is replaced before the disk has taken all of them.
    pub(crate) fn write(&self, directory: &Path) -> Result<(), DiagnoseError> {
        if directory.exists() {
            return self.write_into(directory);
        }
        let staged = StagedDirectory::create(directory)?;
        self.write_into(staged.path())?;
        Ok(staged.finish()?)
    }

    fn write_into(&self, directory: &Path) -> Result<(), DiagnoseError> {
        let mut begun = Vec::new();
        for (name, content) in &self.0 {
            let path = directory.join(name);
            if let Some(parent) = path.parent().filter(|parent| !parent.is_dir()) {
                create_directory(parent)?;
            }
            let mut file = WholeFile::create(&path)?;
            file.put(content)?;
            file.flush().map_err(file_error(Action::Write, &path))?;
            begun.push(file);
        }
        begun.into_iter().try_for_each(|file| Ok(file.finish()?))
    }
}

fn undrawn(path: &Path) -> impl FnOnce(PictureError) -> DiagnoseError {
    let path = path.to_owned();
    move |error| file_error(Action::Draw, &path)(io::Error::other(error)).into()
}
