//! `hadal new`: a folder with a run and a suite to change, both explained.

use super::data::Bar;
use crate::failure::Failure;
use crate::standard::{stdout, tell};
use clap::Args;
use hadal_data::{DataConfig, Feed, PrepareOptions, TokenizerChoice, prepare};
use hadal_files::{StagedDirectory, write_whole};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const RUN: &str = include_str!("../../../../configs/new/run.toml");
const SUITE: &str = include_str!("../../../../configs/new/suite.toml");
const README: &str = include_str!("../../../../configs/new/README.md");
/// What results leave, and prepared text.
const IGNORED: &str = "/runs\n/data\n";
/// Where prepared text goes.
const DATA: &str = "data";
/// Length of the sequences of a text.
const SEQ_LEN: usize = 128;

/// Start a folder with a run and a suite to change
///
/// NAME/run.toml is for `hadal train`, NAME/suite.toml for `hadal compare`. Comments explain what people change, with
/// the defaults. Nothing is ever overwritten.
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal new first && cd first && hadal train run.toml
  hadal new book --text book.txt && cd book && hadal compare suite.toml")]
pub(crate) struct New {
    /// Folder to make
    #[arg(value_name = "NAME")]
    folder: PathBuf,
    /// Learn from this text, prepared into NAME/data with one token for each byte; anything that `hadal data prepare`
    /// reads [default: a book that ships with hadal]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
}

impl New {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let (place, name) = place(&self.folder)?;
        let staged = StagedDirectory::create(&place).map_err(Failure::failed)?;
        let learns = match &self.text {
            Some(text) => {
                prepare_text(text, &staged.path().join(DATA))?;
                Learns::text(&place.join(DATA), text)
            }
            None => Learns::built_in(),
        };
        for (file, template) in [
            ("run.toml", RUN),
            ("suite.toml", SUITE),
            ("README.md", README),
            (".gitignore", IGNORED),
        ] {
            write_whole(&staged.path().join(file), learns.fill(template, &name))
                .map_err(Failure::failed)?;
        }
        staged.finish().map_err(Failure::failed)?;
        let folder = self.folder.display();
        writeln!(
            stdout(),
            "{folder}: run.toml (one run), suite.toml (a comparison), README.md\n{}",
            learns.sentence
        )?;
        tell(&format!("next: cd {folder}, then hadal train run.toml or hadal compare suite.toml"));
        Ok(ExitCode::SUCCESS)
    }
}

/// The whole path of the new folder and its last part. There must be nothing yet.
fn place(folder: &Path) -> Result<(PathBuf, String), Failure> {
    let refuse = |problem: &str| Err(Failure::usage(format!("`{}` {problem}", folder.display())));
    let Some(name) = folder.file_name() else {
        return refuse("is no name for a new folder");
    };
    let Ok(place) = std::path::absolute(folder) else {
        return refuse("is no name for a new folder");
    };
    // Both are written into files.
    let Some(whole) = place.to_str().filter(|path| !path.chars().any(char::is_control)) else {
        return refuse(
            "is no name for a new folder: take letters that can be written into settings",
        );
    };
    if Path::new(whole).symlink_metadata().is_ok() {
        return refuse("exists already; choose another name");
    }
    let name = name.to_string_lossy().into_owned();
    Ok((place, name))
}

fn prepare_text(text: &Path, out: &Path) -> Result<(), Failure> {
    let options = PrepareOptions::new(vec![text.into()], out, TokenizerChoice::Bytes);
    let mut bar = Bar::default();
    let prepared = prepare(&options, &mut |progress| {
        bar.show(progress);
        ControlFlow::Continue(())
    });
    bar.clear();
    let tokens = prepared?.totals.tokens;
    let data = DataConfig { train: Some(out.into()), ..DataConfig::default() };
    if Feed::open(&data, Some(SEQ_LEN), 0).is_err() {
        return Err(Failure::usage(format!(
            "{} has {tokens} bytes, too few to learn from and to be measured on: take a longer text",
            text.display()
        )));
    }
    Ok(())
}

/// What a new folder learns from, as its files say it.
struct Learns {
    /// The section `[data]`, and what explains it.
    data: String,
    /// For people.
    sentence: String,
}

impl Learns {
    fn built_in() -> Self {
        Self {
            data: "\
# What to learn from. For your own text, `hadal data prepare FILE.txt --out data`, and here train = \"data\"
# instead of text. [data.generated] with task = \"khop\" and k = 3 is a task that needs depth, which has
# its own length: then leave out seq_len.
[data]
text = \"yankee\"         # a book that ships with hadal, as bytes"
                .into(),
            sentence: "Both learn from a book that ships with hadal. \
                       `hadal new NAME --text FILE.txt` learns from your own text."
                .into(),
        }
    }

    fn text(data: &Path, text: &Path) -> Self {
        // It was checked that the path can be written.
        let data = toml::Value::String(data.display().to_string());
        Self {
            data: format!(
                "\
# What to learn from: text that `hadal data prepare` made. This is its whole path, so that commands work in any
# folder; change it when you move the data. `data.validation` names other prepared text to be measured on;
# without it the last fiftieth of this one is held out.
[data]
train = {data}"
            ),
            sentence: format!("Both learn from {}, prepared in `{DATA}/`.", text.display()),
        }
    }

    fn fill(&self, template: &str, name: &str) -> String {
        let filled = template.replace("{{data}}", &self.data);
        filled.replace("{{learns}}", &self.sentence).replace("{{name}}", name)
    }
}
