//! `hadal man`: manual pages as files.

use crate::Cli;
use crate::failure::Failure;
use crate::standard::stdout;
use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use hadal_files::{create_directory, write_whole};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Write manual pages
///
/// One page for each command: hadal.1, hadal-train.1, hadal-prune-plan.1 and so on.
#[derive(Args)]
#[command(after_help = "\
Examples:
  hadal man ~/.local/share/man/man1 && man hadal-train")]
pub(crate) struct Manual {
    /// Directory to write them into
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Manual {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let pages = pages()?;
        create_directory(&self.directory).map_err(Failure::failed)?;
        for (name, page) in &pages {
            write_whole(&self.directory.join(name), page).map_err(Failure::failed)?;
        }
        writeln!(stdout(), "{} pages in {}", pages.len(), self.directory.display())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Names and contents of all pages.
fn pages() -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut all = Cli::command().disable_help_subcommand(true);
    all.build();
    let mut pages = Vec::new();
    add(&all, &mut pages)?;
    Ok(pages)
}

fn add(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    // Notes and examples are laid out by hand, so they get a section that keeps their lines.
    let notes = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let manual = Man::new(command.clone().after_help(None::<&str>).after_long_help(None::<&str>))
        .source(concat!("hadal ", env!("CARGO_PKG_VERSION")))
        .manual("hadal");
    let mut page = Vec::new();
    manual.render(&mut page)?;
    if let Some(notes) = notes {
        let mut section = Roff::new();
        section.control("SH", ["NOTES"]).control("nf", []);
        section.text(notes.lines().map(|line| roman(format!("{line}\n"))).collect::<Vec<_>>());
        section.control("fi", []).to_writer(&mut page)?;
    }
    pages.push((manual.get_filename(), page));
    let visible = command.get_subcommands().filter(|below| !below.is_hide_set());
    visible.into_iter().try_for_each(|below| add(below, pages))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The visible commands with those above them: `["hadal", "data", "prepare"]`.
    fn commands(command: &Command, above: &[String], found: &mut Vec<Vec<String>>) {
        let path: Vec<String> = above.iter().cloned().chain([command.get_name().into()]).collect();
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            commands(below, &path, found);
        }
        found.push(path);
    }

    #[test]
    fn every_command_has_a_page_that_names_its_options() {
        let mut found = Vec::new();
        commands(&Cli::command(), &[], &mut found);
        assert!(found.len() > 20, "{found:?}");
        let pages = pages().unwrap();
        assert_eq!(pages.len(), found.len());
        for path in &found {
            let name = format!("{}.1", path.join("-"));
            let Some((_, page)) = pages.iter().find(|(file, _)| *file == name) else {
                panic!("no {name}")
            };
            let page = String::from_utf8_lossy(page).replace("\\-", "-");
            let below = path[1..]
                .iter()
                .try_fold(Cli::command(), |command, name| command.find_subcommand(name).cloned());
            for option in below.unwrap().get_arguments().filter(|option| !option.is_hide_set()) {
                let name = option.get_long().unwrap_or(option.get_id().as_str());
                let positional = option.get_value_names().map(|names| names[0].to_string());
                let shown = page.contains(&format!("--{name}"))
                    || positional.is_some_and(|positional| page.contains(&positional));
                assert!(shown, "no {name} in:\n{page}");
            }
        }
    }
}
