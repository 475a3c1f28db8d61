//! The command line as its users meet it: every test starts the real binary.

mod bench;
mod diagnose;
mod formats;
mod generate;
mod hostile;
mod hub;
mod import;
mod inspect;
mod integrity;
mod parity;
mod perplexity;
mod policies;
mod prune;
mod report;
mod skip;
mod support;

use std::path::Path;
use std::process::Command;
use support::{command, golden, run};

const COMMANDS: [&str; 16] = [
    "perplexity",
    "policies",
    "parity",
    "inspect",
    "generate",
    "bench",
    "completions",
    "compare",
    "diagnose",
    "report",
    "serve",
    "skip",
    "import",
    "prune",
    "export",
    "verify",
];

#[test]
fn completions_name_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(command("completions").arg(shell)).succeeded().stdout;
        for name in COMMANDS {
            assert!(script.contains(name), "{shell}: {name}");
        }
    }
    run(command("completions").arg("abacus")).refused(2, &["abacus", "bash", "zsh", "fish"]);
}

#[test]
fn help_and_version_are_answers_and_a_bare_hadal_is_a_question() {
    for name in COMMANDS {
        let help = run(command(name).arg("--help")).succeeded();
        assert!(help.stdout.contains("Usage: hadal"), "{}", help.stdout);
        assert_eq!(help.stderr, "");
    }
    let version = run(&mut command("--version")).succeeded().stdout;
    assert_eq!(version.trim(), concat!("hadal ", env!("CARGO_PKG_VERSION")));
    let bare = run(&mut Command::new(env!("CARGO_BIN_EXE_hadal")));
    assert_eq!(bare.code, 2);
    assert!(bare.stderr.contains("Commands:"), "{}", bare.stderr);
    run(&mut command("inspekt")).refused(2, &["inspekt", "inspect"]);
}

#[test]
fn the_files_that_help_names_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut seen = 0;
    for name in COMMANDS {
        let help = run(command(name).arg("--help")).succeeded().stdout;
        let is_ours =
            |word: &&str| ["tests/", "examples/", "configs/"].iter().any(|p| word.starts_with(p));
        for path in help.split_whitespace().filter(is_ours) {
            assert!(root.join(path.trim_end_matches('*')).exists(), "{name} --help names {path}");
            seen += 1;
        }
    }
    assert!(seen > 0, "there are no examples to try");
}

// Every run in these tests checks that nothing is coloured off a terminal.

#[test]
fn no_color_beats_a_forced_colour() {
    let forced = |command: &mut Command| command.env("CLICOLOR_FORCE", "1").output().unwrap();
    let coloured = forced(command("parity").arg("--help")).stdout;
    assert!(coloured.contains(&b'\x1b'), "there is nothing to switch off");
    let plain = forced(command("parity").arg("--help").env("NO_COLOR", "1")).stdout;
    assert!(!plain.is_empty() && !plain.contains(&b'\x1b'));
}

/// `script` gives its command a terminal.
#[test]
#[cfg(target_os = "linux")]
fn an_error_is_red_on_a_terminal_unless_no_color_is_set() {
    let on_a_terminal = |no_color: bool| {
        let mut command = Command::new("script");
        command.args([
            "-qec",
            concat!(env!("CARGO_BIN_EXE_hadal"), " inspect nowhere"),
            "/dev/null",
        ]);
        command.env_remove("NO_COLOR");
        if no_color {
            command.env("NO_COLOR", "1");
        }
        command.output().ok().map(|output| String::from_utf8(output.stdout).unwrap())
    };
    // Some containers have no `script`.
    let (Some(coloured), Some(plain)) = (on_a_terminal(false), on_a_terminal(true)) else { return };
    assert!(coloured.contains("\x1b[1;31merror\x1b[0m: cannot read nowhere"), "{coloured:?}");
    assert!(plain.contains("error: cannot read nowhere") && !plain.contains('\x1b'), "{plain:?}");
}

/// `hadal ... | head`, when `head` has already gone.
#[test]
fn a_closed_pipe_ends_every_command_quietly() {
    for arguments in [&["policies"][..], &["policies", "--json"], &["completions", "bash"]] {
        let quiet = run(into_closed_pipe(command(arguments[0]).args(&arguments[1..])));
        assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""), "{arguments:?}");
    }
    for name in ["parity", "inspect"] {
        for json in [&[][..], &["--json"]] {
            let quiet =
                run(into_closed_pipe(command(name).arg(golden("mgr-competitive")).args(json)));
            assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""), "{name}");
        }
    }
}

pub(crate) fn into_closed_pipe(command: &mut Command) -> &mut Command {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.stdout(writer)
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_a_failure_and_not_a_silence() {
    for arguments in [&["policies"][..], &["policies", "--json"], &["completions", "zsh"]] {
        let full = std::fs::File::create("/dev/full").unwrap();
        run(command(arguments[0]).args(&arguments[1..]).stdout(full))
            .refused(1, &["cannot write the output", "No space left"]);
    }
}
