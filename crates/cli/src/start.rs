//! What a newcomer sees: the first commands, all commands in groups, and what this program is.

use crate::screen::{Screen, Style, wrap};
use clap::Command;
use console::measure_text_width;
use std::sync::OnceLock;

/// What people do first: a command to copy, and what it does.
pub(crate) const FIRST: [(&str, &str); 5] = [
    ("hadal compare", "which residual stream learns better, and is that luck? a few minutes"),
    ("hadal diagnose MODEL --data TEXT", "what each block of a model does"),
    ("hadal prune plan MODEL --data TEXT", "which blocks can go, and what that costs"),
    ("hadal chat MODEL", "talk with a model: a folder of Hugging Face or a .gguf"),
    ("hadal serve runs", "watch runs in a browser while they learn"),
];

/// Commands by what they are for. Those in no group come last.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Learn and compare", &["compare", "new", "train", "data", "serve", "runs", "report"]),
    ("Look into a model", &["diagnose", "inspect", "plan", "perplexity", "parity", "policies"]),
    ("Change a model", &["convert", "prune", "skip", "import", "export", "verify"]),
    ("Use a model", &["generate", "chat", "bench"]),
];

/// Lines of help are no longer than this.
const LINE: usize = 80;

/// What `hadal` alone says.
pub(crate) fn first_steps(screen: &Screen) -> String {
    let mut text = String::from("hadal: a workbench for very deep language models\n\n");
    let bold = Style::default().bold();
    for (command, what) in FIRST {
        text += &format!("  {}\n      {what}\n", screen.paint(command, bold));
    }
    text + "\nhadal --help lists all commands, hadal COMMAND --help explains one.\n"
}

/// `0.1.0 (commit 8fb2ddd1, avx2)`
pub(crate) fn version() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let commit = option_env!("HADAL_COMMIT").and_then(|commit| commit.get(..8));
        let commit = commit.map_or_else(|| "no commit".into(), |commit| format!("commit {commit}"));
        let simd = hadal_train::provenance::simd(hadal_cpu::Precision::F32);
        format!("{} ({commit}, {simd} kernels)", env!("CARGO_PKG_VERSION"))
    })
}

/// The command whose help lists its commands in groups.
pub(crate) fn grouped(command: Command) -> Command {
    let commands = list(&command);
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{commands}Options:\n{{options}}{{after-help}}"
    );
    command.help_template(template)
}

fn list(command: &Command) -> String {
    let all: Vec<&Command> =
        command.get_subcommands().filter(|command| !command.is_hide_set()).collect();
    let named = |name: &str| all.iter().copied().find(|command| command.get_name() == name);
    let grouped = |name: &str| GROUPS.iter().any(|(_, names)| names.contains(&name));
    let others = all.iter().copied().filter(|command| !grouped(command.get_name()));
    let mut groups: Vec<(&str, Vec<&Command>)> = GROUPS
        .iter()
        .map(|(title, names)| (*title, names.iter().filter_map(|name| named(name)).collect()))
        .collect();
    groups.push(("More", others.collect()));
    let width = all.iter().map(|command| measure_text_width(command.get_name())).max();
    let width = width.unwrap_or(0);
    let mut text = String::new();
    for (title, commands) in groups.iter().filter(|(_, commands)| !commands.is_empty()) {
        text += &format!("{title}:\n");
        for command in commands {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let about = wrap(&about, LINE - width - 4).join(&format!("\n{:1$}", "", width + 4));
            text += &format!("  {:<width$}  {about}\n", command.get_name());
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::CommandFactory;

    #[test]
    fn every_command_is_listed_once_and_fits() {
        let command = Cli::command();
        let text = list(&command);
        for known in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            let line = format!("\n  {} ", known.get_name());
            assert_eq!(text.matches(&line).count(), 1, "{line} in\n{text}");
        }
        let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "{long:?}");
    }

    /// Lists show the first paragraph of a command's comment: an empty line must end it.
    #[test]
    fn what_a_command_does_is_said_in_a_line_or_two() {
        let (mut commands, mut seen) = (vec![Cli::command()], 0);
        while let Some(command) = commands.pop() {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let length = about.chars().count();
            assert!((10..140).contains(&length), "{}: {about}", command.get_name());
            commands.extend(command.get_subcommands().cloned());
            seen += 1;
        }
        assert!(seen > 25, "{seen} commands");
    }

    #[test]
    fn the_first_steps_are_commands() {
        for (line, _) in FIRST {
            let name = line.split(' ').nth(1).unwrap();
            assert!(Cli::command().find_subcommand(name).is_some(), "{line}");
        }
        let text = first_steps(&Screen::FILE);
        assert!(text.lines().all(|line| line.chars().count() <= 80) && !text.contains('\x1b'));
    }
}
